"""Tables as record batches: Parquet, CSV and JSONL files, and what people have in memory."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from llm_batch_assets.errors import DatasetError, InputError
from llm_batch_assets.manifest.columns import JSON_FIELD, json_array
from llm_batch_assets.manifest.jsonl import read_jsonl

_ROWS = 8192
_CSV_BLOCK = 16 << 20
"""The longest CSV row that can be read, and what is in memory at a time."""


@dataclass(frozen=True)
class Source:
    """Record batches to be read once; ``text_keys``: the format has no types."""

    batches: Iterable[pa.RecordBatch]
    text_keys: bool


def open_source(path: str | Path, *, key_columns: Sequence[str] = ()) -> Source:
    """A table file by its suffix: ``.parquet``, ``.csv``, ``.jsonl`` or ``.ndjson``.

    CSV cells are all text, as they are. In JSONL the columns in ``key_columns`` are text (a number
    keeps its spelling), the others keep their JSON types.

    Raises:
        InputError: the file cannot be read, or has another suffix.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: there is no such file.")
    suffix = path.suffix.lower()
    try:
        with path.open("rb"):
            pass
        if suffix in (".parquet", ".pq"):
            return Source(_parquet(path), text_keys=False)
        if suffix == ".csv":
            return Source(_csv(path), text_keys=True)
        if suffix in (".jsonl", ".ndjson"):
            return Source(read_jsonl(path, frozenset(key_columns)), text_keys=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from None
    raise InputError(f"{path}: write a file that ends in .parquet, .csv or .jsonl.")


def _parquet(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path) as file:
            yield pa.RecordBatch.from_pylist([], schema=file.schema_arrow)
            yield from file.iter_batches(_ROWS)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise InputError(f"{path}: is no readable Parquet file: {_first_line(error)}.") from None


def _csv(path: Path) -> Iterator[pa.RecordBatch]:
    names = _csv_header(path)
    text = {name: pa.string() for name in names}
    try:
        reader = pa_csv.open_csv(
            path,
            read_options=pa_csv.ReadOptions(block_size=_CSV_BLOCK, use_threads=False),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=text, strings_can_be_null=False, check_utf8=False
            ),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            yield pa.RecordBatch.from_pylist([], schema=pa.schema(list(text.items())))
            return
        raise InputError(f"{path}: is no readable CSV: {_first_line(error)}.") from None
    with reader:
        try:
            yield pa.RecordBatch.from_pylist([], schema=reader.schema)
            yield from reader
        except pa.ArrowInvalid as error:
            raise InputError(f"{path}: is no readable CSV: {_first_line(error)}.") from None


def _csv_header(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = next(csv.reader(file), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: its first line is no CSV header: {error}.") from None
    if not names:
        raise DatasetError(f"{path}: the file is empty; it needs a header line.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DatasetError(f"{path}: two columns are named {repeated[0]!r}; rename one.")
    return names


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


def source_of(data: Any, *, key_columns: Sequence[str] = ()) -> Source:
    """A source from whatever a team has: a path, Arrow data, a DataFrame, or mappings.

    Raises:
        InputError: it is none of these, or a column mixes types as no table can.
    """
    if isinstance(data, Source):
        return data
    if isinstance(data, (str, Path)):
        return open_source(data, key_columns=key_columns)
    if isinstance(data, pa.RecordBatch):
        return Source([data], text_keys=False)
    if isinstance(data, pa.Table):
        empty = pa.RecordBatch.from_pylist([], schema=data.schema)
        return Source([empty, *data.to_batches(_ROWS)], text_keys=False)
    if isinstance(data, pa.RecordBatchReader):
        return Source(data, text_keys=False)
    if hasattr(data, "columns") and hasattr(data, "to_dict"):
        return Source(_data_frame(data), text_keys=False)
    if isinstance(data, Iterable):
        return Source(_rows(data), text_keys=False)
    raise InputError(
        f"A {type(data).__name__} is no table; give a path, a DataFrame, Arrow data or mappings."
    )


def _data_frame(frame: Any) -> Iterator[pa.RecordBatch]:
    names = [str(name) for name in frame.columns]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DatasetError(f"The table has two columns named {repeated[0]!r}; rename one.")
    whole = [
        _frame_column(name, frame[column])
        for name, column in zip(names, frame.columns, strict=True)
    ]
    fields = [field for field, _ in whole]
    table = pa.table([array for _, array in whole], schema=pa.schema(fields))
    yield pa.RecordBatch.from_pylist([], schema=table.schema)
    yield from table.to_batches(_ROWS)


def _frame_column(name: str, series: Any) -> tuple[pa.Field, Any]:
    try:
        array = pa.array(series, from_pandas=True)
        return pa.field(name, array.type), array
    except UnicodeEncodeError:
        # Arrow holds no lone surrogate; as JSON it survives until preflight names the record.
        items = [None if item is None or item != item else item for item in series.tolist()]
        return pa.field(name, pa.string(), metadata=JSON_FIELD), json_array(items)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"Column {name!r} mixes types: {_first_line(error)}.") from None


def _rows(rows: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    held: list[Mapping[str, Any]] = []
    schema: pa.Schema | None = None
    for row in rows:
        if isinstance(row, pa.RecordBatch):
            yield row
            continue
        if not isinstance(row, Mapping):
            raise InputError(f"A row of type {type(row).__name__} is no mapping of columns.")
        held.append(row)
        if len(held) == _ROWS:
            batch = _row_batch(held, schema)
            schema = batch.schema
            yield batch
            held = []
    if held:
        yield _row_batch(held, schema)


def _row_batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_pylist(list(rows), schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError) as error:
        raise InputError(f"The rows make no table: {_first_line(error)}.") from None
