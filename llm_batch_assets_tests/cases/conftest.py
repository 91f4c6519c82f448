"""Backoffs that are meant for a provider's bad day would only make these cases wait."""

from __future__ import annotations

import pytest

from llm_batch_assets import download, submission
from llm_batch_assets.engine import collecting


@pytest.fixture(autouse=True)
def _short_backoffs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "REFUSED_BACKOFF", (0.05, 0.2))
    monkeypatch.setattr(collecting, "COLLECT_BACKOFF", (0.05, 0.2))
    monkeypatch.setattr(download, "_BACKOFF_SECONDS", 0.01)
