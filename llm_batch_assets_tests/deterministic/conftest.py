from __future__ import annotations

from collections.abc import Iterator

import pytest

from llm_batch_assets_tests.deterministic.bench import Shared


@pytest.fixture(scope="session")
def shared() -> Iterator[Shared]:
    """One ledger file and engine for every seed of this process."""
    made = Shared()
    yield made
    made.close()
