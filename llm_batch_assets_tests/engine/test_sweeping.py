"""The orphan sweep: adopt what is unbound, report what is double, touch nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_batch_assets.controller import of_kind
from llm_batch_assets.engine import execute, plan
from llm_batch_assets.engine.sweeping import sweep
from llm_batch_assets_tests.engine.bench import CALM, QUICK, Bench
from llm_batch_assets_tests.engine.lost import backup, later, restore

Make = Callable[..., Bench]
DAY = 86_400.0


def _cancels(bench: Bench) -> list[str]:
    return [entry["path"].split("/")[-2] for entry in bench.calls("cancel")]


def test_what_is_bound_and_what_is_foreign_are_left_alone(make_slow: Make) -> None:
    one = make_slow(records=16)
    one.freeze()
    one.drive(until="submitted")
    one.sim.clone_batch(foreign=True)
    swept = sweep(one.deps, cancel=True)
    assert (swept.bound, swept.untouched, swept.exit_code) == (2, 1, 0)
    assert not (swept.adopted or swept.duplicates or swept.unknown or swept.elsewhere)
    assert _cancels(one) == []


def test_an_unbound_batch_is_adopted_and_never_cancelled(make_slow: Make) -> None:
    one = make_slow(records=8, settings=QUICK)
    one.freeze()
    one.sim.faults({"route": "create", "fault": "drop_after"})
    execute(plan(one.deps)[0], one.deps)
    assert one.view.shards[0].state == "UNCERTAIN"
    swept = sweep(one.deps, cancel=True)
    assert [a.why for a in swept.adopted] == ["it was UNCERTAIN"]
    assert one.view.shards[0].state == "SUBMITTED"
    assert _cancels(one) == []


def test_a_batch_that_an_old_ledger_never_sent_is_adopted(make_slow: Make, tmp_path: Path) -> None:
    one = make_slow(records=16)
    one.freeze()
    copy = backup(one, tmp_path / "old.db")
    one.drive(until="submitted")
    old = restore(one, copy)
    assert {s.state for s in old.view.shards} == {"VALIDATED"}
    swept = sweep(old.deps)
    assert len(swept.adopted) == 2
    assert swept.exit_code == 0
    old.sim.advance(DAY)
    old.drive()
    assert old.view.row.accepted == 16
    assert len(old.calls("create")) == 2
    assert old.sim.meter()["paid_twice"] == 0


def test_a_submit_over_a_known_batch_binds_it_instead(make_slow: Make, tmp_path: Path) -> None:
    """A look of another submission may be the first to see it: the fact alone must be enough."""
    from llm_batch_assets.ledger import facts

    one = make_slow(records=8)
    one.freeze()
    copy = backup(one, tmp_path / "old.db")
    one.drive(until="submitted")
    old = restore(one, copy)
    provider = old.deps.provider("openai")
    (view,) = provider.list_batches()
    assert view.submission_key is not None
    facts.record_batch(old.deps.ledger, provider.account(), view, view.submission_key, "list")
    (work,) = plan(old.deps)
    assert work.kind == "submit"
    execute(work, old.deps)
    assert old.view.shards[0].batch_id == view.batch_id
    assert len(old.calls("create")) == 1
    assert old.calls("cancel") == []


def test_a_second_batch_is_reported_and_cancelled_only_when_asked_and_old(make_slow: Make) -> None:
    one = make_slow(records=8, settings=CALM)
    one.freeze()
    one.drive(until="submitted")
    second = one.sim.clone_batch()["id"]
    swept = sweep(one.deps)
    assert ([d.batch_id for d in swept.duplicates], swept.exit_code) == ([second], 3)
    assert _cancels(one) == []
    swept = sweep(one.deps, cancel=True)
    assert "too young" in swept.duplicates[0].why
    assert _cancels(one) == []
    edge = CALM.lease_ttl + CALM.settle_interval
    assert not sweep(later(one, edge - 5), cancel=True).duplicates[0].cancelled
    swept = sweep(later(one, edge + 1), cancel=True)
    assert (swept.duplicates[0].cancelled, swept.exit_code) == (True, 0)
    assert _cancels(one) == [second]
    one.sim.advance(DAY)
    one.drive()
    assert one.view.row.accepted == 8


def test_a_second_batch_that_has_ended_is_booked_without_anybodys_word(make_slow: Make) -> None:
    """There is nothing left to cancel; what it cost must not be lost from sight."""
    one = make_slow(records=8)
    one.freeze()
    one.drive(until="submitted")
    second = one.sim.clone_batch()["id"]
    one.sim.advance(DAY)
    assert {b["phase"] for b in one.own_batches()} == {"completed"}
    swept = sweep(one.deps)
    assert ([d.batch_id for d in swept.duplicates], swept.exit_code) == ([second], 0)
    assert one.duplicates() == {second}
    one.drive()
    calls = len(one.calls("cancel"))
    assert sweep(one.deps).exit_code == 0
    assert len(one.calls("cancel")) == calls, "what is booked is not cancelled again"
    assert plan(one.deps) == []
    assert one.view.row.accepted == 8
    assert second not in {shard.batch_id for shard in one.view.shards}


@pytest.mark.parametrize("sent", [True, False])
def test_a_late_batch_of_an_absent_epoch_is_cancelled_and_booked(
    make_slow: Make, sent: bool
) -> None:
    """Listed later than the settle interval: only one batch of a shard is ever bound."""
    one = make_slow(records=8, settings=QUICK)
    one.freeze()
    one.sim.faults(
        {"route": "create", "fault": "drop_after"}, {"kind": "late_list", "seconds": 4.0}
    )
    execute(plan(one.deps)[0], one.deps)
    (late,) = [batch["id"] for batch in one.own_batches()]
    while one.view.shards[0].epoch == 0:
        for work in of_kind(plan(one.deps), "look"):
            execute(work, one.deps)
        time.sleep(0.05)
    if sent:
        one.drive(until="submitted")
    while len(list(one.deps.provider("openai").list_batches())) < (2 if sent else 1):
        time.sleep(0.1)
    swept = sweep(later(one, 60.0), cancel=True)
    assert [(d.batch_id, d.cancelled) for d in swept.duplicates] == [(late, True)]
    assert _cancels(one) == [late]
    assert one.duplicates() == {late}
    one.drive(until="submitted")
    one.sim.advance(DAY)
    one.drive()
    (shard,) = one.view.shards
    assert (shard.epoch, shard.batch_id != late) == (1, True)
    assert one.view.row.accepted == 8
    assert len(one.calls("create")) == 2
    assert one.sim.meter()["paid_twice"] == 0, "it was cancelled before it ran"
    assert one.duplicates() == {late}


def test_our_key_under_another_deployment_is_a_hold_for_a_person(make_slow: Make) -> None:
    one = make_slow(records=8)
    one.freeze()
    one.drive(until="submitted")
    (shard,) = one.view.shards
    labels = {"deployment": "prod", "submission_key": shard.submission_key}
    theirs = one.sim.clone_batch(metadata=labels)["id"]
    for _ in range(2):
        swept = sweep(one.deps, cancel=True)
        assert ([e.batch_id for e in swept.elsewhere], swept.exit_code) == ([theirs], 3)
    hold = one.view.shards[0].hold
    assert hold is not None
    assert "prod" in hold
    assert _cancels(one) == []


def test_a_batch_of_ours_that_the_ledger_does_not_know_is_reported(make_slow: Make) -> None:
    one = make_slow(records=8)
    one.freeze()
    one.drive(until="submitted")
    labels = {"deployment": one.deps.ledger.deployment, "submission_key": "f" * 64}
    lost = one.sim.clone_batch(metadata=labels)["id"]
    swept = sweep(one.deps, cancel=True)
    assert ([u.batch_id for u in swept.unknown], swept.exit_code) == ([lost], 3)
    assert "adopt --all" in swept.unknown[0].why
    assert _cancels(one) == []


def test_a_list_that_breaks_off_concludes_nothing(make_slow: Make) -> None:
    one = make_slow(records=8)
    one.freeze()
    one.drive(until="submitted")
    one.sim.clone_batch()
    one.sim.faults({"route": "list", "fault": "empty_page"})
    swept = sweep(one.deps, cancel=True)
    assert "openai" in swept.faults
    assert (swept.bound, swept.duplicates, swept.exit_code) == (0, [], 3)
