"""OpenAI batch objects (providers.md 1.2, 1.6, 1.7): raw status -> ours, and why a batch failed."""

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
from llm_batch_assets.wire.classes import HELD, PERMANENT, TRANSIENT, Rule, table
from llm_batch_assets.wire.shapes import short
from llm_batch_assets.wire.strict import int64_of, map_of, text_of
from llm_batch_assets.wire.views import bytes_of, count_of, from_seconds

STATUSES: Mapping[str, BatchStatus] = {
    "validating": "queued",
    "in_progress": "running",
    "finalizing": "running",
    "cancelling": "stopping",
    "completed": "done",
    "failed": "failed",
    "expired": "expired",
    "cancelled": "cancelled",
}
"""An allow-list (B41): any other word is ``unknown`` and means still running."""

FAULTS = table(
    "openai.batch",
    (
        # A queue's capacity, found minutes after create and without a line (B12).
        ("token_limit_exceeded", TRANSIENT, "capacity"),
        ("rate_limit_exceeded", TRANSIENT, "capacity"),
        ("server_error", TRANSIENT, "server_error"),
        ("internal_error", TRANSIENT, "server_error"),
        ("request_timeout", TRANSIENT, "timeout"),
        ("billing_hard_limit_reached", HELD, "billing"),
        ("insufficient_quota", HELD, "billing"),
        ("billing_not_active", HELD, "billing"),
        ("account_deactivated", HELD, "account"),
        ("invalid_api_key", HELD, "account"),
        ("permission_denied", HELD, "account"),
        # The file's shape: no record is at fault (B14, B15).
        ("too_many_tasks", TRANSIENT, "reshape"),
        ("empty_file", TRANSIENT, "reshape"),
        ("file_too_large", TRANSIENT, "reshape"),
        ("invalid_file", TRANSIENT, "reshape"),
        ("model_mismatch", PERMANENT, "invalid_request"),
        ("mismatched_model", PERMANENT, "invalid_request"),
        ("url_mismatch", PERMANENT, "invalid_request"),
        ("invalid_url", PERMANENT, "invalid_request"),
        ("invalid_method", PERMANENT, "invalid_request"),
        ("invalid_custom_id", PERMANENT, "invalid_request"),
        ("duplicate_custom_id", PERMANENT, "invalid_request"),
        ("invalid_json_line", PERMANENT, "invalid_request"),
        ("invalid_body", PERMANENT, "invalid_request"),
        ("invalid_request", PERMANENT, "invalid_request"),
        ("missing_required_parameter", PERMANENT, "invalid_request"),
        ("model_not_found", PERMANENT, "not_found"),
    ),
    executed=False,
)
"""Codes of ``errors.data``. Nothing was executed, so nobody is charged."""

LINE_DEFAULT = Rule("openai.batch.line", "permanent_failure", "invalid_request", charged=False)
"""An unknown code that names a line: the provider refuses that line as it is."""

FAULT_DEFAULT = Rule(
    "openai.batch.unknown", "retryable", "unknown_fault", hold="operator", charged=False
)
"""An unknown code without a line: no record is proven wrong, and a person should look."""


def fault_rule(fault: BatchFault) -> Rule:
    """The rule for one entry of a failed batch's error list."""
    code = fault.code or ""
    known = FAULTS.get(code) or FAULTS.get(code.lower())
    if known is not None:
        return known
    return LINE_DEFAULT if fault.line is not None else FAULT_DEFAULT


def read_batch(raw: Mapping[str, Any]) -> BatchView:
    """Read a batch object. Pure and total: nulls and unknown words are tolerated."""
    word = text_of(raw.get("status")) or ""
    status = STATUSES.get(word, "unknown")
    counts = map_of(raw.get("request_counts"))
    completed = count_of(counts.get("completed"))
    output, errors = text_of(raw.get("output_file_id")), text_of(raw.get("error_file_id"))
    # An empty string is an absent file, not one to fetch (B31).
    results = (
        *((ResultRef("results", output),) if output else ()),
        *((ResultRef("errors", errors),) if errors else ()),
    )
    kinds = {ref.kind for ref in results}
    ready = status in TERMINAL_STATUSES
    if status == "done" and ("results" not in kinds and (completed or not kinds)):
        # One look may say completed before the file's id is there (B32).
        ready = False
    if status in ("expired", "cancelled") and "results" not in kinds and completed:
        # The same of a batch that ended early: what it counts was executed and is in a file.
        ready = False
    metadata = map_of(raw.get("metadata"))
    ended = next(
        (
            moment
            for name in ("completed_at", "failed_at", "expired_at", "cancelled_at")
            if (moment := from_seconds(raw.get(name)))
        ),
        None,
    )
    return BatchView(
        batch_id=text_of(raw.get("id")) or "",
        raw_status=short(raw.get("status")) or "",
        status=status,
        created_at=from_seconds(raw.get("created_at")),
        ended_at=ended,
        expires_at=from_seconds(raw.get("expires_at")),
        counts=BatchCounts(
            count_of(counts.get("total")), completed, count_of(counts.get("failed"))
        ),
        input_ref=text_of(raw.get("input_file_id")),
        submission_key=text_of(metadata.get("submission_key")),
        deployment=text_of(metadata.get("deployment")),
        results=results,
        faults=_faults(raw.get("errors")),
        results_ready=ready,
        raw=bytes_of(raw),
    )


def _line_of(value: Any) -> int | None:
    """A line's number, also where another implementation writes it as text or as a float."""
    return int64_of(int(value) if type(value) is float and value.is_integer() else value)


def _faults(errors: Any) -> tuple[BatchFault, ...]:
    data = map_of(errors).get("data") if isinstance(errors, dict) else errors
    if not isinstance(data, list):
        return ()
    found = []
    for item in data:
        entry = map_of(item)
        line = _line_of(entry.get("line"))
        # Bounded: one entry per line of a file of 50,000 is possible, a poem is not.
        found.append(
            BatchFault(
                short(entry.get("code")),
                short(entry.get("message"), 500),
                line if line is not None and line >= 1 else None,
            )
        )
    return tuple(found)
