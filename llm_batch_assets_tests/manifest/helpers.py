"""Small workloads, tables and stores for the tests of this room."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from llm_batch_assets.artifacts import ArtifactStore, open_store
from llm_batch_assets.manifest import Frozen, Manifest, freeze, freeze_retry, read_records
from llm_batch_assets.workload import Workload

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
SCHEMA = {
    "type": "object",
    "required": ["a"],
    "additionalProperties": False,
    "properties": {"a": {"type": "string"}},
}
FIELDS: dict[str, Any] = {
    "name": "small",
    "tenant_id": "t",
    "provider": "openai",
    "model": "gpt-5-mini-2025-08-07",
    "business_key": "k",
    "source_version": "v",
    "prompt": {"version": "v1", "user": "{{ text }}"},
    "output": {"schema": SCHEMA},
}


def workload(**changes: Any) -> Workload:
    return Workload(**{**FIELDS, **changes})


def rows(count: int, text: str = "some text", start: int = 0) -> list[dict[str, Any]]:
    return [
        {"k": f"key-{n:06d}", "v": "1", "text": f"{text} {n}"} for n in range(start, start + count)
    ]


def batches(items: Sequence[Mapping[str, Any]], size: int = 100) -> Iterable[pa.RecordBatch]:
    return pa.Table.from_pylist(list(items)).to_batches(size)


def store(path: Path) -> ArtifactStore:
    return open_store(str(path / "store"))


def frozen(
    where: ArtifactStore,
    items: Sequence[Mapping[str, Any]] | Iterable[pa.RecordBatch],
    asked: Workload | None = None,
    **changes: Any,
) -> Frozen:
    given = {"dataset": "d", "revision": 1, "deployment": "dev", "submitter": "me", "now": NOW}
    plain = isinstance(items, list) and not (items and isinstance(items[0], pa.RecordBatch))
    data = batches(items) if plain else items  # type: ignore[arg-type]
    return freeze(asked or workload(), data, store=where, **{**given, **changes})


def selection(table: pa.Table, job_key: str, reason: str = "missing") -> pa.Table:
    return pa.table(
        {
            "record_id": table["record_id"],
            "parent_job_key": pa.array([job_key] * table.num_rows, pa.string()),
            "parent_shard": table["shard"],
            "retry_reason": pa.array([reason] * table.num_rows, pa.string()),
        }
    )


def retried(
    where: ArtifactStore, parents: Sequence[Manifest], chosen: pa.Table, **changes: Any
) -> Frozen:
    given = {"attempt": parents[-1].attempt + 1, "submitter": "me", "now": NOW}
    return freeze_retry(parents, selection=chosen, store=where, **{**given, **changes})


def lines_of(where: ArtifactStore, manifest: Manifest) -> list[list[dict[str, Any]]]:
    return [
        [json.loads(line) for line in where.get(shard.digest).split(b"\n")[:-1]]
        for shard in manifest.shards
    ]


def table_of(where: ArtifactStore, manifest: Manifest) -> pa.Table:
    return read_records(where, manifest.records_digest)
