"""How often a work item was handed to somebody else to do, and when last."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from llm_batch_assets.ledger.database import Ledger, insert_first
from llm_batch_assets.ledger.schema import dispatches


def dispatched(ledger: Ledger, work_ids: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Work id -> (how often it was asked for, when last in microseconds); absent if never."""
    wanted = list(dict.fromkeys(work_ids))
    found: dict[str, tuple[int, int]] = {}
    with ledger.read() as connection:
        for start in range(0, len(wanted), 500):
            rows = connection.execute(
                sa.select(dispatches.c.work_id, dispatches.c.number, dispatches.c.asked_at).where(
                    dispatches.c.work_id.in_(wanted[start : start + 500])
                )
            )
            found |= {row.work_id: (int(row.number), int(row.asked_at)) for row in rows}
    return found


def record_dispatch(ledger: Ledger, numbers: dict[str, int]) -> None:
    """Note that work was asked for, under the number that its run carries."""
    if not numbers:
        return
    with ledger.write("dispatch") as connection:
        now = ledger.now(connection)
        for work_id, number in numbers.items():
            row = {"work_id": work_id, "number": number, "asked_at": now}
            if not insert_first(connection, dispatches, row):
                connection.execute(
                    sa.update(dispatches)
                    .where(dispatches.c.work_id == work_id)
                    .values(number=number, asked_at=now)
                )


def claim_alert(ledger: Ledger, work_id: str) -> bool:
    """Whether this caller is the one that tells people about this work item."""
    with ledger.write("dispatch_alert") as connection:
        result = connection.execute(
            sa.update(dispatches)
            .where(dispatches.c.work_id == work_id, dispatches.c.alerted_at.is_(None))
            .values(alerted_at=ledger.now(connection))
        )
    return result.rowcount == 1
