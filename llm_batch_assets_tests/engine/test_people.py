"""Hold, release, abandon, adopt: what each does to sending, to records and to the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from llm_batch_assets.engine import execute, people, plan
from llm_batch_assets.engine.cancelling import cancel
from llm_batch_assets.engine.execute import submit
from llm_batch_assets.errors import GateClosed, InputError
from llm_batch_assets.ledger.people import decisions_of
from llm_batch_assets.reconcile.verify import verify
from llm_batch_assets.types import BatchView
from llm_batch_assets_tests.engine.bench import CALM, DATASET, Bench, make_workload
from llm_batch_assets_tests.engine.lost import later

Make = Callable[..., Bench]
DAY = 86_400.0


def _kinds(bench: Bench) -> list[str]:
    return [work.kind for work in plan(bench.deps)]


def _settled(bench: Bench) -> bool:
    """What is left waits for a person, or for a deadline that is days away."""
    return bench.view.row.settled_at is not None and not plan(bench.deps)


def _decided(bench: Bench, target: str) -> list[tuple[str, str]]:
    return [(d["decision"], d["reason"]) for d in decisions_of(bench.deps.ledger, [target])]


def test_a_held_dataset_sends_nothing_until_it_is_released(bench: Make) -> None:
    one = bench(settings=CALM, records=16)
    one.freeze()
    people.hold(one.deps, DATASET, "prices change at noon")
    assert _kinds(one) == []
    with pytest.raises(GateClosed, match="prices change"):
        submit(one.view.shards[0], one.deps)
    waits = one.drive()
    assert "release d1" in waits[0]["release"]
    people.release(one.deps, DATASET, "they did")
    one.drive()
    assert one.view.row.published_at is not None
    assert _decided(one, one.view.row.target) == [
        ("hold", "prices change at noon"),
        ("release", "they did"),
    ]


def test_a_held_shard_leaves_the_others_alone(bench: Make) -> None:
    one = bench(settings=CALM, records=16)
    one.freeze()
    first, second = one.view.shards
    people.hold(one.deps, first.shard_key, "look at it first")
    assert [work.shard_key for work in plan(one.deps)] == [second.shard_key]
    people.release(one.deps, first.submission_key, "looked")
    one.drive()
    assert one.view.row.accepted == 16


def test_a_decision_needs_a_reason_and_a_target(bench: Make) -> None:
    one = bench(settings=CALM, records=8)
    one.freeze()
    with pytest.raises(InputError, match="reason"):
        people.hold(one.deps, DATASET, " ")
    assert one.view.row.hold is None
    with pytest.raises(InputError, match="no dataset"):
        people.release(one.deps, "d1/r9/a1/p00000", "x")


def test_an_account_that_was_mended_is_released_by_a_person(bench: Make) -> None:
    patient = make_workload(retry={"hold_deadline": "72h"})
    one = bench(settings=CALM, records=8, key="invalid-key", workload=patient)
    one.freeze()
    assert one.drive()[0]["why"].startswith("hold: account")
    people.release(one.deps, DATASET, "a new key is in place")
    one.drive(one.worker("mended"))
    assert one.view.row.accepted == 8


def test_a_hold_of_what_was_never_sent_ends_at_its_deadline(bench: Make) -> None:
    """Nobody mends the account: its records are for people, and a late release sends nothing."""
    one = bench(settings=CALM, records=16, workload=make_workload(retry={"hold_deadline": "1.5s"}))
    one.freeze()
    first, second = one.view.shards
    one.sim.faults({"route": "upload", "fault": "status_before", "status": 401})
    one.drive(stop=lambda: one.view.shards[0].hold is not None)
    (held,) = [s for s in one.view.shards if s.hold is not None]
    assert held.hold_at is not None and held.state == "VALIDATED"
    one.drive()
    row = one.view.row
    assert row.closed_at is not None
    assert (row.accepted, row.human_review) == (8, 8)
    assert set(one.reasons().values()) == {"held_too_long"}
    assert [kind for kind, _ in _decided(one, held.target)] == ["hold_deadline"]
    with pytest.raises(GateClosed, match="past its deadline"):
        people.release(one.deps, held.shard_key, "mended at last")
    people.release(one.deps, DATASET, "mended at last")
    with pytest.raises(GateClosed, match="on hold"):
        submit(next(s for s in one.view.shards if s.id == held.id), one.deps)
    one.drive()
    assert {first.state, second.state} == {"VALIDATED"}
    assert len(one.calls("create")) == 1
    assert verify(one.home / "artifacts").ok


def test_a_release_before_the_deadline_wins(bench: Make) -> None:
    """The deadline counts from the hold, not from the day on which the shard was frozen."""
    one = bench(settings=CALM, records=8, workload=make_workload(retry={"hold_deadline": "2s"}))
    one.freeze()
    time.sleep(2.1)
    people.hold(one.deps, one.view.shards[0].shard_key, "look at it first")
    assert _kinds(one) == []
    people.release(one.deps, one.view.shards[0].shard_key, "looked")
    one.drive()
    assert one.view.row.accepted == 8


def test_a_batch_that_failed_and_says_nothing_is_held_for_a_person(bench: Make) -> None:
    """No error list at all (B37): neither success nor proof of nothing, so nothing goes again."""
    one = bench(settings=CALM, records=8, workload=make_workload(retry={"hold_deadline": "72h"}))
    one.freeze()
    one.sim.faults({"kind": "fail", "code": "x"})
    mute = replace(one.deps, provider=lambda name: Mute(one.deps.provider(name)))
    waits = one.drive(mute)
    (shard,) = one.view.shards
    assert [(w["target"], w["why"]) for w in waits] == [
        (shard.shard_key, "8 records are held: unconfirmed")
    ]
    assert f"release {shard.shard_key}" in waits[0]["release"]
    assert one.view.row.closed_at is None and len(one.calls("create")) == 1
    people.release(one.deps, shard.shard_key, "nothing ran, says the console")
    one.drive()
    assert one.view.row.accepted == 8
    assert one.sim.meter()["paid_twice"] == 0


class Mute:
    """A provider whose failed batches name no errors."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def get(self, batch_id: str) -> BatchView:
        return replace(self._provider.get(batch_id), faults=())


