"""The records table: one row per record of a job, in manifest order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.errors import ArtifactError

RECORDS_SCHEMA = pa.schema(
    [
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("record_id", pa.string(), nullable=False),
        pa.field("business_key", pa.string(), nullable=False),
        pa.field("source_version", pa.string()),
        pa.field("wire_id", pa.string(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("line", pa.int32(), nullable=False),
        pa.field("request_digest", pa.string(), nullable=False),
        pa.field("request_bytes", pa.int32(), nullable=False),
        pa.field("preflight_rule", pa.string()),
        pa.field("parent_job_key", pa.string()),
        pa.field("parent_shard", pa.int32()),
        pa.field("retry_reason", pa.string()),
    ]
)
"""``shard`` and ``line`` are -1, and ``wire_id`` is empty, for a record that preflight kept back.

A shard's rows follow each other with ascending ``line`` (0-based in its request file); records
that were kept back come last. ``business_key`` is the key's text, for a composite key the canonical
JSON array of its parts.
"""

ROWS_PER_GROUP = 16_384


class RecordsWriter:
    """Writes the table to a local Parquet file, a row group at a time."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, RECORDS_SCHEMA, compression="zstd")
        self._columns: list[list[Any]] = [[] for _ in RECORDS_SCHEMA]
        self._rows = hashlib.sha256()
        self.count = 0

    def add(self, row: Sequence[Any]) -> None:
        """One row after its ordinal, which is counted here."""
        whole = [self.count, *row]
        self._rows.update(orjson.dumps(whole) + b"\n")
        for column, value in zip(self._columns, whole, strict=True):
            column.append(value)
        self.count += 1
        if len(self._columns[0]) >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(self._columns, RECORDS_SCHEMA, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(arrays, schema=RECORDS_SCHEMA))
        self._columns = [[] for _ in RECORDS_SCHEMA]

    def close(self) -> str:
        """Finish the file; gives the digest over its canonical rows."""
        if self._columns[0]:
            self._flush()
        self._writer.close()
        return self._rows.hexdigest()

    def abort(self) -> None:
        """Let go of the file."""
        self._writer.close()


def rows_digest(batches: Iterable[pa.RecordBatch]) -> str:
    """Sha256 (hex) over the rows of a records table: each as a canonical JSON array and a newline.

    It does not depend on row groups, encodings or compression.
    """
    sink = hashlib.sha256()
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            sink.update(orjson.dumps(row) + b"\n")
    return sink.hexdigest()


def record_batches(
    store: ArtifactStore, digest: str, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The records table with this digest, a row group at a time.

    Raises:
        ArtifactError: it is absent, damaged, or no records table.
    """
    with store.fetch(digest) as path, pq.ParquetFile(path) as file:
        if file.schema_arrow.names != RECORDS_SCHEMA.names:
            raise ArtifactError(f"Object {digest} is no records table.")
        wanted = None if columns is None else list(columns)
        yield from file.iter_batches(ROWS_PER_GROUP, columns=wanted)


def read_records(
    store: ArtifactStore, digest: str, columns: Sequence[str] | None = None
) -> pa.Table:
    """The whole records table, or some of its columns.

    Raises:
        ArtifactError: it is absent, damaged, or no records table.
    """
    fields = RECORDS_SCHEMA if columns is None else [RECORDS_SCHEMA.field(c) for c in columns]
    return pa.Table.from_batches(record_batches(store, digest, columns), schema=pa.schema(fields))
