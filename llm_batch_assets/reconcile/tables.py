"""The shapes of evidence tables and how they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from llm_batch_assets.artifacts import ArtifactStore, ArtifactWriter
from llm_batch_assets.errors import ArtifactError
from llm_batch_assets.reconcile.memory import small_pages

_TEXT, _I32, _I64 = pa.string(), pa.int32(), pa.int64()

EVIDENCE_SCHEMA = pa.schema(
    [
        ("record_id", _TEXT),
        ("business_key", _TEXT),
        ("wire_id", _TEXT),
        ("cls", _TEXT),
        ("reason", _TEXT),
        ("rule", _TEXT),
        ("attempt", _I32),
        ("shard", _I32),
        ("epoch", _I32),
        ("submission_key", _TEXT),
        ("provider_batch_id", _TEXT),
        ("file", _TEXT),
        ("line", _I64),
        ("offset", _I64),
        ("length", _I64),
        ("error_type", _TEXT),
        ("error_code", _TEXT),
        ("http_status", _I32),
        ("stop_reason", _TEXT),
        ("input_tokens", _I64),
        ("cached_input_tokens", _I64),
        ("cache_write_tokens", _I64),
        ("output_tokens", _I64),
        ("reasoning_tokens", _I64),
        ("served_model", _TEXT),
        ("provider_request_id", _TEXT),
        ("answer_digest", _TEXT),
        ("unqualified", pa.bool_()),
        ("hold", _TEXT),
        ("charged", pa.bool_()),
    ]
)
"""One row per manifest id of a shard, in the order of the request file."""

ANSWERS_SCHEMA = pa.schema([("record_id", _TEXT), ("answer", pa.large_string())])
"""The exact text of every accepted answer of a shard, in the same order."""

ANOMALY_SCHEMA = pa.schema(
    [
        ("file", _TEXT),
        ("name", _TEXT),
        ("line", _I64),
        ("offset", _I64),
        ("length", _I64),
        ("kind", _TEXT),
        ("reason", _TEXT),
        ("id", _TEXT),
        ("resolution", _TEXT),
    ]
)
"""Rows that are no record's answer, each with what became of it."""

_UNIQUE = {"record_id", "wire_id", "business_key", "answer", "answer_digest", "provider_request_id"}
_DIGESTS = _UNIQUE - {"answer"}
_COUNTED = {"line", "offset", "length", "ordinal"}


@contextmanager
def parquet_writer(writer: ArtifactWriter, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Write row groups into an object of the store with bounded memory."""
    sink = pa.PythonFile(_Sink(writer), mode="w")
    with pq.ParquetWriter(
        sink,
        schema,
        # Digests and ids halve at best, and cost as much time as all other columns together.
        compression={n: "none" if n in _DIGESTS else "zstd" for n in schema.names},
        compression_level={n: 1 for n in schema.names if n not in _DIGESTS},
        # A dictionary of values that never repeat costs time and gives nothing.
        use_dictionary=[name for name in schema.names if name not in _UNIQUE | _COUNTED],
        column_encoding={n: "DELTA_BINARY_PACKED" for n in schema.names if n in _COUNTED},
        write_statistics=False,
    ) as parquet:
        yield parquet


def put_table(store: ArtifactStore, table: pa.Table) -> str:
    """Store a table as Parquet (zstd); gives the object's digest."""
    writer = store.writer()
    with small_pages(), writer, parquet_writer(writer, table.schema) as parquet:
        parquet.write_table(table)
    return writer.digest


def read_table(
    store: ArtifactStore,
    object_digest: str,
    columns: list[str] | None = None,
    *,
    coded: bool = False,
) -> pa.Table:
    """A table from the store, verified.

    Args:
        store: where it is.
        object_digest: of the Parquet object.
        columns: some of its columns; None for all.
        coded: leave texts that repeat as codes with a dictionary.

    Raises:
        ArtifactError: for an object that is absent, damaged or no Parquet file.
    """
    with store.fetch(object_digest) as path:
        try:
            narrow = [f.name for f in pq.read_schema(path) if _is_narrow(f)] if coded else None
            return pq.read_table(path, columns=columns, read_dictionary=narrow, memory_map=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise ArtifactError(f"The object {object_digest} is no table: {error}.") from None


def _is_narrow(field: pa.Field) -> bool:
    return pa.types.is_string(field.type) and field.name not in _UNIQUE


class _Sink:
    """What pyarrow asks of a file, on top of an object writer."""

    closed = False

    def __init__(self, writer: ArtifactWriter) -> None:
        self._writer = writer

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        self._writer.write(chunk)
        return len(chunk)

    def tell(self) -> int:
        return self._writer.bytes

    def flush(self) -> None:
        """Nothing to do: the store syncs once, at the end."""

    def close(self) -> None:
        """The store's writer is closed by its owner."""
