"""Every fault of single records alone: classes of attempt 1 and final states, exactly, by id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from llm_batch_assets.simulator import Simulator
from llm_batch_assets.simulator.faults import RECORD_KINDS
from llm_batch_assets_tests.engine.bench import Bench, make_workload

HIT = frozenset({1, 10})
"""The records that meet the fault; 24 records in three shards."""
EVERYONE = set(range(24))

AGAIN = "accepted in attempt 2"


@dataclass(frozen=True)
class Row:
    """What one kind of fault on the records of ``HIT`` leads to.

    ``first`` is their class in attempt 1, ``final`` their state (``AGAIN``: asked again, good).
    """

    kind: str
    first: str
    final: str = "accepted"
    reason: str = ""
    unqualified: bool = False
    held: bool = False
    anomalies: dict[str, int] = field(default_factory=dict)


ROWS = [
    Row("missing", "missing", AGAIN),
    Row("duplicate_identical", "succeeded", anomalies={"duplicate_identical": 2}),
    Row("duplicate_conflicting", "duplicate", "human_review", "conflicting_duplicate"),
    Row("mangled_id", "missing", "human_review", "mangled_ids", anomalies={"unknown": 2}),
    Row("unreadable", "missing", AGAIN, anomalies={"unreadable": 2}),
    Row("error_429", "retryable", AGAIN),
    Row("error_500", "retryable", AGAIN),
    Row("error_400", "permanent_failure", "permanent_failure", "invalid_request"),
    Row("error_quota", "retryable", "human_review", "hold_deadline", held=True),
    Row("refusal", "permanent_failure", "permanent_failure", "refusal"),
    Row("content_filter", "permanent_failure", "permanent_failure", "content_filter"),
    Row("cut", "retryable", AGAIN, unqualified=True),
    Row("invalid_json", "retryable", AGAIN, unqualified=True),
    Row("schema_violation", "retryable", AGAIN, unqualified=True),
    Row("fenced", "retryable", AGAIN, unqualified=True),
    Row("empty", "retryable", AGAIN, unqualified=True),
    Row("nan", "retryable", AGAIN, unqualified=True),
    Row("lone_surrogate", "retryable", AGAIN, unqualified=True),
    Row("u2028", "succeeded"),
    Row("other_model", "retryable", AGAIN, unqualified=True),
    Row("response_failed", "retryable", AGAIN),
]


def test_every_kind_of_the_menu_has_a_row() -> None:
    assert {row.kind for row in ROWS} == set(RECORD_KINDS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.kind)
def test_a_fault_alone(row: Row, bench: Callable[..., Bench], sim: Simulator) -> None:
    b = bench(records=24)
    b.freeze()
    sim.faults({"kind": row.kind, "ids": b.wire_ids(HIT)})
    b.drive()

    everyone = set(range(24))
    assert sim.meter()["faults"] == {row.kind: 2}, "the fault was not met"
    expected = {"succeeded": everyone - HIT}
    expected[row.first] = expected.get(row.first, set()) | HIT
    assert b.classes(1) == expected
    evidence = b.evidence(1)
    assert {_number(r) for r in evidence if r["unqualified"]} == (HIT if row.unqualified else set())
    assert {_number(r) for r in evidence if r["hold"]} == (HIT if row.held else set())
    assert b.anomalies(1) == row.anomalies | ({"duplicate": 4} if row.first == "duplicate" else {})

    again = row.final == AGAIN
    state = "accepted" if again else row.final
    expected = {"accepted": everyone - HIT}
    expected[state] = expected.get(state, set()) | HIT
    assert b.states() == expected
    assert b.reasons() == ({} if state == "accepted" else dict.fromkeys(HIT, row.reason))
    assert b.view.row.closed_at is not None
    assert b.view.attempt == (2 if again else 1)
    if again:
        assert b.classes(2) == {"succeeded": HIT}
        assert b.lineage(2) == dict.fromkeys(
            HIT, (b.view.jobs[0].job_key, row.first if not row.unqualified else "unqualified")
        )
    b.assert_no_second_batch(creates=4 if again else 3)


@dataclass(frozen=True)
class Lasting:
    """A fault that meets a body each time it is asked, and two attempts allowed."""

    kind: str
    final: str
    reason: str
    attempts: int


LASTING = [
    Lasting("error_500", "human_review", "exhausted", 2),
    Lasting("error_429", "human_review", "exhausted", 2),
    Lasting("cut", "human_review", "unqualified_twice", 2),
    Lasting("schema_violation", "human_review", "unqualified_twice", 2),
    Lasting("error_400", "permanent_failure", "invalid_request", 1),
    Lasting("refusal", "permanent_failure", "refusal", 1),
    Lasting("error_quota", "human_review", "hold_deadline", 1),
]


@pytest.mark.parametrize("row", LASTING, ids=lambda row: row.kind)
def test_a_fault_that_lasts(row: Lasting, bench: Callable[..., Bench], sim: Simulator) -> None:
    """Attempts end, by count or because asking again is no use; nothing stays open for ever."""
    max_attempts = 2 if row.reason == "exhausted" else 3
    b = bench(records=24, workload=make_workload(retry={"max_attempts": max_attempts}))
    b.freeze()
    sim.faults({"kind": row.kind, "count": 2, "total": 3, "executions": -1})
    b.drive()

    hit = b.planned(row.kind)
    assert len(hit) == 3
    assert b.states() == {"accepted": set(range(24)) - hit, row.final: hit}
    assert set(b.reasons().values()) == {row.reason}
    assert b.view.attempt == row.attempts
    b.assert_no_second_batch(creates=3 + (row.attempts - 1))


def test_what_a_provider_always_drops_is_asked_no_more_often_than_any_other(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    """Nobody can tell whether a row that never came was paid for: it uses attempts up."""
    b = bench(records=24, workload=make_workload(retry={"max_attempts": 3}))
    b.freeze()
    # What fails for other reasons goes along, so that no batch is without any row.
    sim.faults(
        {"kind": "missing", "count": 1, "total": 2, "executions": -1},
        {"kind": "error_500", "count": 1, "total": 2, "executions": 2},
    )
    b.drive()

    dropped = b.planned("missing")
    assert len(dropped) == 2
    assert b.states() == {"accepted": EVERYONE - dropped, "human_review": dropped}
    assert set(b.reasons().values()) == {"exhausted"}
    assert b.view.attempt == 3
    b.assert_no_second_batch(creates=3 + 2)


def test_nothing_is_asked_twice_at_temperature_zero(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    """The same question gets the same bad answer: it goes to people after one attempt."""
    workload = make_workload(
        model="gpt-4.1-mini-2025-04-14", generation={"max_output_tokens": 200, "temperature": 0}
    )
    b = bench(records=16, workload=workload)
    b.freeze()
    sim.faults({"kind": "schema_violation", "ids": b.wire_ids(HIT)})
    b.drive()

    assert b.states() == {"accepted": set(range(16)) - HIT, "human_review": set(HIT)}
    assert b.reasons() == dict.fromkeys(HIT, "unqualified_deterministic")
    b.assert_no_second_batch(creates=2)


def _number(row: dict[str, str]) -> int:
    return int(row["business_key"][1:])
