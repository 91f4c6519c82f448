"""Digests of tables and sets: over canonical rows, never over container bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.errors import ArtifactError
from llm_batch_assets.identity import canonical_json, digest

_SLICE = 65_536
_HEX = np.isin(np.arange(256), np.frombuffer(b"0123456789abcdef", np.uint8))


def set_digest(ids: Iterable[str]) -> str:
    """Sha256 (hex) of the canonical JSON of the sorted ids: equal for equal sets."""
    return digest(sorted(ids))


def hex_set_digest(ids: pa.Array | pa.ChunkedArray) -> str:
    """``set_digest`` of a column of record ids, without a Python string for each."""
    ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    width = len(ids[0].as_py()) if len(ids) else 0
    same = pc.all(pc.equal(pc.binary_length(ids), width), min_count=0).as_py()
    if not width or not same or not _HEX[np.frombuffer(_bytes(_text(ids)), np.uint8)].all():
        return set_digest(ids.to_pylist())
    ordered = ids.take(pc.sort_indices(ids))
    # Hex needs no escaping: one row of bytes is one quoted id with the comma before it.
    quoted = np.empty((_SLICE, width + 3), np.uint8)
    quoted[:, 0], quoted[:, 1], quoted[:, -1] = ord(","), ord('"'), ord('"')
    sink, before = hashlib.sha256(b"["), 1
    for start in range(0, len(ordered), _SLICE):
        piece = ordered.slice(start, _SLICE)
        quoted[: len(piece), 2:-1] = np.frombuffer(_bytes(_text(piece)), np.uint8).reshape(
            len(piece), width
        )
        sink.update(quoted[: len(piece)].reshape(-1)[before:].data)
        before = 0
    sink.update(b"]")
    return sink.hexdigest()


class RowsDigest:
    """Digest of a table's rows that does not depend on chunks, encodings or file format.

    Per column three running hashes: where validity flips (row numbers), the values of fixed width
    or the lengths of texts, and the bytes of the texts; a null counts as zero or as empty. Strings,
    large strings and dictionaries of them are one type, all integers are one type. Other types go
    in as canonical text of each value. Row order counts.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._names = schema.names
        self._kinds = [_kind(f.type) for f in schema]
        self._hashers = [[hashlib.sha256() for _ in range(3)] for _ in schema]
        self._valid = [True] * len(schema)
        self._rows = 0

    def update(self, table: pa.Table | pa.RecordBatch) -> None:
        """Add rows; the columns must be those of the schema, in its order."""
        if table.schema.names != self._names:
            raise ArtifactError(f"A table with columns {table.schema.names} is not of this kind.")
        batches = table.to_batches() if isinstance(table, pa.Table) else [table]
        for batch in batches:
            for number, column in enumerate(batch.columns):
                self._add(number, column)
            self._rows += batch.num_rows

    def hexdigest(self) -> str:
        """The digest (hex) of every row so far."""
        columns = [
            [name, kind, *(h.hexdigest() for h in hashers)]
            for name, kind, hashers in zip(self._names, self._kinds, self._hashers, strict=True)
        ]
        return digest(["rows", 1, self._rows, columns])

    def _add(self, number: int, column: pa.Array) -> None:
        if len(column) == 0:
            return
        flips, values, texts = self._hashers[number]
        if column.null_count or not self._valid[number]:  # otherwise nothing flips
            valid = np.asarray(column.is_valid())
            changed = np.flatnonzero(np.diff(valid, prepend=self._valid[number]))
            flips.update((changed + self._rows).astype("<i8").tobytes())
            self._valid[number] = bool(valid[-1])
        kind = self._kinds[number]
        if kind == "int":
            values.update(_numbers(column, pa.int64(), "<i8"))
        elif kind == "bool":
            values.update(_numbers(column.cast(pa.uint8()), pa.uint8(), "u1"))
        elif kind == "float":
            values.update(_numbers(column, pa.float64(), "<f8"))
        else:
            text = _text(column)
            values.update(np.asarray(pc.binary_length(text)).astype("<i8").tobytes())
            texts.update(_bytes(text))


def rows_digest(table: pa.Table) -> str:
    """``RowsDigest`` of a whole table."""
    sink = RowsDigest(table.schema)
    sink.update(table)
    return sink.hexdigest()


def put_document(store: ArtifactStore, document: dict[str, Any]) -> str:
    """Store a JSON document in its canonical form; gives its digest."""
    return store.put(canonical_json(document))


def read_document(store: ArtifactStore, object_digest: str, kind: str) -> dict[str, Any]:
    """A document of ours from the store.

    Raises:
        ArtifactError: for an object that is absent, damaged, or no document of this kind.
    """
    try:
        document = json.loads(store.get(object_digest))
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise ArtifactError(f"The object {object_digest} is no {kind}.")
    return document


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    return str(kind)


def _numbers(column: pa.Array, kind: pa.DataType, dtype: str) -> bytes:
    filled = column.cast(kind)
    if filled.null_count:
        filled = filled.fill_null(0)
    return np.asarray(filled).astype(dtype, copy=False).tobytes()


def _text(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        column = pa.array(
            [None if v is None else repr(v) for v in column.to_pylist()], pa.large_string()
        )
    # Large offsets: 2 GB of answers overflow 32 bits.
    column = column.cast(pa.large_string())
    return column.fill_null("") if column.null_count else column


def _bytes(text: pa.Array) -> memoryview:
    _, offsets, data = text.buffers()
    if data is None:
        return memoryview(b"")
    bounds = np.frombuffer(offsets, "<i8")[text.offset : text.offset + len(text) + 1]
    return memoryview(data)[bounds[0] : bounds[-1]]
