"""One small way to talk to each provider's simulator through our provider modules."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llm_batch_assets.artifacts import ArtifactStore, open_store
from llm_batch_assets.download import download
from llm_batch_assets.providers.base import BatchProvider
from llm_batch_assets.providers.factory import open_provider
from llm_batch_assets.simulator import Simulator
from llm_batch_assets.types import BatchView, CreateRequest
from llm_batch_assets_tests.providers.faulty_s3 import FaultyS3
from llm_batch_assets_tests.s3_server import S3Server

DEPLOYMENT = "dep-1"
KEY = "a1" * 32
DAY = 86_400


def openai_line(name: str, text: str) -> bytes:
    body = {"model": "gpt-4o-mini-2024-07-18", "input": text}
    line = {"custom_id": name, "method": "POST", "url": "/v1/responses", "body": body}
    return json.dumps(line).encode() + b"\n"


@dataclass(frozen=True)
class Dialect:
    """What differs between the providers for a test."""

    name: str
    endpoint: str
    model: str
    line: Callable[[str, str], bytes]
    row_id: Callable[[dict[str, Any]], str]
    env: Callable[[Simulator, str], dict[str, str]]
    records: int = 4
    absent_id: str = "batch_x"
    list_by_token: bool = False
    undeletable: str | None = None
    """What the names of files begin with that the provider itself cannot delete."""
    options: dict[str, Any] = field(default_factory=dict)
    s3: FaultyS3 | None = None


OPENAI = Dialect(
    name="openai",
    endpoint="/v1/responses",
    model="gpt-4o-mini-2024-07-18",
    line=openai_line,
    row_id=lambda row: row["custom_id"],
    env=lambda sim, key: {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": sim.base_url},
)


def anthropic_line(name: str, text: str) -> bytes:
    messages = [{"role": "user", "content": text}]
    params = {"model": "claude-haiku-4-5-20251001", "max_tokens": 50, "messages": messages}
    return json.dumps({"custom_id": name, "params": params}).encode() + b"\n"


ANTHROPIC = Dialect(
    name="anthropic",
    endpoint="/v1/messages",
    model="claude-haiku-4-5-20251001",
    line=anthropic_line,
    row_id=lambda row: row["custom_id"],
    env=lambda sim, key: {"ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": sim.anthropic_url},
)


def gemini_line(name: str, text: str) -> bytes:
    contents = [{"role": "user", "parts": [{"text": text}]}]
    return json.dumps({"key": name, "request": {"contents": contents}}).encode() + b"\n"


GEMINI = Dialect(
    name="gemini",
    endpoint="generateContent",
    model="gemini-2.5-flash",
    line=gemini_line,
    row_id=lambda row: row["key"],
    env=lambda sim, key: {"GOOGLE_API_KEY": key, "GOOGLE_GEMINI_BASE_URL": sim.gemini_url},
    absent_id="batches/x",
    list_by_token=True,
    undeletable="files/batch-",
)

DIALECTS = {d.name: d for d in (OPENAI, ANTHROPIC, GEMINI)}
"""Those that need nothing but the simulator."""


def bedrock_line(name: str, text: str) -> bytes:
    body = {"messages": [{"role": "user", "content": [{"text": text}]}]}
    return json.dumps({"recordId": name, "modelInput": body}).encode() + b"\n"


def bedrock(server: S3Server, bucket: str, proxy: FaultyS3) -> Dialect:
    """Bedrock over a real S3 server, under a prefix of its own."""
    prefix = secrets.token_hex(8)

    def env(sim: Simulator, key: str) -> dict[str, str]:
        return {
            **server.env,
            "AWS_ACCESS_KEY_ID": server.access_key if key == "sk-one" else key,
            "AWS_ENDPOINT_URL_S3": proxy.url,
            "AWS_ENDPOINT_URL_BEDROCK": sim.bedrock_url,
            "LLM_BATCH_BEDROCK_ROLE_ARN": "arn:aws:iam::123456789012:role/BatchRole",
            "LLM_BATCH_BEDROCK_S3": f"s3://{bucket}/{prefix}",
        }

    return Dialect(
        name="bedrock",
        endpoint="Converse",
        model="anthropic.claude-haiku-4-5-20251001-v1:0",
        line=bedrock_line,
        row_id=lambda row: row["recordId"],
        env=env,
        absent_id="arn:aws:bedrock:us-east-1:123456789012:model-invocation-job/abcdef123456",
        list_by_token=True,
        options={
            "s3_endpoint": server.endpoint,
            "s3_access_key": server.access_key,
            "s3_secret_key": server.secret_key,
            "bedrock_minimum": 1,
        },
        s3=proxy,
    )


@dataclass
class World:
    """A simulator and one account's provider."""

    dialect: Dialect
    sim: Simulator
    provider: BatchProvider
    store: ArtifactStore
    directory: Path
    stack: ExitStack
    extra_env: dict[str, str] = field(default_factory=dict)

    def as_account(self, key: str) -> BatchProvider:
        env = {**self.dialect.env(self.sim, key), **self.extra_env}
        provider = open_provider(self.dialect.name, env=env, deployment=DEPLOYMENT)
        self.stack.callback(provider.close)
        return provider

    def file(self, prefix: str = "r", records: int | None = None) -> Path:
        count = self.dialect.records if records is None else records
        path = self.directory / f"{prefix}.jsonl"
        names = self.ids(prefix, count)
        path.write_bytes(b"".join(self.dialect.line(n, f"Thing {n}") for n in names))
        return path

    def ids(self, prefix: str = "r", records: int | None = None) -> list[str]:
        count = self.dialect.records if records is None else records
        return [f"{prefix}-{n:05d}" for n in range(count)]

    def request(self, path: Path, key: str = KEY, **more: Any) -> CreateRequest:
        ref = None
        if self.provider.has_upload:
            ref = self.provider.upload(path, name=f"{key}.jsonl", timeout=20).ref
        request = CreateRequest(
            endpoint=self.dialect.endpoint,
            model=self.dialect.model,
            input_ref=ref,
            request_file_digest="0" * 64,
            records=path.read_bytes().count(b"\n"),
            deployment=DEPLOYMENT,
            submission_key=key,
            job_key="sha256:" + "b2" * 32,
            shard_key="2026-07-28/r1/a1/p00000",
        )
        return replace(request, **more)

    def submit(self, prefix: str = "r", key: str = KEY, records: int | None = None) -> BatchView:
        path = self.file(prefix, records)
        return self.provider.create(self.request(path, key), path, timeout=20)

    def finish(self, batch_id: str, seconds: float = DAY) -> BatchView:
        self.sim.advance(seconds)
        for _ in range(20):
            view = self.provider.get(batch_id)
            if view.results_ready:
                return view
        raise AssertionError(f"never ready: {view}")

    def rows(self, view: BatchView, **kw: Any) -> list[dict[str, Any]]:
        found = []
        for ref in view.results:
            if ref.kind == "bedrock_manifest":
                continue
            receipt = download(self.provider, ref, self.store, sleep=lambda s: None, **kw)
            assert receipt.whole
            data = self.store.get(receipt.digest)
            assert len(data) == receipt.received_bytes
            found += [json.loads(line) for line in data.split(b"\n") if line.strip()]
        return found

    def log(self, route: str) -> list[dict[str, Any]]:
        entries = self.sim.log()
        return [e for e in entries if e["route"] == route and e["provider"] == self.dialect.name]

    def break_downloads(self, fault: dict[str, Any]) -> None:
        if self.dialect.s3 is not None:
            self.dialect.s3.fault(fault)
        else:
            self.sim.faults({"route": "download", **fault})

    def downloads(self) -> int:
        if self.dialect.s3 is not None:
            return len(self.dialect.s3.downloads())
        return len(self.log("download"))

    def live(self) -> int:
        return self.sim.meter()["live_batches"]

    def listed(self) -> list[BatchView]:
        return list(self.provider.list_batches())


@contextmanager
def world_of(
    dialect: Dialect, directory: Path, *faults: dict[str, Any], **options: Any
) -> Iterator[World]:
    with ExitStack() as stack:
        extra = options.pop("extra_env", {})
        sim = stack.enter_context(
            Simulator(**{"seed": 7, "scale": 0, **dialect.options, **options})
        )
        if faults:
            sim.faults(*faults)
        env = {**dialect.env(sim, "sk-one"), **extra}
        provider = open_provider(dialect.name, env=env, deployment=DEPLOYMENT)
        stack.callback(provider.close)
        store = open_store(str(directory / "store"))
        yield World(dialect, sim, provider, store, directory, stack, extra)
