"""Cancel by a job, supersede by run config, and the watch on deadlines, with real Dagster."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
import pytest
import sqlalchemy as sa

from llm_batch_assets.defs.resources import llm_batch
from llm_batch_assets.ledger import schema
from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.defs.loop import DATASET, Loop, failure_text, rows

DAY = 86_400 * 1_000_000


@pytest.fixture
def sent(loop: Loop, simulator: Simulator) -> Loop:
    """Every shard is sent and the provider's time stands still."""
    simulator.set_scale(0)
    assert loop.click("manifest").success
    assert loop.requests()
    ends = (f"{DATASET}/r1/a1/p00000", f"{DATASET}/r1/a1/p00003")
    assert loop.click("provider_job", ends=ends).success
    return loop


def test_the_cancel_job_cancels_at_the_provider_and_logs_why(
    sent: Loop, simulator: Simulator
) -> None:
    job = sent.defs.resolve_job_def("summaries__cancel_job")
    result = job.execute_in_process(
        instance=sent.instance,
        partition_key=DATASET,
        run_config={"ops": {"summaries__cancel": {"config": {"reason": "wrong prompt"}}}},
        tags={"user": "ada"},
    )
    assert result.success
    cancels = [e for e in simulator.log() if e["path"].endswith("/cancel")]
    assert len(cancels) == 4
    view = sent.view()
    assert view is not None
    assert (view.row.cancel_by, view.row.cancel_reason) == ("ada", "wrong prompt")


def test_run_config_supersedes_rows_that_differ(loop: Loop) -> None:
    assert loop.click("manifest").success
    loop.source = lambda _dataset: rows(40, start=3)
    assert "supersede" in failure_text(loop.click("manifest"))
    job = loop.defs.resolve_implicit_global_asset_job_def().get_subset(
        asset_selection={dg.AssetKey(["summaries", "manifest"])}
    )
    result = job.execute_in_process(
        instance=loop.instance,
        partition_key=DATASET,
        run_config={
            "ops": {
                "summaries__manifest": {
                    "config": {"supersede": True, "reason": "late rows", "open_work": "wait"}
                }
            }
        },
    )
    assert result.success
    view = loop.view()
    assert view is not None
    assert view.row.revision == 2
    assert loop.click("manifest").success  # the same rows again are a no-op
    assert loop.view().row.revision == 2


@pytest.mark.parametrize(
    "days, passed, severity",
    [
        (4, True, None),
        (2, False, dg.AssetCheckSeverity.WARN),
        (0.5, False, dg.AssetCheckSeverity.ERROR),
    ],
)
def test_the_hourly_watch_warns_and_then_fails(
    sent: Loop, days: float, passed: bool, severity: dg.AssetCheckSeverity | None
) -> None:
    with llm_batch.open() as deps, deps.ledger.write("test") as connection:
        soon = deps.ledger.now(connection) + int(days * DAY)
        connection.execute(sa.update(schema.submissions).values(result_deadline=soon))
    job = sent.defs.resolve_job_def("summaries__retention_job")
    (found,) = [
        event.asset_check_evaluation_data
        for event in job.execute_in_process(instance=sent.instance).all_events
        if event.event_type_value == "ASSET_CHECK_EVALUATION"
    ]
    assert found.passed is passed
    if severity is not None:
        assert found.severity == severity
        assert "llm-batch-assets collect" in (found.description or "")


def test_the_watch_runs_by_itself(start: Callable[..., Loop]) -> None:
    (schedule,) = start().repository.schedule_defs
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    assert schedule.job_name == "summaries__retention_job"
