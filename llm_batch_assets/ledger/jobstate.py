"""The state of a job in the words people know: a view over its submissions, never stored. Pure."""

from __future__ import annotations

from typing import Literal

from llm_batch_assets.ledger.rows import JobRow, SubmissionRow
from llm_batch_assets.ledger.states import COLLECTABLE, SENDABLE
from llm_batch_assets.ledger.views import RevisionView

JobState = Literal[
    "CREATED",
    "VALIDATED",
    "SUBMITTING",
    "SUBMITTED",
    "RUNNING",
    "RECONCILING",
    "PARTIAL",
    "COMPLETED",
    "COMPLETED_WITH_ERRORS",
    "FAILED",
    "CANCELLED",
    "EXPIRED",
]


def job_state(view: RevisionView, job: JobRow) -> JobState:
    """What a job is doing, or what became of it.

    Args:
        view: its revision with all of its shards.
        job: one of the revision's jobs.
    """
    shards = [s for s in view.shards if s.job_id == job.id and s.abandoned_at is None]
    states = {s.state for s in shards}
    cancelled = view.row.cancel_requested_at is not None
    going = [s for s in shards if s.state not in SENDABLE] if cancelled else shards
    live = {s.state for s in going}
    if live & (SENDABLE | {"CREATED", "SUBMITTING", "UNCERTAIN"}):
        sent = live - SENDABLE - {"CREATED"}
        return "SUBMITTING" if sent else "VALIDATED"
    if live & {"PROVISIONAL", "RUNNING"}:
        return "RUNNING"
    if "SUBMITTED" in live:
        return "SUBMITTED"
    if live & COLLECTABLE:
        return "RECONCILING"
    return _ended(view, job, shards, states)


def _ended(
    view: RevisionView, job: JobRow, shards: list[SubmissionRow], states: set[str]
) -> JobState:
    row = view.row
    if row.cancel_requested_at is not None:
        return "CANCELLED"
    if row.settlement_basis is None:
        return "RECONCILING"
    if job.attempt < view.attempt or (row.closed_at is None and row.open):
        return "PARTIAL"
    if row.closed_at is None:
        return "RECONCILING"
    if row.accepted == row.records:
        return "COMPLETED"
    if not row.accepted and shards:
        outcomes = {(s.outcome or "").partition(":")[0] for s in shards}
        if outcomes == {"expired"}:
            return "EXPIRED"
        if outcomes <= {"failed", "refused"} and states <= {"ACCOUNTED"}:
            return "FAILED"
    return "COMPLETED_WITH_ERRORS"
