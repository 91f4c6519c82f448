"""Doing finished work again writes nothing: no ledger row but leases, no object, no call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from llm_batch_assets import controller
from llm_batch_assets.cli import loop
from llm_batch_assets.controller import Work
from llm_batch_assets.deps import Deps
from llm_batch_assets.engine import execute
from llm_batch_assets.errors import NotReady, TransitionRefused
from llm_batch_assets.ledger import schema, views
from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.engine.bench import Bench, make_workload


def everything(b: Bench) -> tuple[dict[str, list[Any]], set[str], int]:
    """Every row of the ledger but leases, every object of the store, and the calls so far."""
    rows: dict[str, list[Any]] = {}
    with b.deps.ledger.read() as connection:
        for table in schema.TABLES:
            if table is not schema.leases:
                rows[table.name] = sorted(map(repr, connection.execute(sa.select(table))))
    return rows, set(b.deps.store.digests()), len(b.sim.log())


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """Every piece of work that the loop executes, in order."""
    seen: list[Work] = []

    do = loop._do

    def record(work: Work, deps: Deps) -> bool:
        seen.append(work)
        return do(work, deps)

    monkeypatch.setattr(loop, "_do", record)
    return seen


@pytest.fixture
def finished(bench: Callable[..., Bench], sim: Simulator, done: list[Work]) -> Bench:
    """Two attempts, closed and published; every kind of work was done once."""
    b = bench(records=24)
    b.freeze()
    sim.faults(
        {"kind": "error_500", "ids": b.wire_ids([1, 10])},
        {"route": "create", "fault": "drop_after"},
    )
    b.drive()
    assert b.view.attempt == 2
    assert b.view.row.published_closure == b.view.row.closure_digest
    return b


def test_every_piece_of_work_again(finished: Bench, done: list[Work]) -> None:
    assert {work.kind for work in done} >= {
        "submit",
        "look",
        "poll",
        "collect",
        "account",
        "publish",
    }
    before = everything(finished)
    for work in done:
        try:
            assert not execute(work, finished.deps).changed, work
        except (NotReady, TransitionRefused):
            assert work.kind == "submit"
        assert everything(finished) == before, work


def test_freezing_again(finished: Bench) -> None:
    before = everything(finished)
    assert not finished.freeze().changed
    finished.rows.reverse()
    assert not finished.freeze().changed
    assert everything(finished) == before


def test_account_and_cut_again_before_the_end(
    bench: Callable[..., Bench], sim: Simulator, done: list[Work]
) -> None:
    """Accounting writes once per evidence, and cuts one attempt from it, whoever repeats it."""
    b = bench(records=24, workload=make_workload(retry={"hold_deadline": "1h"}))
    b.freeze()
    sim.faults({"kind": "error_500", "ids": b.wire_ids([1, 10])})
    b.drive(stop=lambda: len(b.view.jobs) == 2)
    assert len(b.view.jobs) == 2
    work = next(w for w in done if w.kind == "account")
    # The cut is news: what was to go again is in flight now. That is written down once.
    assert execute(work, b.deps).facts["next_attempt"] is None
    before = everything(b)
    for deps in (b.deps, b.worker("two")):
        assert not execute(work, deps).changed
    assert everything(b) == before
    assert len(b.view.jobs) == 2
    snapshot = views.snapshot(b.deps.ledger)
    assert [w for w in controller.due(snapshot, b.deps.settings) if w.kind == "account"] == []
