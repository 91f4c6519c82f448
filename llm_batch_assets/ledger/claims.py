"""Claims: the gates, the lease, the deadline and the account, committed before the POST."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.errors import GateClosed, TransitionRefused
from llm_batch_assets.ledger import schema
from llm_batch_assets.ledger.database import Ledger
from llm_batch_assets.ledger.leases import Lease, take_free
from llm_batch_assets.ledger.rows import SubmissionRow, as_row
from llm_batch_assets.ledger.states import SENDABLE
from llm_batch_assets.ledger.submissions import joined, load, move
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
    expires_after = int(ttl * 1_000_000)
    while True:
        with ledger.write("take") as connection:
            now = ledger.now(connection)
            query = _free(now, workload, dataset)
            if not ledger.is_sqlite:
                query = query.with_for_update(of=schema.submissions, skip_locked=True)
            found = connection.execute(query).one_or_none()
            if found is None:
                return None
            row = as_row(SubmissionRow, found)
            lease = take_free(connection, row.target, worker.holder, now, now + expires_after)
        # A lease that was committed after this statement's view began is found by the insert.
        if lease is not None:
            return row, lease


def _free(now: int, workload: str | None, dataset: str | None) -> sa.Select[Any]:
    s, r, held = schema.submissions, schema.revisions, schema.leases
    taken = sa.exists().where(
        held.c.target == sa.literal("submission:") + s.c.submission_key,
        held.c.expires_at > now,
    )
    query = (
        joined()
        .where(
            s.c.state.in_(sorted(SENDABLE)),
            s.c.due_at <= now,
            s.c.hold.is_(None),
            r.c.hold.is_(None),
            r.c.cancel_requested_at.is_(None),
            r.c.superseded_at.is_(None),
            ~taken,
        )
        .order_by(s.c.id)
        .limit(1)
    )
    if workload is not None:
        query = query.where(r.c.workload == workload)
    if dataset is not None:
        query = query.where(r.c.dataset == dataset)
    return query


def claim(
    ledger: Ledger,
    submission_key: str,
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
        submission_key: what to claim.
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
        now = ledger.now(connection)
        row = load(connection, submission_key)
        if row.state not in SENDABLE:
            raise TransitionRefused(f"{row.shard_key} is {row.state}: nothing to send.")
        _check_gates(connection, row, now)
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


def _check_gates(connection: Connection, row: SubmissionRow, now: int) -> None:
    r = schema.revisions
    query = sa.select(r).where(r.c.id == row.revision_id)
    revision: sa.Row[Any] | None
    if connection.dialect.name == "sqlite":
        revision = connection.execute(query).one()
    else:
        # Shared: claims of one dataset do not wait for each other, a cancel waits for them. The
        # first claim changes the row, so it takes the workload's lock before the row's own:
        # the other way round two first claims would wait for each other.
        started = r.c.started_at.is_not(None)
        shared = query.where(started).with_for_update(read=True)
        revision = connection.execute(shared).one_or_none()
        if revision is None:
            _lock(connection, f"{row.tenant_id}/{row.workload}")
            revision = connection.execute(query.with_for_update()).one()
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
    newest, known = _epoch_and_batches(connection, row)
    if newest != row.epoch:
        raise GateClosed(f"{row.shard_key} has a newer epoch than {row.epoch}.")
    if known:
        raise GateClosed(f"The provider already has a batch of {row.shard_key}.")
    if revision.started_at is None:
        _start(connection, revision, now)


def _epoch_and_batches(connection: Connection, row: SubmissionRow) -> tuple[int, int]:
    """The newest epoch of the shard, and how many batches are known of this submission."""
    s, p = schema.submissions, schema.provider_batches
    epoch = sa.select(sa.func.max(s.c.epoch)).where(s.c.shard_id == row.shard_id)
    batches = sa.select(sa.func.count()).where(p.c.submission_key == row.submission_key)
    found = connection.execute(sa.select(epoch.scalar_subquery(), batches.scalar_subquery())).one()
    return int(found[0]), int(found[1])


def _check_alone(connection: Connection, row: SubmissionRow, account: str) -> None:
    """Two unacknowledged creates of one account could not be told apart."""
    if connection.dialect.name != "sqlite":
        _lock(connection, f"account:{account}")
    s = schema.submissions
    waits = connection.execute(
        sa.select(sa.func.count()).where(
            s.c.account == account,
            s.c.state.in_(("SUBMITTING", "UNCERTAIN")),
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


def _start(connection: Connection, revision: Any, now: int) -> None:
    """The first claim of a dataset decides ``open_datasets``, one claim at a time."""
    r = schema.revisions
    running = connection.execute(
        sa.select(sa.func.count()).where(
            r.c.id != revision.id,
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
