"""Due work from hand-written ledger rows and a clock."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from llm_batch_assets import controller, holds
from llm_batch_assets.ledger.rows import JobRow, RevisionRow, SubmissionRow
from llm_batch_assets.ledger.views import RevisionView, Snapshot
from llm_batch_assets.settings import Settings

S = 1_000_000
NOW = 1_000_000 * S
SETTINGS = Settings(settle_interval=900, poll_interval=30)


def _blank(cls: type, **values: Any) -> Any:
    return cls(**{f.name: values.get(f.name) for f in fields(cls)})


def revision(**changes: Any) -> RevisionRow:
    base = {
        "id": 7, "tenant_id": "t", "workload": "w", "dataset": "d1", "revision": 1,
        "provider": "openai", "records": 10, "created_at": NOW - 100 * S, "open_datasets": 1,
        "min_accepted_ppm": 950_000, "cut_after": 600 * S, "close_by": 72 * 3600 * S,
        "hold_deadline": 3600 * S, "started_at": NOW - 100 * S,
    }  # fmt: skip
    return _blank(RevisionRow, **{**base, **changes})


def job(attempt: int = 1, basis: str | None = None) -> JobRow:
    return _blank(
        JobRow, id=attempt, revision_id=7, attempt=attempt, job_key=f"k{attempt}", basis=basis
    )


def shard(state: str, ordinal: int = 0, **changes: Any) -> SubmissionRow:
    base = {
        "id": ordinal, "shard_id": ordinal, "epoch": 0, "submission_key": f"s{ordinal}",
        "state": state, "state_at": NOW - 50 * S, "due_at": NOW - S, "tries": 0, "looks": 0,
        "poll_faults": 0, "downloads": 0, "ordinal": ordinal, "shard_key": f"d1/r1/a1/p{ordinal}",
        "records": 5, "bytes": 10, "attempt": 1, "job_key": "k1", "revision_id": 7,
        "tenant_id": "t", "workload": "w", "dataset": "d1", "revision": 1, "provider": "openai",
        "account": "acc", "job_id": 1,
    }  # fmt: skip
    return _blank(SubmissionRow, **{**base, **changes})


def snap(*shards: SubmissionRow, row: RevisionRow | None = None, **more: Any) -> Snapshot:
    view = RevisionView(row or revision(), more.pop("jobs", (job(),)), shards)
    base = {"now": NOW, "revisions": (view,), "running": {("t", "w"): 1}, "last_look": {}}
    return Snapshot(**{**base, **more})


def kinds(snapshot: Snapshot) -> list[tuple[str, str | None]]:
    return [(w.kind, w.shard_key) for w in controller.due(snapshot, SETTINGS)]


@pytest.mark.parametrize("state", ["VALIDATED", "UPLOADED"])
def test_what_is_due_is_sent(state: str) -> None:
    assert kinds(snap(shard(state))) == [("submit", "d1/r1/a1/p0")]


@pytest.mark.parametrize(
    "changes",
    [
        {"hold": "account: 401"},
        {"due_at": NOW + 1},
    ],
)
def test_a_held_or_later_shard_is_not_sent_and_says_why(changes: dict[str, Any]) -> None:
    snapshot = snap(shard("VALIDATED", **changes))
    assert kinds(snapshot) == []
    assert len(controller.waiting(snapshot, SETTINGS)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"hold": "review", "hold_release": "release it"},
        {"cancel_requested_at": 1, "cancel_reason": "wrong prompt"},
        {"superseded_at": 1},
        {"started_at": None},  # another dataset is in progress, and open_datasets is 1
    ],
)
def test_gates_of_a_dataset_keep_back_submissions_but_never_collecting(
    changes: dict[str, Any],
) -> None:
    row = revision(**changes)
    found = kinds(snap(shard("VALIDATED"), shard("RESULTS_AVAILABLE", 1), row=row))
    assert found == [("collect", "d1/r1/a1/p1")]


def test_polls_follow_the_interval_and_back_off_after_failed_looks() -> None:
    fresh = shard("SUBMITTED", polled_at=NOW - 29 * S)
    assert kinds(snap(fresh)) == []
    assert kinds(snap(replace(fresh, polled_at=NOW - 30 * S))) == [("poll", "d1/r1/a1/p0")]
    unready = replace(fresh, polled_at=NOW - 30 * S, poll_faults=5)
    assert kinds(snap(unready)) == [("poll", "d1/r1/a1/p0")], "ended, its files are not named yet"
    failing = replace(fresh, polled_at=NOW - 30 * S, poll_faults=1, last_error="HTTP 500")
    assert kinds(snap(failing)) == []
    assert kinds(snap(replace(failing, polled_at=NOW - 60 * S))) == [("poll", "d1/r1/a1/p0")]


@pytest.mark.parametrize("now_after, found", [(0, False), (1, True)])
def test_the_first_look_starts_right_after_the_deadline(now_after: int, found: bool) -> None:
    row = shard("UNCERTAIN", post_deadline=NOW - now_after)
    assert bool(kinds(snap(row))) is found


def test_looks_that_prove_absence_are_a_settle_interval_after_what_they_follow() -> None:
    deadline = NOW - 2000 * S
    row = shard("UNCERTAIN", post_deadline=deadline)
    early = deadline + S
    assert controller.look_due(row, early, SETTINGS) == deadline + 900 * S
    first = deadline + 900 * S
    row = replace(row, first_look_at=first, input_deleted_at=first + 3 * S)
    assert controller.look_due(row, first, SETTINGS) == first + 903 * S


def test_one_look_serves_every_submission_of_an_account() -> None:
    rows = [shard("UNCERTAIN", n, post_deadline=NOW - 10 * S) for n in range(3)]
    other = shard("UNCERTAIN", 3, post_deadline=NOW - 10 * S, account="other")
    looks = controller.of_kind(controller.due(snap(*rows, other), SETTINGS), "look")
    assert sorted(w.key for w in looks) == ["acc", "other"]


def test_accounting_waits_until_nothing_is_in_flight() -> None:
    done = shard("ACCOUNTED", 0, closure_digest="c0", state_at=NOW - 10 * S)
    assert ("account", None) not in kinds(snap(done, shard("RUNNING", 1, polled_at=NOW)))
    both = (done, shard("ACCOUNTED", 1, closure_digest="c1"))
    assert kinds(snap(*both)) == [("account", None)]


def test_a_stuck_shard_does_not_hold_the_others_for_ever() -> None:
    done = shard("ACCOUNTED", 0, closure_digest="c0", state_at=NOW - 599 * S)
    stuck = shard("RUNNING", 1, polled_at=NOW)
    assert kinds(snap(done, stuck)) == []
    assert kinds(snap(replace(done, state_at=NOW - 600 * S), stuck)) == [("account", None)]


def test_the_same_evidence_is_accounted_once_but_an_uncut_attempt_is_asked_again() -> None:
    done = shard("ACCOUNTED", 0, closure_digest="c0")
    basis = controller.basis(snap(done).revisions[0], NOW)
    settled = revision(settlement_basis=basis, settled_at=NOW, retry_wanted=0)
    assert kinds(snap(done, row=settled)) == []
    # A worker died between settling and cutting: the attempt is still wanted.
    wanted = replace(settled, retry_wanted=3)
    assert kinds(snap(done, row=wanted)) == [("account", None)]
    cut = (job(), job(2, basis=basis))
    new = shard("VALIDATED", 1, attempt=2, due_at=NOW + S)
    assert kinds(snap(done, new, row=wanted, jobs=cut)) == []


@pytest.mark.parametrize("after, due", [(-1, False), (0, True), (1, True)])
def test_a_hold_is_accounted_again_at_its_deadline(after: int, due: bool) -> None:
    done = shard("ACCOUNTED", 0, closure_digest="c0", state_at=NOW - 3600 * S - after * S)
    early = replace(done, state_at=NOW)
    basis = controller.basis(snap(early).revisions[0], NOW)
    row = revision(settlement_basis=basis, settled_at=NOW, retry_wanted=0)
    assert (("account", None) in kinds(snap(done, row=row))) is due


@pytest.mark.parametrize(
    "changes, due",
    [
        ({}, True),
        ({"published_closure": "c"}, False),
        ({"withheld_closure": "c"}, False),
        ({"cancel_requested_at": 1}, False),
        ({"closed_at": None}, False),
    ],
)
def test_a_closed_revision_is_published_once_per_closure(
    changes: dict[str, Any], due: bool
) -> None:
    row = revision(**{"closed_at": NOW, "closure_digest": "c", **changes})
    assert (("publish", None) in kinds(snap(row=row))) is due


def test_what_can_be_lost_comes_first() -> None:
    found = kinds(snap(shard("VALIDATED", 0), shard("RUNNING", 1), shard("RESULTS_AVAILABLE", 2)))
    assert [kind for kind, _ in found] == ["collect", "poll", "submit"]


@pytest.mark.parametrize("state", ["SUBMITTED", "RUNNING"])
def test_a_cancel_goes_to_the_provider_until_it_is_taken(state: str) -> None:
    asked = shard(state, polled_at=NOW, cancel_requested_at=NOW - S)
    assert kinds(snap(asked)) == [("cancel", "d1/r1/a1/p0")]
    assert kinds(snap(replace(asked, cancel_sent_at=NOW))) == []
    assert kinds(snap(replace(asked, due_at=NOW + 1))) == []


@pytest.mark.parametrize("state", ["VALIDATED", "UNCERTAIN", "PROVISIONAL", "ACCOUNTED"])
def test_there_is_nothing_to_cancel_without_a_live_batch(state: str) -> None:
    row = shard(state, cancel_requested_at=NOW - S, post_deadline=NOW + S, hold="x")
    assert "cancel" not in [kind for kind, _ in kinds(snap(row))]


@pytest.mark.parametrize("after, found", [(-1, False), (0, True)])
def test_copies_are_removed_when_their_time_has_come(after: int, found: bool) -> None:
    gone = shard("ACCOUNTED", closure_digest="c0")
    snapshot = snap(revisions=(), cleanable=((gone, NOW - after),))
    assert (("clean", "d1/r1/a1/p0") in kinds(snapshot)) is found


def test_nobody_waits_for_what_a_person_gave_up() -> None:
    lost = shard("UNCERTAIN", abandoned_at=NOW, post_deadline=NOW - S, hold="abandoned")
    assert ("account", None) in kinds(snap(lost))
    view = snap(lost).revisions[0]
    assert holds.abandoned(view) == {(1, 0)}
    assert holds.overdue(view, NOW) == frozenset()
    assert controller.waiting(snap(lost), SETTINGS) == []


@pytest.mark.parametrize("let_go", [0, 4000])
@pytest.mark.parametrize("state", ["SUBMITTING", "UNCERTAIN"])
def test_what_a_person_gave_up_is_looked_for_as_long_as_two_looks_take(
    state: str, let_go: int
) -> None:
    """Its batch may exist; a worker that died before its create may have left it SUBMITTING, and a
    candidate may be let go only after the person's word.
    """
    given_up = NOW - 10_000 * S
    since = given_up + let_go * S
    lost = shard(
        state,
        state_at=since,
        abandoned_at=given_up,
        post_deadline=given_up - S,
        hold="abandoned",
    )
    enough = since + 3 * 900 * S
    for last_look, looks in ((None, True), (enough, True), (enough + 1, state == "SUBMITTING")):
        known = {} if last_look is None else {"acc": last_look}
        work = [kind for kind, _ in kinds(snap(lost, last_look=known))]
        assert ("look" in work) is looks, last_look


def test_what_a_person_says_is_accounted_anew() -> None:
    held = shard("ACCOUNTED", closure_digest="c0", state_at=NOW)
    plain = controller.basis(snap(held).revisions[0], NOW)
    for word in ({"released_at": NOW}, {"abandoned_at": NOW}):
        view = snap(replace(held, **word)).revisions[0]
        assert controller.basis(view, NOW) != plain
    assert holds.released(snap(replace(held, released_at=NOW)).revisions[0]) == {(1, 0)}
    assert holds.overdue(snap(replace(held, abandoned_at=NOW)).revisions[0], NOW) == {(1, 0)}


HOLD = {"hold": "account: 401", "hold_release": "Mend it.", "hold_at": NOW - 3600 * S}


@pytest.mark.parametrize("state", ["VALIDATED", "UPLOADED"])
@pytest.mark.parametrize("after, due", [(-1, False), (0, True)])
def test_a_hold_of_what_was_never_sent_ends_at_its_deadline(
    state: str, after: int, due: bool
) -> None:
    held = shard(state, state_at=NOW - 9 * 3600 * S, **HOLD | {"hold_at": NOW - 3600 * S - after})
    snapshot = snap(held)
    assert kinds(snapshot) == ([("account", None)] if due else [])
    (waits,) = controller.waiting(snapshot, SETTINGS)
    assert (waits.person, waits.release, waits.until) == (True, "Mend it.", NOW - after)
    assert controller.next_due(snapshot, SETTINGS) is None
    if not due:
        assert controller.next_deadline(snapshot) == NOW + 1


@pytest.mark.parametrize("state", ["SUBMITTING", "UNCERTAIN", "SUBMITTED", "RUNNING"])
def test_what_may_be_paid_for_is_waited_for_whatever_holds_it(state: str) -> None:
    sent = shard(state, post_deadline=NOW - 3000 * S, polled_at=NOW, **HOLD)
    assert holds.held_overdue(snap(sent).revisions[0], NOW) == []
    assert "account" not in [kind for kind, _ in kinds(snap(sent))]
    (waits,) = controller.waiting(snap(sent, last_look={"acc": NOW}), SETTINGS)
    assert (waits.person, waits.until is not None) == (False, True)


def test_what_a_deadline_gave_up_is_for_people_and_not_in_flight() -> None:
    over = shard("VALIDATED", abandoned_at=NOW, **HOLD)
    view = snap(over).revisions[0]
    assert view.in_flight == ()
    assert holds.abandoned(view) == holds.overdue(view, NOW) == {(1, 0)}
    assert holds.deadlines(view) == [view.row.created_at + view.row.close_by]


def test_nothing_goes_on_by_itself_where_only_people_can_move_it() -> None:
    lost = shard("RESULTS_GONE", state_at=NOW)
    snapshot = snap(lost, row=revision(settlement_basis=controller.basis(
        snap(lost).revisions[0], NOW), settled_at=NOW, retry_wanted=0))  # fmt: skip
    assert kinds(snapshot) == []
    assert controller.next_due(snapshot, SETTINGS) is None
    assert controller.next_deadline(snapshot) == NOW + 3600 * S
    running = snap(lost, shard("RUNNING", 1, polled_at=NOW))
    assert controller.next_due(running, SETTINGS) == NOW + 30 * S


def test_a_batch_that_is_given_up_is_still_polled_and_waited_for() -> None:
    paid = shard("RUNNING", abandoned_at=NOW, cancel_sent_at=NOW, polled_at=NOW, hold="abandoned")
    (waits,) = controller.waiting(snap(paid), SETTINGS)
    assert waits.until == NOW + 30 * S
