"""The assets that live in the dataset space: frozen, reconciled, published, reviewed."""

# No `from __future__ import annotations`: Dagster reads the context's annotation as it stands.
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg

from llm_batch_assets.defs import keys
from llm_batch_assets.defs.failures import failures, require_one_partition
from llm_batch_assets.defs.partitions import NO_PARTITION_EDGE
from llm_batch_assets.defs.resources import LLMBatchResource
from llm_batch_assets.defs.shards import metadata
from llm_batch_assets.workload import Workload

if TYPE_CHECKING:
    import pyarrow as pa

Source = Callable[[str], Iterable["pa.RecordBatch"]]
"""Gives the rows of a dataset by its key: record batches, a table or a DataFrame."""

REVIEW_ROWS = 20


class Freezing(dg.Config):
    """Run config of ``manifest``: nothing of it is needed to freeze a dataset.

    ``supersede`` opens the next revision of rows that differ from what is frozen; ``reason`` is
    logged with it. ``open_work`` says what becomes of questions that are still at the provider.
    """

    supersede: bool = False
    reason: str = ""
    open_work: Literal["wait", "cancel", "pay_again"] = "wait"


def submitter_of(context: dg.AssetExecutionContext) -> str:
    """Who asked for the dataset: the run's tag, Dagster's own user tag, or the environment."""
    tags = context.run.tags
    return (
        tags.get(keys.SUBMITTER_TAG)
        or tags.get("user")
        or os.environ.get("LLM_BATCH_SUBMITTER")
        or "dagster"
    )


def as_batches(rows: Any) -> "Iterable[pa.RecordBatch]":
    """Whatever a source or an upstream gives, as record batches."""
    import pyarrow as pa

    if isinstance(rows, pa.Table):
        return rows.to_batches()
    if isinstance(rows, pa.RecordBatch):
        return [rows]
    if type(rows).__module__.startswith("pandas"):
        return pa.Table.from_pandas(rows, preserve_index=False).to_batches()
    found: Iterable[pa.RecordBatch] = rows
    return found


def manifest_asset(
    workload: Workload,
    source: Source | dg.AssetKey,
    datasets: dg.PartitionsDefinition,
    common: dict[str, Any],
) -> dg.AssetsDefinition:
    """``manifest``: freezes the upstream table."""
    upstream = source if isinstance(source, dg.AssetKey) else None

    def freeze(
        context: dg.AssetExecutionContext,
        config: Freezing,
        llm_batch: LLMBatchResource,
        rows: Any,
    ) -> dg.MaterializeResult:
        from llm_batch_assets import engine
        from llm_batch_assets.engine.superseding import supersede

        dataset = require_one_partition(context)
        with failures(), llm_batch.open(run=context.run) as deps:
            batches = as_batches(rows if isinstance(source, dg.AssetKey) else source(dataset))
            submitter = submitter_of(context)
            if config.supersede:
                outcome = supersede(
                    workload,
                    batches,
                    dataset=dataset,
                    deps=deps,
                    submitter=submitter,
                    reason=config.reason,
                    open_work=config.open_work,
                )
            else:
                outcome = engine.freeze(
                    workload, batches, dataset=dataset, deps=deps, submitter=submitter
                )
        context.log.info(outcome.message)
        return dg.MaterializeResult(
            metadata={
                **metadata(outcome.facts),
                "dagster/row_count": outcome.facts["records"],
            },
            data_version=dg.DataVersion(outcome.data_version or ""),
        )

    options: dict[str, Any] = {
        "key": keys.asset_key(workload.name, keys.MANIFEST),
        "partitions_def": datasets,
        "tags": keys.asset_tags(workload.name, keys.MANIFEST),
        "description": "Freezes the rows of a dataset: the same rows again are a no-op, other "
        "rows are refused with counts.",
        **common,
    }
    if upstream is not None:

        @dg.asset(ins={"rows": dg.AssetIn(upstream)}, **options)
        def manifest_of_table(
            context: dg.AssetExecutionContext,
            config: Freezing,
            llm_batch: LLMBatchResource,
            rows: Any,
        ) -> dg.MaterializeResult:
            return freeze(context, config, llm_batch, rows)

        return manifest_of_table

    @dg.asset(**options)
    def manifest_of_source(
        context: dg.AssetExecutionContext, config: Freezing, llm_batch: LLMBatchResource
    ) -> dg.MaterializeResult:
        return freeze(context, config, llm_batch, None)

    return manifest_of_source


