"""From collected rows to evidence: columns in the order of the expected ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.reconcile.collect import Collector
from llm_batch_assets.reconcile.model import Account, Expected, RawFile, Rules
from llm_batch_assets.reconcile.quality import QUALITY
from llm_batch_assets.reconcile.tables import EVIDENCE_SCHEMA
from llm_batch_assets.reconcile.unrowed import Rest
from llm_batch_assets.types import BatchView
from llm_batch_assets.wire.classes import DUPLICATE, Rule
from llm_batch_assets.wire.shapes import short


def build(
    collector: Collector,
    expected: Expected,
    rules: Rules,
    view: BatchView | None,
    raws: Sequence[RawFile],
    rest: Rest,
    in_flight: bool,
) -> Account:
    """The account: one row per expected id."""
    size = len(expected.wire_ids)
    rows = collector.columns.table()
    row_of = np.full(size, -1, np.int64)
    row_of[rows["place"].to_numpy()] = np.arange(rows.num_rows)
    conflicts = np.fromiter(collector.conflicts, np.int64, len(collector.conflicts))
    gated = np.fromiter(collector.gated, np.int64, len(collector.gated))
    # A conflicting row is no evidence of an answer; it stays visible as an anomaly.
    shown = row_of.copy()
    shown[conflicts] = -1
    known = list(collector.columns.rules)
    codes = np.full(size, -1, np.int32)
    codes[row_of >= 0] = rows["code"].to_numpy()[row_of[row_of >= 0]]
    coded = _Coded(known, codes)
    coded.put(conflicts, DUPLICATE)
    coded.put(gated, QUALITY["gate"])
    coded.put(np.flatnonzero(row_of < 0), rest.rule)
    for line, (rule, _) in rest.lines.items():
        coded.put(np.array([line - 1]), rule)
    take = pa.array(shown, pa.int64(), mask=shown < 0)
    taken = {name: one(rows[name]).take(take) for name in rows.schema.names}
    if len(gated):
        refused = np.zeros(size, bool)
        refused[gated] = True
        for name in ("answer", "answer_digest"):
            empty = pa.scalar(None, taken[name].type)
            taken[name] = pc.if_else(pa.array(refused), empty, taken[name])
    text = pa.string()
    files = pa.array([raw.digest for raw in collector.files], text)
    ids = pa.array(expected.wire_ids, text)
    names = ids if expected.record_ids is None else pa.array(expected.record_ids, text)
    keys = names if expected.business_keys is None else pa.array(expected.business_keys, text)
    columns = {
        "record_id": names,
        "business_key": keys,
        "wire_id": ids,
        **_rule_columns(coded, collector.reasons),
        "attempt": _same(rules.attempt, pa.int32(), size),
        "shard": _same(expected.shard, pa.int32(), size),
        "epoch": _same(expected.epoch, pa.int32(), size),
        "submission_key": _same(expected.submission_key, text, size),
        "provider_batch_id": _same(view.batch_id or None if view else None, text, size),
        **taken,
        "file": files.take(taken["file"]),
    }
    _name_lines(columns, rest, row_of)
    table = pa.table([columns[name] for name in EVIDENCE_SCHEMA.names], schema=EVIDENCE_SCHEMA)
    return Account(
        table=table,
        answers=taken["answer"],
        anomalies=sorted(
            collector.anomalies, key=lambda a: (a.file, a.name, a.line, a.kind, a.id or "")
        ),
        identical=sorted(collector.identical - collector.conflicts),
        raws=tuple(raws),
        view=view,
        in_flight=in_flight,
        rows=collector.rows_seen,
        rules=rules,
    )


class _Coded:
    """The rule of every expected id, as a code."""

    def __init__(self, known: list[Rule], codes: np.ndarray) -> None:
        self.known, self.codes = known, codes

    def put(self, places: np.ndarray, rule: Rule) -> None:
        """Give some ids another rule."""
        if len(places):
            self.known.append(rule)
            self.codes[places] = len(self.known) - 1


def _rule_columns(coded: _Coded, reasons: dict[int, str]) -> dict[str, pa.Array]:
    at = pa.array(coded.codes)

    def each(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(list(values), kind).take(at)

    reason: pa.Array = each((rule.reason for rule in coded.known), pa.string())
    if reasons:
        listed = reason.to_pylist()
        for place, said in reasons.items():
            listed[place] = said
        reason = pa.array(listed, pa.string())
    return {
        "cls": each((rule.cls for rule in coded.known), pa.string()),
        "reason": reason,
        "rule": each((rule.id for rule in coded.known), pa.string()),
        "unqualified": each((rule.unqualified for rule in coded.known), pa.bool_()),
        "hold": each((rule.hold for rule in coded.known), pa.string()),
        "charged": each((rule.charged for rule in coded.known), pa.bool_()),
    }


def _name_lines(columns: dict[str, Any], rest: Rest, row_of: np.ndarray) -> None:
    """Show the provider's own code on ids that a failed batch classes."""
    if rest.fault is None and not rest.lines:
        return
    codes = columns["error_code"].to_pylist()
    for at, row in enumerate(row_of.tolist()):
        fault = rest.lines[at + 1][1] if at + 1 in rest.lines else rest.fault
        if row < 0 and fault is not None:
            codes[at] = short(fault.code)
    columns["error_code"] = pa.array(codes, pa.string())


def _same(value: Any, kind: pa.DataType, size: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), size)


def one(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; one that is in one piece is not copied."""
    if column.num_chunks == 1:
        return column.chunk(0)
    whole = column.combine_chunks()
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
