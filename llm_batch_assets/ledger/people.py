"""What people decide about datasets and submissions: each with who and why, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.errors import GateClosed, InputError
from llm_batch_assets.ledger import gates, schema
from llm_batch_assets.ledger.database import Ledger
from llm_batch_assets.ledger.rows import RevisionRow, SubmissionRow
from llm_batch_assets.ledger.states import ENDED, JUDGED, SENDABLE
from llm_batch_assets.ledger.worker import Worker

ABANDONED = "abandoned"
"""The hold of a submission that a person gave up: nothing releases it."""

GATE_LOST = "gate: "
"""How the hold begins of results that are in the store, and whose gate is gone or fails."""


def require_reason(reason: str) -> str:
    """A person's reason, not empty.

    Raises:
        InputError: it is.
    """
    text = reason.strip()
    if not text:
        raise InputError("A decision needs a reason: it is what people read later.")
    return text[:1000]


def log_decision(
    connection: Connection,
    ledger: Ledger,
    target: str,
    decision: str,
    worker: Worker,
    reason: str,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Append who decided what, and why, in the caller's transaction."""
    connection.execute(
        sa.insert(schema.decisions).values(
            target=target,
            decision=decision,
            reason=require_reason(reason),
            actor=worker.actor,
            at=ledger.now(connection),
            facts=None if facts is None else json.dumps(dict(facts), sort_keys=True),
        )
    )


def decisions_of(ledger: Ledger, targets: list[str]) -> list[dict[str, Any]]:
    """The decisions about any of these targets, oldest first."""
    d = schema.decisions
    with ledger.read() as connection:
        rows = connection.execute(sa.select(d).where(d.c.target.in_(targets)).order_by(d.c.id))
        return [
            {
                "target": row.target,
                "decision": row.decision,
                "reason": row.reason,
                "actor": row.actor,
                "at": row.at,
                "facts": json.loads(row.facts) if row.facts else None,
            }
            for row in rows
        ]


def of_revision(revision_id: int) -> sa.ColumnElement[bool]:
    """The condition that a submission belongs to a revision."""
    s, h, j = schema.submissions, schema.shards, schema.jobs
    mine = (
        sa.select(h.c.id)
        .join(j, j.c.id == h.c.job_id)
        .where(j.c.revision_id == revision_id)
        .scalar_subquery()
    )
    return s.c.shard_id.in_(mine)


def flag_cancel(connection: Connection, revision_id: int, now: int) -> int:
    """Ask to cancel every submission of a revision that has not ended; returns how many."""
    s = schema.submissions
    result = connection.execute(
        sa.update(s)
        .where(
            of_revision(revision_id),
            s.c.cancel_requested_at.is_(None),
            s.c.state.not_in(sorted(ENDED)),
        )
        .values(cancel_requested_at=now)
    )
    return int(result.rowcount)


def hold_dataset(ledger: Ledger, revision: RevisionRow, worker: Worker, reason: str) -> None:
    """Keep a dataset from sending until it is released. Collecting goes on."""
    r = schema.revisions
    with ledger.write("hold_dataset") as connection:
        gates.change(connection)
        log_decision(connection, ledger, revision.target, "hold", worker, reason)
        connection.execute(
            sa.update(r)
            .where(r.c.id == revision.id)
            .values(
                hold=require_reason(reason)[:500],
                hold_release=f"`llm-batch-assets release {revision.dataset}` releases it.",
            )
        )


def hold_submission(ledger: Ledger, row: SubmissionRow, worker: Worker, reason: str) -> None:
    """Keep one submission from being sent until it is released."""
    s = schema.submissions
    with ledger.write("hold_submission") as connection:
        gates.change(connection)
        log_decision(connection, ledger, row.target, "hold", worker, reason)
        connection.execute(
            sa.update(s)
            .where(s.c.id == row.id, s.c.abandoned_at.is_(None))
            .values(
                hold=require_reason(reason)[:500],
                hold_release=f"`llm-batch-assets release {row.shard_key}` releases it.",
                hold_at=ledger.now(connection),
            )
        )


def release_dataset(ledger: Ledger, revision: RevisionRow, worker: Worker, reason: str) -> int:
    """Release a dataset and all of its shards: what was held goes again.

    Returns:
        How many submissions were held or have records that may be.
    """
    r = schema.revisions
    with ledger.write("release_dataset") as connection:
        log_decision(connection, ledger, revision.target, "release", worker, reason)
        connection.execute(
            sa.update(r).where(r.c.id == revision.id).values(hold=None, hold_release=None)
        )
        return _release(connection, ledger, of_revision(revision.id))


