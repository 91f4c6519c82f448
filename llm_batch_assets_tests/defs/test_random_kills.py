"""SIGKILL of the daemon's turns at random instants of the wall clock, in ticks and in runs."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa

from llm_batch_assets.defs.resources import llm_batch
from llm_batch_assets.ledger import schema
from llm_batch_assets_tests.crash.scene import STORIES
from llm_batch_assets_tests.defs.test_fire import closes_with
from llm_batch_assets_tests.defs.test_kills import monitoring, patient_simulator
from llm_batch_assets_tests.defs.worker import make_loop, start

KILLS = 200
PER_DATASET = 6
LONGEST = 4.0
"""Seconds: about what undisturbed turns take until the dataset is published."""


def killed_in(home: Path, seconds: float) -> str | None:
    """Kill the turns after so long; what they were at, or None when they had ended."""
    process = start(home, "turns")
    time.sleep(seconds)
    process.kill()
    code = process.wait(30.0)
    assert code in (0, -signal.SIGKILL), process.err.read_text("utf-8")[-2000:]
    at = home / "at"
    if code == 0:
        return None
    return at.read_text() or "start" if at.exists() else "start"


def dataset_with_kills(home: Path, kills: int, rng: random.Random, killed: Counter[str]) -> None:
    """One dataset of two attempts whose workers die and die, and which closes all the same."""
    with patient_simulator(rng.randrange(1000)) as sim:
        sim.faults(*STORIES["plain"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LLM_BATCH_HOME", str(home / "batches"))
            patch.setenv("OPENAI_BASE_URL", sim.base_url)
            patch.setenv("LLM_BATCH_LEASE_TTL", "2s")
            with dg.DagsterInstance.local_temp(str(home)) as instance:
                loop = make_loop(instance)
                loop.add_dataset()
                assert loop.click("manifest").success
                for _ in range(kills):
                    place = killed_in(home, rng.uniform(0.0, LONGEST))
                    if place is None:
                        break
                    killed[place] += 1
                    monitoring(loop)
                    patience()
                closes_with(loop, sim, 3)


def patience() -> None:
    """Work whose runs die is asked for ever later, up to ten minutes; here it is not."""
    with llm_batch.open(actor="test") as deps, deps.ledger.write("test") as connection:
        connection.execute(sa.update(schema.dispatches).values(asked_at=0, number=1))


def kill_at_random(kills: int, folder: Path, rng: random.Random) -> str:
    """So many kills, over as many datasets as that takes; the counts in words."""
    killed: Counter[str] = Counter()
    datasets, began = 0, time.monotonic()
    while killed.total() < kills:
        home = folder / f"d{datasets}"
        home.mkdir()
        dataset_with_kills(home, min(PER_DATASET, kills - killed.total()), rng, killed)
        datasets += 1
    places = ", ".join(f"{count} in a {place}" for place, count in sorted(killed.items()))
    spent = time.monotonic() - began
    total = f"{datasets} datasets, {killed.total()} kills"
    return f"killed: daemon's turns: {total} ({places}), {spent:.0f} s"


@pytest.mark.usefixtures("home")
@pytest.mark.long
def test_a_few_kills_in_ticks_and_runs(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    said = kill_at_random(3, tmp_path, random.Random(20261130))
    record_property("count", said)


@pytest.mark.usefixtures("home")
@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_kills_in_ticks_and_runs(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    said = kill_at_random(KILLS, tmp_path, random.Random(time.time_ns()))
    record_property("count", said)
    assert "in a run" in said and "in a tick" in said
