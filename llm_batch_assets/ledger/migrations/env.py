"""Alembic's entry: runs on the connection that ``Ledger.upgrade`` hands in, and on no other."""

from alembic import context

from llm_batch_assets.ledger.database import PG_SCHEMA, VERSION_TABLE
from llm_batch_assets.ledger.schema import metadata

connection = context.config.attributes["connection"]
sqlite = connection.dialect.name == "sqlite"
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=VERSION_TABLE,  # Dagster's own table is called alembic_version
    version_table_schema=None if sqlite else PG_SCHEMA,
    render_as_batch=sqlite,
    # SQLite's DDL is transactional where the driver does not commit by itself, as here.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
