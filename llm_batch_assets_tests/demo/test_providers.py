"""The demo at each provider: its workload, its environment, and (long) a whole run as a user's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llm_batch_assets.demo.accounts import ACCOUNTS, S3
from llm_batch_assets.demo.stack import DemoOptions, environment, prepare_home
from llm_batch_assets.engine.opening import BASE_URLS, loopback_providers
from llm_batch_assets.wire.capabilities import find
from llm_batch_assets.workload import Workload
from llm_batch_assets.workload.needs import capability_refusals

LAST = re.compile(r"closed=true records=\d+ .* paid_twice=0")


@pytest.mark.parametrize("provider", sorted(ACCOUNTS))
def test_the_example_is_admitted_at_each_provider(provider: str, tmp_path: Path) -> None:
    options = DemoOptions(600, provider=provider)
    prepare_home(tmp_path, options)
    workload = Workload.from_yaml(tmp_path / "docstring_summaries.yaml")
    assert (workload.provider, workload.limits.records_per_shard) == (provider, 120)
    assert find(provider, workload.model, workload.endpoint) is not None
    env = environment(tmp_path, "http://127.0.0.1:9", options)
    assert loopback_providers(env) == {provider}
    loopback = provider in loopback_providers(env)
    assert capability_refusals(workload, loopback=loopback) == []
    # Nobody else's address or key: a typing error reaches nothing real.
    assert {name for name in env if name in BASE_URLS.values()} == {BASE_URLS[provider]}


def test_bedrocks_files_and_the_simulators_are_the_same_server() -> None:
    made = S3("http://127.0.0.1:9", "demo", "secret")
    assert made.env()["AWS_ENDPOINT_URL_S3"] in made.arguments()
    assert made.env()["AWS_SECRET_ACCESS_KEY"] in made.arguments()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("faults", ["default", "hostile"])
@pytest.mark.parametrize("provider", ["anthropic", "gemini", "bedrock"])
def test_the_demo_as_a_user_runs_it(provider: str, faults: str, tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "llm_batch_assets.cli", "demo", "--provider", provider]
    ended = subprocess.run(
        [*command, "--faults", faults], env=env, capture_output=True, text=True, timeout=850
    )
    assert ended.returncode == 0, ended.stderr
    assert LAST.fullmatch(ended.stdout.splitlines()[-1]), ended.stdout
