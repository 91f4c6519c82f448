"""Who may change a gate while claims pass through it: nobody.

A claim reads its gates (holds, cancel, superseded) and commits on them. On PostgreSQL the two
would overlap, so claims share a lock for the length of their transaction and whoever changes a
gate takes it alone: once a cancel has returned, no claim commits that had not seen it. An advisory
lock, because a shared lock on the revision's row is a write to that row for every claim. SQLite
has one writer at a time anyway.

The lock is the first of its transaction, before any row's: two transactions cannot wait for each
other.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.ledger.database import Ledger

_LOCK = 7201915

_SHARED = f"pg_advisory_xact_lock_shared({_LOCK})"
_ALONE = sa.text(f"SELECT pg_advisory_xact_lock({_LOCK})")


def pass_through(connection: Connection, ledger: Ledger) -> int:
    """Keep every gate as it is until this transaction ends; returns the ledger's clock."""
    return ledger.now(connection, first=_SHARED)


def change(connection: Connection) -> None:
    """Wait for the claims that have read a gate, and keep others from reading one."""
    if connection.dialect.name != "sqlite":
        connection.execute(_ALONE)
