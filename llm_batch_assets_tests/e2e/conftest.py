"""One bench per provider, with short backoffs; Bedrock's files lie on a real S3 server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets import download, submission
from llm_batch_assets.engine import collecting
from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.e2e.providers import (
    NAMES,
    PLAIN,
    ProviderBench,
    Setting,
    bedrock,
)
from llm_batch_assets_tests.providers.faulty_s3 import FaultyS3
from llm_batch_assets_tests.s3_server import S3Server

Make = Callable[..., ProviderBench]


@pytest.fixture(autouse=True)
def _short_backoffs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "REFUSED_BACKOFF", (0.05, 0.2))
    monkeypatch.setattr(collecting, "COLLECT_BACKOFF", (0.05, 0.2))
    monkeypatch.setattr(download, "_BACKOFF_SECONDS", 0.01)


@pytest.fixture(scope="session")
def e2e_bucket(s3_server: S3Server) -> str:
    """One bucket for every Bedrock test; each has a prefix of its own."""
    s3_server.client().create_bucket(Bucket="e2e")
    return "e2e"


@pytest.fixture(params=NAMES)
def setting(request: pytest.FixtureRequest) -> Iterator[Setting]:
    """Each of the four providers."""
    if request.param != "bedrock":
        yield PLAIN[request.param]
        return
    server = request.getfixturevalue("s3_server")
    with FaultyS3(server.endpoint).running() as proxy:
        yield bedrock(server, request.getfixturevalue("e2e_bucket"), proxy)


@pytest.fixture
def sim(setting: Setting) -> Iterator[Simulator]:
    with setting.simulator() as simulator:
        yield simulator


@pytest.fixture
def bench(setting: Setting, sim: Simulator, tmp_path: Path) -> Make:
    def make(**options: Any) -> ProviderBench:
        return ProviderBench(setting, sim, tmp_path / "home", **options)

    return make
