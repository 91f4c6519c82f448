"""One dataset, one simulator, one backend: run, end the process somewhere, run again, judge."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_batch_assets.ledger import Ledger, views
from llm_batch_assets.simulator import Simulator
from llm_batch_assets.workload import Workload
from llm_batch_assets_tests.engine.bench import make_workload
from llm_batch_assets_tests.engine.command import Command
from llm_batch_assets_tests.zygote import Forked

LONGEST_RUN = 60.0
MAX_RUNS = 12
"""A dataset that is not closed after so many starts never will be."""


@dataclass(frozen=True)
class Account:
    """A provider as a workload and an environment name it; ``options`` are the simulator's."""

    provider: str
    model: str
    env: Callable[[Simulator], dict[str, str]]
    options: dict[str, Any] = field(default_factory=dict)
    records: int = 16
    more_calls: list[dict[str, Any]] = field(default_factory=list)
    """Calls that another server than the simulator has noted, with ``at``, ``route``, ``path``."""
    retries_are_too_small: bool = False
    """What goes again is below the provider's smallest batch, and so is left to people."""

    def workload(self) -> Workload:
        """Two shards."""
        return make_workload(
            records_per_shard=self.records // 2,
            provider=self.provider,
            model=self.model,
            retry={"max_attempts": 4, "hold_deadline": "1h"},
        )


ACCOUNTS = {
    account.provider: account
    for account in (
        Account(
            "openai",
            "gpt-5-mini-2025-08-07",
            lambda sim: {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": sim.base_url},
        ),
        Account(
            "anthropic",
            "claude-haiku-4-5-20251001",
            lambda sim: {"ANTHROPIC_API_KEY": "sk-test", "ANTHROPIC_BASE_URL": sim.anthropic_url},
        ),
        Account(
            "gemini",
            "gemini-2.0-flash-001",
            lambda sim: {"GOOGLE_API_KEY": "sk-test", "GOOGLE_GEMINI_BASE_URL": sim.gemini_url},
        ),
    )
}
"""Those that need nothing but the simulator; Bedrock needs an S3 server, see ``conftest``."""


@dataclass(frozen=True)
class Backend:
    """Where ledger and artifacts live: ``make`` gives the environment of a new, empty place."""

    name: str
    make: Callable[[Path], dict[str, str]]


LOCAL = Backend("sqlite+directory", lambda folder: {})

STORIES: dict[str, list[dict[str, Any]]] = {
    "none": [],
    # Two attempts, nothing in doubt.
    "plain": [{"kind": "error_500", "count": 1, "total": 1}],
    # A lost create that made nothing, a lost create that made a batch, a refusal for now, a
    # second download that confirms a missing row, and two attempts.
    "rough": [
        {"route": "create", "nth": 1, "fault": "drop_before"},
        {"route": "create", "nth": 2, "fault": "status_before", "status": 429, "retry_after": "0"},
        {"route": "create", "nth": 3, "fault": "drop_after"},
        {"kind": "error_500", "count": 1, "total": 1},
        {"kind": "missing", "count": 1, "total": 1},
    ],
}


@dataclass
class Tally:
    """What a suite prints in the end."""

    points: int = 0
    killed: int = 0
    runs: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.points} datasets, {self.killed} kills, {self.runs} runs, {self.seconds:.0f} s"
        )


