"""A ledger that is lost or a day old, or one that is read on a later day."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from llm_batch_assets.deps import Deps
from llm_batch_assets.ledger import Ledger
from llm_batch_assets.ledger.database import utc_now
from llm_batch_assets.settings import open_home
from llm_batch_assets_tests.engine.bench import Bench, environment

B = TypeVar("B", bound=Bench)


def backup(bench: Bench, to: Path) -> Path:
    """Copy the ledger as it is now."""
    with sqlite3.connect(bench.home / "ledger.db") as source, sqlite3.connect(to) as target:
        source.backup(target)
    return to


def restore(bench: B, copy: Path | None) -> B:
    """The same deployment and store over an older ledger, or over none; a fresh worker."""
    bench.deps.ledger.close()
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (bench.home / name).unlink(missing_ok=True)
    if copy is not None:
        (bench.home / "ledger.db").write_bytes(copy.read_bytes())
    again = object.__new__(type(bench))
    again.__dict__.update(bench.__dict__)
    again.deps = again.worker("restored", settings=bench.deps.settings)
    return again


def later(bench: Bench, seconds: float) -> Deps:
    """The same worker, so much later by the ledger's clock."""
    home = open_home(environment(bench.sim, bench.home))
    clock = lambda: utc_now() + timedelta(seconds=seconds)  # noqa: E731
    return replace(
        bench.deps, ledger=Ledger(home.ledger_url, deployment=home.deployment, clock=clock)
    )
