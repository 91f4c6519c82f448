"""Anthropic message batches (providers.md 2.2, 2.5). There is no metadata and no failed state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_batch_assets.types import BatchCounts, BatchFault, BatchStatus, BatchView, ResultRef
from llm_batch_assets.wire.classes import Rule
from llm_batch_assets.wire.shapes import short
from llm_batch_assets.wire.strict import map_of, text_of
from llm_batch_assets.wire.views import bytes_of, count_of, from_iso

STATUSES: Mapping[str, BatchStatus] = {
    "in_progress": "running",
    "canceling": "stopping",
    "ended": "done",
}
"""Only ``ended`` is terminal; any other word is ``unknown`` and means still running."""

FAULT_DEFAULT = Rule(
    "anthropic.batch.unknown", "retryable", "unknown_fault", hold="operator", charged=False
)

_BUCKETS = ("processing", "succeeded", "errored", "canceled", "expired")


def fault_rule(fault: BatchFault) -> Rule:
    """Anthropic documents no failed batch: whatever says so needs a person."""
    return FAULT_DEFAULT


def read_batch(raw: Mapping[str, Any]) -> BatchView:
    """Read a message batch. Pure and total.

    The outcome is inferred: ``ended`` after a cancel request with canceled rows is ``cancelled``,
    with expired rows ``expired``. The five counts add up to the number of requests (B48).
    """
    word = text_of(raw.get("processing_status")) or ""
    status = STATUSES.get(word, "unknown")
    counts = map_of(raw.get("request_counts"))
    known = {name: count_of(counts.get(name)) for name in _BUCKETS}
    filled = [value for value in known.values() if value is not None]
    if status == "done":
        if raw.get("cancel_initiated_at") and known["canceled"]:
            status = "cancelled"
        elif known["expired"]:
            status = "expired"
    url = text_of(raw.get("results_url"))
    failed = [known[name] or 0 for name in ("errored", "canceled", "expired")]
    return BatchView(
        batch_id=text_of(raw.get("id")) or "",
        raw_status=short(raw.get("processing_status")) or "",
        status=status,
        created_at=from_iso(raw.get("created_at")),
        ended_at=from_iso(raw.get("ended_at")),
        expires_at=from_iso(raw.get("expires_at")),
        counts=BatchCounts(
            sum(filled) if filled else None,
            known["succeeded"],
            sum(failed) if filled else None,
        ),
        results=(ResultRef("results", url),) if url else (),
        # ``ended`` may be seen before its results_url is (case 090); of an archived batch it never
        # comes back (providers.md 2.3).
        results_ready=word == "ended" and bool(url or raw.get("archived_at")),
        raw=bytes_of(raw),
    )
