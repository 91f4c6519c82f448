"""The candidate: the table of accepted answers that publishing will point to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.errors import ArtifactError
from llm_batch_assets.reconcile.digests import read_document
from llm_batch_assets.reconcile.evidence import SHARD_CLOSURE
from llm_batch_assets.reconcile.tables import read_table

REVISION_CLOSURE = "llm_batch_assets.revision_closure"

_FIXED: Final = pa.schema(
    [
        ("record_id", pa.string()),
        ("business_key", pa.string()),
        ("source_version", pa.string()),
        ("attempt", pa.int32()),
        ("served_model", pa.string()),
        ("answer", pa.large_string()),
    ]
)
_SCALARS: Final = {
    "string": pa.large_string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_BLOCK = 50_000


def candidate_schema(answer: str, output_schema: Mapping[str, Any] | None) -> pa.Schema:
    """Columns of the accepted table: the fixed ones, then one per scalar property of the answer.

    A property whose name is taken is called ``answer.<name>``.
    """
    fields = [
        pa.field(_column(name), kind) for name, kind in _properties(answer, output_schema).items()
    ]
    return pa.schema([*_FIXED, *fields])


def candidate_tables(
    store: ArtifactStore,
    settled: pa.Table,
    *,
    answer: str,
    output_schema: Mapping[str, Any] | None,
) -> Iterator[pa.Table]:
    """The accepted rows in manifest order, a block at a time; answers come from the evidence.

    Args:
        store: where the evidence is.
        settled: a settlement's table.
        answer: the workload's answer kind (json, text, tool, embedding).
        output_schema: the frozen output schema, if there is one.

    Raises:
        ArtifactError: when an accepted record's answer is not in the evidence that it rests on.
    """
    schema = candidate_schema(answer, output_schema)
    properties = _properties(answer, output_schema)
    answers = _Answers(store)
    for start in range(0, settled.num_rows, _BLOCK):
        block = settled.slice(start, _BLOCK)
        block = block.filter(pc.equal(block["state"], "accepted")).combine_chunks()
        if not block.num_rows:
            continue
        texts = answers.of(block)
        columns = [block[name] for name in _FIXED.names[:-1]] + [texts]
        columns += _scalars(texts, properties)
        yield pa.table(
            [c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
        )


class _Answers:
    """Answers by the closure they come from; a few tables at a time, in manifest order."""

    def __init__(self, store: ArtifactStore, keep: int = 8) -> None:
        self._store = store
        self._keep = keep
        self._tables: OrderedDict[str, pa.Table] = OrderedDict()

    def of(self, block: pa.Table) -> pa.Array:
        texts = pa.nulls(block.num_rows, pa.large_string())
        for closure in pc.unique(block["evidence"]).to_pylist():
            table = self._table(closure)
            at = pc.index_in(block["record_id"], table["record_id"])
            mine = pc.equal(block["evidence"], closure)
            found = table["answer"].take(at)
            texts = pc.if_else(mine, found, texts)
        if texts.null_count:
            raise ArtifactError(f"{texts.null_count} accepted records have no answer in evidence.")
        return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts

    def _table(self, closure: str) -> pa.Table:
        if closure in self._tables:
            self._tables.move_to_end(closure)
            return self._tables[closure]
        table = read_table(self._store, self._object(closure), ["record_id", "answer"])
        table = table.combine_chunks()
        self._tables[closure] = table
        if len(self._tables) > self._keep:
            self._tables.popitem(last=False)
        return table

    def _object(self, closure: str) -> str:
        """The table of answers of a shard, or of an older revision for what was carried over."""
        try:
            document = read_document(self._store, closure, SHARD_CLOSURE)
        except ArtifactError:
            return str(read_document(self._store, closure, REVISION_CLOSURE)["candidate"]["object"])
        return str(document["answers"]["object"])


def _properties(answer: str, output_schema: Mapping[str, Any] | None) -> dict[str, pa.DataType]:
    """Top-level properties whose declared type is one scalar (null beside it is fine)."""
    if answer not in ("json", "tool") or not output_schema:
        return {}
    properties = output_schema.get("properties")
    found = {}
    # By name: the order of keys in a JSON object says nothing, and does not survive canonical JSON.
    for name, spec in sorted((properties if isinstance(properties, Mapping) else {}).items()):
        kinds = spec.get("type") if isinstance(spec, Mapping) else None
        names = {kinds} if isinstance(kinds, str) else set(kinds or ()) - {"null"}
        if len(names) == 1 and (kind := names.pop()) in _SCALARS:
            found[str(name)] = _SCALARS[kind]
    return found


def _column(name: str) -> str:
    return f"answer.{name}" if name in _FIXED.names else name


def _scalars(texts: pa.Array, properties: Mapping[str, pa.DataType]) -> list[pa.Array]:
    if not properties:
        return []
    answers = [orjson.loads(text) for text in texts.to_pylist()]
    columns = []
    for name, kind in properties.items():
        values = [a.get(name) if isinstance(a, dict) else None for a in answers]
        columns.append(_array(values, kind))
    return columns


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A typed column; a number that does not fit is null here and exact in ``answer``."""
    if kind == pa.int64():
        values = [_integer(value) for value in values]
    elif kind == pa.float64():
        values = [float(v) if isinstance(v, int | float) else None for v in values]
    return pa.array(values, kind)


def _integer(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():  # JSON Schema calls 1.0 an integer
        value = int(value)
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None
