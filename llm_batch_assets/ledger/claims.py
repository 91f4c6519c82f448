"""Claims: the gates, the lease, the deadline and the account, committed before the POST."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.errors import GateClosed, TransitionRefused
from llm_batch_assets.ledger import schema
from llm_batch_assets.ledger.database import Ledger
from llm_batch_assets.ledger.gates import pass_through
from llm_batch_assets.ledger.leases import Lease, take_free
from llm_batch_assets.ledger.prepared import prepared
from llm_batch_assets.ledger.rows import SubmissionRow, as_row
from llm_batch_assets.ledger.states import SENDABLE
from llm_batch_assets.ledger.submissions import joined, move
from llm_batch_assets.ledger.worker import Worker


def take(
    ledger: Ledger,
    worker: Worker,
    *,
    ttl: float,
    workload: str | None = None,
    dataset: str | None = None,
) -> tuple[SubmissionRow, Lease] | None:
    """Lease the next submission that is due and that nobody works on, without waiting for others.

    Many workers over one ledger each get another one. The gates are judged by ``claim``; what
    they plainly keep back is not taken.

    Returns:
        The row and its lease, or None when nothing is left.
    """
    query = _next_free(ledger.is_sqlite, workload is not None, dataset is not None)
    with ledger.write("take") as connection:
        now = ledger.now(connection, first=_IN_ORDER)
        told = {"now": now, "workload": workload, "dataset": dataset}
        while (found := connection.execute(query, told).one_or_none()) is not None:
            row = as_row(SubmissionRow, found)
            expires = now + int(ttl * 1_000_000)
            lease = take_free(connection, row.target, worker.holder, now, expires)
            # None: a lease that was committed after the query's view began. The next view has it.
            if lease is not None:
                return row, lease
    return None


_IN_ORDER = "set_config('enable_sort', 'off', true)"
"""For this transaction. The index has what waits in its order, but while the statistics know little
of a backlog that was just written, PostgreSQL reads and sorts all of it for its first row.
"""


@cache
def _next_free(is_sqlite: bool, of_workload: bool, of_dataset: bool) -> sa.Select[Any]:
    """The one that has been due longest: an index has them in this order, so one row is read.

    Built once: building it costs more than running it.
    """
    s, r, held = schema.submissions, schema.revisions, schema.leases
    taken = sa.exists().where(
        held.c.target == sa.literal("submission:") + s.c.submission_key,
        held.c.expires_at > sa.bindparam("now"),
    )
    query = (
        joined()
        .where(
            sa.text(f"submissions.{schema.TO_SEND}"),
            s.c.due_at <= sa.bindparam("now"),
            s.c.hold.is_(None),
            r.c.hold.is_(None),
            r.c.cancel_requested_at.is_(None),
            r.c.superseded_at.is_(None),
            ~taken,
        )
        .order_by(s.c.due_at, s.c.id)
        .limit(1)
    )
    if of_workload:
        query = query.where(r.c.workload == sa.bindparam("workload"))
    if of_dataset:
        query = query.where(r.c.dataset == sa.bindparam("dataset"))
    return prepared(query if is_sqlite else query.with_for_update(of=s, skip_locked=True))


def claim(
    ledger: Ledger,
    row: SubmissionRow,
    *,
    lease: Lease,
    worker: Worker,
    account: str,
    post_seconds: float,
    fence: str | None = None,
    exclusive: bool = False,
) -> SubmissionRow:
    """Commit the intent to create: gates, lease, deadline and account, all in one transaction.

    Args:
        ledger: the ledger.
        row: what to claim, as it was read; all that can have changed is read again.
        lease: this worker's lease on the submission.
        worker: who claims.
        account: digest of the credential that will be used.
        post_seconds: wall-clock limit of the create call.
        fence: the newest batch of the account before this create.
        exclusive: the provider's batches carry no label of ours, so that only one create of the
            account may be unacknowledged at a time.

    Returns:
        The row in SUBMITTING.

    Raises:
        GateClosed: a gate refuses; the message says what would release it.
        TransitionRefused: it is not sendable (any more).
        LeaseLost: another worker has it.
    """
    with ledger.write("claim") as connection:
        now = pass_through(connection, ledger)
        found = connection.execute(_TO_CLAIM, {"id": row.id, "of": row.revision_id}).one()
        row = replace(row, **{name: found[place] for place, name in enumerate(_OWN)})
        if row.state not in SENDABLE:
            raise TransitionRefused(f"{row.shard_key} is {row.state}: nothing to send.")
        _check_gates(row, found, now)
        if found.started_at is None:
            _start(connection, row, found.open_datasets, now)
        if exclusive:
            _check_alone(connection, row, account)
        intent: dict[str, Any] = {
            "account": account,
            "posted_at": now,
            "post_deadline": now + int(post_seconds * 1_000_000),
            "tries": row.tries + 1,
            "fence": fence,
            "first_look_at": None,
            "input_deleted_at": None,
            "looks": 0,
        }
        move(
            connection,
            ledger,
            row,
            "SUBMITTING",
            lease=lease,
            worker=worker,
            reason="claimed",
            now=now,
            **intent,
        )
    return replace(row, state="SUBMITTING", state_at=now, **intent)


_OWN = tuple(column.name for column in schema.submissions.c)


def _to_claim() -> sa.Select[Any]:
    """A submission's own columns, and everything that its gates are judged by."""
    s, p, r = schema.submissions, schema.provider_batches, schema.revisions
    other = s.alias("other")
    newest = sa.select(sa.func.max(other.c.epoch)).where(other.c.shard_id == s.c.shard_id)
    batches = sa.select(sa.func.count()).where(p.c.submission_key == s.c.submission_key)
    return (
        sa.select(
            *s.c,
            newest.scalar_subquery().label("newest_epoch"),
            batches.scalar_subquery().label("batches"),
            r.c.started_at,
            r.c.open_datasets,
            r.c.superseded_at,
            r.c.cancel_requested_at.label("dataset_cancelled_at"),
            r.c.cancel_reason.label("dataset_cancel_reason"),
            r.c.hold.label("dataset_hold"),
            r.c.hold_release.label("dataset_hold_release"),
        )
        .select_from(s.join(r, r.c.id == sa.bindparam("of")))
        .where(s.c.id == sa.bindparam("id"))
    )


