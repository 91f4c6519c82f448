"""A simulator whose time stands until the test lets it pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets_tests.engine.bench import Bench, start_simulator

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
def make_slow(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Benches on one simulator; a batch takes eight of its hours, which only ``advance`` brings."""
    with start_simulator(scale=1.0) as sim:

        def make(**options: Any) -> Bench:
            return Bench(sim, tmp_path / "home", **options)

        yield make
