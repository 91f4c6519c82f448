"""When a request file was uploaded: providers keep it for a while only."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.ledger import schema


def uploaded_at(connection: Connection, submission_id: int) -> int | None:
    """The instant (microseconds UTC) of a submission's newest upload, None without one."""
    t = schema.transitions
    found = connection.execute(
        sa.select(sa.func.max(t.c.at)).where(
            t.c.submission_id == submission_id,
            t.c.to_state == "UPLOADED",
            # Back from a refused create, the file is the one that it named.
            t.c.from_state.in_(("VALIDATED", "UPLOADED")),
        )
    ).scalar_one()
    return None if found is None else int(found)
