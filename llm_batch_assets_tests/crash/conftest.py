from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets_tests.crash.scene import ACCOUNTS, Account, Backend, Tally
from llm_batch_assets_tests.postgres import Postgres
from llm_batch_assets_tests.providers.faulty_s3 import FaultyS3
from llm_batch_assets_tests.s3_server import S3Server
from llm_batch_assets_tests.scripted_server import Request, Wire

PROVIDERS = (*ACCOUNTS, "bedrock")


@pytest.fixture(params=PROVIDERS)
def account(request: pytest.FixtureRequest) -> Account:
    """Each provider in turn."""
    if request.param in ACCOUNTS:
        return ACCOUNTS[request.param]
    return bedrock(request.getfixturevalue("s3_server"), request.getfixturevalue("seen_s3"))


class SeenS3(FaultyS3):
    """A way to the S3 server that notes each call, as the simulator's log does for its own."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.calls: list[dict[str, Any]] = []

    def _forward(self, request: Request, wire: Wire) -> None:
        route = {"PUT": "upload", "DELETE": "file_delete"}.get(request.method, "download")
        if "list-type=" in request.target:
            route = "poll"  # which files a batch has left is part of looking at it
        self.calls.append({"at": time.monotonic(), "route": route, "path": request.target})
        super()._forward(request, wire)


@pytest.fixture(scope="session")
def seen_s3(s3_server: S3Server) -> Iterator[SeenS3]:
    """What Bedrock's provider is told instead of the S3 server's own address."""
    proxy = SeenS3(s3_server.endpoint)
    with proxy.running():
        yield proxy


_buckets = count()


def bedrock(server: S3Server, seen: SeenS3) -> Account:
    """Bedrock, whose request and result files live in a bucket of a real S3 server."""
    bucket = f"crash-bedrock-{next(_buckets)}"
    server.client().create_bucket(Bucket=bucket)
    prefixes = count()
    return Account(
        "bedrock",
        "anthropic.claude-haiku-4-5-20251001-v1:0",
        lambda sim: {
            **server.env,
            "AWS_ENDPOINT_URL_S3": seen.url,
            "AWS_ENDPOINT_URL_BEDROCK": sim.bedrock_url,
            "LLM_BATCH_BEDROCK_ROLE_ARN": "arn:aws:iam::123456789012:role/BatchRole",
            "LLM_BATCH_BEDROCK_S3": f"s3://{bucket}/p{next(prefixes)}",
        },
        {
            "s3_endpoint": server.endpoint,
            "s3_access_key": server.access_key,
            "s3_secret_key": server.secret_key,
        },
        records=200,
        more_calls=seen.calls,
        retries_are_too_small=True,
    )


@pytest.fixture
def postgres_and_s3(postgres: Postgres, s3_server: S3Server) -> Backend:
    """A database and a prefix of their own for every scene."""
    bucket = f"crash-{next(_buckets)}"
    s3_server.client().create_bucket(Bucket=bucket)
    prefixes = count()

    def make(folder: Path) -> dict[str, str]:
        del folder
        return {
            **s3_server.env,
            "LLM_BATCH_LEDGER_URL": postgres.database(),
            "LLM_BATCH_ARTIFACTS_URL": f"s3://{bucket}/a{next(prefixes)}",
        }

    return Backend("postgresql+s3", make)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str, Tally], None]:
    """Notes counts, which the end of the session prints."""

    def note(what: str, tally: Tally) -> None:
        request.node.user_properties.append(("count", f"killed: {what}: {tally}"))

    return note
