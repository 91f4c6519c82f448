"""What people and the clock ask of a workload: cancel a dataset, watch result deadlines."""

# No `from __future__ import annotations`: Dagster reads the context's annotation as it stands.
from collections.abc import Iterator
from typing import Any

import dagster as dg

from llm_batch_assets.defs import keys
from llm_batch_assets.defs.failures import failures
from llm_batch_assets.defs.resources import LLMBatchResource
from llm_batch_assets.workload import Workload

FAILS_BEFORE_HOURS = 24
"""Results that may be lost within a day are no longer a warning."""


class Reason(dg.Config):
    """Why, for the log of decisions."""

    reason: str


def cancel_job(
    workload: Workload, datasets: dg.PartitionsDefinition, executor: dg.ExecutorDefinition
) -> dg.JobDefinition:
    """``<workload>__cancel_job``: a partition and a reason; what is paid for is still collected."""

    @dg.op(name=f"{workload.name}__cancel")
    def cancel_dataset(
        context: dg.OpExecutionContext, config: Reason, llm_batch: LLMBatchResource
    ) -> None:
        from llm_batch_assets.engine.cancelling import cancel

        with failures(), llm_batch.open(run=context.run, actor=_person(context)) as deps:
            outcome = cancel(
                deps,
                dataset=context.partition_key,
                reason=config.reason,
                workload=workload.name,
            )
        context.log.info(outcome.message)

    @dg.job(
        name=f"{workload.name}__cancel_job",
        partitions_def=datasets,
        executor_def=executor,
        description="Cancels one dataset: nothing more of it is sent or published.",
    )
    def cancel_job_of_workload() -> None:
        cancel_dataset()

    return cancel_job_of_workload


def retention_watch(
    workload: Workload, executor: dg.ExecutorDefinition
) -> tuple[dg.AssetChecksDefinition, dg.ScheduleDefinition]:
    """``results_in_time`` on ``raw_results`` and the hourly schedule that evaluates it.

    It warns from three days before a provider drops results that nobody has collected, and fails
    from one day before.
    """
    asset = keys.asset_key(workload.name, keys.RAW_RESULTS)

    @dg.multi_asset_check(
        # An op of its own name per workload, so that two workloads merge.
        name=f"{workload.name}__{keys.IN_TIME}",
        specs=[
            dg.AssetCheckSpec(
                keys.IN_TIME,
                asset=asset,
                description="No result that is paid for is close to being dropped by its provider.",
            )
        ],
    )
    def results_in_time(
        context: dg.AssetCheckExecutionContext, llm_batch: LLMBatchResource
    ) -> Iterator[dg.AssetCheckResult]:
        from datetime import timedelta

        from llm_batch_assets.ledger import views
        from llm_batch_assets.ledger.database import utc_from_micros
        from llm_batch_assets.retention import near_deadlines

        with failures(), llm_batch.open() as deps:
            snapshot = views.snapshot(deps.ledger, workload=workload.name)
        shards = [shard for view in snapshot.revisions for shard in view.shards]
        near = near_deadlines(shards, snapshot.now)
        urgent = near_deadlines(shards, snapshot.now, timedelta(hours=FAILS_BEFORE_HOURS))
        yield dg.AssetCheckResult(
            asset_key=asset,
            check_name=keys.IN_TIME,
            passed=not near,
            severity=dg.AssetCheckSeverity.ERROR if urgent else dg.AssetCheckSeverity.WARN,
            description=(
                "Nothing is close to its deadline."
                if not near
                else f"{len(near)} shards lose their results soon, the first at "
                f"{utc_from_micros(near[0].at):%Y-%m-%d %H:%M} UTC: "
                "`llm-batch-assets collect` fetches them."
            ),
            metadata={
                "near": len(near),
                "urgent": len(urgent),
                "shards": dg.MetadataValue.text(", ".join(d.shard_key for d in near[:10])),
            },
        )

    watch = dg.define_asset_job(
        f"{workload.name}__retention_job",
        selection=dg.AssetSelection.checks(dg.AssetCheckKey(asset, keys.IN_TIME)),
        executor_def=executor,
    )
    schedule = dg.ScheduleDefinition(
        name=f"{workload.name}__retention",
        job=watch,
        cron_schedule="17 * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    return results_in_time, schedule


def _person(context: Any) -> str:
    tags = context.run.tags
    return str(tags.get(keys.SUBMITTER_TAG) or tags.get("user") or "dagster")
