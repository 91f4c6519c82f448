from __future__ import annotations

import pytest

from llm_batch_assets_tests.s3_server import running_s3


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    with running_s3(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server
