"""Arrow columns as Python values, also where a text is no valid UTF-8."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.errors import DatasetError

JSON_FIELD = {b"llm_batch_assets.json": b"1"}
"""Metadata of a text column whose values are JSON: from rows of mixed or nested values."""


def values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """One column's values. Text that is no UTF-8 comes with its bytes as surrogates.

    Raises:
        DatasetError: for a column of raw bytes.
    """
    field = batch.schema.field(name)
    column = batch.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raise DatasetError(f"Column {name!r} holds bytes; cast it to text.")
    if field.metadata and JSON_FIELD.items() <= field.metadata.items():
        return [None if text is None else _loads(text) for text in column.to_pylist()]
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        raw = (
            column.cast(pa.large_binary())
            if pa.types.is_string(kind)
            else pc.cast(column, pa.large_binary(), safe=False)
        )
        return [None if data is None else decode(data) for data in raw.to_pylist()]


def decode(data: bytes) -> str:
    """Text of any bytes: lone surrogates as themselves, other broken bytes as U+DC80 to U+DCFF."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogateescape")


def json_array(items: list[Any]) -> pa.Array:
    """Values of any JSON kind as a text column for a field with ``JSON_FIELD``."""
    return pa.array([None if item is None else _dumps(item) for item in items], pa.string())


def _dumps(item: Any) -> str:
    try:
        return orjson.dumps(item).decode()
    except TypeError:
        # ASCII only, so that a lone surrogate survives as an escape; integers of any size.
        return json.dumps(item)


def _loads(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)
