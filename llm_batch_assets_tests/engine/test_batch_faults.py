"""Every fault of whole batches alone, at the first of three batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.engine.bench import QUICK, Bench, make_workload

EVERYONE = set(range(24))


@dataclass(frozen=True)
class Row:
    """A fault of a batch's life or of its files.

    ``never_run``: the class in attempt 1 of the lines that the simulator did not execute.
    ``anomalies``: rows of attempt 1 that are no record's answer.
    """

    kind: str
    given: dict[str, Any] = field(default_factory=dict)
    never_run: str | None = None
    anomalies: dict[str, int] = field(default_factory=dict)


ROWS = [
    Row("expire", {"fraction": 0.5}, never_run="expired"),
    Row("expire", {"fraction": 0.0}, never_run="expired"),
    Row("provider_cancel", {"fraction": 0.5}, never_run="cancelled"),
    Row("unknown_row", {"count": 2}, anomalies={"unknown": 2}),
    Row("unknown_row", {"count": 2, "source": "other_batch", "nth": 2}, anomalies={"unknown": 2}),
    Row("garbage_line", {"count": 2}, anomalies={"unreadable": 2}),
    Row("bom"),
    Row("crlf"),
    Row("blank_lines"),
    Row("no_final_newline"),
    Row("ordered"),
    Row("empty_file_id"),
    Row("late_files", {"looks": 3}),
    Row("late_list", {"seconds": 5.0}),
    Row("unknown_status", {"looks": 3}),
    Row("zero_counts"),
]


def _name(row: Row) -> str:
    return "-".join([row.kind, *(f"{k}={v}" for k, v in row.given.items())])


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_a_fault_alone(row: Row, bench: Callable[..., Bench], sim: Simulator) -> None:
    b = bench(records=24)
    b.freeze()
    sim.faults({"kind": row.kind, **row.given})
    b.drive()

    assert sim.faults()["met"] == {row.kind: 1}, "the fault was not met"
    left = b.never_run(row.given.get("nth", 1)) if row.never_run else set()
    if row.never_run:
        assert len(left) == 8 - int(8 * row.given["fraction"])
    expected = {"succeeded": EVERYONE - left}
    if row.never_run:
        expected[row.never_run] = left
    assert b.classes(1) == expected
    assert b.anomalies(1) == row.anomalies

    assert b.states() == {"accepted": EVERYONE}
    assert b.view.row.closed_at is not None
    assert b.view.attempt == (2 if left else 1)
    if left:
        assert b.classes(2) == {"succeeded": left}
    b.assert_no_second_batch(creates=4 if left else 3)


def test_a_failure_that_passes_opens_the_next_epoch(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    """Nothing was executed and nobody is charged: the same request file goes again, attempt 1."""
    b = bench(records=24)
    b.freeze()
    sim.faults({"kind": "fail", "code": "token_limit_exceeded"})
    b.drive()

    assert b.states() == {"accepted": EVERYONE}
    assert b.view.attempt == 1
    assert sorted((s.ordinal, s.epoch) for s in b.view.shards) == [(0, 1), (1, 0), (2, 0)]
    assert {row["charged"] for row in b.settled()} == {1}
    failed = next(one for one in b.own_batches() if one["phase"] == "failed")
    assert failed["executed"] == 0
    b.assert_no_second_batch(creates=4)


def test_a_billing_limit_holds_the_records_until_their_deadline(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    """The account is at fault, not the record: held, then for people; nothing is sent again."""
    b = bench(records=24)
    b.freeze()
    sim.faults({"kind": "fail", "code": "billing_hard_limit_reached"})
    b.drive()

    first = b.shard(0)
    assert {int(r["business_key"][1:]) for r in b.evidence(1) if r["hold"]} == first
    assert b.states() == {"accepted": EVERYONE - first, "human_review": first}
    assert b.reasons() == dict.fromkeys(first, "hold_deadline")
    b.assert_no_second_batch(creates=3)


def test_lost_results_are_held_and_then_for_people(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    """Paid and lost: never asked again on our own account."""
    b = bench(records=24, workload=make_workload(retry={"hold_deadline": "1.5s"}))
    b.freeze()
    sim.faults({"kind": "lost_result"})
    first = b.shard(0)
    b.drive(stop=lambda: "open" in b.states())

    assert {s.state for s in b.view.shards if s.ordinal == 0} == {"RESULTS_GONE"}
    assert b.states() == {"accepted": EVERYONE - first, "open": first}
    assert {row["next"] for row in b.settled() if row["state"] == "open"} == {"hold"}
    assert b.view.row.closed_at is None

    b.drive()
    assert b.states() == {"accepted": EVERYONE - first, "human_review": first}
    assert b.reasons() == dict.fromkeys(first, "results_gone")
    b.assert_no_second_batch(creates=3)


def test_a_stuck_batch_holds_the_others_no_longer_than_cut_after(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    """The others go on without it; what it holds is in flight: not missing, and not sent again."""
    b = bench(records=24, workload=make_workload(retry={"cut_after": "0.8s"}))
    b.freeze()
    stuck = b.shard(0)
    failing = min(b.shard(1))
    sim.faults({"kind": "stuck"}, {"kind": "error_500", "ids": b.wire_ids([failing])})
    b.drive(stop=lambda: b.states().get("accepted") == EVERYONE - stuck)

    assert b.states() == {"accepted": EVERYONE - stuck, "open": stuck}
    assert set(b.reasons().values()) == {"in_flight"}
    assert b.lineage(2) == {failing: (b.view.jobs[0].job_key, "retryable")}

    held = next(one for one in b.own_batches() if one["phase"] == "validating")
    b.deps.provider("openai").cancel(held["id"])
    b.drive()
    assert b.states() == {"accepted": EVERYONE}
    assert b.lineage(3) == dict.fromkeys(stuck, (b.view.jobs[0].job_key, "batch_cancelled"))
    b.assert_no_second_batch(creates=5)


def test_a_look_alike_of_somebody_else_is_left_alone(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    """Same size, model, endpoint and window: neither adopted for a lost create nor cancelled."""
    b = bench(records=24, settings=QUICK)
    b.freeze()
    sim.faults({"route": "create", "nth": 3, "fault": "drop_before"})
    b.drive(stop=lambda: len(b.calls("create")) == 3)
    foreign = sim.clone_batch(foreign=True)["id"]
    b.drive()

    assert len(b.calls("list")) >= 2, "nobody looked"
    assert b.calls("cancel") == []
    assert foreign not in {s.batch_id for s in b.view.shards}
    phases = {one["id"]: one["phase"] for one in sim.state()["batches"]}
    assert phases[foreign] == "completed"
    assert b.states() == {"accepted": EVERYONE}
    b.assert_no_second_batch(creates=4, batches=3)


def test_a_batch_made_behind_our_back_is_found_cancelled_and_paid_twice(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    """A second batch under our own key: the meter says so, and the next look ends it."""
    b = bench(records=24, settings=QUICK)
    b.freeze()
    sim.faults({"route": "create", "nth": 3, "fault": "drop_before"})
    b.drive(stop=lambda: len(b.calls("create")) == 3)
    extra = sim.clone_batch()["id"]
    b.drive()

    assert sim.meter()["paid_twice"] > 0
    assert [entry["path"].split("/")[-2] for entry in b.calls("cancel")] in ([extra], [])
    assert b.duplicates() == {extra}
    assert b.states() == {"accepted": EVERYONE}
