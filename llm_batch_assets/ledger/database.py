"""Connections, transactions and the one clock of the ledger (SQLite or PostgreSQL)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url

from llm_batch_assets.errors import InputError, SchemaMismatch, WrongStore
from llm_batch_assets.ledger import schema
from llm_batch_assets.ledger.prepared import prepare_marked
from llm_batch_assets.types import NO_EFFECTS, Clock, Effects

PG_SCHEMA = "llm_batch"
VERSION_TABLE = "llm_batch_alembic_version"
SCHEMA_MAJOR = 1
HEAD = "0006"
"""The newest migration, so that opening an up-to-date ledger needs no Alembic."""

_ALEMBIC = Lock()
"""Alembic's ``context`` is one per process, and two sensors open a ledger in two threads."""


def utc_now() -> datetime:
    """The machine's clock, aware and in UTC."""
    return datetime.now(UTC)


def to_micros(at: datetime | None) -> int | None:
    """An aware datetime as microseconds since the epoch, exactly."""
    if at is None:
        return None
    delta = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def utc_from_micros(micros: int) -> datetime:
    """Microseconds since the epoch as an aware datetime, exactly."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def normal_url(url: str) -> URL:
    """A database URL with the driver named: ``postgresql://`` alone means psycopg2 here.

    SQLAlchemy 2.1 reads a bare ``postgresql://`` as psycopg 3, which dagster-postgres lacks.

    Raises:
        InputError: for another kind of database.
    """
    parsed = make_url(url)
    if parsed.drivername in {"postgresql", "postgres"}:
        return parsed.set(drivername="postgresql+psycopg2")
    if parsed.drivername == "sqlite" and parsed.database:
        # An absolute path once, so that a later change of folder opens the same file.
        return parsed.set(database=str(Path(parsed.database).absolute()))
    if parsed.get_backend_name() in {"sqlite", "postgresql"}:
        return parsed
    raise InputError(f"A ledger lives on sqlite:/// or postgresql://, not {parsed.drivername}://.")


BUSY_SECONDS = 30
"""How long a statement waits for another process's transaction."""


