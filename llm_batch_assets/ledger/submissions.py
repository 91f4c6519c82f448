"""Facts and decisions about submissions.

Facts (a batch of ours was seen, a poll answered) are inserted by any worker without a token.
Decisions (transitions) need the lease, whose token is checked in the UPDATE's own WHERE.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.errors import GateClosed, LeaseLost, LedgerError, TransitionRefused
from llm_batch_assets.ledger import schema
from llm_batch_assets.ledger.database import Ledger, insert_first, to_micros
from llm_batch_assets.ledger.freezing import insert_submissions
from llm_batch_assets.ledger.leases import Lease, fenced
from llm_batch_assets.ledger.rows import SubmissionRow, as_row
from llm_batch_assets.ledger.states import ARCS, SENDABLE
from llm_batch_assets.ledger.worker import Worker
from llm_batch_assets.types import BatchView

MAX_EPOCHS = 20
"""After so many proven absences or failures of one shard a person has to look."""


def joined() -> sa.Select[Any]:
    """Submissions with the names of their shard, job and revision."""
    s, h, j, r = schema.submissions, schema.shards, schema.jobs, schema.revisions
    return (
        sa.select(
            s,
            h.c.ordinal,
            h.c.shard_key,
            h.c.request_digest,
            h.c.records,
            h.c.bytes,
            h.c.tag,
            h.c.job_id,
            j.c.attempt,
            j.c.job_key,
            j.c.manifest_digest,
            j.c.revision_id,
            r.c.tenant_id,
            r.c.workload,
            r.c.dataset,
            r.c.revision,
            r.c.provider,
        )
        .join(h, h.c.id == s.c.shard_id)
        .join(j, j.c.id == h.c.job_id)
        .join(r, r.c.id == j.c.revision_id)
    )


def find(connection: Connection, submission_key: str) -> SubmissionRow | None:
    """One submission by its key, or None."""
    row = connection.execute(
        joined().where(schema.submissions.c.submission_key == submission_key)
    ).one_or_none()
    return None if row is None else as_row(SubmissionRow, row)


def load(connection: Connection, submission_key: str) -> SubmissionRow:
    """One submission by its key.

    Raises:
        LedgerError: the ledger does not know it.
    """
    row = find(connection, submission_key)
    if row is None:
        raise LedgerError(f"The ledger knows no submission {submission_key}.")
    return row


def newest(connection: Connection, workload: str, shard_key: str) -> SubmissionRow:
    """The newest epoch of a shard that a person or Dagster names by its key.

    Raises:
        LedgerError: the ledger does not know the shard.
    """
    row = connection.execute(
        joined()
        .where(schema.shards.c.shard_key == shard_key, schema.revisions.c.workload == workload)
        .order_by(schema.submissions.c.epoch.desc())
        .limit(1)
    ).one_or_none()
    if row is None:
        raise LedgerError(f"The ledger knows no shard {shard_key} of {workload}.")
    return as_row(SubmissionRow, row)


def move(
    connection: Connection,
    ledger: Ledger,
    row: SubmissionRow,
    to: str,
    *,
    lease: Lease,
    worker: Worker,
    reason: str,
    raw_status: str | None = None,
    **values: Any,
) -> None:
    """Take one arc of the table, with its row in ``transitions``, in the caller's transaction.

    Raises:
        TransitionRefused: the arc does not exist, or the state has moved on.
        LeaseLost: the token is no longer the newest, or the lease has expired.
    """
    if to not in ARCS[row.state]:
        raise TransitionRefused(f"There is no arc from {row.state} to {to}.")
    now = ledger.now(connection)
    if raw_status is not None:
        values["raw_status"] = raw_status
    s = schema.submissions
    result = connection.execute(
        sa.update(s)
        .where(s.c.id == row.id, s.c.state == row.state, fenced(connection, ledger, lease))
        .values(state=to, state_at=now, **values)
    )
    if result.rowcount != 1:
        state = connection.execute(sa.select(s.c.state).where(s.c.id == row.id)).scalar_one()
        if state != row.state:
            raise TransitionRefused(f"{row.shard_key} is {state}, no longer {row.state}.")
        raise LeaseLost(f"The lease on {lease.target} has expired or was taken.")
    connection.execute(
        sa.insert(schema.transitions).values(
            submission_id=row.id,
            from_state=row.state,
            to_state=to,
            at=now,
            actor=worker.actor,
            run_id=worker.run_id,
            reason=reason[:500],
            raw_status=raw_status,
        )
    )


def transition(
    ledger: Ledger,
    row: SubmissionRow,
    to: str,
    *,
    lease: Lease,
    worker: Worker,
    reason: str,
    raw_status: str | None = None,
    **values: Any,
) -> SubmissionRow:
    """``move`` in a transaction of its own; returns the row as it is now."""
    with ledger.write(f"to_{to.lower()}") as connection:
        move(
            connection,
            ledger,
            row,
            to,
            lease=lease,
            worker=worker,
            reason=reason,
            raw_status=raw_status,
            **values,
        )
        return load(connection, row.submission_key)


def note(ledger: Ledger, row: SubmissionRow, **values: Any) -> None:
    """Write observations beside the state: never the state, a flag or a binding."""
    assert not {"state", "batch_id", "hold"} & values.keys()
    with ledger.write("note") as connection:
        connection.execute(
            sa.update(schema.submissions).where(schema.submissions.c.id == row.id).values(**values)
        )


def set_hold(ledger: Ledger, row: SubmissionRow, hold: str | None, release: str | None) -> None:
    """Put a submission on hold with what releases it, or release it."""
    with ledger.write("hold") as connection:
        connection.execute(
            sa.update(schema.submissions)
            .where(schema.submissions.c.id == row.id)
            .values(hold=hold, hold_release=release)
        )


def claim(
    ledger: Ledger,
    submission_key: str,
    *,
    lease: Lease,
    worker: Worker,
    account: str,
    post_seconds: float,
) -> SubmissionRow:
    """Commit the intent to create: gates, lease, deadline and account, all in one transaction.

    Args:
        ledger: the ledger.
        submission_key: what to claim.
        lease: this worker's lease on the submission.
        worker: who claims.
        account: digest of the credential that will be used.
        post_seconds: wall-clock limit of the create call.

    Returns:
        The row in SUBMITTING.

    Raises:
        GateClosed: a gate refuses; the message says what would release it.
        TransitionRefused: it is not sendable (any more).
        LeaseLost: another worker has it.
    """
    with ledger.write("claim") as connection:
        now = ledger.now(connection)
        row = load(connection, submission_key)
        if row.state not in SENDABLE:
            raise TransitionRefused(f"{row.shard_key} is {row.state}: nothing to send.")
        _check_gates(connection, row, now)
        move(
            connection,
            ledger,
            row,
            "SUBMITTING",
            lease=lease,
            worker=worker,
            reason="claimed",
            account=account,
            posted_at=now,
            post_deadline=now + int(post_seconds * 1_000_000),
            tries=row.tries + 1,
            first_look_at=None,
            input_deleted_at=None,
            looks=0,
        )
        return load(connection, submission_key)


def _check_gates(connection: Connection, row: SubmissionRow, now: int) -> None:
    r = schema.revisions
    query = sa.select(r).where(r.c.id == row.revision_id)
    if connection.dialect.name != "sqlite":
        query = query.with_for_update()
    revision = connection.execute(query).one()
    if row.hold is not None:
        raise GateClosed(f"{row.shard_key} is on hold: {row.hold}.", remedy=row.hold_release or "")
    if revision.hold is not None:
        raise GateClosed(
            f"{row.dataset} is on hold: {revision.hold}.", remedy=revision.hold_release or ""
        )
    if revision.cancel_requested_at is not None:
        raise GateClosed(f"{row.dataset} was cancelled: {revision.cancel_reason}.")
    if revision.superseded_at is not None:
        raise GateClosed(f"Revision {row.revision} of {row.dataset} is superseded.")
    if row.due_at > now:
        seconds = (row.due_at - now) // 1_000_000 + 1
        raise GateClosed(f"{row.shard_key} is due in {seconds} s.")
    if newest_epoch(connection, row.shard_id) != row.epoch:
        raise GateClosed(f"{row.shard_key} has a newer epoch than {row.epoch}.")
    if facts_of(connection, row.submission_key):
        raise GateClosed(f"The provider already has a batch of {row.shard_key}.")
    if revision.started_at is None:
        _start(connection, revision, now)


def _start(connection: Connection, revision: Any, now: int) -> None:
    """The first claim of a dataset decides ``open_datasets``, one claim at a time."""
    r = schema.revisions
    if connection.dialect.name != "sqlite":
        # The count must not change under two first claims of two datasets.
        connection.execute(
            sa.text("SELECT pg_advisory_xact_lock(hashtext(:name))"),
            {"name": f"{revision.tenant_id}/{revision.workload}"},
        )
    running = connection.execute(
        sa.select(sa.func.count()).where(
            r.c.tenant_id == revision.tenant_id,
            r.c.workload == revision.workload,
            r.c.started_at.is_not(None),
            r.c.closed_at.is_(None),
            r.c.superseded_at.is_(None),
        )
    ).scalar_one()
    if running >= revision.open_datasets:
        raise GateClosed(
            f"{running} datasets of {revision.workload} are in progress and "
            f"limits.open_datasets is {revision.open_datasets}.",
            remedy="It opens when one of them closes.",
        )
    connection.execute(sa.update(r).where(r.c.id == revision.id).values(started_at=now))


def newest_epoch(connection: Connection, shard_id: int) -> int:
    """The highest epoch of a shard."""
    s = schema.submissions
    query = sa.select(sa.func.max(s.c.epoch)).where(s.c.shard_id == shard_id)
    return int(connection.execute(query).scalar_one())


def next_epoch(
    connection: Connection,
    row: SubmissionRow,
    submission_key: str,
    worker: Worker,
    *,
    now: int,
    due_at: int,
) -> None:
    """Open epoch+1 of a shard, in the transaction that proved that the last one executed nothing.

    Raises:
        GateClosed: ``MAX_EPOCHS`` are used up.
    """
    if row.epoch + 1 >= MAX_EPOCHS:
        raise GateClosed(f"{row.shard_key} has used {MAX_EPOCHS} epochs.", remedy="Look at it.")
    insert_submissions(
        connection, [(row.shard_id, row.epoch + 1, submission_key)], worker, now, due_at
    )


def record_batch(
    ledger: Ledger, account: str, view: BatchView, submission_key: str, how: str
) -> bool:
    """Append the fact that a batch of ours exists. Never fenced, never changed.

    Returns:
        True when nobody had seen it before.
    """
    with ledger.write("batch_fact") as connection:
        return insert_first(
            connection,
            schema.provider_batches,
            {
                "account": account,
                "batch_id": view.batch_id,
                "submission_key": submission_key,
                "provider_created_at": to_micros(view.created_at),
                "seen_at": ledger.now(connection),
                "seen_how": how,
            },
        )


def facts_of(connection: Connection, submission_key: str) -> list[tuple[str, int | None]]:
    """The batches of a submission as (batch id, provider's creation time), oldest first."""
    p = schema.provider_batches
    rows = connection.execute(
        sa.select(p.c.batch_id, p.c.provider_created_at)
        .where(p.c.submission_key == submission_key)
        .order_by(sa.func.coalesce(p.c.provider_created_at, p.c.seen_at), p.c.batch_id)
    )
    return [(row.batch_id, row.provider_created_at) for row in rows]


def known_batches(connection: Connection, account: str, limit: int = 1000) -> frozenset[str]:
    """The newest batches that we know of an account."""
    p = schema.provider_batches
    rows = connection.execute(
        sa.select(p.c.batch_id).where(p.c.account == account).order_by(p.c.id.desc()).limit(limit)
    )
    return frozenset(row.batch_id for row in rows)


def record_duplicate(
    ledger: Ledger, account: str, batch_id: str, submission_key: str, reason: str
) -> bool:
    """Book a second batch of one submission; returns True when it was not booked before."""
    with ledger.write("duplicate_fact") as connection:
        return insert_first(
            connection,
            schema.duplicate_batches,
            {
                "account": account,
                "batch_id": batch_id,
                "submission_key": submission_key,
                "found_at": ledger.now(connection),
                "reason": reason,
            },
        )


def mark_duplicate_cancelled(ledger: Ledger, account: str, batch_id: str) -> None:
    """Record that the provider took the cancel of a duplicate."""
    d = schema.duplicate_batches
    with ledger.write("duplicate_cancelled") as connection:
        connection.execute(
            sa.update(d)
            .where(d.c.account == account, d.c.batch_id == batch_id)
            .values(cancelled_at=ledger.now(connection))
        )


def record_look(
    ledger: Ledger, account: str, *, started_at: int, batches: int, counts: bool, reason: str
) -> None:
    """Append one walk over an account's list: how much it saw, and whether it proves anything."""
    with ledger.write("look_fact") as connection:
        connection.execute(
            sa.insert(schema.looks).values(
                account=account,
                started_at=started_at,
                ended_at=ledger.now(connection),
                batches=batches,
                counts=int(counts),
                reason=reason,
            )
        )


def record_raw_file(
    ledger: Ledger,
    row: SubmissionRow,
    *,
    download: int,
    kind: str,
    ref: str,
    digest: str,
    size: int,
    receipt: str,
) -> None:
    """Name a whole raw file; repeating the same download changes nothing."""
    with ledger.write("raw_file") as connection:
        insert_first(
            connection,
            schema.raw_files,
            {
                "submission_id": row.id,
                "download": download,
                "kind": kind,
                "ref": ref,
                "digest": digest,
                "bytes": size,
                "receipt": receipt,
                "at": ledger.now(connection),
            },
        )
