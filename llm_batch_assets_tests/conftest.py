"""Real servers for tests, started as a normal user on loopback and stopped by their process id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_batch_assets_tests.postgres import Postgres
from llm_batch_assets_tests.s3_server import S3Server, running_s3


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
