"""JSONL tables: strict JSON, one object a line, split on newline bytes only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from llm_batch_assets.errors import DatasetError, InputError
from llm_batch_assets.manifest.columns import JSON_FIELD, json_array
from llm_batch_assets.manifest.rules import key_marks, loads_slowly

_ROWS = 4096
_BOM = b"\xef\xbb\xbf"
_SAFE = 2**53 - 1


def read_jsonl(path: Path, key_columns: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """Batches of text columns; values that are no text travel as JSON (``columns.JSON_FIELD``).

    The columns are those of the first line; a line without one of them has null there. Key columns
    are text: a number keeps its spelling, true and false are themselves.

    Raises:
        InputError: a line is no JSON object, has a key twice, or a column that the first has not.
    """
    names: list[str] | None = None
    schema: pa.Schema | None = None
    held: list[dict[str, Any]] = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        row = _row(path, number, line, key_columns)
        if names is None:
            names = list(row)
            # One schema for every batch, whatever values come later.
            schema = pa.schema(
                [
                    pa.field(name, pa.string())
                    if name in key_columns
                    else pa.field(name, pa.string(), metadata=JSON_FIELD)
                    for name in names
                ]
            )
        elif len(row) > len(names) or not row.keys() <= set(names):
            strange = sorted(row.keys() - set(names))[0]
            raise DatasetError(
                f"{path}: line {number} has a column {strange!r} that the first line does not "
                "have; give every line the same columns."
            )
        held.append(row)
        if len(held) == _ROWS:
            yield _batch(held, names, schema, key_columns)
            held = []
    if held and names is not None:
        yield _batch(held, names, schema, key_columns)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        first = True
        for line in file:
            yield line.removeprefix(_BOM) if first else line
            first = False


def _row(path: Path, number: int, line: bytes, key_columns: frozenset[str]) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
        # A key twice would pass silently: more key marks than keys ask for a closer look.
        if not isinstance(row, dict) or key_marks(line) != len(row):
            row = loads_slowly(line)
    except orjson.JSONDecodeError:
        try:
            row = loads_slowly(line)
        except (ValueError, RecursionError) as error:
            what = "no UTF-8" if isinstance(error, UnicodeDecodeError) else f"no JSON ({error})"
            raise InputError(f"{path}: line {number} is {what}.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: line {number} is no strict JSON ({error}).") from None
    if not isinstance(row, dict):
        raise InputError(f"{path}: line {number} is no JSON object.")
    exact: dict[str, Any] | None = None
    for name in key_columns:
        value = row.get(name)
        if isinstance(value, bool):
            row[name] = "true" if value else "false"
        elif isinstance(value, int) and 0 < abs(value) <= _SAFE:
            row[name] = str(value)
        elif isinstance(value, (int, float)):
            if exact is None:
                exact = json.loads(line, parse_int=str, parse_float=str)
            row[name] = exact[name]
    return row


def _batch(
    rows: list[dict[str, Any]],
    names: list[str],
    schema: pa.Schema | None,
    key_columns: frozenset[str],
) -> pa.RecordBatch:
    arrays = []
    for name in names:
        items = [row.get(name) for row in rows]
        arrays.append(_keys(name, items) if name in key_columns else json_array(items))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _keys(name: str, items: list[Any]) -> pa.Array:
    for item in items:
        if item is not None and not isinstance(item, str):
            raise DatasetError(
                f"Column {name!r}: a key must be text or a number, not {type(item).__name__}."
            )
    try:
        return pa.array(items, pa.string())
    except UnicodeEncodeError:
        bad = next(item for item in items if item is not None and not _is_utf8(item))
        raise DatasetError(f"Column {name!r}: the key {bad!a} holds a lone surrogate.") from None


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
