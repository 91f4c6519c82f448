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
    row_of = np.frombuffer(collector.row_of, np.int64) if size else np.zeros(0, np.int64)
    ruled = _rules(collector, rest, row_of)
    # A duplicate's row is no evidence of an answer; it stays visible as an anomaly.
    shown = row_of.copy()
    if collector.conflicts:
        shown[list(collector.conflicts)] = -1
    take = pa.array(shown, pa.int64(), mask=shown < 0)
    rows = collector.rows

    def column(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(take)

    text, i64 = pa.string(), pa.int64()
    accepted = [
        row.answer if rule is ACCEPTED else None
        for row, rule in zip(rows, collector.rules_of, strict=True)
    ]
    digests = [None if a is None else hashlib.sha256(a.encode()).hexdigest() for a in accepted]
    answers = column(accepted, pa.large_string())
    files = pa.array([raw.digest for raw in collector.files], text)
    places = [pa.array(np.array(place, np.int64)) for place in collector.place]
    usage = list(zip(*(row.usage for row in rows), strict=True)) or [()] * 5
    ids = pa.array(expected.wire_ids, text)
    names = ids if expected.record_ids is None else pa.array(expected.record_ids, text)
    keys = names if expected.business_keys is None else pa.array(expected.business_keys, text)
    columns = {
        "record_id": names,
        "business_key": keys,
        "wire_id": ids,
        **_rule_columns(ruled, collector, row_of, rest, size),
        "attempt": _same(rules.attempt, pa.int32(), size),
        "shard": _same(expected.shard, pa.int32(), size),
        "epoch": _same(expected.epoch, pa.int32(), size),
        "submission_key": _same(expected.submission_key, text, size),
        "provider_batch_id": _same(view.batch_id or None if view else None, text, size),
        "file": files.take(places[0].take(take)),
        "line": places[1].take(take),
        "offset": places[2].take(take),
        "length": places[3].take(take),
        "error_type": column([row.error_type for row in rows], text),
        "error_code": column([row.error_code for row in rows], text),
        "http_status": column([row.http_status for row in rows], pa.int32()),
        "stop_reason": column([row.stop_reason for row in rows], text),
        "input_tokens": column(list(usage[0]), i64),
        "cached_input_tokens": column(list(usage[1]), i64),
        "cache_write_tokens": column(list(usage[2]), i64),
        "output_tokens": column(list(usage[3]), i64),
        "reasoning_tokens": column(list(usage[4]), i64),
        "served_model": column([row.served_model for row in rows], text),
        "provider_request_id": column([row.request_id for row in rows], text),
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


def _rules(collector: Collector, rest: Rest, row_of: np.ndarray) -> list[Rule]:
    of = collector.rules_of
    ruled = [rest.rule if row < 0 else of[row] for row in row_of.tolist()]
    for at in collector.conflicts:
        ruled[at] = DUPLICATE
    for line, (rule, _) in rest.lines.items():
        ruled[line - 1] = rule
    return ruled


def _rule_columns(
    ruled: list[Rule], collector: Collector, row_of: np.ndarray, rest: Rest, size: int
) -> dict[str, pa.Array]:
    codes: dict[Rule, int] = {}
    code_of = pa.array([codes.setdefault(rule, len(codes)) for rule in ruled], pa.int32())
    known = list(codes)

    def each(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(list(values), kind).take(code_of)

    reasons: pa.Array = each((rule.reason for rule in known), pa.string())
    if collector.reasons:
        listed = reasons.to_pylist()
        for at, row in enumerate(row_of.tolist()):
            if row in collector.reasons and at not in collector.conflicts:
                listed[at] = collector.reasons[row]
        reasons = pa.array(listed, pa.string())
    return {
        "cls": each((rule.cls for rule in known), pa.string()),
        "reason": reasons,
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
