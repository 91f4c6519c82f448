"""Facts that any worker may append without a token: nothing here decides anything."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.ledger import schema
from llm_batch_assets.ledger.database import Ledger, insert_first, to_micros
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.types import BatchView


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


def _facts() -> sa.Select[tuple[str, int]]:
    p = schema.provider_batches
    return (
        sa.select(p.c.batch_id, p.c.provider_created_at)
        .where(p.c.submission_key == sa.bindparam("key"))
        .order_by(sa.func.coalesce(p.c.provider_created_at, p.c.seen_at), p.c.batch_id)
    )


_FACTS = _facts()


def facts_of(connection: Connection, submission_key: str) -> list[tuple[str, int | None]]:
    """The batches of a submission as (batch id, provider's creation time), oldest first."""
    rows = connection.execute(_FACTS, {"key": submission_key})
    return [(row.batch_id, row.provider_created_at) for row in rows]


def known_batches(connection: Connection, account: str, limit: int = 1000) -> frozenset[str]:
    """The newest batches that we know of an account, without those that we deleted."""
    p = schema.provider_batches
    rows = connection.execute(
        sa.select(p.c.batch_id)
        .where(p.c.account == account, p.c.deleted_at.is_(None))
        .order_by(p.c.id.desc())
        .limit(limit)
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


def is_settled_duplicate(connection: Connection, account: str, batch_id: str) -> bool:
    """Whether a second batch is booked, and its cancel taken by the provider."""
    d = schema.duplicate_batches
    query = sa.select(d.c.cancelled_at).where(d.c.account == account, d.c.batch_id == batch_id)
    return connection.execute(query).scalar() is not None


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


def reject_batch(ledger: Ledger, submission_key: str, batch_id: str, reason: str) -> None:
    """Note that a candidate is proven to be another's: it is never considered again."""
    with ledger.write("reject_fact") as connection:
        insert_first(
            connection,
            schema.rejected_batches,
            {
                "submission_key": submission_key,
                "batch_id": batch_id,
                "seen_at": ledger.now(connection),
                "reason": reason,
            },
        )


def rejected_of(connection: Connection, submission_key: str) -> frozenset[str]:
    """Candidates of a submission that were proven to be another's."""
    table = schema.rejected_batches
    query = sa.select(table.c.batch_id).where(table.c.submission_key == submission_key)
    return frozenset(row.batch_id for row in connection.execute(query))


def _strays() -> sa.Select[tuple[str, str]]:
    p, s, d = schema.provider_batches, schema.submissions, schema.duplicate_batches
    other = s.alias()
    bound = sa.exists().where(other.c.batch_id == p.c.batch_id, other.c.account == p.c.account)
    settled = sa.exists().where(
        d.c.account == p.c.account, d.c.batch_id == p.c.batch_id, d.c.cancelled_at.is_not(None)
    )
    waits = ("CREATED", "VALIDATED", "UPLOADED", "SUBMITTING", "UNCERTAIN", "PROVISIONAL")
    return (
        sa.select(p.c.submission_key, p.c.batch_id)
        .join(s, s.c.submission_key == p.c.submission_key)
        .where(s.c.state.not_in(waits), ~bound, ~settled, p.c.deleted_at.is_(None))
        .order_by(p.c.id)
    )


_STRAYS = _strays()
"""Built once: building it costs more than running it, and every snapshot asks."""


def strays(connection: Connection) -> list[tuple[str, str]]:
    """Batches of ours that no submission is bound to, as (submission_key, batch_id).

    A batch whose submission still waits for its own look, or was never sent, is none: it is bound.
    One whose cancel the provider has taken is none any more.
    """
    return [(row.submission_key, row.batch_id) for row in connection.execute(_STRAYS)]
