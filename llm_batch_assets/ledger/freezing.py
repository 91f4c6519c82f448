"""Rows that a freeze or a cut writes: revisions, jobs, shards, first submissions, labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.errors import GateClosed, LeaseLost, TransitionRefused
from llm_batch_assets.ledger import gates, schema
from llm_batch_assets.ledger.database import Ledger, insert_first
from llm_batch_assets.ledger.labels import Label, bind_labels
from llm_batch_assets.ledger.leases import Lease, fenced
from llm_batch_assets.ledger.people import log_decision
from llm_batch_assets.ledger.rows import JobRow, RevisionRow, as_row
from llm_batch_assets.ledger.worker import Worker


@dataclass(frozen=True, slots=True)
class RevisionSpec:
    """What a new revision states; durations in microseconds."""

    tenant_id: str
    workload: str
    dataset: str
    revision: int
    provider: str
    records: int
    open_datasets: int
    min_accepted_ppm: int
    cut_after: int
    close_by: int
    hold_deadline: int
    delete_after: int | None = None
    carried: int | None = None
    carried_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Supersedes:
    """The older revision that a new one takes the place of, and why."""

    revision_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ShardRowSpec:
    """One shard of a new job with the key of its submission in epoch 0."""

    ordinal: int
    shard_key: str
    request_digest: str
    records: int
    bytes: int
    tag: str
    submission_key: str


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a new job states: its manifest is durable already."""

    attempt: int
    job_key: str
    parent_job_key: str | None
    input_manifest_hash: str
    manifest_digest: str
    records_digest: str
    records: int
    kept_back: int
    shards: Sequence[ShardRowSpec]


def find_revision(
    connection: Connection, tenant_id: str, workload: str, dataset: str, revision: int | None = None
) -> RevisionRow | None:
    """The named revision of a dataset, or its newest one."""
    r = schema.revisions
    query = (
        sa.select(r)
        .where(r.c.tenant_id == tenant_id, r.c.workload == workload, r.c.dataset == dataset)
        .order_by(r.c.revision.desc())
        .limit(1)
    )
    if revision is not None:
        query = query.where(r.c.revision == revision)
    row = connection.execute(query).one_or_none()
    return None if row is None else as_row(RevisionRow, row)


_JOBS = (
    sa.select(schema.jobs)
    .where(schema.jobs.c.revision_id == sa.bindparam("revision_id"))
    .order_by(schema.jobs.c.attempt)
)


def jobs_of(connection: Connection, revision_id: int) -> list[JobRow]:
    """The jobs of a revision, oldest attempt first."""
    rows = connection.execute(_JOBS, {"revision_id": revision_id})
    return [as_row(JobRow, row) for row in rows]


def open_datasets(connection: Connection, tenant_id: str, workload: str) -> int:
    """How many revisions of a workload are neither closed nor superseded."""
    r = schema.revisions
    query = sa.select(sa.func.count()).where(
        r.c.tenant_id == tenant_id,
        r.c.workload == workload,
        r.c.closed_at.is_(None),
        r.c.superseded_at.is_(None),
    )
    return int(connection.execute(query).scalar_one())


def check_open_datasets(connection: Connection, tenant_id: str, workload: str, limit: int) -> None:
    """Refuse early what the claim would refuse anyway.

    Raises:
        GateClosed: as many datasets as the limit are open already.
    """
    count = open_datasets(connection, tenant_id, workload)
    if count >= limit:
        raise GateClosed(
            f"{count} datasets of {workload} are open and limits.open_datasets is {limit}.",
            remedy="It opens when one of them closes.",
        )


def open_revision(
    ledger: Ledger,
    revision: RevisionSpec,
    job: JobSpec,
    labels: Iterable[Label],
    worker: Worker,
    supersedes: Supersedes | None = None,
) -> tuple[RevisionRow, JobRow, bool]:
    """Write a revision with its first job, or read the one that was written first.

    What it supersedes is marked in the same transaction: no moment has two that may send.

    Returns:
        The revision, its attempt 1, and whether this call wrote them.

    Raises:
        LabelConflict, GateClosed: as ``bind_labels`` and ``check_open_datasets``.
    """
    with ledger.write("freeze") as connection:
        if supersedes is not None:
            gates.change(connection)
        now = ledger.now(connection)
        known = find_revision(
            connection, revision.tenant_id, revision.workload, revision.dataset, revision.revision
        )
        if known is not None:
            return known, jobs_of(connection, known.id)[0], False
        bind_labels(connection, revision.tenant_id, revision.workload, labels, now)
        if supersedes is not None:
            mark_superseded(connection, ledger, supersedes, worker)
        check_open_datasets(
            connection, revision.tenant_id, revision.workload, revision.open_datasets
        )
        row = {**asdict(revision), "created_at": now}
        if not insert_first(connection, schema.revisions, row):
            raise TransitionRefused(
                f"{revision.dataset} was frozen by another worker at the same moment.",
                remedy="Ask again: the same rows are a no-op.",
            )
        opened = find_revision(
            connection, revision.tenant_id, revision.workload, revision.dataset, revision.revision
        )
        assert opened is not None
        first = insert_job(connection, opened.id, job, worker, now, due_at=now, basis=None)
        if not job.shards:
            connection.execute(
                sa.update(schema.revisions)
                .where(schema.revisions.c.id == opened.id)
                .values(started_at=now)
            )
    return opened, first, True