def release_submission(ledger: Ledger, row: SubmissionRow, worker: Worker, reason: str) -> int:
    """Release one submission, or the held records of one that is accounted.

    Raises:
        GateClosed: it was abandoned, or held past its deadline: nothing releases it.
    """
    if row.abandoned_at is not None:
        how = "was abandoned" if row.hold == ABANDONED else "was held past its deadline"
        raise GateClosed(f"{row.shard_key} {how}: its records are in human_review.")
    with ledger.write("release_submission") as connection:
        log_decision(connection, ledger, row.target, "release", worker, reason)
        return _release(connection, ledger, schema.submissions.c.id == row.id)


def _release(connection: Connection, ledger: Ledger, which: sa.ColumnElement[bool]) -> int:
    s, now = schema.submissions, ledger.now(connection)
    held = connection.execute(
        sa.update(s)
        .where(which, s.c.hold.is_not(None), s.c.abandoned_at.is_(None))
        .values(hold=None, hold_release=None, hold_at=None, due_at=now, tries=0)
    )
    records = connection.execute(
        sa.update(s)
        .where(which, s.c.state.in_(("ACCOUNTED", "RESULTS_GONE")), s.c.abandoned_at.is_(None))
        .values(released_at=now)
    )
    return int(held.rowcount) + int(records.rowcount)


def abandon(ledger: Ledger, row: SubmissionRow, worker: Worker, reason: str) -> None:
    """Give a submission up: nothing more is sent or waited for, its open records are for people.

    A batch of it that exists, or that turns up later, is cancelled, and collected all the same.

    Raises:
        GateClosed: its revision is closed: nothing is open.
    """
    s, r = schema.submissions, schema.revisions
    with ledger.write("abandon") as connection:
        gates.change(connection)
        closed = connection.execute(
            sa.select(r.c.closed_at).where(r.c.id == row.revision_id)
        ).scalar_one()
        if closed is not None:
            raise GateClosed(f"{row.dataset} r{row.revision} is closed: nothing of it is open.")
        now = ledger.now(connection)
        log_decision(connection, ledger, row.target, "abandon", worker, reason)
        connection.execute(
            sa.update(s)
            .where(s.c.id == row.id)
            .values(
                abandoned_at=sa.func.coalesce(s.c.abandoned_at, now),
                cancel_requested_at=sa.func.coalesce(s.c.cancel_requested_at, now),
                hold=ABANDONED,
                hold_release="Nothing releases it: review its records instead.",
                due_at=now,
            )
        )


def end_holds(ledger: Ledger, revision: RevisionRow, worker: Worker) -> int:
    """Give up what was held past its deadline: its records are for people.

    That is what was never sent, and results that nothing is left to judge by; what else was sent
    is waited for, whatever holds it. From here on nothing releases it, so that no worker sends what
    a closure has disposed of.

    Returns:
        How many submissions were given up.
    """
    s = schema.submissions
    with ledger.write("end_holds") as connection:
        gates.change(connection)
        now = ledger.now(connection)
        overdue = connection.execute(
            sa.select(s.c.id, s.c.submission_key, s.c.hold).where(
                of_revision(revision.id),
                sa.or_(
                    s.c.state.in_(sorted(SENDABLE)),
                    sa.and_(s.c.state.in_(sorted(JUDGED)), s.c.hold.startswith(GATE_LOST)),
                ),
                s.c.hold.is_not(None),
                s.c.abandoned_at.is_(None),
                s.c.hold_at <= now - revision.hold_deadline,
            )
        ).all()
        for row in overdue:
            target = f"submission:{row.submission_key}"
            log_decision(connection, ledger, target, "hold_deadline", worker, row.hold)
        connection.execute(
            sa.update(s)
            .where(s.c.id.in_([row.id for row in overdue]))
            .values(
                abandoned_at=now,
                hold_release="Its deadline has passed: review its records instead.",
            )
        )
    return len(overdue)


def give_word(ledger: Ledger, revision: RevisionRow, worker: Worker, reason: str) -> None:
    """A person's word that this closure is published although a gate withholds it."""
    r = schema.revisions
    with ledger.write("word") as connection:
        facts = {"closure": revision.closure_digest, "accepted": revision.accepted}
        log_decision(connection, ledger, revision.target, "publish", worker, reason, facts)
        connection.execute(
            sa.update(r)
            .where(r.c.id == revision.id, r.c.closed_at.is_not(None))
            .values(
                word_closure=revision.closure_digest,
                word_by=worker.actor,
                word_reason=require_reason(reason)[:500],
            )
        )
