"""Frozen rows of the ledger as the rooms above read them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

from sqlalchemy.engine import Row

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """One revision of a dataset; times are microseconds UTC."""

    id: int
    tenant_id: str
    workload: str
    dataset: str
    revision: int
    provider: str
    records: int
    created_at: int
    open_datasets: int
    min_accepted_ppm: int
    cut_after: int
    close_by: int
    hold_deadline: int
    delete_after: int | None
    carried: int | None
    carried_digest: str | None
    started_at: int | None
    hold: str | None
    hold_release: str | None
    cancel_requested_at: int | None
    cancel_by: str | None
    cancel_reason: str | None
    superseded_at: int | None
    superseded_by: str | None
    superseded_reason: str | None
    settled_at: int | None
    settlement_basis: str | None
    closure_digest: str | None
    candidate_digest: str | None
    candidate_rows_digest: str | None
    open: int | None
    accepted: int | None
    human_review: int | None
    permanent_failure: int | None
    cancelled: int | None
    retry_wanted: int | None
    closed_at: int | None
    published_at: int | None
    published_version: int | None
    published_closure: str | None
    withheld_closure: str | None
    withheld_reason: str | None
    word_closure: str | None
    word_by: str | None
    word_reason: str | None

    @property
    def target(self) -> str:
        """What a lease on this revision is called."""
        return f"revision:{self.id}"


@dataclass(frozen=True, slots=True)
class JobRow:
    """One attempt of a revision."""

    id: int
    revision_id: int
    attempt: int
    job_key: str
    parent_job_key: str | None
    input_manifest_hash: str
    manifest_digest: str
    records_digest: str
    records: int
    kept_back: int
    basis: str | None
    created_at: int
    accounted_at: int | None
    closure_digest: str | None


@dataclass(frozen=True, slots=True)
class SubmissionRow:
    """One shard in one epoch, with its shard's, job's and revision's names beside it."""

    id: int
    shard_id: int
    epoch: int
    submission_key: str
    state: str
    state_at: int
    due_at: int
    tries: int
    last_error: str | None
    hold: str | None
    hold_release: str | None
    hold_at: int | None
    cancel_requested_at: int | None
    cancel_sent_at: int | None
    released_at: int | None
    abandoned_at: int | None
    account: str | None
    input_ref: str | None
    posted_at: int | None
    post_deadline: int | None
    fence: str | None
    first_look_at: int | None
    input_deleted_at: int | None
    looks: int
    batch_id: str | None
    bound_how: str | None
    bound_at: int | None
    provider_created_at: int | None
    raw_status: str | None
    outcome: str | None
    total: int | None
    done: int | None
    failed: int | None
    polled_at: int | None
    poll_faults: int
    result_deadline: int | None
    remote_deleted_at: int | None
    view_digest: str | None
    downloads: int
    collected_at: int | None
    closure_digest: str | None
    table_digest: str | None
    answers_digest: str | None
    anomalies: int | None
    # of the shard
    ordinal: int
    shard_key: str
    request_digest: str
    records: int
    bytes: int
    tag: str
    # of the job and the revision
    job_id: int
    attempt: int
    job_key: str
    manifest_digest: str
    revision_id: int
    tenant_id: str
    workload: str
    dataset: str
    revision: int
    provider: str

    @property
    def target(self) -> str:
        """What a lease on this submission is called."""
        return f"submission:{self.submission_key}"


def as_row(cls: type[T], row: Row[Any]) -> T:
    """A frozen shape from a result row that has its columns (and perhaps more)."""
    mapping = row._mapping
    return cls(**{name: mapping[name] for name in _names(cls)})  # type: ignore[arg-type]


@cache
def _names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))
