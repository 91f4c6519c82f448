"""Killed at random instants of the wall clock, again and again, until one run comes through."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_batch_assets_tests.crash.scene import LOCAL, Account, Scene, Tally, simulator
from llm_batch_assets_tests.crash.zygote import Zygote

KILLS = 200
PER_DATASET = 5
LONGEST = 2.5
"""Seconds: a little more than an undisturbed run of the story takes."""

Report = Callable[[str, Tally], None]


def kill_at_random(
    kills: int, account: Account, folder: Path, zygote: Zygote, rng: random.Random
) -> Tally:
    """So many kills, some datasets; each is judged by the simulator in the end."""
    tally, began = Tally(), time.monotonic()
    while tally.killed < kills:
        seed = rng.randrange(1000)
        with simulator(account, seed) as sim:
            scene = Scene(folder / f"d{tally.points}", sim, account, LOCAL, zygote, "rough")
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


def test_a_few_random_kills(
    account: Account, tmp_path: Path, zygote: Zygote, report: Report
) -> None:
    rng = random.Random(f"20261130/{account.provider}")
    tally = kill_at_random(4, account, tmp_path, zygote, rng)
    report(f"random kills, sample, {account.provider}", tally)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_random_kills(
    account: Account, tmp_path: Path, zygote: Zygote, report: Report
) -> None:
    tally = kill_at_random(KILLS, account, tmp_path, zygote, random.Random(time.time_ns()))
    report(f"random kills, {account.provider}", tally)
