"""Killed at random instants of the wall clock, again and again, until one run comes through."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from llm_batch_assets.simulator.profiles import PROFILES
from llm_batch_assets_tests.crash.scene import ACCOUNTS, LOCAL, Account, Scene, Tally, simulator

KILLS = 200
PER_DATASET = 5
LONGEST = 2.5
"""Seconds: a little more than an undisturbed run of the story takes."""

Report = Callable[[str, Tally], None]


def kill_at_random(kills: int, account: Account, folder: Path, rng: random.Random) -> Tally:
    """So many kills, some datasets; each is judged by the simulator in the end."""
    tally, began = Tally(), time.monotonic()
    while tally.killed < kills:
        seed = rng.randrange(1000)
        with simulator(account, seed) as sim:
            scene = Scene(folder / f"d{tally.points}", sim, account, LOCAL, "rough")
            for _ in range(PER_DATASET):
                if not scene.run_killed_after(rng.uniform(0.0, LONGEST)):
                    break
            scene.finish()
            scene.assert_sound()
            tally.points += 1
            tally.killed += scene.killed
            tally.runs += scene.runs
            scene.clean()
    tally.seconds = time.monotonic() - began
    return tally


def test_a_few_random_kills(account: Account, tmp_path: Path, report: Report) -> None:
    rng = random.Random(f"20261130/{account.provider}")
    tally = kill_at_random(4, account, tmp_path, rng)
    report(f"random kills, sample, {account.provider}", tally)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_random_kills(account: Account, tmp_path: Path, report: Report) -> None:
    tally = kill_at_random(KILLS, account, tmp_path, random.Random(time.time_ns()))
    report(f"random kills, {account.provider}", tally)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(5))
def test_kills_on_a_hostile_day(seed: int, tmp_path: Path, report: Report) -> None:
    """Everything goes wrong at the provider, and the worker dies as well."""
    rng, account, began = random.Random(seed), ACCOUNTS["openai"], time.monotonic()
    account = replace(account, records=60)
    # A refused upload is asked again after half a minute and an expiry takes a whole day: those
    # waits are not what this is about.
    waits = ("upload", "expire")
    faults = [f for f in PROFILES["hostile"] if f.get("route", f.get("kind")) not in waits]
    with simulator(account, seed) as sim:
        scene = Scene(tmp_path / "scene", sim, account, LOCAL, "none")
        sim.faults(*faults)
        for _ in range(2 * PER_DATASET):
            if not scene.run_killed_after(rng.uniform(0.5, 4.0), withheld=True):
                break
        scene.finish(withheld=True)
        scene.assert_one_batch_each()
        result = scene.result()
        assert result["closed"] and result["open"] == 0
        names = ("accepted", "human_review", "permanent_failure", "cancelled")
        assert sum(result[name] for name in names) == 60
        spent = time.monotonic() - began
        report(f"hostile day {seed}", Tally(1, scene.killed, scene.runs, spent))
