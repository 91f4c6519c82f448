"""Chat, responses, embeddings, tool answers and images by reference, wherever a cell has them.

Each closes a small dataset; what the capability table does not offer is refused before anything
is frozen. The rows of this table are checked against ``capabilities.toml``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets.reconcile.candidate import REVISION_CLOSURE
from llm_batch_assets.reconcile.digests import read_document
from llm_batch_assets.reconcile.tables import read_table
from llm_batch_assets.wire.capabilities import cells, find
from llm_batch_assets.workload.needs import needs
from llm_batch_assets_tests.e2e.providers import PLAIN, ProviderBench, Setting, bedrock
from llm_batch_assets_tests.engine.bench import SCHEMA
from llm_batch_assets_tests.s3_server import S3Server

RECORDS = 4

JSON: dict[str, Any] = {"output": {"version": "v1", "answer": "json", "schema": SCHEMA}}
TEXT: dict[str, Any] = {"output": {"version": "v1", "answer": "text"}}
TOOL: dict[str, Any] = {"output": {"version": "v1", "answer": "tool", "schema": SCHEMA}}
IMAGE: dict[str, Any] = {
    "prompt": {"version": "v1", "user": "Describe {{ name }}.", "images": ["{{ image }}"]},
    **TEXT,
}
EMBEDDING: dict[str, Any] = {
    "output": {"version": "v1", "answer": "embedding"},
    "generation": {},
    "prompt": {"version": "v1", "user": "{{ text }}"},
}
CACHE: dict[str, Any] = {"cache": "1h", **JSON}
KINDS = {"json": JSON, "text": TEXT, "tool": TOOL, "image": IMAGE, "embedding": EMBEDDING,
         "cache": CACHE}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A cell of the table and one feature of it."""

    provider: str
    endpoint: str
    model: str
    kind: str
    more: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.provider}{self.endpoint.replace('/', '-')}-{self.model[:24]}-{self.kind}"


GPT, CLAUDE, GEMINI = "gpt-4.1-mini-2025-04-14", "claude-haiku-4-5-20251001", "gemini-2.5-flash-001"
BEDROCK = "anthropic.claude-haiku-4-5-20251001-v1:0"
ROWS = [
    *(Row("openai", "/v1/responses", GPT, k) for k in ("json", "text", "tool", "image")),
    *(Row("openai", "/v1/chat/completions", GPT, k) for k in ("json", "text", "tool", "image")),
    Row("openai", "/v1/embeddings", "text-embedding-3-small", "embedding"),
    Row("openai", "/v1/embeddings", "text-embedding-3-large", "embedding"),
    *(Row("anthropic", "/v1/messages", CLAUDE, k) for k in ("json", "text", "tool", "image")),
    Row("anthropic", "/v1/messages", CLAUDE, "cache"),
    *(Row("gemini", "generateContent", GEMINI, k) for k in ("json", "text", "tool", "image")),
    Row("gemini", "embedContent", "gemini-embedding-001", "embedding"),
    *(Row("bedrock", "Converse", BEDROCK, k) for k in ("json", "text", "image")),
    *(Row("bedrock", "InvokeModel", BEDROCK, k) for k in ("json", "text", "tool")),
    Row("bedrock", "InvokeModel", "amazon.titan-embed-text-v2:0", "embedding"),
    Row("bedrock", "InvokeModel", "cohere.embed-english-v3", "embedding"),
]


def test_every_feature_of_every_cell_has_a_row() -> None:
    """Native bodies and pinned names aside: those are no kind of answer."""
    shown = set()
    for row in ROWS:
        cell = find(row.provider, row.model, row.endpoint)
        assert cell is not None
        shown.add((cell.title(), row.kind))
    offered = {
        (cell.title(), feature)
        for cell in cells()
        for feature in cell.features - {"native", "pinned"}
    }
    assert shown == offered


@pytest.fixture
def place(request: pytest.FixtureRequest, row: Row) -> Iterator[Setting]:
    if row.provider == "bedrock":
        server: S3Server = request.getfixturevalue("s3_server")
        yield bedrock(server, request.getfixturevalue("e2e_bucket"))
    else:
        yield PLAIN[row.provider]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_it_closes(row: Row, place: Setting, tmp_path: Path) -> None:
    address = "s3://e2e/pictures/{}.png" if row.provider == "bedrock" else "https://x.test/{}.png"
    rows = [
        {"name": f"r{n:03d}", "text": f"note {n}", "image": address.format(n)}
        for n in range(RECORDS)
    ]
    fields = {"model": row.model, "endpoint": row.endpoint, **KINDS[row.kind], **row.more}
    with place.simulator() as sim:
        workload = place.workload(**fields)
        assert row.kind in needs(workload)
        b = ProviderBench(place, sim, tmp_path / "home", workload=workload, rows=rows)
        b.freeze()
        assert b.drive() == []
        assert b.states() == {"accepted": set(range(RECORDS))}
        assert b.view.row.published_at is not None
        b.assert_no_second_batch(creates=1)

        document = read_document(b.deps.store, b.view.row.closure_digest or "", REVISION_CLOSURE)
        table = read_table(b.deps.store, document["candidate"]["object"])
        assert table.num_rows == RECORDS
        evidence = b.evidence()
        # Cohere's body counts no tokens: unknown, not nought.
        unknown = row.model.startswith("cohere.")
        assert {one["input_tokens"] is None for one in evidence} == {unknown}
        assert unknown or all(one["input_tokens"] > 0 for one in evidence)
        if row.kind == "image":  # the address went out, no bytes
            sent = b.deps.store.get(b.view.shards[0].request_digest)
            assert all(one["image"].encode() in sent for one in rows)
        if row.kind in ("json", "tool", "cache"):
            column = next(name for name in table.column_names if name.startswith("answer"))
            for answer in table[column].to_pylist():
                value = json.loads(answer) if isinstance(answer, str) else answer
                assert set(value) == {"summary", "topic"}
