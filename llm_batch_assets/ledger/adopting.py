"""Submissions that this ledger never sent, though a ledger that is lost may have."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from llm_batch_assets.ledger import schema
from llm_batch_assets.ledger.database import Ledger
from llm_batch_assets.ledger.leases import Lease
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.submissions import load, move
from llm_batch_assets.ledger.worker import Worker


def take_for_sent(
    ledger: Ledger,
    row: SubmissionRow,
    *,
    lease: Lease,
    worker: Worker,
    account: str,
    reason: str,
    **values: Any,
) -> SubmissionRow:
    """Move an unsent submission to SUBMITTING without a create: somebody may have sent it.

    Its deadline is now, so that looks decide: found, it is bound; proven absent, the next epoch
    sends it. Nothing is sent on the word of a ledger that is behind.

    Raises:
        TransitionRefused: it is not VALIDATED or UPLOADED (any more).
        LeaseLost: another worker has it.
    """
    r = schema.revisions
    with ledger.write("taken_for_sent") as connection:
        now = ledger.now(connection)
        move(
            connection,
            ledger,
            row,
            "SUBMITTING",
            lease=lease,
            worker=worker,
            reason=reason,
            account=account,
            posted_at=now,
            post_deadline=now,
            first_look_at=None,
            input_deleted_at=None,
            looks=0,
            **values,
        )
        connection.execute(
            sa.update(r)
            .where(r.c.id == row.revision_id, r.c.started_at.is_(None))
            .values(started_at=now)
        )
        return load(connection, row.submission_key)
