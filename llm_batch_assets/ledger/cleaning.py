"""Which copies at a provider may go: after publication, and never while its account is uncertain.

Only what this ledger created is ever named here: its own uploads, and batches that carry its keys.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.ledger import schema
from llm_batch_assets.ledger.database import Ledger
from llm_batch_assets.ledger.rows import SubmissionRow, as_row
from llm_batch_assets.ledger.states import ENDED
from llm_batch_assets.ledger.submissions import joined

UNSETTLED = ("SUBMITTING", "UNCERTAIN", "PROVISIONAL")
"""While a submission of an account is in one of these, its list may still have to prove something:
what is deleted could be the batch that the proof needs."""


def _unsettled() -> sa.Select[tuple[str]]:
    s = schema.submissions.alias("unsettled")
    return sa.select(s.c.account).where(
        s.c.state.in_(UNSETTLED), s.c.account.is_not(None), s.c.abandoned_at.is_(None)
    )


@cache
def _deletable(*, one_workload: bool, one_dataset: bool) -> sa.Select[Any]:
    s, r = schema.submissions, schema.revisions
    newer = schema.revisions.alias("newer")
    now = sa.bindparam("now", type_=sa.BigInteger)
    delivered = (
        sa.select(sa.func.min(newer.c.published_at))
        .where(
            newer.c.tenant_id == r.c.tenant_id,
            newer.c.workload == r.c.workload,
            newer.c.dataset == r.c.dataset,
            newer.c.revision >= r.c.revision,
            newer.c.published_at.is_not(None),
        )
        .scalar_subquery()
    )
    at = (delivered + r.c.delete_after).label("deletable_at")
    query = (
        joined()
        .add_columns(at)
        .where(
            r.c.delete_after.is_not(None),
            s.c.remote_deleted_at.is_(None),
            s.c.state.in_(sorted(ENDED)),
            sa.or_(s.c.batch_id.is_not(None), s.c.input_ref.is_not(None)),
            s.c.due_at <= now,
            at <= now,
            sa.or_(s.c.account.is_(None), s.c.account.not_in(_UNSETTLED)),
        )
        .order_by(s.c.id)
        .limit(sa.bindparam("most", type_=sa.Integer))
    )
    if one_workload:
        query = query.where(r.c.workload == sa.bindparam("workload"))
    if one_dataset:
        query = query.where(r.c.dataset == sa.bindparam("dataset"))
    return query


_UNSETTLED = _unsettled()
"""Built once, as ``_deletable``: building costs more than running, and every snapshot asks."""


def deletable(
    connection: Connection,
    now: int,
    *,
    workload: str | None = None,
    dataset: str | None = None,
    limit: int = 200,
) -> list[tuple[SubmissionRow, int]]:
    """Ended submissions whose wait after delivery is over, with the time (microseconds) it ended.

    A superseded revision counts as delivered when a newer one of its dataset is published.
    """
    query = _deletable(one_workload=workload is not None, one_dataset=dataset is not None)
    given = {"now": now, "most": limit, "workload": workload, "dataset": dataset}
    return [
        (as_row(SubmissionRow, row), max(int(row.deletable_at), row.due_at))
        for row in connection.execute(query, given)
    ]


def is_unsettled(ledger: Ledger, account: str) -> bool:
    """Whether an account has a submission of which nobody knows yet whether a batch exists."""
    with ledger.read() as connection:
        query = _UNSETTLED.subquery()
        found = sa.select(sa.func.count()).where(query.c.account == account)
        return bool(connection.execute(found).scalar_one())


def mark_batch_deleted(ledger: Ledger, account: str, batch_id: str) -> None:
    """Record that a batch of ours is gone, so that no later list is expected to show it."""
    p = schema.provider_batches
    with ledger.write("batch_deleted") as connection:
        connection.execute(
            sa.update(p)
            .where(p.c.account == account, p.c.batch_id == batch_id)
            .values(deleted_at=ledger.now(connection))
        )
