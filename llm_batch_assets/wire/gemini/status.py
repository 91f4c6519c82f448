"""Gemini batch operations and Vertex batch prediction jobs (providers.md 3.2, 3.5, 3.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_batch_assets.types import (
    TERMINAL_STATUSES,
    BatchCounts,
    BatchFault,
    BatchStatus,
    BatchView,
    ResultRef,
)
from llm_batch_assets.wire.classes import Rule
from llm_batch_assets.wire.rpc import CODES, code_rule
from llm_batch_assets.wire.shapes import short
from llm_batch_assets.wire.strict import loosely, map_of, raw_at, raw_items, text_of
from llm_batch_assets.wire.views import bytes_of, count_of, from_iso, label_of

STATUSES: Mapping[str, BatchStatus] = {
    "QUEUED": "queued",
    "PENDING": "queued",
    "RUNNING": "running",
    "UPDATING": "running",
    "PAUSED": "running",
    "CANCELLING": "stopping",
    "SUCCEEDED": "done",
    "PARTIALLY_SUCCEEDED": "done",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "EXPIRED": "expired",
}
"""By the word after ``BATCH_STATE_`` or ``JOB_STATE_``; the SDK's own helper omits some (B42)."""

EXPIRES_UNSTARTED = True
"""An expired job has no results [GEM-guide]: every id expired."""

UNREACHED = frozenset({"JOB_STATE_PARTIALLY_SUCCEEDED", "BATCH_STATE_PARTIALLY_SUCCEEDED"})

INLINE = "inline"
"""The ref of results that the operation itself carries."""

FAULT_DEFAULT = Rule(
    "gemini.batch.unknown", "retryable", "unknown_fault", hold="operator", charged=False
)
_CAPACITY = Rule("gemini.batch.capacity", "retryable", "capacity", charged=False)


def fault_rule(fault: BatchFault) -> Rule:
    """The rule for a failed operation's own error: nothing was executed, nobody is charged."""
    found = code_rule(fault.code, fault.code)
    if found.id == "error.unknown":
        return FAULT_DEFAULT
    if found is CODES[8]:
        return _CAPACITY
    return Rule(f"gemini.batch.{fault.code}", found.cls, found.reason, found.hold, charged=False)


def read_batch(raw: Mapping[str, Any]) -> BatchView:
    """Read an operation (or a Vertex job). Pure and total.

    Counters are decimal text, and absent where they are zero [GEM-cook].
    """
    meta = map_of(raw.get("metadata")) or raw
    state = text_of(meta.get("state")) or text_of(raw.get("state")) or ""
    word = state.removeprefix("BATCH_STATE_").removeprefix("JOB_STATE_")
    status = STATUSES.get(word, "unknown")
    if word in ("", "UNSPECIFIED", "STATE_UNSPECIFIED"):
        status = "queued" if word else "unknown"
    results, faults = _results(raw, meta), _faults(raw, meta)
    if not word and raw.get("done") is True:
        # An operation says itself that it is over: with an error, or with a response.
        if faults:
            status = "cancelled" if fault_rule(faults[0]).cls == "cancelled" else "failed"
        elif results:
            status = "done"
    ready = status in TERMINAL_STATUSES
    if status == "done" and not results and "completionStats" not in raw:
        # Succeeded may be seen before the responses file is (B33).
        ready = False
    deployment, key = label_of(meta.get("displayName"))
    return BatchView(
        batch_id=text_of(raw.get("name")) or text_of(meta.get("name")) or "",
        raw_status=state[:200],
        status=status,
        created_at=from_iso(meta.get("createTime")),
        ended_at=from_iso(meta.get("endTime")),
        counts=_counts(raw, meta),
        input_ref=text_of(map_of(meta.get("inputConfig")).get("fileName")),
        submission_key=key,
        deployment=deployment,
        results=results,
        faults=faults,
        results_ready=ready,
        raw=bytes_of(raw),
    )


def _results(raw: Mapping[str, Any], meta: Mapping[str, Any]) -> tuple[ResultRef, ...]:
    """Small jobs answer inline whatever was asked: look in both places (B86)."""
    for place in (map_of(raw.get("response")), map_of(meta.get("output"))):
        name = text_of(place.get("responsesFile"))
        if name:
            return (ResultRef("results", name),)
    if _inlined(raw) is not None:
        return (ResultRef("results", INLINE),)
    return ()


def _inlined(raw: Mapping[str, Any]) -> tuple[str | int, ...] | None:
    for outer in (("response",), ("metadata", "output")):
        value: Any = raw
        for step in (*outer, "inlinedResponses"):
            value = map_of(value).get(step)
        if isinstance(value, dict) and isinstance(value.get("inlinedResponses"), list):
            return (*outer, "inlinedResponses", "inlinedResponses")
        if isinstance(value, list):
            return (*outer, "inlinedResponses")
    return None


def inline_lines(operation: bytes) -> bytes | None:
    """The rows that an operation carries, one a line, cut from its own bytes; None without any.

    A newline inside a row is white space between tokens (a string cannot hold one): it becomes a
    space, so that line n is row n.
    """
    try:
        # Tolerant: one row that no strict parser reads must not take the others with it.
        path = _inlined(map_of(loosely(operation)))
        if path is None:
            return None
        rows = raw_items(raw_at(operation, *path) or b"[]")
    except (ValueError, RecursionError):
        return None
    return b"".join(row.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n" for row in rows)


def inline_rows(objects: bytes, place: int) -> bytes | None:
    """As ``inline_lines``, for one operation of a JSON array of them (or for a single one)."""
    objects = objects.removeprefix(b"\xef\xbb\xbf")
    if objects.lstrip(b" \t\r\n").startswith(b"["):
        return inline_lines(raw_at(objects, place) or b"{}")
    return inline_lines(objects)


def _counts(raw: Mapping[str, Any], meta: Mapping[str, Any]) -> BatchCounts:
    stats = map_of(meta.get("batchStats"))
    if stats:
        total = count_of(stats.get("requestCount"))
        done = count_of(stats.get("successfulRequestCount", 0 if total else None))
        failed = count_of(stats.get("failedRequestCount", 0 if total else None))
        return BatchCounts(total, done, failed)
    vertex = map_of(raw.get("completionStats"))
    parts = [
        count_of(vertex.get(name)) for name in ("successfulCount", "failedCount", "incompleteCount")
    ]
    known = [part for part in parts if part is not None]
    return BatchCounts(sum(known) if known else None, parts[0], parts[1])


def _faults(raw: Mapping[str, Any], meta: Mapping[str, Any]) -> tuple[BatchFault, ...]:
    error = map_of(raw.get("error")) or map_of(meta.get("error"))
    if not error:
        return ()
    code = error.get("code") if error.get("code") is not None else error.get("status")
    return (BatchFault(short(code), short(error.get("message"), 500)),)
