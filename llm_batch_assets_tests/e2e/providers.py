"""The four providers as a dataset meets them: what differs between them, and benches for each."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from llm_batch_assets.deps import Deps
from llm_batch_assets.engine import open_deps
from llm_batch_assets.ledger import Ledger
from llm_batch_assets.ledger.database import utc_now
from llm_batch_assets.ledger.worker import Worker
from llm_batch_assets.providers.bedrock import job_name
from llm_batch_assets.settings import open_home
from llm_batch_assets.simulator import Simulator
from llm_batch_assets.types import NO_EFFECTS, Effects
from llm_batch_assets.workload import Workload
from llm_batch_assets_tests.engine.bench import (
    CALM,
    QUICK,
    Bench,
    Settings,
    make_workload,
    start_simulator,
)
from llm_batch_assets_tests.providers.faulty_s3 import FaultyS3
from llm_batch_assets_tests.s3_server import S3Server

ROLE = "arn:aws:iam::123456789012:role/BatchRole"
Env = Callable[[Simulator, str], dict[str, str]]


@dataclass(frozen=True)
class Setting:
    """One provider with what a run against the simulator needs.

    Attributes:
        env: what a worker with a key sees.
        options: the simulator's own switches.
        label: the value of ``clone_batch(metadata=…)`` that gives somebody else's batch our name.
        s3: the proxy that breaks downloads, where they do not come from the simulator.
    """

    provider: str
    model: str
    env: Env
    endpoint: str | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    label: Callable[[str], Any] | None = None
    s3: FaultyS3 | None = None

    def workload(self, **fields: Any) -> Workload:
        """A workload of this provider over rows of ``make_rows``."""
        mine: dict[str, Any] = {"provider": self.provider, "model": self.model}
        if self.endpoint is not None:
            mine["endpoint"] = self.endpoint
        limits = dict(self.limits) | fields.pop("limits", {})
        return make_workload(**(mine | {"limits": limits} | fields))

    def simulator(self, **options: Any) -> Simulator:
        """A simulator with this provider's switches."""
        return start_simulator(**(dict(self.options) | options))


def _openai(sim: Simulator, key: str) -> dict[str, str]:
    return {"OPENAI_BASE_URL": sim.base_url, "OPENAI_API_KEY": key}


def _anthropic(sim: Simulator, key: str) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": sim.anthropic_url, "ANTHROPIC_API_KEY": key}


def _gemini(sim: Simulator, key: str) -> dict[str, str]:
    return {"GOOGLE_GEMINI_BASE_URL": sim.gemini_url, "GEMINI_API_KEY": key}


OPENAI = Setting("openai", "gpt-5-mini-2025-08-07", _openai)
ANTHROPIC = Setting("anthropic", "claude-haiku-4-5-20251001", _anthropic)
GEMINI = Setting(
    "gemini",
    "gemini-2.5-flash-001",
    _gemini,
    # Uploads and results live for 48 hours: of a day of one second a busy machine would lose them.
    options={
        "scale": 8640.0,
        "batch_seconds": 432.0,
        "cancel_seconds": 60.0,
        "gemini_result_hours": 8760.0,
    },
    label=lambda key: f"other-deployment/{key}",
)
PLAIN = {one.provider: one for one in (OPENAI, ANTHROPIC, GEMINI)}
"""Those that need nothing but the simulator."""

NAMES = (*PLAIN, "bedrock")


def bedrock(
    server: S3Server, bucket: str, proxy: FaultyS3 | None = None, *, minimum: int = 1
) -> Setting:
    """Bedrock over a real S3 server, under a prefix of its own.

    Args:
        server: the real one.
        bucket: of the whole session.
        proxy: what our side talks to instead; the simulator always talks to the server itself.
        minimum: fewest records that the simulator runs a job for.
    """
    prefix = secrets.token_hex(8)

    def env(sim: Simulator, key: str) -> dict[str, str]:
        mine = server.env | {
            "AWS_ENDPOINT_URL_BEDROCK": sim.bedrock_url,
            "LLM_BATCH_BEDROCK_ROLE_ARN": ROLE,
            "LLM_BATCH_BEDROCK_S3": f"s3://{bucket}/{prefix}",
        }
        if proxy is not None:
            mine["AWS_ENDPOINT_URL_S3"] = proxy.url
        return mine if key == "sk-test" else mine | {"AWS_ACCESS_KEY_ID": key}

    return Setting(
        "bedrock",
        "anthropic.claude-haiku-4-5-20251001-v1:0",
        env,
        limits={"records_minimum": minimum},
        options={
            "s3_endpoint": server.endpoint,
            "s3_access_key": server.access_key,
            "s3_secret_key": server.secret_key,
            "bedrock_minimum": minimum,
        },
        label=lambda key: job_name("other-deployment", key),
        s3=proxy,
    )


