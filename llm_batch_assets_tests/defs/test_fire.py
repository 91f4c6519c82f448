"""Dagster under fire: runs that die, start late, come twice, or are made in the wrong order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from llm_batch_assets.defs.keys import asset_key
from llm_batch_assets.defs.resources import llm_batch
from llm_batch_assets.defs.sensors import llm_batch_tick
from llm_batch_assets.ledger import leases, schema
from llm_batch_assets.providers.openai import OpenAIProvider
from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.defs.loop import (
    DATASET,
    Loop,
    failure_text,
    rows,
    small_workload,
)

P0 = f"{DATASET}/r1/a1/p00000"
P1 = f"{DATASET}/r1/a1/p00001"
OTHER = "2026-07-29"


@pytest.fixture
def loop(start: Callable[..., Loop]) -> Loop:
    """Two shards."""
    return start(source=lambda _dataset: rows(20))


@pytest.fixture
def asked(loop: Loop) -> dg.RunRequest:
    """The dataset is frozen and the tick has asked for the run that sends it."""
    assert loop.click("manifest").success
    (request,) = loop.requests()
    return request


def creates(simulator: Simulator) -> int:
    return sum(
        entry["method"] == "POST" and entry["path"].endswith("/batches")
        for entry in simulator.log()
    )


def time_passes() -> None:
    """The wait before a work item is asked for again is over."""
    with llm_batch.open(actor="test") as deps, deps.ledger.write("test") as connection:
        connection.execute(sa.update(schema.dispatches).values(asked_at=0))


def closes_with(loop: Loop, simulator: Simulator, batches: int) -> None:
    """The sensors bring it to the end, and nothing was sent twice."""
    loop.until_published()
    meter = simulator.meter()
    assert (meter["provider_batches"], meter["paid_twice"]) == (batches, 0)


def test_the_same_run_request_twice_is_one_batch_a_shard(
    loop: Loop, asked: dg.RunRequest, simulator: Simulator
) -> None:
    """Case 170: one tick holds it once; a daemon that launches it twice all the same."""
    again = loop.evaluate(llm_batch_tick).run_requests
    assert not again
    first, second = loop.queued(asked), loop.queued(asked)
    assert loop.start(first, asked)
    assert loop.start(second, asked)
    assert creates(simulator) == 2
    closes_with(loop, simulator, 2)


def test_a_run_key_that_was_used_up_does_not_end_the_work(
    loop: Loop, asked: dg.RunRequest, simulator: Simulator
) -> None:
    """Case 171: the daemon never starts a run key again, so the next one is another."""
    loop.instance.report_run_failed(loop.queued(asked))
    assert loop.requests() == [], "not at once"
    time_passes()
    (second,) = loop.requests()
    assert second.run_key != asked.run_key
    assert second.partition_key_range == asked.partition_key_range
    assert loop.run(second).success
    closes_with(loop, simulator, 2)


def test_a_tick_that_died_before_its_requests_were_stored_is_made_up_for(
    loop: Loop, simulator: Simulator
) -> None:
    """Evaluated, and the daemon killed: neither partitions nor requests are kept anywhere."""
    assert loop.click("manifest").success
    with (
        dg.build_sensor_context(
            instance=loop.instance,
            repository_def=loop.repository,
            resources={"llm_batch": llm_batch},
        ) as context,
        dg.partition_loading_context(dynamic_partitions_store=loop.instance),
    ):
        lost = llm_batch_tick.evaluate_tick(context)
    assert len(lost.run_requests or ()) == 1
    assert loop.instance.get_dynamic_partitions("summaries__d-test__shards") == []
    loop.evaluate(llm_batch_tick)
    assert set(loop.instance.get_dynamic_partitions("summaries__d-test__shards")) == {P0, P1}
    time_passes()
    (request,) = loop.requests()
    assert request.run_key != (lost.run_requests or [])[0].run_key
    assert loop.run(request).success
    closes_with(loop, simulator, 2)


def test_a_run_cancelled_before_its_first_step_is_asked_for_again(
    loop: Loop, asked: dg.RunRequest, simulator: Simulator
) -> None:
    run = loop.queued(asked)
    time_passes()
    assert loop.requests() == [], "it waits in the queue"
    loop.instance.report_run_canceled(run)
    (request,) = loop.requests()
    assert loop.run(request).success
    closes_with(loop, simulator, 2)


def _leave_lease(loop: Loop, holder: str, seconds: float) -> None:
    """What a worker that was killed leaves on the first shard."""
    view = loop.view()
    assert view is not None
    with llm_batch.open(actor="test") as deps:
        assert leases.acquire(deps.ledger, view.shards[0].target, holder, seconds)


def test_a_retry_takes_over_the_lease_of_its_predecessor_at_once(
    loop: Loop, asked: dg.RunRequest, simulator: Simulator
) -> None:
    """Same root run id, same holder: the lease of a killed run is no wait for its retry."""
    killed = loop.queued(asked, dg.DagsterRunStatus.STARTED)
    _leave_lease(loop, killed.run_id, 3600)
    loop.instance.report_run_failed(killed)
    assert loop.start(loop.queued(asked, retry_of=killed), asked)
    assert loop.materialized("provider_job") == {P0, P1}
    closes_with(loop, simulator, 2)


def test_a_dead_run_blocks_nothing_once_its_lease_has_ended(
    loop: Loop, asked: dg.RunRequest, simulator: Simulator
) -> None:
    """Case 180, the ledger's part: nobody has to free anything, time does."""
    _leave_lease(loop, "a run that is gone", 4.0)
    assert not loop.run(asked).success, "another worker is at it"
    assert loop.materialized("provider_job") == {P1}
    loop.until(lambda view: view.shards[0].batch_id is not None or _again(loop))
    closes_with(loop, simulator, 2)


