"""Statements that are planned once on each connection, beside those that are sent as text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from llm_batch_assets.ledger import Ledger, schema
from llm_batch_assets.ledger.prepared import prepared

READ = prepared(
    sa.select(schema.meta.c.value).where(
        schema.meta.c.key == sa.bindparam("key"),
        schema.meta.c.value != sa.literal_column("'100%'"),
    )
)
ADD = prepared(sa.insert(schema.meta).inline())


@pytest.fixture
def ledger(postgres_url: str) -> Iterator[Ledger]:
    ledger = Ledger(postgres_url, deployment="d-test")
    ledger.upgrade()
    yield ledger
    ledger.close()


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres").database())


def planned(ledger: Ledger) -> int:
    """How many statements this ledger's one connection has planned."""
    with ledger.read() as connection:
        return int(
            connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one()
        )


def test_a_marked_statement_is_planned_once_and_called_with_each_value(ledger: Ledger) -> None:
    before = planned(ledger)
    with ledger.write("test") as connection:
        for number in range(20):
            connection.execute(ADD, {"key": f"k{number}", "value": "o'clock; $1 %s"})
        found = [
            connection.execute(READ, {"key": f"k{number}"}).scalar_one() for number in range(20)
        ]
    assert found == ["o'clock; $1 %s"] * 20
    assert planned(ledger) == before + 2


def test_a_transaction_that_is_undone_keeps_the_plan_and_not_the_row(ledger: Ledger) -> None:
    def attempt() -> None:
        with ledger.write("test") as connection:
            connection.execute(ADD, {"key": "k", "value": "v"})
            raise InterruptedError

    for _ in range(2):
        with pytest.raises(InterruptedError):
            attempt()
    with ledger.read() as connection:
        assert connection.execute(READ, {"key": "k"}).all() == []
    with ledger.write("test") as connection:
        connection.execute(ADD, {"key": "k", "value": "v"})
    with ledger.read() as connection:
        assert connection.execute(READ, {"key": "k"}).scalar_one() == "v"


def test_a_new_connection_plans_anew(ledger: Ledger) -> None:
    with ledger.read() as connection:
        connection.execute(READ, {"key": "k"})
    ledger.engine.dispose()
    with ledger.read() as connection:
        assert connection.execute(READ, {"key": "deployment"}).scalar_one() == "d-test"
