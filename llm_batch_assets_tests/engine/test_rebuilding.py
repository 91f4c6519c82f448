"""Losing the ledger: from the store and the provider's list, and nothing is sent twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from llm_batch_assets.engine import execute, plan
from llm_batch_assets.engine.cancelling import cancel
from llm_batch_assets.engine.gathering import collect_all
from llm_batch_assets.engine.rebuilding import rebuild
from llm_batch_assets.engine.superseding import supersede
from llm_batch_assets.errors import InputError, ProviderError
from llm_batch_assets.ledger import views
from llm_batch_assets.ledger.published import published_candidate
from llm_batch_assets.reconcile.tables import read_table
from llm_batch_assets_tests.engine.bench import CALM, DATASET, Bench, make_rows, make_workload
from llm_batch_assets_tests.engine.lost import backup, restore

Make = Callable[..., Bench]
DAY = 86_400.0


def _rows(bench: Bench) -> list[dict[str, object]]:
    digest = published_candidate(bench.deps.ledger, "lab", "notes", DATASET)
    assert digest is not None
    return read_table(bench.deps.store, digest).to_pylist()


def _creates(bench: Bench) -> int:
    return len(bench.calls("create"))


def _done(bench: Bench) -> None:
    """Drive to the end, letting the simulator's time pass whenever a batch runs."""
    for _ in range(10):
        bench.drive(stop=lambda: any(s.batch_id for s in bench.view.in_flight))
        if bench.view.row.closed_at is not None and not bench.view.in_flight:
            bench.drive()
            return
        bench.sim.advance(DAY)
        time.sleep(2 * CALM.poll_interval)  # what has ended is polled before the next day
    raise AssertionError(bench.states())


def test_an_empty_ledger_over_a_finished_dataset_publishes_the_same_table(make_slow: Make) -> None:
    one = make_slow(records=16)
    one.freeze()
    one.drive(until="submitted")
    one.sim.advance(DAY)
    one.drive()
    rows, creates, downloads = _rows(one), _creates(one), len(one.calls("download"))
    new = restore(one, None)
    rebuilt = rebuild(new.deps, reason="the disk died")
    assert (rebuilt.revisions, rebuilt.jobs, rebuilt.exit_code) == (1, 1, 0)
    assert len(rebuilt.from_evidence) == 2
    new.drive()
    assert _rows(new) == rows
    assert (_creates(new), len(new.calls("download"))) == (creates, downloads)
    again = rebuild(new.deps, reason="to be sure")
    assert (again.revisions, again.jobs, again.bound, again.looked_for) == (0, 0, [], [])


def test_what_runs_is_bound_and_what_was_never_sent_is_looked_for(make_slow: Make) -> None:
    one = make_slow(records=24)
    one.freeze()
    execute(next(w for w in plan(one.deps) if w.kind == "submit"), one.deps)
    new = restore(one, None)
    rebuilt = rebuild(new.deps, reason="the disk died")
    assert (len(rebuilt.bound), len(rebuilt.looked_for)) == (1, 2)
    assert sorted(s.state for s in new.view.shards) == ["SUBMITTED", "UNCERTAIN", "UNCERTAIN"]
    assert [w for w in plan(new.deps) if w.kind == "submit"] == []
    _done(new)
    assert new.view.row.accepted == 24
    assert _creates(new) == 3
    assert sorted(s.epoch for s in new.view.shards) == [0, 1, 1]
    assert new.sim.meter()["paid_twice"] == 0


def test_a_second_attempt_that_runs_is_restored_with_its_lineage(make_slow: Make) -> None:
    one = make_slow(records=16)
    one.freeze()
    one.sim.faults({"kind": "error_500", "ids": one.wire_ids([1, 12]), "executions": 1})
    one.drive(until="submitted")
    one.sim.advance(DAY)
    one.drive(stop=lambda: len(one.view.jobs) == 2 and one.view.shards[-1].batch_id is not None)
    creates = _creates(one)
    new = restore(one, None)
    rebuilt = rebuild(new.deps, reason="the disk died")
    assert (rebuilt.jobs, len(rebuilt.from_evidence), len(rebuilt.bound)) == (2, 2, 3)
    _done(new)
    assert (new.view.row.accepted, len(new.view.jobs)) == (16, 2)
    assert _creates(new) == creates
    assert new.sim.meter()["paid_twice"] == 0


@pytest.mark.parametrize("ended", [True, False])
def test_a_day_old_ledger_sends_nothing_again(make_slow: Make, tmp_path: Path, ended: bool) -> None:
    one = make_slow(records=16)
    one.freeze()
    copy = backup(one, tmp_path / "yesterday.db")
    one.drive(until="submitted")
    if ended:
        one.sim.advance(DAY)
        one.drive()
    creates = _creates(one)
    old = restore(one, copy)
    rebuilt = rebuild(old.deps, reason="restored from the backup")
    assert (rebuilt.revisions, rebuilt.looked_for) == (0, [])
    assert len(rebuilt.bound) == 2
    _done(old)
    assert old.view.row.accepted == 16
    assert _creates(old) == creates
    assert old.sim.meter()["paid_twice"] == 0


