"""Triggers in the simulated ledger: what must never happen to a row ends the run at once.

The arcs are copied from the design, section 3, not from the code that they judge.
"""

from __future__ import annotations

from sqlalchemy.engine import Connection

_ARCS = """
CREATED>VALIDATED VALIDATED>UPLOADED VALIDATED>SUBMITTING UPLOADED>SUBMITTING
SUBMITTING>SUBMITTED SUBMITTING>VALIDATED SUBMITTING>UPLOADED SUBMITTING>REFUSED
SUBMITTING>UNCERTAIN REFUSED>ACCOUNTED UNCERTAIN>SUBMITTED UNCERTAIN>PROVISIONAL
UNCERTAIN>ABSENT PROVISIONAL>UNCERTAIN PROVISIONAL>RUNNING PROVISIONAL>RESULTS_AVAILABLE
PROVISIONAL>PROVIDER_FAILED SUBMITTED>RUNNING SUBMITTED>RESULTS_AVAILABLE
SUBMITTED>PROVIDER_FAILED RUNNING>RESULTS_AVAILABLE RUNNING>PROVIDER_FAILED
PROVIDER_FAILED>ACCOUNTED RESULTS_AVAILABLE>COLLECTED RESULTS_AVAILABLE>RESULTS_GONE
COLLECTED>ACCOUNTED
"""
ARCS = frozenset(_ARCS.split())

FACTS = {
    "provider_batches": ("deleted_at",),
    "transitions": (),
    "looks": (),
    "raw_files": (),
    "rejected_batches": (),
    "decisions": (),
    "publications": (),
    "duplicate_batches": ("cancelled_at",),
}
"""Append-only tables, and the columns of each that may be filled in later."""


def install(connection: Connection) -> None:
    """Put the triggers into an empty ledger."""
    for table, later in FACTS.items():
        columns = [
            row[1]
            for row in connection.exec_driver_sql(f"PRAGMA table_info({table})")
            if row[1] not in later
        ]
        _forbid(connection, f"{table}_update", f"UPDATE OF {', '.join(columns)} ON {table}")
    for table in (*FACTS, "revisions", "jobs", "shards", "submissions", "labels", "leases"):
        _forbid(connection, f"{table}_delete", f"DELETE ON {table}")
    for table in ("shards", "labels"):
        _forbid(connection, f"{table}_update", f"UPDATE ON {table}")
    arcs = ", ".join(f"'{arc}'" for arc in sorted(ARCS))
    _forbid(
        connection,
        "arc",
        "UPDATE OF state ON submissions",
        f"OLD.state <> NEW.state AND OLD.state || '>' || NEW.state NOT IN ({arcs})",
    )
    _forbid(connection, "token", "UPDATE OF token ON leases", "NEW.token < OLD.token")
    _forbid(
        connection,
        "closed",
        "UPDATE ON revisions",
        "OLD.closed_at IS NOT NULL AND (NEW.closed_at IS NOT OLD.closed_at"
        " OR NEW.closure_digest IS NOT OLD.closure_digest)",
    )
    _forbid(
        connection,
        "evidence",
        "UPDATE OF closure_digest ON submissions",
        "OLD.closure_digest IS NOT NULL AND NEW.closure_digest IS NOT OLD.closure_digest",
    )


def _forbid(connection: Connection, name: str, event: str, when: str = "1") -> None:
    connection.exec_driver_sql(
        f"CREATE TRIGGER guard_{name} BEFORE {event} WHEN {when} "
        f"BEGIN SELECT RAISE(ABORT, 'guard: {name}'); END"
    )