class ProviderBench(Bench):
    """A deployment with one dataset at one of the four providers."""

    def __init__(
        self,
        setting: Setting,
        sim: Simulator,
        home: Path,
        *,
        workload: Workload | None = None,
        rows: list[dict[str, Any]] | None = None,
        settings: Settings = CALM,
        **options: Any,
    ) -> None:
        self.setting = setting
        mine = setting.workload() if workload is None else workload
        super().__init__(sim, home, workload=mine, settings=settings, **options)
        if rows is not None:
            self.rows = rows

    def worker(
        self,
        name: str,
        *,
        key: str = "sk-test",
        settings: Settings = QUICK,
        effects: Effects = NO_EFFECTS,
    ) -> Deps:
        """Another worker of the same deployment, under a holder of its own."""
        return open_deps(
            Worker(f"test:{name}", "test"),
            env=self.setting.env(self.sim, key) | {"LLM_BATCH_HOME": str(self.home)},
            settings=settings,
            effects=effects,
            progress=lambda what, detail: self.said.append((what, detail)),
        )

    def batches_of(self) -> dict[str, list[str]]:
        """Submission key -> the provider's batches that carry it, or whose first line is its."""
        found: dict[str, list[str]] = defaultdict(list)
        ours = {shard.tag: shard.submission_key for shard in self.view.shards}
        for one in self.own_batches():
            found[_key_of(one, ours)].append(one["id"])
        return dict(found)

    def foreign(self) -> dict[str, str]:
        """Batches of somebody else: id -> phase."""
        return {one["id"]: one["phase"] for one in self.sim.state()["batches"] if one["foreign"]}

    def look_alike(self, source: str = "latest") -> str:
        """Somebody else's batch of the same size, window and model, with our name if it has one."""
        more = {}
        if self.setting.label is not None:
            key = self.view.shards[0].submission_key
            more["metadata"] = self.setting.label(key)
        return str(self.sim.clone_batch(source, foreign=True, **more)["id"])

    def assert_left_alone(self, *foreign: str) -> None:
        """Neither adopted nor cancelled, and nothing of it deleted."""
        assert {shard.batch_id for shard in self.view.shards}.isdisjoint(foreign)
        phases = self.foreign()
        for one in foreign:
            assert phases[one] not in {"cancelling", "cancelled"}, one
            assert not [e for e in self.sim.log() if one in e["path"] and e["method"] != "GET"]

    def fault_downloads(self, fault: dict[str, Any]) -> None:
        """Break result downloads, wherever they come from."""
        if self.setting.s3 is not None:
            self.setting.s3.fault(fault)
        else:
            self.sim.faults({"route": "download", **fault})

    def executed(self) -> dict[str, int]:
        """custom id -> how often the simulator executed it, of our own batches."""
        found: dict[str, int] = defaultdict(int)
        for one in self.sim.executions():
            if not one.get("foreign"):
                found[one["custom_id"]] += 1
        return dict(found)


class Shifted:
    """The machine's clock, some hours ahead."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def __call__(self) -> datetime:
        return utc_now() + self.ahead


def shifted(bench: ProviderBench, clock: Shifted) -> Deps:
    """The bench's worker over a ledger with another clock."""
    env = bench.setting.env(bench.sim, "sk-test") | {"LLM_BATCH_HOME": str(bench.home)}
    home = open_home(env)
    ledger = Ledger(home.ledger_url, deployment=home.deployment, clock=clock)
    return replace(bench.deps, ledger=ledger)


def _key_of(batch: Mapping[str, Any], ours: Mapping[str, str]) -> str:
    """The submission that a simulated batch was made for, from whatever it carries."""
    metadata = batch.get("metadata") or {}
    body = batch.get("body") or {}
    name = batch.get("display_name") or ""
    return str(
        metadata.get("submission_key")
        or body.get("clientRequestToken")
        or (name.rsplit("/", 1)[-1] if name else None)
        or batch["id"]
    )
