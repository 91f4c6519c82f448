"""The blocking checks: each one alone stops publishing, and mended it publishes."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
import pytest

from llm_batch_assets.defs.keys import CHECKS
from llm_batch_assets.defs.resources import llm_batch
from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.defs.forge import FORGERIES, forge
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
@pytest.mark.parametrize("check", CHECKS)
def test_one_check_alone_stops_publishing(
    start: Callable[..., Loop], simulator: Simulator, check: str, partitioned: bool
) -> None:
    loop = _closed(start(partitioned_checks=partitioned), simulator)
    mend = forge(loop, check)

    result = loop.publish_job()
    assert not result.success
    assert set(_failed(result)) == {check}
    assert len(result.get_asset_check_evaluations()) == len(CHECKS)
    found = _failed(result)[check]
    assert found.severity is dg.AssetCheckSeverity.ERROR
    assert found.partition == (DATASET if partitioned else None)
    assert loop.materialized("accepted_results") == set()
    view = loop.view()
    assert view is not None
    assert view.row.published_at is None
    asked = [r.tags["llm_batch/work"] for r in loop.requests()]
    assert asked == [], "this closure was tried: a person mends it or publishes"

    mend()
    assert loop.publish_job().success
    assert loop.materialized("accepted_results") == {DATASET}


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
    with llm_batch.open(actor="test"):
        pass
    for run in loop.instance.get_runs():
        checks = run.asset_check_selection or frozenset()
        assert bool(checks) == (run.tags.get("llm_batch/work") == "publish")
