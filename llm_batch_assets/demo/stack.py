"""The demo's folder and its four processes: simulator, code location, web server, daemon."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from llm_batch_assets.demo.accounts import ACCOUNTS, start_s3
from llm_batch_assets.demo.processes import Service, Supervisor, connects, free_ports
from llm_batch_assets.errors import InputError

LOCATION = "llm_batch_assets"
SHARDS = 5
MAX_SHARD = 2000

WORKSPACE = "workspace.yaml"
LOGS = "output"
"""Below the home; Dagster empties ``logs`` there."""

_PYTHON = (sys.executable, "-W", "ignore", "-m")

TIMING = {
    "LLM_BATCH_SETTLE_INTERVAL": "2s",
    "LLM_BATCH_POST_DEADLINE": "2s",
    "LLM_BATCH_POLL_INTERVAL": "2s",
}
"""The simulator's day passes in about twelve seconds; waiting shrinks with it."""

_NOT_OURS = ("OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "AWS_", "LLM_BATCH_", "DAGSTER_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What a demo run may choose. ``records`` None takes the whole standard library."""

    records: int | None = 600
    seed: int = 0
    faults: str = "default"
    scale: float = 7200.0
    provider: str = "openai"


@dataclass(frozen=True, slots=True)
class Stack:
    """Where the parts of a running demo are."""

    home: Path
    origin: str
    """The simulator's address, without a path."""
    web: str
    """The UI's address; GraphQL is at ``/graphql`` below it."""
    env: Mapping[str, str]


def prepare_home(home: Path, options: DemoOptions) -> None:
    """Write Dagster's settings and the workload that this demo runs into a fresh folder."""
    (home / "dagster.yaml").write_bytes(_dagster_yaml().read_bytes())
    packaged = Path(__file__).parents[1] / "examples" / "docstring_summaries.yaml"
    fields = yaml.safe_load(packaged.read_text(encoding="utf-8"))
    # At least five shards, so that there is something to watch; and no five-minute backoff.
    records = MAX_SHARD * SHARDS if options.records is None else options.records
    size = max(1, min(MAX_SHARD, records // SHARDS))
    account = ACCOUNTS[options.provider]
    fields |= {"provider": options.provider, "model": account.model, "endpoint": account.endpoint}
    limits = {**fields.get("limits", {}), "records_per_shard": size, **(account.limits or {})}
    fields["limits"] = limits
    fields["retry"] = {
        **fields.get("retry", {}),
        "backoff": {"initial": "1s", "factor": 1, "max": "1s"},
    }
    path = home / "docstring_summaries.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False), encoding="utf-8")


def _dagster_yaml() -> Path:
    """The clone's ``dagster.yaml``; the wheel carries a copy of it inside the package."""
    here = Path(__file__)
    found = [here.with_name("dagster.yaml"), here.parents[2] / "dagster.yaml"]
    for path in found:
        if path.is_file():
            return path
    raise InputError(
        f"The demo's Dagster settings are not at {found[0]}: this installation is not whole.",
        remedy="Install the package again, or run the demo from a clone.",
    )


def environment(home: Path, origin: str, options: DemoOptions) -> dict[str, str]:
    """The services' environment: this process's, without keys, proxies or older state."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_NOT_OURS) and name.lower() not in _PROXIES
    }
    # Without .pyc files every start of a Dagster process costs three times as much.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env |= TIMING | {
        "NO_PROXY": "127.0.0.1,localhost",
        "PYTHONUNBUFFERED": "1",
        "DAGSTER_HOME": str(home),
        "LLM_BATCH_HOME": str(home / "llm_batch"),
        "LLM_BATCH_SUBMITTER": "demo",
        "LLM_BATCH_EXAMPLE_WORKLOAD": str(home / "docstring_summaries.yaml"),
        ACCOUNTS[options.provider].variable: origin + ACCOUNTS[options.provider].path,
    }
    if (key := ACCOUNTS[options.provider].key) is not None:
        env[key] = "simulated"
    if options.records is not None:
        env["LLM_BATCH_EXAMPLE_RECORDS"] = str(options.records)
    return env


def code_location(home: Path, env: Mapping[str, str], port: int) -> Service:
    """The server of our definitions on a loopback port, which the home's workspace names."""
    server = {"host": "127.0.0.1", "port": port, "location_name": LOCATION}
    workspace = yaml.safe_dump({"load_from": [{"grpc_server": server}]})
    (home / WORKSPACE).write_text(workspace, encoding="utf-8")
    argv = [*_PYTHON, "dagster", "api", "grpc", "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--location-name", LOCATION]
    argv += ["--module-name", f"{LOCATION}.definitions", "--log-level", "warning"]
    argv += ["--inject-env-vars-from-instance", "--use-python-environment-entry-point"]
    return Service("code location", argv, env, home, home / LOGS / "location.log")


def daemon(home: Path, env: Mapping[str, str]) -> Service:
    """Dagster's daemon over the home's workspace."""
    argv = [*_PYTHON, "dagster._daemon", "run", "--workspace", str(home / WORKSPACE)]
    return Service("daemon", argv, env, home, home / LOGS / "daemon.log")


def start_stack(
    supervisor: Supervisor, home: Path, options: DemoOptions, *, web_port: int | None = None
) -> Stack:
    """Start everything on free loopback ports and wait until the UI answers.

    Raises:
        ServiceEndedError: a process ended while starting; the message shows its log.
        NotUpError: something did not come up in time.
    """
    logs = home / LOGS
    prepare_home(home, options)
    simulator_port, location_port, free_port = free_ports(3)
    port = web_port or free_port
    origin = f"http://127.0.0.1:{simulator_port}"
    env = environment(home, origin, options)
    extra: list[str] = []
    for switch in ACCOUNTS[options.provider].options:
        extra += ["--option", switch]
    if options.provider == "bedrock":
        s3 = start_s3(supervisor, home, env, logs)
        env |= s3.env()
        extra += s3.arguments()
    simulate = [sys.executable, "-m", "llm_batch_assets.cli", "simulate"]
    simulate += ["--port", str(simulator_port), "--seed", str(options.seed)]
    simulate += ["--faults", options.faults, "--scale", f"{options.scale:g}"]
    simulate += extra
    supervisor.start(Service("simulator", simulate, env, home, logs / "simulator.log"))
    supervisor.start(code_location(home, env, location_port))
    for what, used in (("The simulator", simulator_port), ("The code location", location_port)):
        supervisor.wait_for(what, partial(connects, used), timeout=120, every=0.1)
    web = [*_PYTHON, "dagster_webserver", "--host", "127.0.0.1", "--port", str(port)]
    web += ["--workspace", str(home / WORKSPACE), "--log-level", "warning"]
    supervisor.start(Service("web server", web, env, home, logs / "web.log"))
    supervisor.start(daemon(home, env))
    supervisor.wait_for("The web server", lambda: connects(port), timeout=120, every=0.1)
    return Stack(home, origin, f"http://127.0.0.1:{port}", env)