def test_records_held_for_a_quota_go_again_when_released(bench: Make) -> None:
    one = bench(settings=CALM, records=16, workload=make_workload(retry={"hold_deadline": "72h"}))
    one.freeze()
    one.sim.faults({"kind": "error_quota", "ids": one.wire_ids([2, 9]), "executions": 1})
    waits = one.drive()
    assert one.view.row.closed_at is None
    assert one.states()["open"] == {2, 9}
    # What only a person moves is said at once: nobody sits here for 72 hours.
    assert sum(int(w["why"].split()[0]) for w in waits) == 2
    assert all("mend the openai account" in w["release"] and w["until"] for w in waits)
    people.release(one.deps, DATASET, "the invoice is paid")
    one.drive()
    row = one.view.row
    assert (row.accepted, len(one.view.jobs)) == (16, 2)
    assert one.view.jobs[1].records == 2
    assert one.sim.meter()["paid_twice"] == 0


def test_what_is_abandoned_goes_to_people_and_is_never_sent_again(bench: Make) -> None:
    one = bench(settings=CALM, records=16)
    one.freeze()
    one.sim.faults({"route": "create", "fault": "drop_before"})
    execute(next(w for w in plan(one.deps) if w.kind == "submit"), one.deps)
    (lost,) = [s for s in one.view.shards if s.state == "UNCERTAIN"]
    people.abandon(one.deps, lost.shard_key, "not worth the wait")
    one.drive()
    row = one.view.row
    assert row.closed_at is not None
    assert (row.accepted, row.human_review) == (8, 8)
    assert set(one.reasons().values()) == {"abandoned"}
    assert len(one.calls("create")) == 2
    assert _kinds(one) == []
    with pytest.raises(GateClosed, match="abandoned"):
        people.release(one.deps, lost.shard_key, "regret")
    with pytest.raises(GateClosed, match="closed"):
        people.abandon(one.deps, lost.shard_key, "again")


def test_an_unsent_shard_can_be_abandoned(bench: Make) -> None:
    one = bench(settings=CALM, records=16)
    one.freeze()
    people.abandon(one.deps, one.view.shards[1].shard_key, "wrong rows in it")
    one.drive()
    assert len(one.calls("create")) == 1
    assert (one.view.row.accepted, one.view.row.human_review) == (8, 8)


