"""One run that is watched from outside: HTTP calls, commits and renames, beside its boundaries.

``main([FILE, *ARGUMENTS])`` runs the command in a process of its own, with the environment as it
is, and writes what it saw to FILE. The records do not rest on the package's own
hook: SQLAlchemy says when a connection commits, the interpreter's audit hook says when a file gets
its name, and the simulator's log has the calls.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(argv: Sequence[str]) -> None:
    """Watch one run of the command."""
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection, Engine

    target, *arguments = argv
    commits: list[float] = []
    links: list[tuple[float, str]] = []
    writes: set[int] = set()

    @sa.event.listens_for(Engine, "before_cursor_execute")
    def _executes(connection: Connection, _c: Any, statement: str, *_rest: Any) -> None:
        if statement.lstrip().split(" ", 1)[0].upper() not in {"SELECT", "PRAGMA", "SHOW", "SET"}:
            writes.add(id(connection.connection.dbapi_connection))

    @sa.event.listens_for(Engine, "commit")
    def _commit(connection: Connection) -> None:
        if id(connection.connection.dbapi_connection) in writes:
            writes.discard(id(connection.connection.dbapi_connection))
            commits.append(time.monotonic())

    @sa.event.listens_for(Engine, "rollback")
    def _rollback(connection: Connection) -> None:
        writes.discard(id(connection.connection.dbapi_connection))

    def audit(event: str, details: tuple[Any, ...]) -> None:
        if event in {"os.link", "os.rename"}:
            links.append((time.monotonic(), os.fspath(details[1])))

    sys.addaudithook(audit)

    from llm_batch_assets.cli import main as command

    code: Any = 0
    try:
        command(arguments)
    except SystemExit as end:
        code = end.code
    finally:
        Path(target).write_text(
            json.dumps({"code": code, "commits": commits, "links": links}), encoding="utf-8"
        )
