"""Record what a provider module and a server say to each other; replay it without the server.

The server was the simulator: no call was made to a real provider.

``python -m llm_batch_assets_tests.providers.golden`` writes the files anew from the simulator.
A difference in them is a change of what we send: look at it before it is committed.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from llm_batch_assets.artifacts import open_store
from llm_batch_assets.download import download
from llm_batch_assets.providers.base import BatchProvider
from llm_batch_assets.providers.factory import open_provider
from llm_batch_assets.simulator import Simulator
from llm_batch_assets.types import BatchView, CreateRequest
from llm_batch_assets_tests.providers.harness import (
    DEPLOYMENT,
    DIALECTS,
    KEY,
    Dialect,
    bedrock_line,
)
from llm_batch_assets_tests.s3_server import running_s3
from llm_batch_assets_tests.scripted_server import Request, ScriptedServer, Wire

FOLDER = Path(__file__).parent / "golden"
HEADERS = (
    "accept",
    "accept-encoding",
    "anthropic-version",
    "content-type",
    "range",
    "x-amz-checksum-sha256",
    "x-goog-upload-command",
    "x-goog-upload-offset",
    "x-goog-upload-protocol",
    "x-goog-upload-header-content-length",
    "x-goog-upload-header-content-type",
)
NAMES = ("anthropic", "bedrock", "gemini", "openai")
_DROPPED = ("date", "connection", "content-length", "transfer-encoding", "server", "keep-alive")


def life(
    provider: BatchProvider, dialect: Dialect, folder: Path, advance: Callable[[], None]
) -> dict[str, Any]:
    """Everything that a batch goes through; gives what our side made of it."""
    path = folder / "request"
    lines = [dialect.line(f"r-{n}", f"Thing {n}") for n in range(dialect.records)]
    path.write_bytes(b"".join(lines))
    uploaded = provider.upload(path, name=f"{KEY}.jsonl", timeout=20)
    request = CreateRequest(
        endpoint=dialect.endpoint,
        model=dialect.model,
        input_ref=uploaded.ref,
        request_file_digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        records=len(lines),
        deployment=DEPLOYMENT,
        submission_key=KEY,
        job_key="sha256:" + "b2" * 32,
        shard_key="2026-07-28/r1/a1/p00000",
    )
    created = provider.create(request, path, timeout=20)
    listed = list(provider.list_batches())
    running = provider.get(created.batch_id)
    advance()
    ended = provider.get(created.batch_id)
    store = open_store(str(folder / "store"))
    receipts = [download(provider, ref, store) for ref in ended.results]
    over = provider.cancel(created.batch_id)
    if uploaded.ref is not None:
        provider.delete_input(uploaded.ref)
    provider.delete_remote(created.batch_id, tuple(ref.ref for ref in ended.results))
    return {
        "uploaded": uploaded.ref,
        "created": _shown(created),
        "listed": [_shown(view) for view in listed],
        "running": _shown(running),
        "ended": _shown(ended),
        "receipts": [
            [r.kind, r.digest, r.status, r.received_bytes, r.announced_bytes, r.expected_bytes]
            for r in receipts
        ],
        "over": None if over is None else _shown(over),
    }


def _shown(view: BatchView) -> list[Any]:
    return [
        view.batch_id,
        view.raw_status,
        view.status,
        view.results_ready,
        view.submission_key,
        view.deployment,
        view.counts.total,
        [ref.kind for ref in view.results],
    ]


def sent(request: Request, origin: str) -> dict[str, Any]:
    """A request without what differs from run to run."""
    headers = {name: request.headers[name] for name in HEADERS if name in request.headers}
    body = request.body
    boundary = re.search(r"boundary=([^;]+)", headers.get("content-type", ""))
    if boundary:
        body = body.replace(boundary[1].encode(), b"BOUNDARY")
        headers["content-type"] = headers["content-type"].replace(boundary[1], "BOUNDARY")
    return {
        "method": request.method,
        "target": request.target.replace(origin, "{origin}"),
        "headers": headers,
        "credential": "authorization" in request.headers
        or "x-api-key" in request.headers
        or "x-goog-api-key" in request.headers,
        "body": body.decode("utf-8").replace(origin, "{origin}"),
    }


def dialect_of(name: str) -> Dialect:
    """A provider's dialect; Bedrock's needs no server of its own here."""
    if name != "bedrock":
        return DIALECTS[name]
    return Dialect(
        name="bedrock",
        endpoint="Converse",
        model="anthropic.claude-haiku-4-5-20251001-v1:0",
        line=bedrock_line,
        row_id=lambda row: row["recordId"],
        env=lambda sim, key: {
            "AWS_ACCESS_KEY_ID": "test-access",
            "AWS_SECRET_ACCESS_KEY": key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": sim.origin,
            "AWS_ENDPOINT_URL_BEDROCK": sim.bedrock_url,
            "LLM_BATCH_BEDROCK_ROLE_ARN": "arn:aws:iam::123456789012:role/BatchRole",
            "LLM_BATCH_BEDROCK_S3": "s3://golden/p",
        },
    )


def record(name: str) -> dict[str, Any]:
    """One life against the simulator, through a proxy that writes everything down."""
    dialect = dialect_of(name)
    exchanges: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options: dict[str, Any] = {}
        key, storage = "sk-one", ""
        if name == "bedrock":
            server = stack.enter_context(running_s3(folder / "s3"))
            key, storage = server.secret_key, re.sub("^http://", "", server.endpoint)
            server.client().create_bucket(Bucket="golden")
            options = {
                "s3_endpoint": server.endpoint,
                "s3_access_key": server.access_key,
                "s3_secret_key": server.secret_key,
                "bedrock_minimum": 1,
            }
        sim = stack.enter_context(Simulator(seed=7, scale=0, **options))
        upstream = re.sub("^http://", "", sim.origin)

        def forward(request: Request, wire: Wire) -> None:
            to_storage = storage and not request.path.startswith("/bedrock/")
            where = storage if to_storage else upstream
            connection = http.client.HTTPConnection(where, timeout=30)
            headers = {
                k: v for k, v in request.headers.items() if k not in ("transfer-encoding", "expect")
            }
            headers["content-length"] = str(len(request.body))
            connection.request(request.method, request.target, request.body, headers)
            reply = connection.getresponse()
            body = reply.read()
            kept = {k: v for k, v in reply.getheaders() if k.lower() not in _DROPPED}
            here = f"http://{request.headers['host']}"
            exchanges.append(
                {
                    "request": sent(request, here),
                    "reply": {
                        "status": reply.status,
                        "headers": {k: v.replace(here, "{origin}") for k, v in kept.items()},
                        "body": body.decode("utf-8").replace(here, "{origin}"),
                    },
                }
            )
            wire.reply(reply.status, body, kept)
            connection.close()

        proxy = stack.enter_context(ScriptedServer(forward))
        provider = open_provider(
            name, env=dialect.env(Origin(proxy.url), key), deployment=DEPLOYMENT
        )
        stack.callback(provider.close)
        outcome = life(provider, dialect, folder, lambda: sim.advance(86_400))
        text = json.dumps({"outcome": outcome, "exchanges": exchanges})
        assert key not in text, "a credential would be written"
    return {"outcome": outcome, "exchanges": exchanges}


class Origin:
    """Stands where a dialect expects a simulator."""

    def __init__(self, url: str) -> None:
        self.origin = url
        self.base_url = f"{url}/v1"
        self.anthropic_url = f"{url}/anthropic"
        self.gemini_url = f"{url}/gemini"
        self.bedrock_url = f"{url}/bedrock"


def main() -> None:
    """Write every golden file."""
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        text = json.dumps(record(name), indent=1, ensure_ascii=False, sort_keys=True)
        (FOLDER / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
