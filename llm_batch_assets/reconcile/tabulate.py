"""From collected rows to evidence: columns in the order of the expected ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from llm_batch_assets.reconcile.collect import Collector
from llm_batch_assets.reconcile.model import Account, Expected, RawFile, Rules
from llm_batch_assets.reconcile.tables import EVIDENCE_SCHEMA
from llm_batch_assets.reconcile.unrowed import Rest
from llm_batch_assets.types import BatchView
from llm_batch_assets.wire.classes import ACCEPTED, DUPLICATE, Rule
from llm_batch_assets.wire.shapes import Row, short


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
    joined = collector.joined
    placed, ruled, seen, *where = list(zip(*joined, strict=True)) or [()] * 6
    places = np.array(placed, np.int64)
    row_of = np.full(size, -1, np.int64)
    row_of[places] = np.arange(len(joined))
    # A conflicting row is no evidence of an answer; it stays visible as an anomaly.
    conflicts = np.fromiter(collector.conflicts, np.int64, len(collector.conflicts))
    shown = row_of.copy()
    shown[conflicts] = -1
    take = pa.array(shown, pa.int64(), mask=shown < 0)
    cells = list(zip(*seen, strict=True)) or [()] * len(Row._fields)
    of = dict(zip(Row._fields, cells, strict=True))
    usage = list(zip(*of["usage"], strict=True)) or [()] * 5
    text, i64 = pa.string(), pa.int64()

    def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(take)

    accepted = [
        answer if rule is ACCEPTED else None
        for answer, rule in zip(of["answer"], ruled, strict=True)
    ]
    sha = hashlib.sha256
    digests = [None if a is None else sha(a.encode()).hexdigest() for a in accepted]
    answers = column(accepted, pa.large_string())
    of_file = np.searchsorted(collector.first_rows, np.arange(len(joined)), side="right") - 1
    files = pa.array([raw.digest for raw in collector.files], text)
    ids = pa.array(expected.wire_ids, text)
    names = ids if expected.record_ids is None else pa.array(expected.record_ids, text)
    keys = names if expected.business_keys is None else pa.array(expected.business_keys, text)
    columns = {
        "record_id": names,
        "business_key": keys,
        "wire_id": ids,
        **_rule_columns(_rules(ruled, row_of, conflicts, rest), collector.reasons),
        "attempt": _same(rules.attempt, pa.int32(), size),
        "shard": _same(expected.shard, pa.int32(), size),
        "epoch": _same(expected.epoch, pa.int32(), size),
        "submission_key": _same(expected.submission_key, text, size),
        "provider_batch_id": _same(view.batch_id or None if view else None, text, size),
        "file": files.take(pa.array(of_file, i64).take(take)),
        "line": column(where[0], i64),
        "offset": column(where[1], i64),
        "length": column(where[2], i64),
        "error_type": column(of["error_type"], text),
        "error_code": column(of["error_code"], text),
        "http_status": column(of["http_status"], pa.int32()),
        "stop_reason": column(of["stop_reason"], text),
        "input_tokens": column(usage[0], i64),
        "cached_input_tokens": column(usage[1], i64),
        "cache_write_tokens": column(usage[2], i64),
        "output_tokens": column(usage[3], i64),
        "reasoning_tokens": column(usage[4], i64),
        "served_model": column(of["served_model"], text),
        "provider_request_id": column(of["request_id"], text),
        "answer_digest": column(digests, text),
    }
    _name_lines(columns, rest, row_of)
    table = pa.table([columns[name] for name in EVIDENCE_SCHEMA.names], schema=EVIDENCE_SCHEMA)
    return Account(
        table=table,
        answers=answers,
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


def _rules(
    of_rows: Sequence[Rule], row_of: np.ndarray, conflicts: np.ndarray, rest: Rest
) -> list[Rule]:
    """The rule of every expected id."""
    ruled = [rest.rule if row < 0 else of_rows[row] for row in row_of.tolist()]
    for place in conflicts.tolist():
        ruled[place] = DUPLICATE
    for line, (rule, _) in rest.lines.items():
        ruled[line - 1] = rule
    return ruled


def _rule_columns(ruled: list[Rule], reasons: dict[int, str]) -> dict[str, pa.Array]:
    codes: dict[Rule, int] = {}
    code_of = pa.array([codes.setdefault(rule, len(codes)) for rule in ruled], pa.int32())
    known = list(codes)

    def each(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(list(values), kind).take(code_of)

    reason: pa.Array = each((rule.reason for rule in known), pa.string())
    if reasons:
        listed = reason.to_pylist()
        for place, said in reasons.items():
            listed[place] = said
        reason = pa.array(listed, pa.string())
    return {
        "cls": each((rule.cls for rule in known), pa.string()),
        "reason": reason,
        "rule": each((rule.id for rule in known), pa.string()),
        "unqualified": each((rule.unqualified for rule in known), pa.bool_()),
        "hold": each((rule.hold for rule in known), pa.string()),
        "charged": each((rule.charged for rule in known), pa.bool_()),
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
