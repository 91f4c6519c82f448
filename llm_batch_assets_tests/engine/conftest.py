"""Backoffs that are meant for a provider's bad day would only make these tests wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets import download, submission
from llm_batch_assets.engine import collecting
from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.engine.bench import CALM, Bench, start_simulator


@pytest.fixture(autouse=True)
def _short_backoffs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "REFUSED_BACKOFF", (0.05, 0.2))
    monkeypatch.setattr(collecting, "COLLECT_BACKOFF", (0.05, 0.2))
    monkeypatch.setattr(download, "_BACKOFF_SECONDS", 0.01)


@pytest.fixture
def sim() -> Iterator[Simulator]:
    with start_simulator() as simulator:
        yield simulator


@pytest.fixture
def bench(sim: Simulator, tmp_path: Path) -> Callable[..., Bench]:
    def make(**options: Any) -> Bench:
        return Bench(sim, tmp_path / "home", **options)

    return make


@pytest.fixture
def make_slow(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Benches on one simulator whose time stands: only ``advance`` lets a batch's hours pass."""
    with start_simulator(scale=1.0, batch_seconds=28_800.0) as simulator:

        def make(**options: Any) -> Bench:
            return Bench(simulator, tmp_path / "home", **{"settings": CALM} | options)

        yield make
