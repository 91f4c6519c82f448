"""Bedrock model invocation jobs (providers.md 4.1, 4.5)."""

from __future__ import annotations

import re
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
from llm_batch_assets.wire.shapes import short
from llm_batch_assets.wire.strict import map_of, text_of
from llm_batch_assets.wire.views import bytes_of, count_of, from_iso, label_of

STATUSES: Mapping[str, BatchStatus] = {
    "Submitted": "queued",
    "Validating": "queued",
    "Scheduled": "queued",
    "InProgress": "running",
    "Stopping": "stopping",
    "Completed": "done",
    "PartiallyCompleted": "done",
    "Failed": "failed",
    "Stopped": "cancelled",
    "Expired": "expired",
}
"""An allow-list: PartiallyCompleted is terminal (B43), any other word means still running."""

EXPIRES_UNSTARTED = True
"""Expired: scheduled, but not begun before the timeout [botocore]."""

UNREACHED = frozenset({"PartiallyCompleted"})
"""Not all records were processed in time: the ids without a row need no second download."""

UNPROMISED = frozenset({"expired", "cancelled"})
"""A job that expired or was stopped may have written nothing under its prefix."""

FAULTS: tuple[tuple[str, re.Pattern[str], Rule], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE), rule)
    for name, pattern, rule in (
        (
            "too_few",
            r"minimum|fewer than|at least \d+ records|less than the required",
            Rule("bedrock.batch.too_few", "retryable", "reshape", charged=False),
        ),
        (
            "too_many",
            # Too many jobs at once is the queue's, not the file's.
            r"^(?!.*(?:concurrent|throttl|too many (?:jobs|requests)))"
            r".*(?:maximum|exceeds? .*(?:limit|size|records)|too (?:large|many))",
            Rule("bedrock.batch.too_many", "retryable", "reshape", charged=False),
        ),
        (
            "capacity",
            r"throttl|quota|capacity|too many (?:jobs|requests)|concurrent",
            Rule("bedrock.batch.capacity", "retryable", "capacity", charged=False),
        ),
        (
            "account",
            r"access ?denied|not authori[sz]ed|permission|credential|\brole\b|assume|kms|forbidden",
            Rule("bedrock.batch.account", "retryable", "account", hold="account", charged=False),
        ),
        (
            "service",
            r"internal|service unavailable|try again|unexpected error|timed? ?out",
            Rule("bedrock.batch.service", "retryable", "server_error", charged=False),
        ),
    )
)
"""Why a job failed: every cause is one flat message, only its text tells them apart (4.2)."""

FAULT_DEFAULT = Rule(
    "bedrock.batch.unknown", "retryable", "unknown_fault", hold="operator", charged=False
)
"""A message that no pattern knows: no record is proven wrong, a person should look."""


def fault_rule(fault: BatchFault) -> Rule:
    """The rule for a failed job's message, first pattern first."""
    text = fault.message or ""
    for _, pattern, rule in FAULTS:
        if pattern.search(text):
            return rule
    return FAULT_DEFAULT


def read_batch(raw: Mapping[str, Any]) -> BatchView:
    """Read a job (get or list summary). Pure and total.

    ``results`` names the output prefix; which objects lie under it is the adapter's business.
    Counts are zero until processing starts (B46).
    """
    word = text_of(raw.get("status")) or ""
    status = STATUSES.get(word, "unknown")
    arn = text_of(raw.get("jobArn")) or ""
    output = map_of(map_of(raw.get("outputDataConfig")).get("s3OutputDataConfig"))
    source = map_of(map_of(raw.get("inputDataConfig")).get("s3InputDataConfig"))
    message = text_of(raw.get("message"))
    deployment, _ = label_of(raw.get("jobName"))
    prefix = text_of(output.get("s3Uri"))
    job = arn.rsplit("/", 1)[-1]
    named = bool(prefix and job and status in TERMINAL_STATUSES and status != "failed")
    total, done, failed = (
        count_of(raw.get(name))
        for name in ("totalRecordCount", "successRecordCount", "errorRecordCount")
    )
    return BatchView(
        batch_id=arn,
        raw_status=short(raw.get("status")) or "",
        status=status,
        created_at=from_iso(raw.get("submitTime")),
        ended_at=from_iso(raw.get("endTime")),
        expires_at=from_iso(raw.get("jobExpirationTime")),
        counts=BatchCounts(total, done, failed),
        input_ref=text_of(source.get("s3Uri")),
        submission_key=text_of(raw.get("clientRequestToken")),
        deployment=deployment,
        results=((ResultRef("results", f"{(prefix or '').rstrip('/')}/{job}/"),) if named else ()),
        faults=(BatchFault(None, short(message, 500)),) if message and status == "failed" else (),
        results_ready=status in TERMINAL_STATUSES,
        raw=bytes_of(raw),
    )