def _to_wal(cursor: sqlite3.Cursor) -> None:
    """Set the journal mode of a new file; a file keeps it.

    The change needs the file for itself, and SQLite refuses it at once where two want it, however
    long its busy timeout is.
    """
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def _prepare_sqlite(engine: Engine, clock: Clock) -> None:
    @sa.event.listens_for(engine, "connect")
    def _connect(dbapi: Any, _record: Any) -> None:
        dbapi.isolation_level = None  # the driver's own BEGIN would come too late
        cursor = dbapi.cursor()
        # Patience first: whatever follows may meet another process that opens the same file.
        cursor.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
        _to_wal(cursor)
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()
        # SQLite's own clock has milliseconds; ours is injected, so tests move it.
        dbapi.create_function("llm_batch_now", 0, lambda: to_micros(clock()))

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_execution_options().get("llm_batch_write", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            # It takes no lock, cannot fail, and is asked too often to make a result of it.
            connection.connection.cursor().execute("BEGIN").close()


IDLE_SECONDS = 30.0
"""A pooled connection that rested longer is asked whether it still lives before it is used."""


def _prepare_postgres(engine: Engine) -> None:
    @sa.event.listens_for(engine, "checkin")
    def _rest(_dbapi: Any, record: Any) -> None:
        record.info["rests_since"] = time.monotonic()

    @sa.event.listens_for(engine, "checkout")
    def _wake(dbapi: Any, record: Any, _proxy: Any) -> None:
        since = record.info.get("rests_since")
        if since is None or time.monotonic() - since < IDLE_SECONDS:
            return
        try:
            engine.dialect.do_ping(dbapi)
        except engine.dialect.loaded_dbapi.Error as error:
            raise sa.exc.DisconnectionError from error  # the pool opens another one

    @sa.event.listens_for(engine, "connect")
    def _connect(dbapi: Any, _record: Any) -> None:
        cursor = dbapi.cursor()
        cursor.execute("SET synchronous_commit = on")
        cursor.execute("SET TIME ZONE 'UTC'")
        cursor.execute(f"SET search_path = {PG_SCHEMA}")
        dbapi.commit()
        cursor.close()


class Ledger:
    """The database in which every decision and every fact of this deployment is a row.

    Attributes:
        deployment: names this ledger in every key that leaves it.
        effects: called before and after every commit, by name.
    """

    def __init__(
        self,
        url: str,
        *,
        deployment: str,
        clock: Clock | None = None,
        effects: Effects = NO_EFFECTS,
    ) -> None:
        parsed = normal_url(url)
        self.deployment = deployment
        self.effects = effects
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self.engine = sa.create_engine(parsed)
        # Made once: it shares the pool and the events of the engine.
        self._writing = self.engine.execution_options(llm_batch_write=True)
        self._url = parsed
        # A PostgreSQL ledger's clock is its server's, unless a test brings one.
        self._clock = utc_now if clock is None and self.is_sqlite else clock
        if self.is_sqlite:
            _prepare_sqlite(self.engine, self._clock or utc_now)
        else:
            _prepare_postgres(self.engine)
            prepare_marked(self.engine)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view; nothing is written."""
        connection = self.engine.connect()
        if not self.is_sqlite:
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection:
            yield connection

    @contextmanager
    def write(self, name: str) -> Iterator[Connection]:
        """One transaction named by what it does; its commit is an effect boundary.

        No network call and no object write happens inside.
        """
        with self._writing.connect() as connection:
            yield connection
            self.effects.at(f"commit.{name}", "before")
            connection.commit()
        self.effects.at(f"commit.{name}", "after")

    def now(self, connection: Connection, *, first: str | None = None) -> int:
        """The ledger's clock in microseconds UTC: the database's, not this machine's.

        Args:
            connection: of the transaction that asks.
            first: an SQL expression of PostgreSQL that is evaluated, and may wait, before it;
                SQLite has one writer at a time, which needs none.
        """
        if self._clock is not None:
            if self.is_sqlite:
                return int(connection.exec_driver_sql("SELECT llm_batch_now()").scalar_one())
            if first is not None:
                connection.exec_driver_sql(f"SELECT {first}")
            return to_micros(self._clock()) or 0
        clock = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        text = f"SELECT {clock}" if first is None else f"SELECT {first}, {clock}"
        return int(connection.exec_driver_sql(text).one()[-1])

    def time(self) -> int:
        """``now`` in a transaction of its own."""
        with self.read() as connection:
            return self.now(connection)

    def upgrade(self) -> None:
        """Create the ledger or bring it to this program's schema. Safe to run concurrently."""
        if not self._at_head():
            with _ALEMBIC:
                self._migrate()
        self.check()

    def _migrate(self) -> None:
        from alembic import command

        if self.is_sqlite and self._url.database:
            Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
        self.effects.at("commit.upgrade", "before")
        # On SQLite a transaction that begins by reading cannot wait for its turn to write.
        with self.engine.connect().execution_options(llm_batch_write=True) as connection:
            if not self.is_sqlite:
                connection.exec_driver_sql("SELECT pg_advisory_lock(7201914)")
                connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {PG_SCHEMA}")
                connection.commit()
            try:
                command.upgrade(_alembic_config(connection), "head")
                connection.commit()
            finally:
                if not self.is_sqlite:
                    connection.exec_driver_sql("SELECT pg_advisory_unlock(7201914)")
                    connection.commit()
        self.effects.at("commit.upgrade", "after")
        self._bind_meta("schema_major", str(SCHEMA_MAJOR))
        self._bind_meta("deployment", self.deployment)

    def schema_version(self) -> str | None:
        """The migration that the database is at; None for one without a ledger."""
        if self.is_sqlite and self._url.database and not Path(self._url.database).exists():
            return None
        version = sa.text(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608 - our constant
        try:
            with self.read() as connection:
                found = connection.execute(version).scalar()
        except sa.exc.DBAPIError:
            return None
        return None if found is None else str(found)

    def _at_head(self) -> bool:
        """Whether schema and meta rows are this program's, or a newer minor's: it only adds what
        may be null, so that this program keeps running beside it. A fresh ledger is neither.
        """
        version = sa.text(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608 - our constant
        keys = sa.select(schema.meta.c.key)
        if self.is_sqlite and self._url.database and not Path(self._url.database).exists():
            return False
        try:
            with self.read() as connection:
                found = connection.execute(version).scalars().all()
                bound = set(connection.execute(keys).scalars())
        except sa.exc.DBAPIError:
            return False
        known = len(found) == 1 and found[0] >= HEAD
        return known and {"schema_major", "deployment"} <= bound

    def check(self) -> None:
        """Refuse a ledger of another deployment or of a newer major schema.

        Raises:
            SchemaMismatch: the ledger is newer than this program, another deployment's, or
                was never migrated.
        """
        try:
            with self.read() as connection:
                rows = connection.execute(sa.select(schema.meta.c.key, schema.meta.c.value))
                facts = {row.key: row.value for row in rows}
        except sa.exc.DBAPIError as error:
            raise SchemaMismatch(
                "The ledger has no tables.", remedy="Run `llm-batch-assets ledger upgrade`."
            ) from error
        if int(facts.get("schema_major", "0")) > SCHEMA_MAJOR:
            raise SchemaMismatch(
                f"The ledger's schema {facts['schema_major']} is newer than this program's "
                f"{SCHEMA_MAJOR}.",
                remedy="Upgrade llm_batch_assets on this machine.",
            )
        if facts.get("deployment") != self.deployment:
            raise SchemaMismatch(
                f"The ledger belongs to deployment {facts.get('deployment')!r}, "
                f"not {self.deployment!r}.",
                remedy="Point LLM_BATCH_HOME or LLM_BATCH_DEPLOYMENT at the right one.",
            )

    def bind_store(self, store_id: str) -> None:
        """Record the artifact store at first use; refuse another one later.

        Raises:
            WrongStore: the ledger's objects are in another store.
        """
        bound = self._bind_meta("store_id", store_id)
        if bound != store_id:
            raise WrongStore(
                f"The ledger's objects are in store {bound}, this worker sees {store_id}.",
                remedy="Point LLM_BATCH_ARTIFACTS_URL at the store that the ledger was made with.",
            )

    def _bind_meta(self, key: str, value: str) -> str:
        known = sa.select(schema.meta.c.value).where(schema.meta.c.key == key)
        with self.read() as connection:
            found = connection.execute(known).scalar()
        if found is not None:
            return str(found)
        with self.write("bind_meta") as connection:
            insert_first(connection, schema.meta, {"key": key, "value": value})
            return str(connection.execute(known).scalar_one())

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def insert_for(dialect: str, table: sa.Table) -> Any:
    """An INSERT of this kind of database, which can say what happens on a conflict."""
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]
    return insert(table)


def insert_first(connection: Connection, table: sa.Table, row: dict[str, Any]) -> bool:
    """Insert a row unless one of its unique keys exists: the first writer wins.

    Returns:
        True when this call wrote it.
    """
    result = connection.execute(
        insert_for(connection.dialect.name, table).values(**row).on_conflict_do_nothing()
    )
    return result.rowcount == 1


def _alembic_config(connection: Connection) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config
