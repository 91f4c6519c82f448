"""Real servers for tests, started as a normal user on loopback and stopped by their process id."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader
from hypothesis import settings
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Engine
from sqlalchemy.util import LRUCache

from llm_batch_assets_tests.postgres import Postgres
from llm_batch_assets_tests.s3_server import S3Server, running_s3
from llm_batch_assets_tests.zygote import the_zygote

# Other tests run beside these: how long one example takes says nothing about the code.
settings.register_profile("beside-others", deadline=None)
settings.load_profile("beside-others")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A PostgreSQL server of this test session; ``postgres.database()`` is a fresh one."""
    folder: Path = tmp_path_factory.mktemp("postgres")
    with Postgres(folder) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One real S3 server for the whole session; make a bucket of your own in it."""
    with running_s3(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def _amazon_described_once() -> Iterator[None]:
    """botocore reads the descriptions of services once, not for each of a test's sessions."""
    read = JSONFileLoader.load_file
    known: dict[str, Any] = {}

    def load(self: JSONFileLoader, path: str) -> Any:
        if path not in known:
            known[path] = read(self, path)
        return known[path]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", load)
        yield


@pytest.fixture(scope="session", autouse=True)
def _statements_compiled_once() -> Iterator[None]:
    """All SQLite engines of this process share their compiled statements.

    Each test has ledgers and Dagster instances of its own, and compiling the same statements for
    each of them took a fifth of the time.
    """
    compiled: dict[Any, Any] = LRUCache(2000)
    made = Engine.__init__

    def make(self: Engine, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        if type(self.dialect) is SQLiteDialect_pysqlite:
            self._compiled_cache = compiled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "__init__", make)
        # The cache's keys have the dialect in them: one is as good as another.
        patch.setattr(SQLiteDialect_pysqlite, "__hash__", lambda self: hash(type(self)))
        patch.setattr(SQLiteDialect_pysqlite, "__eq__", lambda self, o: type(self) is type(o))
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests come first in each worker's share: nobody waits for one of them in the end."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.get_closest_marker("long")]
    rest = [item for item in items if not item.get_closest_marker("long")]
    share = -(-len(rest) // workers)
    items[:] = [
        item
        for number in range(workers)
        for item in (*long[number::workers], *rest[number * share : (number + 1) * share])
    ]


def pytest_sessionfinish() -> None:
    """End what the session has started."""
    if the_zygote.cache_info().currsize:
        the_zygote().close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what suites counted (user property ``count``): workers of xdist tell it here, too."""
    lines = [
        str(value)
        for reports in terminalreporter.stats.values()
        for one in reports
        if getattr(one, "when", None) == "call"
        for name, value in getattr(one, "user_properties", ())
        if name == "count"
    ]
    if lines:
        terminalreporter.section("counts")
        for line in sorted(lines):
            terminalreporter.line(line)
