"""Decisions about whole revisions: settled, closed, published; and a person's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from llm_batch_assets.errors import LeaseLost, TransitionRefused
from llm_batch_assets.ledger import gates, schema
from llm_batch_assets.ledger.database import Ledger, insert_first
from llm_batch_assets.ledger.leases import Lease, fenced
from llm_batch_assets.ledger.people import flag_cancel, log_decision, require_reason
from llm_batch_assets.ledger.rows import RevisionRow, as_row
from llm_batch_assets.ledger.worker import Worker


@dataclass(frozen=True, slots=True)
class Settled:
    """What one accounting of a revision says; its documents are durable already."""

    settlement_basis: str
    closure_digest: str
    candidate_digest: str
    candidate_rows_digest: str
    open: int
    accepted: int
    human_review: int
    permanent_failure: int
    cancelled: int
    retry_wanted: int
    closed: bool


def revision_by_id(ledger: Ledger, revision_id: int) -> RevisionRow:
    """A revision by the ledger's own number."""
    with ledger.read() as connection:
        row = connection.execute(
            sa.select(schema.revisions).where(schema.revisions.c.id == revision_id)
        ).one()
    return as_row(RevisionRow, row)


def settle(
    ledger: Ledger,
    revision: RevisionRow,
    settled: Settled,
    accounted_jobs: dict[int, str],
    lease: Lease,
) -> RevisionRow:
    """Write the latest accounting of a revision; writing the same again changes nothing.

    Args:
        ledger: the ledger.
        revision: the row that the accounting was computed from.
        settled: the accounting.
        accounted_jobs: job id -> digest of the job's own closure, for jobs now accounted.
        lease: on the revision.

    Raises:
        LeaseLost: another worker has the revision.
        TransitionRefused: the revision is closed already, on other evidence.
    """
    r, j = schema.revisions, schema.jobs
    with ledger.write("settle") as connection:
        now = ledger.now(connection)
        values = {key: value for key, value in asdict(settled).items() if key != "closed"}
        if settled.closed:
            values["closed_at"] = now
        result = connection.execute(
            sa.update(r)
            .where(
                r.c.id == revision.id,
                r.c.closed_at.is_(None),
                fenced(lease, now),
            )
            .values(**values, settled_at=now)
        )
        if result.rowcount != 1:
            _refuse(ledger, connection, lease, "The revision is closed already.")
        for job_id, digest in accounted_jobs.items():
            connection.execute(
                sa.update(j)
                .where(j.c.id == job_id, j.c.accounted_at.is_(None))
                .values(accounted_at=now, closure_digest=digest)
            )
        row = connection.execute(sa.select(r).where(r.c.id == revision.id)).one()
    return as_row(RevisionRow, row)


def publish(ledger: Ledger, revision: RevisionRow, worker: Worker, lease: Lease) -> bool:
    """Flip the pointer of a dataset to the candidate that its closure names.

    Returns:
        False when that closure is the published one already: a replay writes nothing.

    Raises:
        TransitionRefused: the revision is not closed, or its closure has changed.
        LeaseLost: another worker has the revision.
    """
    r, p = schema.revisions, schema.publications
    if revision.published_closure == revision.closure_digest and revision.published_at is not None:
        return False
    with ledger.write("publish") as connection:
        now = ledger.now(connection)
        version = (revision.published_version or 0) + 1
        result = connection.execute(
            sa.update(r)
            .where(
                r.c.id == revision.id,
                r.c.closed_at.is_not(None),
                sa.or_(
                    r.c.cancel_requested_at.is_(None),
                    r.c.word_closure == revision.closure_digest,
                ),
                r.c.superseded_at.is_(None),
                r.c.closure_digest == revision.closure_digest,
                sa.func.coalesce(r.c.published_version, 0) == version - 1,
                fenced(lease, now),
            )
            .values(
                published_at=now,
                published_version=version,
                published_closure=revision.closure_digest,
                withheld_closure=None,
                withheld_reason=None,
            )
        )
        if result.rowcount != 1:
            _refuse(ledger, connection, lease, "The revision is not closed, or it has moved on.")
        insert_first(
            connection,
            p,
            {
                "revision_id": revision.id,
                "version": version,
                "closure_digest": revision.closure_digest,
                "candidate_digest": revision.candidate_digest,
                "rows_digest": revision.candidate_rows_digest,
                "accepted": revision.accepted,
                "published_at": now,
                "actor": worker.actor,
            },
        )
    return True


def withhold(ledger: Ledger, revision: RevisionRow, reason: str) -> None:
    """Note that this closure was tried and is kept back, so that it is tried once."""
    r = schema.revisions
    with ledger.write("withhold") as connection:
        connection.execute(
            sa.update(r)
            .where(r.c.id == revision.id, r.c.published_at.is_(None))
            .values(withheld_closure=revision.closure_digest, withheld_reason=reason[:500])
        )


def request_cancel(
    ledger: Ledger,
    revision: RevisionRow,
    worker: Worker,
    reason: str,
    facts: Mapping[str, Any] | None = None,
) -> bool:
    """Record a person's cancel: from here on nothing of the revision is sent or published.

    Every submission that has not ended is flagged in the same transaction, so that its batch is
    cancelled whoever binds it.

    Args:
        ledger: the ledger.
        revision: what is cancelled.
        worker: who.
        reason: why.
        facts: processed counts at this moment, for the log of decisions.

    Returns:
        False when it was cancelled or published before.
    """
    r = schema.revisions
    reason = require_reason(reason)
    with ledger.write("cancel") as connection:
        gates.change(connection)
        now = ledger.now(connection)
        result = connection.execute(
            sa.update(r)
            .where(
                r.c.id == revision.id,
                r.c.cancel_requested_at.is_(None),
                sa.or_(r.c.closed_at.is_(None), r.c.published_at.is_(None)),
            )
            .values(cancel_requested_at=now, cancel_by=worker.actor, cancel_reason=reason[:500])
        )
        if result.rowcount != 1:
            return False
        flag_cancel(connection, revision.id, now)
        log_decision(connection, ledger, revision.target, "cancel", worker, reason, facts)
    return True


def _refuse(ledger: Ledger, connection: sa.Connection, lease: Lease, message: str) -> None:
    if not connection.execute(sa.select(fenced(lease, ledger.now(connection)))).scalar():
        raise LeaseLost(f"The lease on {lease.target} has expired or was taken.")
    raise TransitionRefused(message)
