"""Dagster's own servers, killed: the daemon in the middle of a tick, the code server of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.scheduler.instigation import TickStatus

from llm_batch_assets import engine
from llm_batch_assets.defs.resources import llm_batch
from llm_batch_assets.demo.processes import Service, connects, free_ports
from llm_batch_assets.demo.stack import (
    DemoOptions,
    code_location,
    daemon,
    environment,
    prepare_home,
)
from llm_batch_assets.examples.stdlib import Reading, dataset_key, read_docstrings
from llm_batch_assets.ledger import views
from llm_batch_assets.ledger.views import RevisionView
from llm_batch_assets.simulator import Simulator
from llm_batch_assets.workload import Workload

OPTIONS = DemoOptions(records=10)
DATASET = dataset_key()


class Servers:
    """Processes in groups of their own, which a kill takes as a whole, and their instance."""

    def __init__(self, home: Path, instance: dg.DagsterInstance) -> None:
        self.home, self.instance = home, instance
        self._running: dict[str, tuple[Service, subprocess.Popen[bytes]]] = {}

    def start(self, service: Service) -> None:
        service.log.parent.mkdir(exist_ok=True)
        with service.log.open("ab") as log:
            process = subprocess.Popen(
                service.argv,
                env=dict(service.env),
                cwd=service.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running[service.name] = service, process

    def kill(self, name: str) -> Service:
        """At once, with everything that it has started."""
        service, process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
        return service

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)

    def wait(self, what: str, true: Callable[[], bool], within: float = 90.0) -> None:
        end = time.monotonic() + within
        while not true():
            assert time.monotonic() < end, f"{what}: not within {within} s\n{self.said()}"
            time.sleep(0.01)

    def said(self) -> str:
        """The ends of the servers' logs."""
        logs = (service.log for service, _ in self._running.values())
        return "\n".join(log.read_text("utf-8", errors="replace")[-1500:] for log in logs)

    def in_a_tick(self) -> bool:
        """Whether the sensor that asks for runs is being evaluated at this moment."""
        for state in self.instance.all_instigator_state():
            if state.instigator_name == "llm_batch_tick":
                ticks = self.instance.get_ticks(
                    state.instigator_origin_id, state.selector_id, limit=1
                )
                return bool(ticks) and ticks[0].status is TickStatus.STARTED
        return False

    def started(self) -> set[str]:
        """Runs that are being executed, as far as Dagster knows."""
        wanted = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
        return {run.run_id for run in self.instance.get_runs(wanted)}


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator(seed=3, scale=7200 * 4) as sim:
        yield sim


@pytest.fixture
def servers(
    tmp_path: Path, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Servers]:
    """A code server and a daemon over a frozen dataset."""
    home = tmp_path / "home"
    home.mkdir()
    prepare_home(home, OPTIONS)
    origin = simulator.base_url.removesuffix("/v1")
    env = environment(home, origin, OPTIONS) | {
        "LLM_BATCH_SETTLE_INTERVAL": "300ms",
        "LLM_BATCH_POLL_INTERVAL": "300ms",
        "LLM_BATCH_LEASE_TTL": "3s",
        "LLM_BATCH_RUN_SILENCE": "6s",
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home)  # Dagster's storage is named relative to it
    (port,) = free_ports(1)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        found = Servers(home, instance)
        try:
            found.start(code_location(home, env, port))
            found.wait("the code server", lambda: bool(connects(port)))
            found.start(daemon(home, env))
            freeze(home)
            yield found
        finally:
            found.close()


def workload_of(home: Path) -> Workload:
    return Workload.from_yaml(home / "docstring_summaries.yaml")


def freeze(home: Path) -> None:
    """As the command line does: the tick tells Dagster of it."""
    rows = read_docstrings(DATASET, limit=OPTIONS.records, reading=Reading())
    with llm_batch.open(actor="cli") as deps:
        engine.freeze(workload_of(home), rows, dataset=DATASET, deps=deps, submitter="cli")


def view_of(home: Path) -> RevisionView:
    workload = workload_of(home)
    with llm_batch.open(actor="test") as deps:
        view = views.revision_view(deps.ledger, workload.tenant_id, workload.name, DATASET)
    assert view is not None
    return view


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_daemon_killed_in_a_tick_and_a_code_server_killed_with_its_runs(
    servers: Servers, simulator: Simulator
) -> None:
    """Each is started again, as a supervisor would; nobody says a word about the dead runs."""
    home = servers.home
    servers.wait("a tick", servers.in_a_tick)
    servers.start(servers.kill("daemon"))

    servers.wait("a run", lambda: bool(servers.started()))
    dead = servers.started()
    servers.start(servers.kill("code location"))

    servers.wait("a tick", servers.in_a_tick)
    servers.start(servers.kill("daemon"))
    servers.wait("the end", lambda: view_of(home).row.published_at is not None, within=400)

    view = view_of(home)
    assert view.row.accepted == OPTIONS.records
    meter = simulator.meter()
    assert (meter["provider_batches"], meter["paid_twice"]) == (len(view.shards), 0)
    ended = [servers.instance.get_run_by_id(run_id) for run_id in dead]
    assert all(run is not None and run.is_finished for run in ended)
