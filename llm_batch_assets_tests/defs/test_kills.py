"""SIGKILL of Dagster's own processes: a sensor's tick and a run's worker, at named boundaries."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa

from llm_batch_assets.defs.resources import llm_batch
from llm_batch_assets.effects import CRASH_VARIABLE, LOG_VARIABLE
from llm_batch_assets.ledger import schema
from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.defs.loop import Loop
from llm_batch_assets_tests.defs.test_fire import closes_with, time_passes
from llm_batch_assets_tests.defs.worker import make_loop, start

UNFINISHED = (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED)


@pytest.fixture
def place(home: Path, tmp_path: Path) -> Iterator[tuple[Loop, Path]]:
    """A frozen dataset on an instance that outlives its processes."""
    folder = tmp_path / "dagster"
    folder.mkdir()
    with dg.DagsterInstance.local_temp(str(folder)) as instance:
        loop = make_loop(instance)
        loop.add_dataset()
        assert loop.click("manifest").success
        yield loop, folder


def work(folder: Path, what: str, **env: str) -> int:
    """Run a worker; how it ended."""
    process = start(folder, what, env)
    code = process.wait(60.0)
    assert code in (0, -signal.SIGKILL), process.err.read_text("utf-8")[-2000:]
    return code


def monitoring(loop: Loop) -> int:
    """What run monitoring does about workers that are gone: their runs are failed."""
    gone = loop.instance.get_runs(dg.RunsFilter(statuses=list(UNFINISHED)))
    for run in gone:
        loop.instance.report_run_failed(run)
    return len(gone)


def survives(place: tuple[Loop, Path], simulator: Simulator, what: str, point: str) -> None:
    loop, folder = place
    assert work(folder, what, **{CRASH_VARIABLE: point}) == -signal.SIGKILL, point
    assert monitoring(loop) == (what == "run" and not point.startswith("commit.dispatch"))
    time_passes()
    closes_with(loop, simulator, 2)


@pytest.mark.long
def test_a_worker_killed_between_create_and_bind_is_one_batch(
    place: tuple[Loop, Path], simulator: Simulator
) -> None:
    """The next dispatch finds the batch by its label; nothing is sent a second time."""
    survives(place, simulator, "run", "provider.create:after:1")


def test_a_tick_killed_before_its_requests_are_stored_is_asked_again(
    place: tuple[Loop, Path], simulator: Simulator
) -> None:
    survives(place, simulator, "tick", "commit.dispatch:after:1")


def test_the_work_of_a_run_that_nobody_declares_dead_is_asked_for_again(
    place: tuple[Loop, Path], simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker and code server died together: the run stays STARTED, for Dagster two hours long."""
    monkeypatch.setenv("LLM_BATCH_RUN_SILENCE", "1s")
    loop, folder = place
    # The second shard is not sent yet.
    assert work(folder, "run", **{CRASH_VARIABLE: "provider.create:after:1"}) == -signal.SIGKILL
    (run,) = loop.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    time_passes()
    assert loop.requests() == [], "it holds a lease"
    with llm_batch.open(actor="test") as deps, deps.ledger.write("test") as connection:
        connection.execute(sa.update(schema.leases).values(expires_at=0))
    time.sleep(1.1)
    loop.instance.report_engine_event("still here", run)
    assert loop.requests() == [], "it has just said something"
    time.sleep(1.1)
    (request,) = loop.requests()
    gone = loop.instance.get_run_by_id(run.run_id)
    assert gone is not None
    assert gone.status is dg.DagsterRunStatus.FAILURE
    assert loop.run(request).success
    closes_with(loop, simulator, 2)


def patient_simulator(seed: int) -> Simulator:
    """A batch takes a tenth of a second and a day four minutes: files outlast every death."""
    return Simulator(seed=seed, scale=360.0, batch_seconds=36.0)


def _points(log: Path) -> list[str]:
    """Every place to die. Ledger and store are opened twice, and each opening counts from one."""
    seen: Counter[str] = Counter()
    points = []
    for line in log.read_text("ascii").splitlines():
        _, name, when = line.split("\t")
        if (name, when) == ("store.open", "before"):
            seen.clear()
        seen[f"{name}:{when}"] += 1
        points.append(f"{name}:{when}:{seen[f'{name}:{when}']}")
    return list(dict.fromkeys(points))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_worker_killed_at_every_boundary(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """Each commit, provider call and object write of a run's worker, before and after it."""

    def scene(name: str, sim: Simulator) -> Iterator[tuple[Loop, Path]]:
        folder = tmp_path / name / "dagster"
        folder.mkdir(parents=True)
        monkeypatch.setenv("LLM_BATCH_HOME", str(tmp_path / name / "home"))
        monkeypatch.setenv("OPENAI_BASE_URL", sim.base_url)
        with dg.DagsterInstance.local_temp(str(folder)) as instance:
            loop = make_loop(instance)
            loop.add_dataset()
            assert loop.click("manifest").success
            yield loop, folder

    log = tmp_path / "effects.log"
    with patient_simulator(3) as sim:
        for _, folder in scene("recorded", sim):
            assert work(folder, "run", **{LOG_VARIABLE: str(log)}) == 0
    points = _points(log)
    assert len({point.split(":")[0] for point in points}) > 5
    lived = []
    for number, point in enumerate(points):
        with patient_simulator(3) as sim:
            for loop, folder in scene(f"k{number}", sim):
                if work(folder, "run", **{CRASH_VARIABLE: point}) == 0:
                    lived.append(point)
                monitoring(loop)
                time_passes()
                closes_with(loop, sim, 2)
    kills = len(points) - len(lived)
    record_property("count", f"killed: a run's worker: {len(points)} datasets, {kills} kills")
    # What the tick has to announce depends on the clock; everything else comes each time.
    assert [point for point in lived if not point.startswith("commit.announced:")] == []
