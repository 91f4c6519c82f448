from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_batch_assets.ledger import Ledger
from llm_batch_assets_tests.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: ManualClock) -> Iterator[Ledger]:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", deployment="d-test", clock=clock)
    ledger.upgrade()
    yield ledger
    ledger.close()