def test_a_running_batch_that_is_abandoned_is_cancelled_and_collected(make_slow: Make) -> None:
    one = make_slow(records=8)
    one.freeze()
    one.drive(until="submitted")
    one.sim.advance(DAY / 24)
    people.abandon(one.deps, one.view.shards[0].shard_key, "stuck")
    one.drive(stop=lambda: one.view.shards[0].cancel_sent_at is not None)
    one.sim.advance(3600)
    one.drive()
    assert one.view.row.closed_at is not None
    assert one.own_batches()[0]["phase"] == "cancelled"
    assert one.view.shards[0].state == "ACCOUNTED"


@pytest.mark.parametrize("again", [True, False])
def test_lost_results_wait_for_a_person_who_decides(bench: Make, again: bool) -> None:
    one = bench(settings=CALM, records=8, workload=make_workload(retry={"hold_deadline": "72h"}))
    one.sim.faults({"kind": "lost_result"})
    one.freeze()
    one.drive(stop=lambda: _settled(one))
    (shard,) = one.view.shards
    assert (shard.state, one.view.row.closed_at) == ("RESULTS_GONE", None)
    if again:
        people.release(one.deps, shard.shard_key, "pay for it again")
    else:
        people.abandon(one.deps, shard.shard_key, "too dear")
    one.drive()
    row = one.view.row
    assert row.closed_at is not None
    assert (row.accepted, row.human_review) == ((8, 0) if again else (0, 8))
    assert len(one.calls("create")) == (2 if again else 1)


@pytest.mark.parametrize("what", ["cancelled", "late"])
def test_a_release_of_lost_results_that_comes_to_nothing_ends_all_the_same(
    bench: Make, what: str
) -> None:
    """Cancelled after the release, or released after close_by: nothing goes, nothing stays open."""
    workload = make_workload(retry={"hold_deadline": "144h"})
    one = bench(settings=CALM, records=8, workload=workload)
    one.sim.faults({"kind": "lost_result"})
    one.freeze()
    one.drive(stop=lambda: _settled(one))
    (shard,) = one.view.shards
    assert (shard.state, one.view.row.closed_at) == ("RESULTS_GONE", None)
    hour = 3600.0
    people.release(later(one, 73 * hour if what == "late" else 0), shard.shard_key, "pay again")
    if what == "cancelled":
        cancel(one.deps, dataset=DATASET, reason="not after all")
    one.drive(later(one, 73 * hour if what == "late" else 145 * hour))
    row = one.view.row
    assert row.closed_at is not None
    assert (row.human_review, row.accepted) == (8, 0)
    assert set(one.reasons().values()) == {"results_gone"}
    assert len(one.calls("create")) == 1


def test_a_batch_is_adopted_by_a_persons_word(make_slow: Make) -> None:
    one = make_slow(records=8)
    one.sim.faults(
        {"kind": "late_list", "seconds": 600}, {"route": "create", "fault": "drop_after"}
    )
    one.freeze()
    execute(plan(one.deps)[0], one.deps)
    (shard,) = one.view.shards
    assert shard.state == "UNCERTAIN"
    (batch,) = one.own_batches()
    foreign = one.sim.clone_batch(foreign=True)["id"]
    with pytest.raises(GateClosed, match="labels"):
        people.adopt(one.deps, shard.shard_key, foreign, "looks alike")
    people.adopt(one.deps, shard.shard_key, batch["id"], "seen in the provider's console")
    assert one.view.shards[0].bound_how == "person"
    with pytest.raises(GateClosed, match="SUBMITTED"):
        people.adopt(one.deps, shard.shard_key, batch["id"], "again")
    one.sim.advance(DAY)
    one.drive()
    assert one.view.row.accepted == 8
    assert len(one.calls("create")) == 1
    assert _decided(one, shard.target) == [("adopt", "seen in the provider's console")]


def test_a_batch_of_another_submission_is_not_adopted(make_slow: Make) -> None:
    one = make_slow(records=16)
    one.sim.faults({"route": "create", "fault": "drop_before"})
    one.freeze()
    for work in [w for w in plan(one.deps) if w.kind == "submit"]:
        execute(work, one.deps)
    uncertain, bound = sorted(one.view.shards, key=lambda s: s.state != "UNCERTAIN")
    assert bound.batch_id is not None
    with pytest.raises(GateClosed, match="another submission"):
        people.adopt(one.deps, uncertain.shard_key, bound.batch_id, "a guess")