def _again(_loop: Loop) -> bool:
    time_passes()
    return False


def test_a_cancelled_run_gives_its_slot_back(loop: Loop, asked: dg.RunRequest) -> None:
    """Case 180, Dagster's part: our dagster.yaml frees slots of runs that have ended."""
    from pathlib import Path

    import yaml

    text = (Path(__file__).parents[2] / "dagster.yaml").read_text("utf-8")
    monitoring = yaml.safe_load(text)["run_monitoring"]
    assert monitoring["enabled"]
    assert 0 < monitoring["free_slots_after_run_end_seconds"] <= 300
    pools = {
        pool
        for node in loop.repository.asset_graph.asset_nodes
        for pool in (node.assets_def.op.pools if node.assets_def else ())
    }
    assert pools == {"llm_batch_openai"}
    storage = loop.instance.event_log_storage
    storage.set_concurrency_slots("llm_batch_openai", 1)
    run = loop.queued(asked, dg.DagsterRunStatus.STARTED)
    claim = storage.claim_concurrency_slot("llm_batch_openai", run.run_id, "step")
    assert claim.is_claimed
    assert not storage.claim_concurrency_slot("llm_batch_openai", "next", "step").is_claimed
    loop.instance.report_run_canceled(run)
    storage.free_concurrency_slots_for_run(run.run_id)  # what the monitoring daemon does then
    assert storage.claim_concurrency_slot("llm_batch_openai", "next", "step").is_claimed


