"""A simulator, a fresh home and a fresh Dagster instance for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.defs.loop import Loop, small_workload


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    """A provider that does nothing wrong; a batch takes about a tenth of a second."""
    with Simulator(seed=3, scale=7200 * 20) as sim:
        yield sim


@pytest.fixture
def home(tmp_path: Path, simulator: Simulator, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a deployment that talks to the simulator, at a test's pace."""
    folder = tmp_path / "home"
    for name, value in {
        "LLM_BATCH_HOME": str(folder),
        "LLM_BATCH_DEPLOYMENT": "d-test",
        "LLM_BATCH_SETTLE_INTERVAL": "300ms",
        "LLM_BATCH_POST_DEADLINE": "2s",
        "LLM_BATCH_POLL_INTERVAL": "50ms",
        "OPENAI_BASE_URL": simulator.base_url,
        "OPENAI_API_KEY": "sk-test",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("LLM_BATCH_LEDGER_URL", "LLM_BATCH_ARTIFACTS_URL", "DAGSTER_IS_DEV_CLI"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., Loop]]:
    """Start a code location; its dataset partition exists."""
    with dg.DagsterInstance.ephemeral() as instance:

        def begin(workload: Any = None, source: Any = None, **options: Any) -> Loop:
            loop = Loop(instance, workload or small_workload(), source, **options)
            if "partitions_def" not in options:
                loop.add_dataset()
            return loop

        yield begin


@pytest.fixture
def loop(start: Callable[..., Loop]) -> Loop:
    return start()
