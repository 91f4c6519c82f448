"""Every fault of a create at each provider: one live batch per submission, nothing paid twice.

Somebody else makes a batch of the same size, window and model beside each of ours: it is neither
adopted nor cancelled. The simulator's log counts the POSTs, its list the batches.
"""

from __future__ import annotations

from typing import Any

import pytest

from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.e2e.conftest import Make
from llm_batch_assets_tests.e2e.providers import ProviderBench
from llm_batch_assets_tests.engine.bench import PATIENT

LOST: list[dict[str, Any]] = [
    {"fault": "drop_after"},
    {"fault": "status_after", "status": 500},
    {"fault": "status_after", "status": 502},
    {"fault": "status_after", "status": 503},
    {"fault": "status_after", "status": 529},
    {"fault": "html_after"},
    {"fault": "truncate_length"},
    {"fault": "delay_after", "seconds": 30},
]
"""The batch exists, its id was never read."""

NEVER: list[dict[str, Any]] = [
    {"fault": "drop_before"},
    {"fault": "status_before", "status": 500},
    {"fault": "status_before", "status": 408},
    {"fault": "html_before"},
]
"""No batch exists, and nobody knows."""


def _all(b: ProviderBench, count: int) -> None:
    assert b.states() == {"accepted": set(range(count))}
    assert b.view.row.closed_at is not None
    assert b.view.attempt == 1
    assert set(b.executed().values()) == {1} and len(b.executed()) == count


@pytest.mark.long
def test_lost_replies_are_found(bench: Make, sim: Simulator) -> None:
    """Eight creates in a row lose their replies, each in another way."""
    shards = len(LOST)
    b = bench(records=4 * shards, workload=_four_each(bench), settings=PATIENT)
    b.freeze()
    sim.faults(
        {"kind": "look_alike", "times": shards},
        *({"route": "create", "nth": n, **fault} for n, fault in enumerate(LOST, 1)),
    )
    b.drive(seconds=90)

    assert sum(sim.faults()["met"][f"create:{f}"] for f in {x["fault"] for x in LOST}) == shards
    labelled = b.deps.provider(b.setting.provider).settles_by_label
    ways = {"found"} if labelled else {"provisional", "proven"}
    assert {s.bound_how for s in b.view.shards} <= ways
    assert {s.epoch for s in b.view.shards} == {0}
    _all(b, 4 * shards)
    assert len(b.foreign()) == shards
    b.assert_left_alone(*b.foreign())
    b.assert_no_second_batch(creates=shards)


@pytest.mark.long
def test_what_never_arrived_is_sent_once_more(bench: Make, sim: Simulator) -> None:
    """Four creates in a row never arrive: two looks each prove it, and the next epoch is sent."""
    shards = len(NEVER) + 1
    b = bench(records=4 * shards, workload=_four_each(bench), settings=PATIENT)
    b.freeze()
    sim.faults(*({"route": "create", "nth": n, **f} for n, f in enumerate(NEVER, 2)))
    b.drive(stop=lambda: len(b.calls("create")) >= 2)
    theirs = b.look_alike()
    b.drive(seconds=90)

    _all(b, 4 * shards)
    assert sum(s.epoch for s in b.view.shards) == len(NEVER)
    b.assert_left_alone(theirs)
    b.assert_no_second_batch(creates=shards + len(NEVER), batches=shards)


def test_refusals_for_now_are_sent_again_in_the_same_epoch(bench: Make, sim: Simulator) -> None:
    """429 with a small, a large, a malformed and no Retry-After: certain, and nobody is charged."""
    b = bench(records=8)
    b.freeze()
    for nth, after in enumerate(["0.1", "100000", "soon", None], 1):
        given = {} if after is None else {"retry_after": after}
        sim.faults(
            {"route": "create", "nth": nth, "fault": "status_before", "status": 429, **given}
        )
    b.drive()

    assert {(s.epoch, s.bound_how) for s in b.view.shards} == {(0, "answer")}
    _all(b, 8)
    assert b.calls("list") == [] or b.setting.provider == "anthropic"
    b.assert_no_second_batch(creates=5, batches=1)


def test_a_batch_that_the_list_shows_late_is_found(bench: Make, sim: Simulator) -> None:
    b = bench(records=8, settings=PATIENT)
    b.freeze()
    sim.faults(
        {"route": "create", "fault": "drop_after"},
        {"kind": "late_list", "looks": 1},
        {"kind": "look_alike"},
    )
    b.drive()

    assert b.view.shards[0].epoch == 0
    _all(b, 8)
    b.assert_left_alone(*b.foreign())
    b.assert_no_second_batch(creates=1)


def test_two_replies_lost_in_a_row(bench: Make, sim: Simulator) -> None:
    """One live batch, where peers that ask again had two, three or five (issue 5)."""
    b = bench(records=8, settings=PATIENT)
    b.freeze()
    sim.faults({"route": "create", "fault": "drop_after", "times": 2}, {"kind": "look_alike"})
    b.drive(stop=lambda: b.view.shards[0].state == "UNCERTAIN")
    assert sim.meter()["live_batches"] <= 1
    b.drive()

    _all(b, 8)
    b.assert_left_alone(*b.foreign())
    b.assert_no_second_batch(creates=1)


def test_a_create_that_never_arrived_and_then_one_whose_reply_is_lost(
    bench: Make, sim: Simulator
) -> None:
    b = bench(records=8, settings=PATIENT)
    b.freeze()
    sim.faults(
        {"route": "create", "fault": "drop_before"},
        {"route": "create", "nth": 2, "fault": "drop_after"},
        {"kind": "look_alike"},
    )
    b.drive()

    assert b.view.shards[0].epoch == 1
    _all(b, 8)
    b.assert_left_alone(*b.foreign())
    b.assert_no_second_batch(creates=2, batches=1)


def test_our_name_on_somebody_elses_batch_is_no_proof(bench: Make, sim: Simulator) -> None:
    """The create never arrived; the only batch that fits is another deployment's."""
    b = bench(records=12, workload=_four_each(bench), settings=PATIENT)
    b.freeze()
    sim.faults({"route": "create", "nth": 2, "fault": "drop_before"})
    b.drive(stop=lambda: len(b.calls("create")) >= 2)
    theirs = b.look_alike(), b.look_alike()
    b.drive()

    _all(b, 12)
    b.assert_left_alone(*theirs)
    b.assert_no_second_batch(creates=4, batches=3)


@pytest.mark.soak
@pytest.mark.parametrize("fault", LOST, ids=lambda f: "-".join(map(str, f.values())))
def test_each_lost_reply_alone(fault: dict[str, Any], bench: Make, sim: Simulator) -> None:
    b = bench(records=12, workload=_four_each(bench), settings=PATIENT)
    b.freeze()
    sim.faults({"route": "create", "nth": 2, **fault}, {"kind": "look_alike", "times": 3})
    b.drive(seconds=60)
    _all(b, 12)
    b.assert_left_alone(*b.foreign())
    b.assert_no_second_batch(creates=3)


def _four_each(bench: Make) -> Any:
    """A workload of the provider under test with four records per shard."""
    return bench(records=1).setting.workload(records_per_shard=4)
