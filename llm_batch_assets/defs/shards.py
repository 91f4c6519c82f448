"""The assets that live in the shard space: ``provider_job`` and ``raw_results``.

Many shards run in one run, so each key emits its own event as it is done: what has emitted stays
materialized when a later key fails.
"""

# No `from __future__ import annotations`: Dagster reads the context's annotation as it stands.
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dagster as dg

from llm_batch_assets.defs import keys
from llm_batch_assets.defs.failures import as_failure
from llm_batch_assets.defs.partitions import NO_PARTITION_EDGE
from llm_batch_assets.defs.resources import LLMBatchResource
from llm_batch_assets.errors import LLMBatchError
from llm_batch_assets.workload import Workload

Click = Callable[[Workload, str, Any], Any]


def shard_assets(
    workload: Workload, shards: dg.DynamicPartitionsDefinition, common: dict[str, Any]
) -> list[dg.AssetsDefinition]:
    """``provider_job`` and ``raw_results`` of one workload."""
    manifest = dg.AssetDep(
        keys.asset_key(workload.name, keys.MANIFEST), partition_mapping=NO_PARTITION_EDGE
    )
    return [
        _shard_asset(
            workload,
            keys.PROVIDER_JOB,
            shards,
            common,
            deps=[manifest],
            description="Sends the shard as one provider batch and returns at once. What the "
            "batch does later arrives as observations.",
        ),
        _shard_asset(
            workload,
            keys.RAW_RESULTS,
            shards,
            common,
            deps=[keys.asset_key(workload.name, keys.PROVIDER_JOB)],
            description="Collects the batch's files unchanged and classes each record of the "
            "shard. Materialized only when the files are whole.",
        ),
    ]


def _shard_asset(
    workload: Workload,
    step: str,
    shards: dg.DynamicPartitionsDefinition,
    common: dict[str, Any],
    *,
    deps: list[Any],
    description: str,
) -> dg.AssetsDefinition:
    key = keys.asset_key(workload.name, step)
    # Skippable: the events are per key and emitted by hand, there is no output beside them.
    spec = dg.AssetSpec(
        key,
        deps=deps,
        description=description,
        partitions_def=shards,
        skippable=True,
        group_name=common["group_name"],
        owners=common["owners"],
        kinds={workload.provider},
        tags=keys.asset_tags(workload.name, step),
    )

    @dg.multi_asset(
        name=f"{workload.name}__{step}",
        specs=[spec],
        pool=f"llm_batch_{workload.provider}",
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def run(
        context: dg.AssetExecutionContext, llm_batch: LLMBatchResource
    ) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
        from llm_batch_assets.defs import clicks

        click: Click = clicks.submit_shard if step == keys.PROVIDER_JOB else clicks.collect_shard
        yield from each_key(context, llm_batch, workload, key, click)

    return run


def each_key(
    context: dg.AssetExecutionContext,
    llm_batch: LLMBatchResource,
    workload: Workload,
    key: dg.AssetKey,
    click: Click,
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    """Do every key of the run, one at a time, and emit each as it is done.

    In a failed range run every key without an event of that run shows Failed, so the run raises
    only when every other key has emitted. Otherwise it ends green, and what went wrong is asked
    for alone by the next tick.

    Raises:
        Failure: the first refusal, when it is the only key that did not emit.
    """
    shard_keys = list(context.partition_keys)
    refused: list[tuple[str, LLMBatchError]] = []
    with llm_batch.open(run=context.run) as deps:
        for shard_key in shard_keys:
            try:
                outcome = click(workload, shard_key, deps)
            except LLMBatchError as error:
                refused.append((shard_key, error))
                context.log.warning(str(error))
                continue
            context.log.info(outcome.message)
            if outcome.data_version is None:
                # Uncertain, refused, or put off by the provider: a state, not yet the thing.
                yield observation(key, shard_key, outcome)
            else:
                yield materialization(key, shard_key, outcome)
    if len(refused) == 1:
        raise as_failure(refused[0][1])
    if refused and len(refused) == len(shard_keys):
        first = refused[0][1]
        raise dg.Failure(
            description=f"None of {len(shard_keys)} shards could be done. The first: {first}",
            allow_retries=False,
        )


def materialization(
    key: dg.AssetKey, partition: str, outcome: Any, more: Mapping[str, Any] | None = None
) -> dg.AssetMaterialization:
    """One key's event: the fact's id as data version, what the engine says as metadata."""
    tags = {}
    if outcome.data_version is not None:
        tags[keys.DATA_VERSION_TAG] = outcome.data_version
    return dg.AssetMaterialization(
        key,
        description=outcome.message,
        partition=partition,
        metadata=metadata({**outcome.facts, **(more or {})}),
        tags=tags,
    )


def observation(key: dg.AssetKey, shard_key: str, outcome: Any) -> dg.AssetObservation:
    """A state of a batch that makes nothing materialized."""
    return dg.AssetObservation(
        key,
        description=outcome.message,
        partition=shard_key,
        metadata=metadata(outcome.facts),
    )


def metadata(facts: dict[str, Any]) -> dict[str, Any]:
    """Plain values as metadata: text stays text, never markdown; None is left out."""
    return {
        name: value if isinstance(value, bool | int | float) else dg.MetadataValue.text(str(value))
        for name, value in facts.items()
        if value is not None
    }
