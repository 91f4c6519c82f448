from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_batch_assets.ledger import Ledger
from llm_batch_assets_tests.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new, empty database of each kind: one code path, one suite."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return str(request.getfixturevalue("postgres").database())


@pytest.fixture
def ledger(url: str, clock: ManualClock) -> Iterator[Ledger]:
    ledger = Ledger(url, deployment="d-test", clock=clock)
    ledger.upgrade()
    yield ledger
    ledger.close()