def test_a_later_epoch_that_the_old_ledger_lacks_is_bound(make_slow: Make, tmp_path: Path) -> None:
    one = make_slow(records=8)
    one.freeze()
    copy = backup(one, tmp_path / "yesterday.db")
    one.sim.faults({"kind": "fail", "code": "token_limit_exceeded"})
    one.drive(until="submitted")
    one.sim.advance(3600)
    one.drive(stop=lambda: one.view.shards[0].epoch == 1 and one.view.shards[0].batch_id)
    assert one.view.shards[0].epoch == 1
    old = restore(one, copy)
    rebuilt = rebuild(old.deps, reason="restored from the backup")
    assert rebuilt.exit_code == 0
    assert (old.view.shards[0].epoch, old.view.shards[0].state) == (1, "SUBMITTED")
    assert [w.kind for w in plan(old.deps) if w.kind in ("submit", "stray")] == []
    _done(old)
    assert (old.view.row.accepted, _creates(old)) == (8, 2)


def test_what_was_removed_at_the_provider_is_in_evidence(make_slow: Make) -> None:
    workload = make_workload(retention={"delete_remote": "after_delivery"})
    one = make_slow(records=8, workload=workload)
    one.freeze()
    one.drive(until="submitted")
    one.sim.advance(DAY)
    one.drive()
    assert one.sim.state()["files"] == []
    rows = _rows(one)
    new = restore(one, None)
    rebuild(new.deps, reason="the disk died")
    new.drive()
    assert _rows(new) == rows
    assert _creates(new) == 1


def test_revisions_and_what_they_carried_come_back(make_slow: Make) -> None:
    one = make_slow(records=8)
    one.freeze()
    one.drive(until="submitted")
    one.sim.advance(DAY)
    one.drive()
    supersede(
        one.workload,
        pa.Table.from_pylist(make_rows(10)).to_batches(),
        dataset=DATASET,
        deps=one.deps,
        submitter="test",
        reason="late rows",
    )
    _done(one)
    rows, creates = _rows(one), _creates(one)
    assert len(rows) == 10
    new = restore(one, None)
    rebuilt = rebuild(new.deps, reason="the disk died")
    assert rebuilt.revisions == 2
    first = views.revision_view(new.deps.ledger, "lab", "notes", DATASET, 1)
    assert first is not None
    assert first.row.superseded_at is not None
    new.drive()
    assert _rows(new) == rows
    assert _creates(new) == creates


def test_a_cancelled_dataset_stays_cancelled(make_slow: Make) -> None:
    one = make_slow(records=16)
    one.freeze()
    execute(next(w for w in plan(one.deps) if w.kind == "submit"), one.deps)
    cancel(one.deps, dataset=DATASET, reason="wrong prompt")
    one.sim.advance(3600)
    assert collect_all(one.deps).exit_code == 0
    one.drive()
    assert one.view.row.closed_at is not None
    new = restore(one, None)
    rebuild(new.deps, reason="the disk died")
    new.drive()
    assert new.view.row.cancel_requested_at is not None
    assert new.view.row.closed_at is not None
    assert _creates(new) == 1
    assert published_candidate(new.deps.ledger, "lab", "notes", DATASET) is None


def test_a_list_that_cannot_be_read_restores_nothing(make_slow: Make) -> None:
    one = make_slow(records=8)
    one.freeze()
    one.drive(until="submitted")
    new = restore(one, None)
    new.sim.faults({"route": "list", "fault": "empty_page"})
    with pytest.raises(ProviderError):
        rebuild(new.deps, reason="the disk died")
    assert views.all_revisions(new.deps.ledger) == []
    with pytest.raises(InputError, match="reason"):
        rebuild(new.deps, reason="")


def test_a_batch_that_no_manifest_explains_needs_a_person(make_slow: Make) -> None:
    one = make_slow(records=8, settings=CALM)
    one.freeze()
    one.drive(until="submitted")
    labels = {"deployment": one.deps.ledger.deployment, "submission_key": "e" * 64}
    lost = one.sim.clone_batch(metadata=labels)["id"]
    foreign = one.sim.clone_batch(foreign=True)["id"]
    rebuilt = rebuild(restore(one, None).deps, reason="the disk died")
    assert (len(rebuilt.unknown), rebuilt.exit_code) == (1, 3)
    assert lost in rebuilt.unknown[0]
    assert foreign not in str(rebuilt.as_dict())
