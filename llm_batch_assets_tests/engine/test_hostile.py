"""Everything at once, over several seeds: closed, each id in one state, nothing paid twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.engine.bench import QUICK, Bench, make_workload, start_simulator


@pytest.fixture(params=[1, 2, 3, 4, 5])
def hostile(request: pytest.FixtureRequest) -> Iterator[Simulator]:
    with start_simulator(seed=request.param, faults="hostile") as simulator:
        yield simulator


def test_hostile(hostile: Simulator, tmp_path: Path) -> None:
    workload = make_workload(records_per_shard=12, retry={"max_attempts": 4})
    b = Bench(hostile, tmp_path / "home", records=60, workload=workload, settings=QUICK)
    b.freeze()
    b.drive(seconds=80)

    states = b.states()
    assert b.view.row.closed_at is not None
    assert states.keys() <= {"accepted", "permanent_failure", "human_review", "cancelled"}
    assert sorted(n for numbers in states.values() for n in numbers) == list(range(60))
    assert states["permanent_failure"] == b.met("refusal", "content_filter", "error_400")
    assert states["human_review"] >= b.met("duplicate_conflicting")
    # An id that is missing from a shard with foreign rows may be one of them: people look.
    people = {b.reasons()[n] for n in states["human_review"]}
    assert people <= {"conflicting_duplicate", "mangled_ids", "unqualified_twice"}
    meter = hostile.meter()
    assert meter["paid_twice"] == 0
    assert meter["live_batches"] == 0
    assert len(hostile.faults()["met"]) >= 12
    assert {key: ids for key, ids in b.batches_of().items() if len(ids) > 1} == {}