class Scene:
    """A fresh deployment against a fresh simulator."""

    def __init__(
        self,
        folder: Path,
        sim: Simulator,
        account: Account,
        backend: Backend,
        story: str = "plain",
    ) -> None:
        self.sim, self.folder = sim, folder
        self.account, self.records = account, account.records
        faulty = sum(fault.get("total", 0) for fault in STORIES[story])
        self.people = faulty if account.retries_are_too_small else 0
        sim.faults(*STORIES[story])
        self.command = Command(
            folder,
            sim,
            workload=account.workload(),
            records=account.records,
            env={
                # Fixed, so that every run of a story has the same ids.
                "LLM_BATCH_DEPLOYMENT": "d-crash",
                "LLM_BATCH_LEASE_TTL": "15s",
                **account.env(sim),
                **backend.make(folder),
            },
        )
        self.killed = 0
        self.process: Forked | None = None

    # --- processes ------------------------------------------------------------------------------

    @property
    def runs(self) -> int:
        """How often it was started."""
        return self.command.runs

    def start(self, env: Mapping[str, str] | None = None, seen: Path | None = None) -> int:
        """Start ``llm-batch-assets run`` (watched, into a file); gives the process id."""
        self.process = self.command.start(env=env, seen=seen)
        return self.process.pid

    def wait(self) -> int:
        """The exit code of the process that was started, or minus a signal."""
        assert self.process is not None
        try:
            code = self.process.wait(LONGEST_RUN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(
                f"a run took {LONGEST_RUN} s\n{self.ledger()}\n{self.history()}"
            ) from None
        self.killed += code == -signal.SIGKILL
        return code

    def run(self, env: Mapping[str, str] | None = None, seen: Path | None = None) -> int:
        """Start, and wait for the end."""
        self.start(env, seen)
        return self.wait()

    def run_killed_at(self, point: str) -> bool:
        """Run with a kill at a boundary; whether it came to that."""
        code = self.run({"LLM_BATCH_CRASH_AT": point})
        assert code in (0, -signal.SIGKILL), self.said()
        return code == -signal.SIGKILL

    def run_killed_after(self, seconds: float, *, withheld: bool = False) -> bool:
        """Run with a kill after some wall-clock time; whether it was still alive.

        It may have ended before, published or, where that is allowed, withheld.
        """
        self.start()
        time.sleep(seconds)
        assert self.process is not None
        self.process.kill()
        code = self.wait()
        assert code in (0, -signal.SIGKILL, *((4,) if withheld else ())), self.said()
        return code == -signal.SIGKILL

    def finish(self, *, withheld: bool = False) -> dict[str, Any]:
        """Run until it is closed (and published, unless it may be withheld); the result."""
        while (code := self.run()) != 0 and not (withheld and code == 4):
            assert code in (3, -signal.SIGKILL), self.said()
            assert self.runs < MAX_RUNS, f"not closed: {self.said()}"
        return self.result()

    def result(self) -> dict[str, Any]:
        """What the latest run printed."""
        assert self.process is not None
        out = self.process.out.read_text(encoding="utf-8")
        found = json.loads(out.strip().splitlines()[-1])
        assert isinstance(found, dict)
        return found

    def said(self) -> str:
        """Everything that the latest run said."""
        assert self.process is not None
        files = (self.process.out, self.process.err)
        return "\n".join(file.read_text(encoding="utf-8")[-3000:] for file in files)

    # --- the judge: the simulator's own log, list and meter ---------------------------------------

    def verdict(self) -> dict[str, Any]:
        """What must be the same however often the run was killed."""
        result = self.result()
        return {
            name: result[name]
            for name in ("closed", "published", "records", "accepted", "human_review",
                         "permanent_failure", "cancelled", "open")
        }  # fmt: skip

    def assert_one_batch_each(self) -> None:
        """Nothing paid twice, nothing running, one batch at most that ran for each submission."""
        meter = self.sim.meter()
        assert meter["paid_twice"] == 0, self.history()
        assert meter["live_batches"] == 0, self.history()
        assert self.result()["paid_twice"] == 0
        ran: defaultdict[str, set[str]] = defaultdict(set)
        for one in self.sim.executions():
            if not one["foreign"]:
                ran[one["custom_id"].split("-", 1)[0]].add(one["batch"])
        assert {tag: ids for tag, ids in ran.items() if len(ids) > 1} == {}, self.history()

    def assert_sound(self) -> None:
        """One batch for each submission, closed and published as without a kill."""
        self.assert_one_batch_each()
        assert self.verdict() == {
            "closed": True,
            "published": True,
            "records": self.records,
            "accepted": self.records - self.people,
            "human_review": self.people,
            "permanent_failure": 0,
            "cancelled": 0,
            "open": 0,
        }

    def ledger(self) -> str:
        """Every submission as our side sees it, for a failure's message."""
        url = self.command.env.get("LLM_BATCH_LEDGER_URL")
        ledger = Ledger(
            url or f"sqlite:///{self.folder / 'home' / 'ledger.db'}", deployment="d-crash"
        )
        lines = []
        try:
            for view in views.snapshot(ledger).revisions:
                lines += [f"{s.shard_key} e{s.epoch} {s.state} {s}" for s in view.shards]
        finally:
            ledger.close()
        return "\n".join(lines)

    def history(self) -> str:
        """The calls that cost money, for a failure's message."""
        wanted = {"create", "file_delete", "cancel", "delete"}
        calls = [entry for entry in self.sim.log() if entry["route"] in wanted]
        lines = [f"{e['at']:.3f} {e['route']} {e['status']} {e['notes']}" for e in calls]
        lines += [f"{b['id']} {b['phase']} {b['executed']}" for b in self.sim.state()["batches"]]
        return "\n".join(lines)

    def clean(self) -> None:
        """Free the disk: hundreds of scenes run after each other."""
        shutil.rmtree(self.folder, ignore_errors=True)


def simulator(account: Account, seed: int = 0) -> Simulator:
    """A simulator for a scene: a batch takes a tenth of a second, a day takes a minute.

    Some files live two days, and have to outlast a dataset's deaths on a busy machine.
    """
    return Simulator(seed=seed, scale=1440.0, batch_seconds=144.0, **account.options)


def spread(points: Sequence[str], count: int, rng: Any) -> list[str]:
    """A sample of points that takes each boundary's name before any a second time."""
    shuffled = rng.sample(list(points), len(points))
    seen: defaultdict[str, int] = defaultdict(int)
    ranked = []
    for point in shuffled:
        name = point.rsplit(":", 1)[0]
        ranked.append((seen[name], len(ranked), point))
        seen[name] += 1
    return [point for _, _, point in sorted(ranked)[:count]]