def mark_superseded(
    connection: Connection, ledger: Ledger, supersedes: Supersedes, worker: Worker
) -> bool:
    """Nothing of a revision is sent, sent again or published from here on; batches are collected.

    Returns:
        False when it was superseded before.
    """
    gates.change(connection)
    r = schema.revisions
    result = connection.execute(
        sa.update(r)
        .where(r.c.id == supersedes.revision_id, r.c.superseded_at.is_(None))
        .values(
            superseded_at=ledger.now(connection),
            superseded_by=worker.actor,
            superseded_reason=supersedes.reason[:500],
        )
    )
    if result.rowcount != 1:
        return False
    target = f"revision:{supersedes.revision_id}"
    log_decision(connection, ledger, target, "supersede", worker, supersedes.reason)
    return True


def cut_job(
    ledger: Ledger,
    revision: RevisionRow,
    job: JobSpec,
    basis: str,
    lease: Lease,
    worker: Worker,
    *,
    due_at: int,
) -> JobRow:
    """Write the next attempt by compare-and-set on the evidence it was computed from.

    Raises:
        LeaseLost: another worker has the revision.
        TransitionRefused: the evidence has changed, a person cancelled, or the attempt exists.
    """
    r = schema.revisions
    with ledger.write("cut") as connection:
        now = ledger.now(connection)
        guard = connection.execute(
            sa.update(r)
            .where(
                r.c.id == revision.id,
                r.c.settlement_basis == basis,
                r.c.closed_at.is_(None),
                r.c.cancel_requested_at.is_(None),
                r.c.superseded_at.is_(None),
                fenced(lease, now),
            )
            .values(settled_at=r.c.settled_at)
        )
        if guard.rowcount != 1:
            _explain_lost(connection, ledger, lease)
            raise TransitionRefused("The evidence moved on while the next attempt was cut.")
        return insert_job(connection, revision.id, job, worker, now, due_at=due_at, basis=basis)


def _explain_lost(connection: Connection, ledger: Ledger, lease: Lease) -> None:
    held = connection.execute(sa.select(fenced(lease, ledger.now(connection)))).scalar()
    if not held:
        raise LeaseLost(f"The lease on {lease.target} has expired or was taken.")


def insert_job(
    connection: Connection,
    revision_id: int,
    job: JobSpec,
    worker: Worker,
    now: int,
    *,
    due_at: int,
    basis: str | None,
) -> JobRow:
    """Write a job with its shards and their first submissions, in the caller's transaction.

    Raises:
        TransitionRefused: the revision has this attempt already.
    """
    values = {key: value for key, value in asdict(job).items() if key != "shards"}
    wrote = insert_first(
        connection,
        schema.jobs,
        {**values, "revision_id": revision_id, "created_at": now, "basis": basis},
    )
    if not wrote:
        raise TransitionRefused(f"Attempt {job.attempt} of this revision exists already.")
    row = connection.execute(
        sa.select(schema.jobs).where(schema.jobs.c.job_key == job.job_key)
    ).one()
    written = as_row(JobRow, row)
    if job.shards:
        _insert_shards(connection, written.id, job.shards, worker, now, due_at)
    return written


def _insert_shards(
    connection: Connection,
    job_id: int,
    shards: Sequence[ShardRowSpec],
    worker: Worker,
    now: int,
    due_at: int,
) -> None:
    columns = ("ordinal", "shard_key", "request_digest", "records", "bytes", "tag")
    connection.execute(
        sa.insert(schema.shards),
        [{"job_id": job_id, **{c: getattr(shard, c) for c in columns}} for shard in shards],
    )
    h = schema.shards
    known = connection.execute(sa.select(h.c.ordinal, h.c.id).where(h.c.job_id == job_id))
    ids = {row.ordinal: row.id for row in known}
    insert_submissions(
        connection, [(ids[s.ordinal], 0, s.submission_key) for s in shards], worker, now, due_at
    )


def insert_submissions(
    connection: Connection,
    new: Sequence[tuple[int, int, str]],
    worker: Worker,
    now: int,
    due_at: int,
) -> None:
    """Open submissions (shard id, epoch, submission_key): CREATED, then VALIDATED."""
    connection.execute(
        sa.insert(schema.submissions),
        [
            {
                "shard_id": shard_id,
                "epoch": epoch,
                "submission_key": key,
                "state": "VALIDATED",
                "state_at": now,
                "due_at": due_at,
                "tries": 0,
                "looks": 0,
                "poll_faults": 0,
                "downloads": 0,
            }
            for shard_id, epoch, key in new
        ],
    )
    keys = [key for _, _, key in new]
    s = schema.submissions
    ids: list[int] = []
    for start in range(0, len(keys), 500):
        part = keys[start : start + 500]
        ids += connection.execute(sa.select(s.c.id).where(s.c.submission_key.in_(part))).scalars()
    steps = ((None, "CREATED", "frozen"), ("CREATED", "VALIDATED", "preflight passed"))
    connection.execute(
        sa.insert(schema.transitions),
        [
            {
                "submission_id": submission_id,
                "from_state": before,
                "to_state": after,
                "at": now,
                "actor": worker.actor,
                "run_id": worker.run_id,
                "reason": reason,
            }
            for submission_id in ids
            for before, after, reason in steps
        ],
    )