_TO_CLAIM = prepared(_to_claim())


def _check_gates(row: SubmissionRow, gates: sa.Row[Any], now: int) -> None:
    if row.hold is not None:
        raise GateClosed(f"{row.shard_key} is on hold: {row.hold}.", remedy=row.hold_release or "")
    if gates.dataset_hold is not None:
        raise GateClosed(
            f"{row.dataset} is on hold: {gates.dataset_hold}.",
            remedy=gates.dataset_hold_release or "",
        )
    if gates.dataset_cancelled_at is not None:
        raise GateClosed(f"{row.dataset} was cancelled: {gates.dataset_cancel_reason}.")
    if gates.superseded_at is not None:
        raise GateClosed(f"Revision {row.revision} of {row.dataset} is superseded.")
    if row.due_at > now:
        seconds = (row.due_at - now) // 1_000_000 + 1
        raise GateClosed(f"{row.shard_key} is due in {seconds} s.")
    if gates.newest_epoch != row.epoch:
        raise GateClosed(f"{row.shard_key} has a newer epoch than {row.epoch}.")
    if gates.batches:
        raise GateClosed(f"The provider already has a batch of {row.shard_key}.")


def _check_alone(connection: Connection, row: SubmissionRow, account: str) -> None:
    """Two unacknowledged creates of one account could not be told apart.

    One that a person gave up keeps nobody waiting once it is UNCERTAIN: what it may have made is
    older than the next create's fence, or, where it comes late, told apart by its tag.
    """
    if connection.dialect.name != "sqlite":
        _lock(connection, f"account:{account}")
    s = schema.submissions
    waits = connection.execute(
        sa.select(sa.func.count()).where(
            s.c.account == account,
            sa.or_(
                s.c.state == "SUBMITTING",
                sa.and_(s.c.state == "UNCERTAIN", s.c.abandoned_at.is_(None)),
            ),
            s.c.id != row.id,
        )
    ).scalar_one()
    if waits:
        raise GateClosed(
            f"{row.shard_key} waits: a create of this account is not acknowledged yet.",
            remedy="A look at the provider's list decides that one first.",
        )


def _lock(connection: Connection, name: str) -> None:
    """Until the transaction ends: what was counted must not change under another's count."""
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": name})


def _start(connection: Connection, row: SubmissionRow, open_datasets: int, now: int) -> None:
    """The first claim of a dataset decides ``open_datasets``, one claim at a time."""
    if connection.dialect.name != "sqlite":
        _lock(connection, f"{row.tenant_id}/{row.workload}")
    r = schema.revisions
    running = connection.execute(
        sa.select(sa.func.count()).where(
            r.c.id != row.revision_id,
            r.c.tenant_id == row.tenant_id,
            r.c.workload == row.workload,
            r.c.started_at.is_not(None),
            r.c.closed_at.is_(None),
            r.c.superseded_at.is_(None),
        )
    ).scalar_one()
    if running >= open_datasets:
        raise GateClosed(
            f"{running} datasets of {row.workload} are in progress and "
            f"limits.open_datasets is {open_datasets}.",
            remedy="It opens when one of them closes.",
        )
    connection.execute(
        sa.update(r)
        .where(r.c.id == row.revision_id, r.c.started_at.is_(None))
        .values(started_at=now)
    )
