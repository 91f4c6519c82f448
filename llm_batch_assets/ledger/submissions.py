"""Reading submissions, and decisions about them.

Decisions (transitions) need the lease, whose token is checked in the UPDATE's own WHERE.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.errors import GateClosed, LeaseLost, LedgerError, TransitionRefused
from llm_batch_assets.ledger import schema
from llm_batch_assets.ledger.database import Ledger
from llm_batch_assets.ledger.freezing import insert_submissions
from llm_batch_assets.ledger.leases import FENCE, Lease, fence_of
from llm_batch_assets.ledger.prepared import prepared
from llm_batch_assets.ledger.rows import SubmissionRow, as_row
from llm_batch_assets.ledger.states import ARCS
from llm_batch_assets.ledger.worker import Worker

MAX_EPOCHS = 20
"""After so many proven absences or failures of one shard a person has to look."""


def _joined() -> sa.Select[Any]:
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


_JOINED = _joined()
"""Built once: a statement is immutable, and building this one costs more than running it."""


def joined() -> sa.Select[Any]:
    """Submissions with the names of their shard, job and revision."""
    return _JOINED


_FIND = _JOINED.where(schema.submissions.c.submission_key == sa.bindparam("key"))
_MOVE = prepared(
    sa.update(schema.submissions).where(
        schema.submissions.c.id == sa.bindparam("of_id"),
        schema.submissions.c.state == sa.bindparam("of_state"),
        FENCE,
    )
)
_TOLD = prepared(sa.insert(schema.transitions).inline())


def find(connection: Connection, submission_key: str) -> SubmissionRow | None:
    """One submission by its key, or None."""
    row = connection.execute(_FIND, {"key": submission_key}).one_or_none()
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
    now: int | None = None,
    **values: Any,
) -> None:
    """Take one arc of the table, with its row in ``transitions``, in the caller's transaction.

    ``now`` is the ledger's clock where the caller has read it in this transaction.

    Raises:
        TransitionRefused: the arc does not exist, or the state has moved on.
        LeaseLost: the token is no longer the newest, or the lease has expired.
    """
    if to not in ARCS[row.state]:
        raise TransitionRefused(f"There is no arc from {row.state} to {to}.")
    now = ledger.now(connection) if now is None else now
    if raw_status is not None:
        values["raw_status"] = raw_status
    s = schema.submissions
    changed = {"state": to, "state_at": now, **values}
    result = connection.execute(
        _MOVE, {"of_id": row.id, "of_state": row.state, **fence_of(lease, now), **changed}
    )
    if result.rowcount != 1:
        state = connection.execute(sa.select(s.c.state).where(s.c.id == row.id)).scalar_one()
        if state != row.state:
            raise TransitionRefused(f"{row.shard_key} is {state}, no longer {row.state}.")
        raise LeaseLost(f"The lease on {lease.target} has expired or was taken.")
    told = {
        "submission_id": row.id,
        "from_state": row.state,
        "to_state": to,
        "at": now,
        "actor": worker.actor,
        "run_id": worker.run_id,
        "reason": reason[:500],
        "raw_status": raw_status,
    }
    connection.execute(_TOLD, told)


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


def put_off(ledger: Ledger, row: SubmissionRow, error: Exception, wait: float) -> None:
    """Nothing changes but when it is due again, ``wait`` seconds from now, and what is known."""
    due_at = ledger.time() + int(wait * 1_000_000)
    note(ledger, row, due_at=due_at, tries=row.tries + 1, last_error=str(error)[:500])


def doubled(backoff: tuple[float, float], tries: int) -> float:
    """Seconds to wait: the first wait, doubled for every try so far, up to the longest."""
    first, longest = backoff
    return min(longest, first * 2.0 ** min(tries, 16))


def set_hold(ledger: Ledger, row: SubmissionRow, hold: str | None, release: str | None) -> None:
    """Put a submission on hold with what releases it, or release it."""
    with ledger.write("hold") as connection:
        since = None if hold is None else ledger.now(connection)
        connection.execute(
            sa.update(schema.submissions)
            .where(schema.submissions.c.id == row.id)
            .values(hold=hold, hold_release=release, hold_at=since)
        )


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
