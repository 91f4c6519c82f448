"""What people decide, as rows: on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_batch_assets.errors import GateClosed, InputError, LedgerError, TransitionRefused
from llm_batch_assets.ledger import Ledger, accounting, adopting, cleaning, facts, people, views
from llm_batch_assets.ledger import submissions as rows
from llm_batch_assets.ledger.claims import claim
from llm_batch_assets.ledger.freezing import (
    Supersedes,
    find_revision,
    mark_superseded,
    open_revision,
)
from llm_batch_assets.ledger.leases import Lease, acquire
from llm_batch_assets.ledger.lookup import find_submissions, one_dataset, one_submission
from llm_batch_assets.ledger.rows import RevisionRow, SubmissionRow
from llm_batch_assets.types import BatchView
from llm_batch_assets_tests.clocks import ManualClock
from llm_batch_assets_tests.ledger.build import WORKER, frozen, job_spec, revision_spec

DAY = "2026-11-30"
S = 1_000_000


def _row(ledger: Ledger, number: int = 0) -> SubmissionRow:
    with ledger.read() as connection:
        return rows.load(connection, f"{DAY}-1-{number}")


def _revision(ledger: Ledger, revision: int | None = None) -> RevisionRow:
    return one_dataset(ledger, DAY, "w", revision)


def _lease(ledger: Ledger, target: str) -> Lease:
    lease = acquire(ledger, target, "holder-1", 60)
    assert lease is not None
    return lease


def _advance(ledger: Ledger, number: int, *states: str) -> SubmissionRow:
    row = _row(ledger, number)
    lease = _lease(ledger, row.target)
    for state in states:
        if state == "SUBMITTING":
            row = claim(
                ledger, row, lease=lease, worker=WORKER, account="acc",
                post_seconds=1,
            )  # fmt: skip
        else:
            batch = {"batch_id": f"b{number}"} if state == "SUBMITTED" else {}
            row = rows.transition(
                ledger, row, state, lease=lease, worker=WORKER, reason="test", **batch
            )
    return row


ENDED = ("SUBMITTING", "SUBMITTED", "RESULTS_AVAILABLE", "COLLECTED", "ACCOUNTED")


def test_a_cancel_flags_what_has_not_ended_and_is_recorded_once(ledger: Ledger) -> None:
    frozen(ledger)
    _advance(ledger, 0, *ENDED)
    revision = _revision(ledger)
    assert accounting.request_cancel(ledger, revision, WORKER, "why", {"done": 5})
    assert not accounting.request_cancel(ledger, revision, WORKER, "again")
    assert _row(ledger, 0).cancel_requested_at is None
    assert _row(ledger, 1).cancel_requested_at is not None
    (said,) = people.decisions_of(ledger, [revision.target])
    assert (said["reason"], said["actor"], said["facts"]) == ("why", "test", {"done": 5})
    with pytest.raises(GateClosed, match="why"):
        _advance(ledger, 1, "SUBMITTING")


def test_holds_of_datasets_and_submissions_and_their_release(ledger: Ledger) -> None:
    frozen(ledger)
    people.hold_dataset(ledger, _revision(ledger), WORKER, "wait")
    people.hold_submission(ledger, _row(ledger, 1), WORKER, "this one longer")
    with pytest.raises(GateClosed, match="wait"):
        _advance(ledger, 0, "SUBMITTING")
    assert people.release_dataset(ledger, _revision(ledger), WORKER, "go") == 1
    assert _revision(ledger).hold is None
    assert _row(ledger, 1).hold is None
    _advance(ledger, 0, "SUBMITTING")
    with pytest.raises(InputError, match="reason"):
        people.hold_dataset(ledger, _revision(ledger), WORKER, "")


def test_releasing_an_accounted_submission_lets_its_records_go(ledger: Ledger) -> None:
    frozen(ledger)
    row = _advance(ledger, 0, *ENDED)
    assert people.release_submission(ledger, row, WORKER, "paid") == 1
    assert _row(ledger, 0).released_at is not None
    assert _row(ledger, 1).released_at is None


def test_what_is_abandoned_is_not_in_flight_and_not_released(ledger: Ledger) -> None:
    frozen(ledger)
    people.abandon(ledger, _row(ledger, 0), WORKER, "enough")
    view = views.view_by_id(ledger, _revision(ledger).id)
    assert [s.ordinal for s in view.in_flight] == [1]
    with pytest.raises(GateClosed, match="abandoned"):
        _advance(ledger, 0, "SUBMITTING")
    with pytest.raises(GateClosed, match="abandoned"):
        people.release_submission(ledger, _row(ledger, 0), WORKER, "no")
    people.release_dataset(ledger, _revision(ledger), WORKER, "the others")
    assert _row(ledger, 0).hold == people.ABANDONED


def test_a_person_finds_submissions_by_any_name(ledger: Ledger) -> None:
    frozen(ledger)
    row = _advance(ledger, 0, "SUBMITTING", "SUBMITTED")
    for name in (row.shard_key, row.submission_key, "b0"):
        assert one_submission(ledger, name).id == row.id
    with pytest.raises(InputError, match="no shard"):
        one_submission(ledger, "nobody")
    with pytest.raises(InputError, match="no dataset"):
        one_dataset(ledger, "nobody")
    open_revision(
        ledger,
        revision_spec(DAY, workload="other"),
        replace(job_spec(DAY), job_key="sha256:other", shards=[]),
        [],
        WORKER,
    )
    with pytest.raises(InputError, match="--workload"):
        one_dataset(ledger, DAY)
    with ledger.read() as connection:
        assert find_submissions(connection, row.shard_key, "other") == []


def _publish(ledger: Ledger) -> RevisionRow:
    revision = _revision(ledger)
    settled = accounting.Settled("basis", "c" * 64, "t", "r", 0, 10, 0, 0, 0, 0, True)
    lease = _lease(ledger, revision.target)
    row = accounting.settle(ledger, revision, settled, {}, lease)
    accounting.publish(ledger, row, WORKER, lease)
    return _revision(ledger)


@pytest.mark.parametrize("before, found", [(1, 0), (0, 2), (-1, 2)])
def test_copies_may_go_from_the_second_on_that_the_policy_says(
    ledger: Ledger, clock: ManualClock, before: int, found: int
) -> None:
    frozen(ledger, delete_after=3600 * S)
    for number in (0, 1):
        _advance(ledger, number, *ENDED)
    assert views.snapshot(ledger).cleanable == ()
    _publish(ledger)
    clock.advance(3600 - before)
    assert len(views.snapshot(ledger).cleanable) == found


def test_nothing_goes_while_its_account_is_uncertain_or_after_it_is_gone(ledger: Ledger) -> None:
    frozen(ledger, delete_after=0)
    row = _advance(ledger, 0, *ENDED)
    _advance(ledger, 1, "SUBMITTING", "UNCERTAIN")
    _publish(ledger)
    assert cleaning.is_unsettled(ledger, "acc")
    assert not cleaning.is_unsettled(ledger, "another")
    assert views.snapshot(ledger).cleanable == ()
    other = _row(ledger, 1)
    rows.transition(
        ledger, other, "SUBMITTED", lease=_lease(ledger, other.target), worker=WORKER,
        reason="found", batch_id="b1",
    )  # fmt: skip
    assert [one.id for one, _ in views.snapshot(ledger).cleanable] == [row.id]
    rows.note(ledger, row, remote_deleted_at=1)
    assert views.snapshot(ledger).cleanable == ()


def test_a_batch_that_we_deleted_is_expected_in_no_list(ledger: Ledger) -> None:
    frozen(ledger)
    view = BatchView("b0", "completed", "done")
    facts.record_batch(ledger, "acc", view, f"{DAY}-1-0", "answer")
    with ledger.read() as connection:
        assert facts.known_batches(connection, "acc") == {"b0"}
    cleaning.mark_batch_deleted(ledger, "acc", "b0")
    with ledger.read() as connection:
        assert facts.known_batches(connection, "acc") == frozenset()
        assert facts.facts_of(connection, f"{DAY}-1-0") != []


def test_a_word_publishes_exactly_one_closure(ledger: Ledger) -> None:
    frozen(ledger)
    revision = _revision(ledger)
    accounting.request_cancel(ledger, revision, WORKER, "stop")
    lease = _lease(ledger, revision.target)
    settled = accounting.Settled("basis", "c" * 64, "t", "r", 0, 4, 0, 0, 6, 0, True)
    row = accounting.settle(ledger, revision, settled, {}, lease)
    with pytest.raises(TransitionRefused):
        accounting.publish(ledger, row, WORKER, lease)
    people.give_word(ledger, row, WORKER, "good enough")
    row = accounting.revision_by_id(ledger, row.id)
    assert (row.word_closure, row.word_by) == ("c" * 64, "test")
    assert accounting.publish(ledger, row, WORKER, lease)


def test_a_new_revision_supersedes_in_the_same_transaction(ledger: Ledger) -> None:
    old = frozen(ledger, open_datasets=1)
    job = replace(job_spec(DAY), job_key="sha256:r2", shards=[], records=0)
    spec = revision_spec(DAY, revision=2, carried=3, carried_digest="d", open_datasets=1)
    new, _, wrote = open_revision(ledger, spec, job, [], WORKER, Supersedes(old, "late rows"))
    assert (wrote, new.carried, new.carried_digest) == (True, 3, "d")
    row = _revision(ledger, 1)
    assert (row.superseded_by, row.superseded_reason) == ("test", "late rows")
    with ledger.write("again") as connection:
        assert not mark_superseded(connection, ledger, Supersedes(old, "again"), WORKER)
    with pytest.raises(GateClosed, match="superseded"):
        _advance(ledger, 0, "SUBMITTING")


def test_rows_are_restored_once_and_contradictions_are_refused(ledger: Ledger) -> None:
    spec = revision_spec(DAY, open_datasets=0)  # no gate is asked: it was opened before
    revision, new = adopting.restore_revision(ledger, spec, [], 17)
    assert (new, revision.created_at) == (True, 17)
    assert not adopting.restore_revision(ledger, spec, [], 18)[1]
    new = adopting.restore_job(ledger, revision, job_spec(DAY), WORKER, 17)[1]
    assert new
    assert not adopting.restore_job(ledger, revision, job_spec(DAY), WORKER, 17)[1]
    other = replace(job_spec(DAY), job_key="sha256:other")
    with pytest.raises(LedgerError, match="in the store"):
        adopting.restore_job(ledger, revision, other, WORKER, 17)
    row = _row(ledger, 0)
    keys = {0: row.submission_key, 1: "k1", 2: "k2"}
    assert adopting.restore_epochs(ledger, row.shard_id, keys, WORKER) == [1, 2]
    assert adopting.restore_epochs(ledger, row.shard_id, keys, WORKER) == []
    with ledger.read() as connection:
        assert rows.newest_epoch(connection, row.shard_id) == 2
        assert find_revision(connection, "t", "w", DAY) is not None


def test_what_may_have_been_sent_waits_for_looks(ledger: Ledger) -> None:
    frozen(ledger)
    row = _row(ledger, 0)
    lease = _lease(ledger, row.target)
    taken = adopting.take_for_sent(
        ledger, row, lease=lease, worker=WORKER, account="acc", reason="lost"
    )
    assert (taken.state, taken.posted_at) == ("SUBMITTING", taken.post_deadline)
    assert _revision(ledger).started_at is not None
    with pytest.raises(TransitionRefused):
        adopting.take_for_sent(
            ledger, taken, lease=lease, worker=WORKER, account="acc", reason="lost"
        )
