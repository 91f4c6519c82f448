"""Which closed revisions may be published, from hand-written rows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from llm_batch_assets.errors import GateClosed, NotReady
from llm_batch_assets.ledger.rows import RevisionRow
from llm_batch_assets.publish import enough_accepted, require_publishable


def revision(**changes: Any) -> RevisionRow:
    base = {
        "id": 1, "tenant_id": "t", "workload": "w", "dataset": "d1", "revision": 1,
        "provider": "openai", "records": 1000, "min_accepted_ppm": 950_000, "closed_at": 5,
        "closure_digest": "c", "open": 0, "accepted": 950, "human_review": 50,
    }  # fmt: skip
    values = {f.name: None for f in fields(RevisionRow)} | base | changes
    return RevisionRow(**values)


@pytest.mark.parametrize("accepted, enough", [(949, False), (950, True), (1000, True)])
def test_the_minimum_is_compared_without_rounding(accepted: int, enough: bool) -> None:
    assert enough_accepted(revision(accepted=accepted)) is enough


@pytest.mark.parametrize(
    "changes, error, says",
    [
        ({"closed_at": None, "settled_at": 1, "open": 3}, NotReady, "3 of 1000 records"),
        ({"closed_at": None, "settled_at": None}, NotReady, "none of its 1000"),
        ({"superseded_at": 1}, GateClosed, "superseded"),
        ({"cancel_requested_at": 1, "cancel_reason": "wrong"}, GateClosed, "cancelled: wrong"),
        ({"accepted": 949}, GateClosed, "949 of 1000"),
    ],
)
def test_everything_else_is_refused_with_its_reason(
    changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        require_publishable(revision(**changes))


def test_a_review_is_waited_for_only_where_the_workload_says_so() -> None:
    require_publishable(revision())
    require_publishable(revision(human_review=0), wait_for_review=True)
    with pytest.raises(GateClosed, match="50 records wait for a person"):
        require_publishable(revision(), wait_for_review=True)


def test_a_persons_word_holds_for_one_closure() -> None:
    require_publishable(revision(accepted=1, word_closure="c"), wait_for_review=True)
    with pytest.raises(GateClosed):
        require_publishable(revision(accepted=1, word_closure="an older one"))
