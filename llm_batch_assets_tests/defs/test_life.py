"""A dataset's whole life, in process, with real Dagster: one click, the sensors do the rest."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
import pandas as pd
import sqlalchemy as sa

from llm_batch_assets.defs import on_published
from llm_batch_assets.defs.keys import CHECKS, RECONCILED, asset_key
from llm_batch_assets.defs.resources import llm_batch
from llm_batch_assets.ledger import schema
from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.defs.loop import DATASET, SENSOR, Loop


def test_one_click_then_only_sensors(start: Callable[..., Loop], simulator: Simulator) -> None:
    """The demo's path: two attempts, a lost create reply, a downstream that wakes."""
    simulator.faults(
        {"kind": "missing", "count": 1, "total": 2},
        {"kind": "error_429", "count": 1, "total": 3},
        {"kind": "error_400", "count": 1, "total": 1, "executions": -1},
        {"route": "create", "nth": 2, "fault": "drop_after"},
    )
    loaded: list[pd.DataFrame] = []

    @dg.asset(
        ins={"accepted": dg.AssetIn(["summaries", "accepted_results"])},
        partitions_def=dg.DynamicPartitionsDefinition(name="summaries__dataset"),
        automation_condition=on_published(),
    )
    def topics(accepted: pd.DataFrame) -> None:
        loaded.append(accepted)

    loop = start(more=[dg.Definitions(assets=[topics])])
    loop.tick()
    assert loop.click("manifest").success
    view = loop.until_published()
    loop.tick()

    assert (view.row.records, view.row.accepted, view.row.permanent_failure) == (40, 39, 1)
    assert view.attempt == 2
    meter = simulator.meter()
    assert meter["paid_twice"] == 0
    assert meter["provider_batches"] == 5
    runs = list(reversed(loop.instance.get_runs()))
    assert all(run.status is dg.DagsterRunStatus.SUCCESS for run in runs)
    assert SENSOR not in runs[0].tags
    assert all(run.tags.get(SENSOR) for run in runs[1:]), [run.tags for run in runs[1:]]

    shards = loop.shard_keys()
    assert [key.removeprefix(DATASET) for key in shards] == [
        "/r1/a1/p00000", "/r1/a1/p00001", "/r1/a1/p00002", "/r1/a1/p00003", "/r1/a2/p00000",
    ]  # fmt: skip
    assert loop.materialized("provider_job") == set(shards)
    assert loop.materialized("raw_results") == set(shards)
    for step in ("manifest", "reconciled_records", "retry_shards", "accepted_results"):
        assert loop.materialized(step) == {DATASET}, step
    assert len(loaded) == 1
    assert len(loaded[0]) == 39
    assert set(loaded[0].columns) >= {"business_key", "answer", "summary", "topic"}

    for name in CHECKS:
        key = dg.AssetCheckKey(asset_key("summaries", RECONCILED), name)
        record = loop.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
        assert record.status.value == "SUCCEEDED", name


def test_runs_say_what_they_are_about(loop: Loop) -> None:
    assert loop.click("manifest").success
    (request,) = loop.requests()
    assert request.asset_selection == [asset_key("summaries", "provider_job")]
    assert request.partition_key_range == dg.PartitionKeyRange(
        f"{DATASET}/r1/a1/p00000", f"{DATASET}/r1/a1/p00003"
    )
    view = loop.view()
    assert view is not None
    assert request.tags["llm_batch/job_key"] == view.jobs[0].job_key
    assert request.tags["llm_batch/attempt"] == "1"
    assert request.tags["llm_batch/deployment"] == "d-test"
    assert request.tags["llm_batch/work"] == "submit"


def _forget_dispatches(loop: Loop) -> None:
    with llm_batch.open(actor="test") as deps, deps.ledger.write("test") as connection:
        connection.execute(sa.delete(schema.dispatches))


def test_nothing_is_asked_for_twice_while_its_run_lives(loop: Loop) -> None:
    """What runs that have not ended are about is not asked for again, whoever looks."""
    assert loop.click("manifest").success
    (request,) = loop.requests()
    job = loop.defs.resolve_implicit_global_asset_job_def().get_subset(
        asset_selection=set(request.asset_selection or ())
    )
    run = loop.instance.create_run_for_job(
        job,
        tags=request.tags,
        status=dg.DagsterRunStatus.STARTED,
        asset_selection=frozenset(request.asset_selection or ()),
    )
    _forget_dispatches(loop)
    assert loop.requests() == []
    loop.instance.report_run_failed(run)
    loop.run_keys.clear()
    assert len(loop.requests()) == 1


def test_a_run_that_moved_nothing_is_not_asked_for_again_at_once(loop: Loop) -> None:
    assert loop.click("manifest").success
    assert len(loop.requests()) == 1
    assert loop.requests() == [], "the run may not exist yet, or have failed a moment ago"


def test_a_work_item_that_never_moves_is_told_once(
    loop: Loop,
) -> None:
    """Five runs that moved nothing: the sixth is asked for, and somebody is told."""
    assert loop.click("manifest").success
    told = []
    for _ in range(8):
        (request,) = loop.requests()
        with llm_batch.open(actor="test") as deps, deps.ledger.write("test") as connection:
            connection.execute(sa.update(schema.dispatches).values(asked_at=0))
            told.append(
                connection.execute(
                    sa.select(sa.func.count()).where(schema.dispatches.c.alerted_at.is_not(None))
                ).scalar_one()
            )
    assert told == [0, 0, 0, 0, 0, 4, 4, 4]
    assert request.run_key is not None
    assert request.run_key.endswith("#8")


def test_the_same_key_in_two_deployments_never_meets(start: Callable[..., Loop]) -> None:
    loop = start()
    names = {node.partitions_def.name for node in loop.repository.asset_graph.asset_nodes}
    assert names == {"summaries__dataset", "summaries__d-test__shards"}
