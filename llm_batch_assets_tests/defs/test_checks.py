"""The blocking checks: each one alone stops publishing, and mended it publishes."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
import pytest
import sqlalchemy as sa

from llm_batch_assets.defs.keys import CHECKS
from llm_batch_assets.defs.resources import llm_batch
from llm_batch_assets.ledger import schema
from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.defs.forge import FORGERIES, forge, pass_over_gate
from llm_batch_assets_tests.defs.loop import DATASET, Loop, failure_text, rows, small_workload


def _closed(loop: Loop, simulator: Simulator) -> Loop:
    """A closed revision that nobody has published: the last hop is not taken."""
    simulator.faults({"kind": "error_400", "count": 1, "total": 1, "executions": -1})
    loop.source = lambda _dataset: rows(20)
    assert loop.click("manifest").success
    loop.until(lambda view: view.row.closed_at is not None)
    return loop


def _failed(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {e.check_name: e for e in result.get_asset_check_evaluations() if not e.passed}


@pytest.mark.parametrize("partitioned", [True, False], ids=["partitioned", "unpartitioned"])
def test_each_check_alone_stops_publishing(
    start: Callable[..., Loop], simulator: Simulator, partitioned: bool
) -> None:
    """A report in which only this one fails: nothing is published; mended, it is."""
    loop = _closed(start(partitioned_checks=partitioned), simulator)
    for number, check in enumerate(CHECKS):
        mend = forge(loop, check)
        result = loop.publish_job()
        assert not result.success, check
        assert set(_failed(result)) == {check}
        assert len(result.get_asset_check_evaluations()) == len(CHECKS), check
        found = _failed(result)[check]
        assert found.severity is dg.AssetCheckSeverity.ERROR, check
        assert found.partition == (DATASET if partitioned else None), check
        assert loop.materializations("accepted_results") == number, check
        mend()
        assert loop.publish_job().success, check
        assert loop.materializations("accepted_results") == number + 1, check


def test_a_closure_that_a_check_stopped_is_not_tried_again_by_itself(
    start: Callable[..., Loop], simulator: Simulator
) -> None:
    loop = _closed(start(), simulator)
    mend = forge(loop, "served_model")
    assert [request.tags["llm_batch/work"] for request in loop.requests()] == ["publish"]
    assert not loop.publish_job().success
    _forget_dispatches()
    assert loop.requests() == [], "this closure was tried: a person mends it or publishes"
    mend()
    assert [request.tags["llm_batch/work"] for request in loop.requests()] == ["publish"]


def _forget_dispatches() -> None:
    with llm_batch.open(actor="test") as deps, deps.ledger.write("test") as connection:
        connection.execute(sa.delete(schema.dispatches))


def test_every_check_has_a_forgery() -> None:
    assert set(FORGERIES) == set(CHECKS)


def test_an_open_revision_warns_and_the_guard_refuses(loop: Loop, simulator: Simulator) -> None:
    """While a next step is planned the checks only warn; the asset itself refuses."""
    simulator.faults({"kind": "missing", "count": 1, "total": 1})
    assert loop.click("manifest").success
    loop.until(lambda view: view.attempt == 2)
    simulator.set_scale(0)
    result = loop.publish_job()
    assert not result.success
    failed = _failed(result)
    assert set(failed) == {"no_missing", "nothing_open"}
    assert {e.severity for e in failed.values()} == {dg.AssetCheckSeverity.WARN}
    assert "1 of 40 records have no terminal state yet" in failure_text(result)
    assert loop.materialized("accepted_results") == set()
    named = failed["nothing_open"].metadata["records"].value
    assert str(named).startswith("k00")
    assert "go on by themselves" in (failed["nothing_open"].description or "")


def test_below_the_minimum_is_tried_once_per_digest(
    start: Callable[..., Loop], simulator: Simulator
) -> None:
    simulator.faults({"kind": "error_400", "count": 2, "total": 2, "executions": -1})
    loop = start(small_workload(publish={"min_accepted": 0.99}))
    assert loop.click("manifest").success
    loop.until(lambda view: view.row.withheld_closure is not None)
    view = loop.view()
    assert view is not None
    assert view.row.withheld_closure == view.row.closure_digest
    assert "accepted_fraction" in (view.row.withheld_reason or "")
    assert loop.requests() == []
    failed = [run for run in loop.instance.get_runs() if run.status.value == "FAILURE"]
    assert len(failed) == 1


def test_reconciling_runs_take_no_checks(loop: Loop) -> None:
    """Still retrying is a green run: only publishing is judged."""
    assert loop.click("manifest").success
    loop.until_published()
    for request in loop.asked:
        publishing = request.tags["llm_batch/work"] == "publish"
        assert len(request.asset_check_keys or ()) == (len(CHECKS) if publishing else 0)


GATE = {"version": "g1", "function": "llm_batch_assets_tests.defs.forge:refuses_bad"}


def test_the_gate_judges_the_candidate_again(
    start: Callable[..., Loop], simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every shard was judged by the right version, and the table is not what was judged."""
    loop = _closed(start(small_workload(gate=GATE)), simulator)
    mend = forge(loop, "quality_gate", pass_over_gate)
    result = loop.publish_job()
    failed = _failed(result)
    assert set(failed) == {"quality_gate"}
    assert "1 of 19 accepted answers do not pass gate g1" in str(failed["quality_gate"].description)
    assert str(failed["quality_gate"].metadata["records"].value).startswith("k00")
    mend()
    with monkeypatch.context() as patch:
        patch.delattr("llm_batch_assets_tests.defs.forge.refuses_bad")
        failed = _failed(loop.publish_job())
        assert set(failed) == {"quality_gate"}, "the other eight are judged all the same"
        assert "cannot be imported" in str(failed["quality_gate"].description)
    assert loop.publish_job().success
