"""Seeds of the deterministic simulation: 200 always, 20,000 under ``-m soak``.

A failing seed is replayed by ``python -m benchmarks simulate --trace SEED``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from llm_batch_assets_tests.deterministic.bench import Shared
from llm_batch_assets_tests.deterministic.mutants import MUTANTS, Mutant
from llm_batch_assets_tests.deterministic.scenario import scenario
from llm_batch_assets_tests.deterministic.simulation import run_seed

CHUNK = 10

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]
"""A seed takes a third of a second of a processor, which may be busy with other things."""


def play(seeds: range, shared: Shared, request: pytest.FixtureRequest) -> None:
    totals: Counter[str] = Counter()
    for seed in seeds:
        report = run_seed(seed, shared)
        assert report.faults == [], (
            f"seed {seed}: {report.faults}\n"
            f"replay: python -m benchmarks simulate --trace {seed}\n{report.trace[-20_000:]}"
        )
        totals.update(report.counts)
    told = ", ".join(f"{count} {name}" for name, count in sorted(totals.items()))
    request.node.user_properties.append(
        ("count", f"simulation: {len(seeds)} seeds from {seeds.start:>5}: {told}")
    )


@pytest.mark.parametrize("start", range(0, 200, CHUNK))
def test_one_live_batch_and_one_end_for_every_record(
    start: int, shared: Shared, request: pytest.FixtureRequest
) -> None:
    play(range(start, start + CHUNK), shared, request)


@pytest.mark.parametrize("seed", [253, 620, 1104, 3579, 5154, 6972, 9309, 10_646, 11_067, 17_202])
def test_seeds_that_failed_once(seed: int, shared: Shared, request: pytest.FixtureRequest) -> None:
    """Beyond the first 200. 5154: a candidate was let go for what an earlier one could not tell;
    3579: collecting what another worker had just found gone was a crash; 6972, 9309: the batch of
    an earlier epoch was bound while that of the newest could not tell yet; the others: what a
    person gave up was never looked for again.
    """
    play(range(seed, seed + 1), shared, request)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("start", range(200, 20_000, 400))
def test_thousands_of_seeds(start: int, shared: Shared, request: pytest.FixtureRequest) -> None:
    play(range(start, min(start + 400, 20_000)), shared, request)


def test_a_seed_replays_exactly(shared: Shared) -> None:
    """In this process, after other seeds, and in one whose sets have another order."""
    for seed in (3, 11):
        first = run_seed(seed, shared)
        run_seed(seed + 1, shared)
        assert run_seed(seed, shared).digest == first.digest
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "simulate", "--trace", "11"],
        env=os.environ | {"PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.split()[-1] == first.digest


def test_seeds_differ_in_kind() -> None:
    """The first 200 have every kind of trouble, alone and together."""
    drawn = [scenario(seed) for seed in range(200)]
    assert {one.labelled for one in drawn} == {True, False}
    assert {len(one.workers) for one in drawn} == {2, 3, 4}
    assert all({"loop", "engine"} <= set(one.workers) for one in drawn)
    assert {one.weather.skew for one in drawn} == {0.0, 7200.0, -7200.0}
    for fate in ("lost", "slow", "late", "never", "500_after", "500_before", "refused_now"):
        assert sum(one.weather.create[fate] > 0 for one in drawn) > 20
    assert sum(one.weather.lag[1] > 0 for one in drawn) > 20
    assert sum(one.chaos.kill > 0 for one in drawn) > 50
    assert sum(one.chaos.stall_create > 0 for one in drawn) > 50
    assert sum(one.cancel_at is not None for one in drawn) > 5


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_guard_is_found(
    mutant: Mutant, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the seeds above would prove nothing."""
    mutant.apply(monkeypatch)
    assert any(run_seed(seed, shared).faults for seed in mutant.seeds), mutant.name