def reconcile_assets(
    workload: Workload, datasets: dg.PartitionsDefinition, common: dict[str, Any]
) -> dg.AssetsDefinition:
    """``reconciled_records`` and ``retry_shards``, from one op.

    The second is a leaf: a blocking check stops everything downstream of the first, and must not
    stop the loop.
    """
    raw = dg.AssetDep(
        keys.asset_key(workload.name, keys.RAW_RESULTS), partition_mapping=NO_PARTITION_EDGE
    )
    described = {
        keys.RECONCILED: "Every record of the revision in exactly one set, with the evidence that "
        "puts it there; and the candidate table that publishing would point to.",
        keys.RETRY_SHARDS: "The next attempt: exactly the records that go again, in new shards.",
    }
    records, retry = (
        dg.AssetSpec(
            keys.asset_key(workload.name, step),
            deps=[raw],
            partitions_def=datasets,
            tags=keys.asset_tags(workload.name, step),
            description=text,
            **common,
        )
        for step, text in described.items()
    )

    @dg.multi_asset(name=f"{workload.name}__reconcile", specs=[records, retry])
    def reconcile(
        context: dg.AssetExecutionContext, llm_batch: LLMBatchResource
    ) -> Iterator[dg.MaterializeResult]:
        from llm_batch_assets.defs.report import find_revision
        from llm_batch_assets.engine.accounting import account, retry_outcome
        from llm_batch_assets.ledger import views

        dataset = require_one_partition(context)
        with failures(), llm_batch.open(run=context.run) as deps:
            revision = find_revision(workload, dataset, deps).row
            outcome = account(revision.id, deps)
            cut = outcome.facts.get("next_attempt") is not None
            retry_cut = retry_outcome(views.view_by_id(deps.ledger, revision.id), cut_now=cut)
        context.log.info(outcome.message)
        yield dg.MaterializeResult(
            asset_key=records.key,
            metadata=metadata(outcome.facts),
            data_version=dg.DataVersion(outcome.data_version or "nothing accounted"),
        )
        yield dg.MaterializeResult(
            asset_key=retry.key,
            metadata=metadata(retry_cut.facts),
            data_version=dg.DataVersion(retry_cut.data_version or ""),
        )

    return reconcile


def accepted_asset(
    workload: Workload, datasets: dg.PartitionsDefinition, common: dict[str, Any]
) -> dg.AssetsDefinition:
    """``accepted_results``: publishes, or refuses by itself, whoever asks."""

    @dg.asset(
        key=keys.asset_key(workload.name, keys.ACCEPTED),
        deps=[keys.asset_key(workload.name, keys.RECONCILED)],
        partitions_def=datasets,
        io_manager_key=IO_MANAGER,
        tags=keys.asset_tags(workload.name, keys.ACCEPTED),
        metadata={keys.TENANT_METADATA: workload.tenant_id},
        description="The published table. Only a closed revision with enough accepted records "
        "gets here; the pointer flips to the candidate that the checks read.",
        **common,
    )
    def accepted_results(
        context: dg.AssetExecutionContext, llm_batch: LLMBatchResource
    ) -> dg.MaterializeResult:
        from llm_batch_assets.defs.report import find_revision
        from llm_batch_assets.engine.publishing import publish

        dataset = require_one_partition(context)
        with failures(), llm_batch.open(run=context.run) as deps:
            outcome = publish(find_revision(workload, dataset, deps).row.id, deps)
        context.log.info(outcome.message)
        return dg.MaterializeResult(
            metadata={**metadata(outcome.facts), "dagster/row_count": outcome.facts["accepted"]},
            data_version=dg.DataVersion(outcome.data_version or ""),
        )

    return accepted_results


def review_asset(
    workload: Workload, datasets: dg.PartitionsDefinition, common: dict[str, Any]
) -> dg.AssetsDefinition:
    """``human_review``: what people look at.

    It hangs on ``raw_results`` so that no blocking check of ``reconciled_records`` keeps it from
    those who have to look.
    """
    raw = dg.AssetDep(
        keys.asset_key(workload.name, keys.RAW_RESULTS), partition_mapping=NO_PARTITION_EDGE
    )

    @dg.asset(
        key=keys.asset_key(workload.name, keys.HUMAN_REVIEW),
        deps=[raw],
        partitions_def=datasets,
        tags=keys.asset_tags(workload.name, keys.HUMAN_REVIEW),
        description="Records that need a person, each with the reason and where its evidence is.",
        **common,
    )
    def human_review(
        context: dg.AssetExecutionContext, llm_batch: LLMBatchResource
    ) -> dg.MaterializeResult:
        import pyarrow.compute as pc

        from llm_batch_assets.defs.report import load_report

        dataset = require_one_partition(context)
        with failures(), llm_batch.open(run=context.run) as deps:
            report = load_report(workload, dataset, deps)
        rows = report.settled.filter(pc.equal(report.settled["state"], "human_review"))
        first = rows.select(["business_key", "reason", "rule", "attempt", "shard"])
        columns = [
            dg.TableColumn("business_key"),
            dg.TableColumn("reason"),
            dg.TableColumn("rule"),
            dg.TableColumn("attempt", "int"),
            dg.TableColumn("shard", "int"),
        ]
        records = [
            dg.TableRecord({name: "" if v is None else v for name, v in row.items()})
            for row in first.slice(0, REVIEW_ROWS).to_pylist()
        ]
        return dg.MaterializeResult(
            metadata={
                "dagster/row_count": rows.num_rows,
                "first_records": dg.MetadataValue.table(records, dg.TableSchema(columns)),
                "closure": report.row.closure_digest or "",
            },
            data_version=dg.DataVersion(report.row.closure_digest or ""),
        )

    return human_review


IO_MANAGER = "llm_batch_tables"
