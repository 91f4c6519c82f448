from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.simulator.raw import Raw


@pytest.fixture
def start() -> Iterator[Callable[..., Raw]]:
    """Start a simulator whose clock stands still, and give one account's raw client."""
    with ExitStack() as stack:

        def begin(*faults: dict[str, Any], **options: Any) -> Raw:
            sim = stack.enter_context(Simulator(**{"seed": 7, "scale": 0, **options}))
            if faults:
                sim.faults(*faults)
            raw = Raw(sim)
            stack.callback(raw.http.close)
            return raw

        yield begin


@pytest.fixture
def raw(start: Callable[..., Raw]) -> Raw:
    return start()
