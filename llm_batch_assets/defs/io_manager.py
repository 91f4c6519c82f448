"""Published tables as downstream inputs: a DataFrame or an Arrow table, by annotation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg

from llm_batch_assets.defs.failures import failures
from llm_batch_assets.defs.keys import TENANT_METADATA
from llm_batch_assets.defs.resources import LLMBatchResource

if TYPE_CHECKING:
    import pyarrow as pa


def as_annotated(table: pa.Table, annotation: Any) -> Any:
    """The table as the type that a downstream asks for; a DataFrame where it does not say.

    Raises:
        DagsterInvalidDefinitionError: for a type that a table cannot become.
    """
    wanted = getattr(annotation, "__module__", ""), getattr(annotation, "__name__", "")
    module, name = wanted[0].split(".")[0], wanted[1]
    if module == "pyarrow" and name == "Table":
        return table
    if (module, name) == ("pandas", "DataFrame") or annotation in (Any, None, object):
        return table.to_pandas()
    raise dg.DagsterInvalidDefinitionError(
        f"A published table is given as pandas.DataFrame or pyarrow.Table, not {annotation!r}."
    )


class PublishedTableIOManager(dg.ConfigurableIOManager):
    """Loads what the ledger says is published; publishing itself writes no value."""

    llm_batch: LLMBatchResource

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Refuse: the published table is written by accounting, never by an asset's return."""
        raise dg.DagsterInvariantViolationError(
            f"{context.asset_key.to_user_string()} returns no value: its table is in the store."
        )

    def load_input(self, context: dg.InputContext) -> Any:
        """The published table of each partition that the downstream depends on.

        Returns:
            One table, or a dict of them by dataset where the downstream spans several.

        Raises:
            Failure: for a dataset of which nothing is published.
        """
        from llm_batch_assets.defs.report import published_table

        upstream = context.upstream_output
        tenant = (upstream.definition_metadata if upstream else {}).get(TENANT_METADATA, "")
        annotation = context.dagster_type.typing_type
        datasets = list(context.asset_partition_keys) if context.has_asset_partitions else []
        with failures(), self.llm_batch.open() as deps:
            tables = {
                dataset: published_table(str(tenant), context.asset_key.path[0], dataset, deps)
                for dataset in datasets
            }
        if len(tables) == 1:
            return as_annotated(next(iter(tables.values())), annotation)
        import pyarrow as pa

        # Spanning partitions, the input is a dict: its annotation names the tables inside.
        kind = pa.Table if "Table" in str(annotation) else None
        return {dataset: as_annotated(table, kind) for dataset, table in tables.items()}
