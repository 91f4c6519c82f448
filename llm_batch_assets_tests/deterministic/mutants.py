"""Ways to break what the simulation guards; each has to be found by some of its first seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from llm_batch_assets import download, finding, provisional, submission
from llm_batch_assets.engine import collecting
from llm_batch_assets.errors import ProviderError
from llm_batch_assets.ledger import facts
from llm_batch_assets_tests.deterministic import bench


@dataclass(frozen=True)
class Mutant:
    """A fault put into the product; one of the first seeds at least has to find it.

    ``found_by`` is one that did, tried first to save time.
    """

    name: str
    apply: Callable[[pytest.MonkeyPatch], None]
    found_by: int

    @property
    def seeds(self) -> tuple[int, ...]:
        """Which to try, in this order."""
        return (self.found_by, *range(60))


def _impatient(patch: pytest.MonkeyPatch) -> None:
    """Absence is proven by two looks, without a settle interval between them."""
    patch.setattr(bench, "SETTINGS", replace(bench.SETTINGS, settle_interval=0.0))


def _input_stays(patch: pytest.MonkeyPatch) -> None:
    """The upload is not deleted before the second create: a late POST finds its file."""

    def keep(row: Any, deps: Any) -> Any:
        finding.rows.note(deps.ledger, row, input_deleted_at=deps.ledger.time())
        return row

    patch.setattr(finding, "_delete_input", keep)


def _retries(patch: pytest.MonkeyPatch) -> None:
    """A create without a readable answer is sent again."""
    real = submission._not_created

    def again(row: Any, deps: Any, lease: Any, error: ProviderError) -> Any:
        error.effect, error.fault = "none", "refused_now"
        return real(row, deps, lease, error)

    patch.setattr(submission, "_not_created", again)


def _believes(patch: pytest.MonkeyPatch) -> None:
    """The first batch that fits is ours, without proof."""

    def judge(views: Any, row: Any, provider: Any) -> provisional.Verdict:
        return provisional.Verdict(tuple(views), (), (), ())

    patch.setattr(provisional, "judge", judge)


def _takes_short_files(patch: pytest.MonkeyPatch) -> None:
    """A short copy counts, and is not compared with a second one."""
    patch.setattr(download, "judge", lambda transfer: (True, "why not"))
    patch.setattr(collecting, "same_bytes", lambda receipts, earlier: True)


def _forgets_strays(patch: pytest.MonkeyPatch) -> None:
    """A second batch is neither cancelled nor booked."""
    patch.setattr(facts, "record_duplicate", lambda *a: False)


def _forgets_answers(patch: pytest.MonkeyPatch) -> None:
    """Facts that any worker wrote do not stop the next epoch."""
    patch.setattr(facts, "facts_of", lambda *a: [])


def _one_look(patch: pytest.MonkeyPatch) -> None:
    """One clean look proves absence."""
    real = finding._conclude

    def once(row: Any, walk: Any, deps: Any, lease: Any, provider: Any) -> Any:
        after = real(row, walk, deps, lease, provider)
        fresh = after.state == "UNCERTAIN" and after.first_look_at == walk.started
        return finding._absent(after, deps, lease) if fresh else after

    patch.setattr(finding, "_conclude", once)


MUTANTS = [
    Mutant("impatient", _impatient, 6),
    Mutant("input stays", _input_stays, 57),
    Mutant("retries", _retries, 1),
    Mutant("believes", _believes, 2),
    Mutant("takes short files", _takes_short_files, 100),
    Mutant("forgets strays", _forgets_strays, 24),
    Mutant("forgets answers", _forgets_answers, 22),
    Mutant("one look", _one_look, 62),
]
