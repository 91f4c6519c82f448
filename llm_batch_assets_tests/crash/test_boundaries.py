"""Every place to die: SIGKILL on each side of each effect, then the same command again.

The places come from one watched run, which also proves that no effect lies outside of them. A
sample runs always, everything under ``-m soak``; both print how many kills were survived.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from llm_batch_assets_tests.crash.boundaries import Watched, watch
from llm_batch_assets_tests.crash.scene import (
    LOCAL,
    Account,
    Backend,
    Scene,
    Tally,
    simulator,
    spread,
)

SEED = 20261130
SAMPLE_SECONDS = 6.0
"""What the sample of one provider may take; the story alternates."""

Report = Callable[[str, Tally], None]


_SEEN: dict[tuple[str, str], Watched] = {}


def watched(account: Account, folder: Path, story: str) -> Watched:
    """One run of a story without a kill; seen once in a session."""
    key = (account.provider, story)
    if key not in _SEEN:
        with simulator(account) as sim:
            scene = Scene(folder, sim, account, LOCAL, story)
            _SEEN[key] = watch(scene)
            scene.assert_sound()
    return _SEEN[key]


@pytest.mark.parametrize("story", ["plain", "rough"])
def test_no_effect_lies_outside_of_two_boundaries(
    story: str, account: Account, tmp_path: Path
) -> None:
    seen = watched(account, tmp_path / "seen", story)
    assert seen.calls and seen.commits and seen.links
    assert seen.uncovered() == []

    # The check can fail: without any one of the boundaries something is bare.
    names = {name for _, name, _ in seen.passings}
    for name in names - {"download"}:
        without = replace(seen, passings=[p for p in seen.passings if p[1] != name])
        assert without.uncovered(), f"nothing needs {name}"


def survive(
    points: list[str],
    account: Account,
    backend: Backend,
    story: str,
    folder: Path,
    tally: Tally,
    until: float | None = None,
) -> None:
    """Die at each point in a deployment of its own, go on, and be judged by the simulator."""
    for number, point in enumerate(points):
        if until is not None and time.monotonic() > until:
            return
        with simulator(account) as sim:
            scene = Scene(folder / f"{story}{number}", sim, account, backend, story)
            scene.run_killed_at(point)
            try:
                scene.finish()
                scene.assert_sound()
            except AssertionError as error:
                raise AssertionError(f"killed at {point}: {error}") from error
            tally.points += 1
            tally.killed += scene.killed
            tally.runs += scene.runs
            scene.clean()


@pytest.mark.long
def test_a_sample_of_all_boundaries(account: Account, tmp_path: Path, report: Report) -> None:
    tally, began = Tally(), time.monotonic()
    rng = random.Random(f"{SEED}/{account.provider}")
    for story in ("rough", "plain"):
        points = spread(watched(account, tmp_path / f"seen-{story}", story).points(), 60, rng)
        until = time.monotonic() + SAMPLE_SECONDS / 2
        survive(points, account, LOCAL, story, tmp_path, tally, until)
    tally.seconds = time.monotonic() - began
    report(f"boundaries, sample, {account.provider} on {LOCAL.name}", tally)
    assert tally.killed >= 2


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("story", ["plain", "rough"])
def test_all_boundaries(story: str, account: Account, tmp_path: Path, report: Report) -> None:
    tally, began = Tally(), time.monotonic()
    points = watched(account, tmp_path / "seen", story).points()
    survive(points, account, LOCAL, story, tmp_path, tally)
    tally.seconds = time.monotonic() - began
    report(f"boundaries, all of {story}, {account.provider} on {LOCAL.name}", tally)
    # A poll more or less is the weather; everything else comes each time.
    assert tally.killed >= 0.95 * len(points)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("story", ["plain", "rough"])
def test_each_kind_of_boundary_on_postgres_and_s3(
    story: str,
    account: Account,
    postgres_and_s3: Backend,
    tmp_path: Path,
    report: Report,
) -> None:
    tally, began = Tally(), time.monotonic()
    everything = watched(account, tmp_path / "seen", story).points()
    kinds = {point.rsplit(":", 1)[0] for point in everything}
    points = spread(everything, len(kinds), random.Random(f"{SEED}/{account.provider}/{story}"))
    survive(points, account, postgres_and_s3, story, tmp_path, tally)
    tally.seconds = time.monotonic() - began
    report(f"boundaries, kinds of {story}, {account.provider} on {postgres_and_s3.name}", tally)
    assert tally.killed >= 0.9 * len(points)