@pytest.mark.parametrize("when", ["after", "during"])
def test_a_run_declared_dead_that_starts_late_sends_nothing(
    loop: Loop,
    asked: dg.RunRequest,
    simulator: Simulator,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    """Case 177: it starts after, or in the very create of, the run that took its place."""
    late = loop.queued(asked, dg.DagsterRunStatus.STARTING)
    loop.instance.report_run_failed(late)
    time_passes()
    (second,) = loop.requests()
    outcome: list[bool] = []
    create = OpenAIProvider.create

    def late_start(self: Any, *args: Any, **more: Any) -> Any:
        if when == "during" and not outcome:
            outcome.append(False)  # no more of this below
            outcome[0] = loop.start(_revived(loop, late), asked)
        return create(self, *args, **more)

    monkeypatch.setattr(OpenAIProvider, "create", late_start)
    assert loop.run(second).success
    if when == "after":
        assert loop.start(_revived(loop, late), asked), "all is sent: a no-op"
    else:
        assert outcome == [False], "the shard in the middle of its create is another worker's"
    assert creates(simulator) == 2
    closes_with(loop, simulator, 2)


def _revived(loop: Loop, run: dg.DagsterRun) -> dg.DagsterRun:
    """The worker of a run has its own idea of the status; it does not ask."""
    found = loop.instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is dg.DagsterRunStatus.FAILURE
    return found.with_status(dg.DagsterRunStatus.STARTING)


def test_a_retry_of_all_steps_sends_nothing_again(
    loop: Loop, asked: dg.RunRequest, simulator: Simulator
) -> None:
    """Case 178: submit and collect in one run; sending makes no output, so the rest is skipped."""
    simulator.set_scale(0)
    both = dg.RunRequest(
        asset_selection=[asset_key("summaries", s) for s in ("provider_job", "raw_results")],
        partition_key=P0,
    )
    first = loop.queued(both)
    loop.start(first, both)
    for _ in range(2):
        loop.start(loop.queued(both, retry_of=first), both)
    assert creates(simulator) == 1
    assert loop.materializations("provider_job", P0) == 3
    assert loop.materialized("raw_results") == set()


@pytest.mark.parametrize("partitioned", [True, False], ids=["partitioned", "unpartitioned"])
def test_a_check_that_passed_for_another_dataset_opens_nothing(
    start: Callable[..., Loop], simulator: Simulator, partitioned: bool
) -> None:
    """Cases 174 and 175: the latest check says yes, of another partition."""
    loop = start(
        small_workload(publish={"min_accepted": 0.99}),
        source=lambda _d: rows(10),
        partitioned_checks=partitioned,
    )
    loop.add_dataset(OTHER)
    good = loop.by_cli(lambda view: view.row.closed_at is not None, dataset=OTHER)
    simulator.faults({"kind": "error_400", "count": 2, "total": 2, "executions": -1})
    bad = loop.by_cli(lambda view: view.row.closed_at is not None)
    assert (bad.row.accepted, good.row.accepted) == (8, 10)
    assert not loop.publish_job().success
    assert loop.publish_job(OTHER).success
    check = dg.AssetCheckKey(asset_key("summaries", "reconciled_records"), "accepted_fraction")
    storage = loop.instance.event_log_storage
    assert storage.get_latest_asset_check_execution_by_key([check])[check].status.value == (
        "SUCCEEDED"
    ), "whoever asks for the latest is told yes"
    assert "publish.min_accepted is 0.99" in failure_text(loop.click("accepted_results"))
    assert loop.materialized("accepted_results") == {OTHER}
    # The other has been materialized since: the verdict is still about this one's own closure.
    assert loop.click("reconciled_records", "retry_shards", partition=OTHER).success
    result = loop.publish_job()
    seen = result.get_asset_check_evaluations()
    assert {str(e.metadata["closure"].value) for e in seen} == {bad.row.closure_digest}
    assert {str(e.metadata["dataset"].value) for e in seen} == {DATASET}
    assert [e.check_name for e in seen if not e.passed] == ["accepted_fraction"]


def test_a_backfill_over_everything_repeats_nothing(loop: Loop, simulator: Simulator) -> None:
    assert loop.click("manifest").success
    before = loop.until_published()
    calls = len(simulator.log())
    steps = ("provider_job", "raw_results")
    versions = {(s, p): loop.data_version(s, p) for s in steps for p in (P0, P1)}
    for step in steps:
        assert loop.click(step, ends=(P0, P1)).success
    datasets = ("manifest", "reconciled_records", "accepted_results", "human_review")
    assert loop.click(*datasets, "retry_shards").success
    sent = [e for e in simulator.log()[calls:] if not e["path"].startswith("/_sim")]
    assert sent == [], "nothing was even asked"
    assert {(s, p): loop.data_version(s, p) for s in steps for p in (P0, P1)} == versions
    after = loop.view()
    assert after == before
    assert loop.requests() == []


def test_by_hand_in_the_wrong_order_each_says_what_it_waits_for(
    loop: Loop, simulator: Simulator
) -> None:
    """From the last asset to the first; then in the right order it is as if nothing had been."""
    reconcile = ("reconciled_records", "retry_shards")
    for steps in (("accepted_results",), ("human_review",), reconcile):
        assert "nothing is frozen yet" in failure_text(loop.click(*steps)), steps
    loop.instance.add_dynamic_partitions("summaries__d-test__shards", [P0])
    for step in ("raw_results", "provider_job"):
        assert f"The ledger has no shard '{P0}'" in failure_text(loop.click(step, partition=P0))
    assert creates(simulator) == 0
    assert loop.click("manifest").success
    assert "it has no results" in failure_text(loop.click("raw_results", partition=P0))
    assert "none of its 20 records is accounted" in failure_text(loop.click("accepted_results"))
    assert loop.click(*reconcile).success, "a report of nothing yet"
    assert "20 of 20 records have no terminal" in failure_text(loop.click("accepted_results"))
    assert loop.click("provider_job", partition=P0).success
    closes_with(loop, simulator, 2)
