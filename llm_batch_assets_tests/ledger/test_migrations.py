"""From every earlier schema, with rows in it, to this one; and beside a newer one."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import llm_batch_assets.ledger.migrations as migrations
from llm_batch_assets.errors import SchemaMismatch
from llm_batch_assets.ledger import Ledger, leases, schema, views
from llm_batch_assets.ledger.database import HEAD, PG_SCHEMA, VERSION_TABLE, _alembic_config
from llm_batch_assets.ledger.submissions import transition
from llm_batch_assets_tests.ledger.build import WORKER, frozen

EARLIER = [
    script.revision
    for script in ScriptDirectory(str(Path(migrations.__path__[0]))).walk_revisions()
    if script.revision != HEAD
]


def _migrate(ledger: Ledger, revision: str) -> None:
    with ledger.engine.connect().execution_options(llm_batch_write=True) as connection:
        if not ledger.is_sqlite:
            connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {PG_SCHEMA}")
        command.upgrade(_alembic_config(connection), revision)
        connection.commit()


def _old_rows(connection: sa.Connection) -> dict[str, list[dict[str, object]]]:
    """A revision, its job, two shards and their submissions with only what every schema has."""
    revision = {
        "id": 1, "tenant_id": "t", "workload": "w", "dataset": "d1", "revision": 1,
        "provider": "openai", "records": 10, "created_at": 5, "open_datasets": 2,
        "min_accepted_ppm": 950_000, "cut_after": 6, "close_by": 10**15, "hold_deadline": 10**15,
    }  # fmt: skip
    job = {
        "id": 1, "revision_id": 1, "attempt": 1, "job_key": "sha256:k", "input_manifest_hash": "h",
        "manifest_digest": "m", "records_digest": "r", "records": 10, "kept_back": 0,
        "created_at": 5,
    }  # fmt: skip
    shards = [
        {"id": n, "job_id": 1, "ordinal": n, "shard_key": f"d1/r1/a1/p{n:05}",
         "request_digest": "d", "records": 5, "bytes": 7, "tag": "t"}
        for n in (1, 2)
    ]  # fmt: skip
    submissions = [
        {"id": n, "shard_id": n, "epoch": 0, "submission_key": f"s{n}", "state": "SUBMITTED",
         "state_at": 5, "due_at": 5, "tries": 1, "looks": 0, "poll_faults": 0, "downloads": 0,
         "batch_id": f"batch_{n}", "account": "acc"}
        for n in (1, 2)
    ]  # fmt: skip
    submissions[1]["hold"], submissions[0]["hold"] = "account: 401", None
    rows: dict[str, list[dict[str, object]]] = {
        "revisions": [revision],
        "jobs": [job],
        "shards": shards,
        "submissions": submissions,
        "meta": [
            {"key": "schema_major", "value": "1"},
            {"key": "deployment", "value": "d-test"},
        ],
    }
    old = sa.MetaData()
    old.reflect(connection)
    for table, values in rows.items():
        connection.execute(sa.insert(old.tables[table]), values)
    return rows


@pytest.mark.parametrize("revision", EARLIER)
def test_every_earlier_schema_is_migrated_with_its_rows(url: str, revision: str) -> None:
    ledger = Ledger(url, deployment="d-test")
    _migrate(ledger, revision)
    with ledger.write("test") as connection:
        rows = _old_rows(connection)

    ledger.upgrade()

    with ledger.read() as connection:
        for name, values in rows.items():
            table = schema.metadata.tables[name]
            order = next(iter(table.primary_key.columns))
            found = connection.execute(sa.select(table).order_by(order)).mappings().all()
            wanted = sorted(values, key=lambda row: str(row[order.name]))
            assert [
                {k: row[k] for k in want} for want, row in zip(wanted, found, strict=True)
            ] == wanted
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, schema.metadata) == []
    (view,) = views.snapshot(ledger).revisions
    # What was held before anybody noted since when is held since its next try was put off.
    assert [(s.hold, s.hold_at) for s in view.shards] == [(None, None), ("account: 401", 5)]
    lease = leases.acquire(ledger, view.shards[0].target, WORKER.holder, 60)
    assert lease is not None
    row = transition(ledger, view.shards[0], "RUNNING", lease=lease, worker=WORKER, reason="")
    assert row.state == "RUNNING"
    ledger.close()


def test_a_newer_minor_keeps_this_program_running(ledger: Ledger) -> None:
    """A rolling upgrade: another machine has added a column that may be null."""
    with ledger.write("test") as connection:
        connection.exec_driver_sql("ALTER TABLE submissions ADD COLUMN of_tomorrow TEXT")
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9000'")
    ledger.upgrade()
    frozen(ledger)
    assert len(views.snapshot(ledger).revisions) == 1
    with ledger.read() as connection:
        version = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}")
        assert version.scalar_one() == "9000"  # nothing was taken back


def test_a_newer_major_is_refused_before_anything_is_written(ledger: Ledger) -> None:
    with ledger.write("test") as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9000'")
        connection.execute(
            sa.update(schema.meta).where(schema.meta.c.key == "schema_major").values(value="2")
        )
    with pytest.raises(SchemaMismatch, match="newer"):
        ledger.upgrade()
