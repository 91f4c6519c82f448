"""The one call that a team needs: a workload becomes assets, checks, jobs and sensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg

from llm_batch_assets.defs import keys
from llm_batch_assets.defs.automation import automation_sensor
from llm_batch_assets.defs.checks import blocking_checks, partitioned_by_default
from llm_batch_assets.defs.datasets import (
    IO_MANAGER,
    Source,
    accepted_asset,
    manifest_asset,
    reconcile_assets,
    review_asset,
)
from llm_batch_assets.defs.io_manager import PublishedTableIOManager
from llm_batch_assets.defs.partitions import dataset_partitions, shard_partitions
from llm_batch_assets.defs.people import cancel_job, retention_watch
from llm_batch_assets.defs.resources import llm_batch
from llm_batch_assets.defs.sensors import llm_batch_poll, llm_batch_tick
from llm_batch_assets.defs.shards import shard_assets
from llm_batch_assets.workload import Workload

# One object each for every workload of a location, so that merging finds no duplicate.
tables = PublishedTableIOManager(llm_batch=llm_batch)
EXECUTOR = dg.in_process_executor
"""A run does one short thing: a process per step would cost more than the step."""


def build_llm_batch_assets(
    workload: Workload,
    source: Source | dg.CoercibleToAssetKey | dg.AssetsDefinition,
    partitions_def: dg.PartitionsDefinition | None = None,
    *,
    owners: Sequence[str] | None = None,
    partitioned_checks: bool | None = None,
) -> dg.Definitions:
    """Everything that runs one workload in a code location.

    Args:
        workload: what is asked of each record.
        source: a function from a dataset's key to its rows (record batches, a table or a
            DataFrame), or the upstream asset that holds them, partitioned alike.
        partitions_def: the team's datasets: dynamic, static or time partitions; by default
            dynamic ones named ``<workload>__dataset``.
        owners: of the assets, as Dagster takes them (``team:research``).
        partitioned_checks: whether the blocking checks are partitioned, a preview API of
            Dagster 1.13; by default yes, unless ``LLM_BATCH_PARTITIONED_CHECKS=0``.

    Returns:
        Definitions to merge with the rest of the location. Those of several workloads merge:
        sensors, resources and executor are the same objects.

    Raises:
        InputError: for partitions whose keys cannot be dataset keys.

    Example:
        .. code-block:: python

            defs = build_llm_batch_assets(
                Workload.from_yaml("docstring_summaries.yaml"),
                source=read_docstrings,
            )
    """
    datasets = dataset_partitions(workload.name, partitions_def)
    shards = shard_partitions(workload.name, llm_batch.home.deployment)
    common: dict[str, Any] = {
        "group_name": workload.name,
        "owners": list(owners or ()),
        "kinds": {workload.provider},
    }
    if partitioned_checks is None:
        partitioned_checks = partitioned_by_default()
    checks = blocking_checks(workload, datasets, partitioned=partitioned_checks)
    accepted = keys.asset_key(workload.name, keys.ACCEPTED)
    publish = dg.define_asset_job(
        f"{workload.name}__publish_job",
        selection=dg.AssetSelection.assets(accepted).without_checks()
        | dg.AssetSelection.checks(*keys.check_keys(workload.name)),
        description="Publishes one dataset: the blocking checks are evaluated in the run itself.",
        executor_def=EXECUTOR,
    )
    in_time, watch = retention_watch(workload, EXECUTOR)
    return dg.Definitions(
        assets=[
            manifest_asset(workload, _source(source), datasets, common),
            *shard_assets(workload, shards, common),
            reconcile_assets(workload, datasets, common),
            accepted_asset(workload, datasets, common),
            review_asset(workload, datasets, common),
        ],
        asset_checks=[checks, in_time],
        jobs=[publish, cancel_job(workload, datasets, EXECUTOR)],
        schedules=[watch],
        sensors=[llm_batch_tick, llm_batch_poll, automation_sensor],
        resources={"llm_batch": llm_batch, IO_MANAGER: tables},
        executor=EXECUTOR,
    )


def _source(source: Any) -> Source | dg.AssetKey:
    if isinstance(source, dg.AssetsDefinition):
        return source.key
    if callable(source):
        return source
    return dg.AssetKey.from_coercible(source)
