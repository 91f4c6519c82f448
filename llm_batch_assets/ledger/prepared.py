"""Statements that a PostgreSQL connection plans once.

psycopg2 sends every statement as text, and planning the join that finds the next submission costs
twice as much as running it. A statement that is marked with ``prepared`` is planned at its first
use on a connection and called by its name from then on. SQLite's driver keeps its own cache.
"""

from __future__ import annotations

from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

S = TypeVar("S", bound=sa.Executable)

_MARK = "llm_batch_prepared"


def prepared(statement: S) -> S:
    """Mark a statement that is run often, with other values of the same types."""
    return statement.execution_options(**{_MARK: True})


def prepare_marked(engine: Engine) -> None:
    """Have the marked statements of a PostgreSQL engine prepared."""

    @sa.event.listens_for(engine, "before_cursor_execute", retval=True)
    def _call(
        connection: Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        context: Any,
        executemany: bool,
    ) -> tuple[str, Any]:
        if executemany or context is None or not context.execution_options.get(_MARK, False):
            return statement, parameters
        known = connection.info.setdefault(_MARK, {})
        call = known.get(statement)
        if call is None:
            call = known[statement] = _prepare(
                cursor, f"{_MARK}_{len(known)}", statement, parameters
            )
        return call, parameters


def _prepare(cursor: Any, name: str, statement: str, parameters: dict[str, Any]) -> str:
    """Plan a statement; returns the text that calls it with the same named parameters.

    Prepared statements belong to the connection: a transaction that is undone keeps them.
    """
    places = {key: f"${number}" for number, key in enumerate(parameters, start=1)}
    cursor.execute(f"PREPARE {name} AS {statement % places}")
    return f"EXECUTE {name} ({', '.join(f'%({key})s' for key in places)})"
