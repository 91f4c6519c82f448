"""Many processes open a ledger at the same moment, as a daemon and its runs do."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import sqlalchemy as sa

from llm_batch_assets.ledger import Ledger
from llm_batch_assets.ledger.database import HEAD, VERSION_TABLE

OPEN = """
import sys, time
from llm_batch_assets.ledger import Ledger
from alembic import command  # imported before the start, so that all arrive together
ledger = Ledger(sys.argv[1], deployment="d")
time.sleep(max(0.0, float(sys.argv[2]) - time.time()))
ledger.upgrade()
ledger.close()
"""


@pytest.mark.parametrize("round_", range(3))
def test_first_use_by_many_at_once(tmp_path: Path, round_: int) -> None:
    """On SQLite a read that becomes a write fails at once, however long the busy timeout is."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    start = str(time.time() + 2.5)
    racers = [
        subprocess.Popen([sys.executable, "-c", OPEN, url, start], stderr=subprocess.PIPE)
        for _ in range(6)
    ]
    for racer in racers:
        _, said = racer.communicate(timeout=90)
        assert racer.returncode == 0, said.decode()


def test_head_is_the_newest_migration() -> None:
    from alembic.script import ScriptDirectory

    import llm_batch_assets.ledger.migrations as migrations

    assert ScriptDirectory(str(Path(migrations.__path__[0]))).get_current_head() == HEAD


def test_opening_what_is_up_to_date_takes_no_write_lock(tmp_path: Path) -> None:
    """Every sensor tick and every run opens the ledger: they must not wait for a writer."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    first, second = Ledger(url, deployment="d"), Ledger(url, deployment="d")
    first.upgrade()
    with first.read() as connection:
        query = sa.text(f"SELECT version_num FROM {VERSION_TABLE}")
        assert connection.execute(query).scalar_one() == HEAD
    with first.write("test"):
        before = time.monotonic()
        second.upgrade()
        assert time.monotonic() - before < 5


def test_first_use_by_threads_of_one_process(tmp_path: Path) -> None:
    """A code server evaluates its sensors in threads; Alembic's context is one per process."""
    ledgers = [Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", deployment="d") for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        barrier = Barrier(6)

        def open_one(ledger: Ledger) -> None:
            barrier.wait()
            ledger.upgrade()

        list(pool.map(open_one, ledgers))
