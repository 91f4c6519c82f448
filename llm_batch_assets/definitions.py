"""This code location: the example workload on the standard library's docstrings.

``workspace.yaml`` and ``[tool.dg.project]`` point here.
"""

# No `from __future__ import annotations`: Dagster reads the context's annotation as it stands.
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

if TYPE_CHECKING:
    import pyarrow as pa

# Partitioned checks are a preview API and backfill policies a beta parameter: on purpose.
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
warnings.filterwarnings("ignore", category=dg.BetaWarning)

from llm_batch_assets.defs import build_llm_batch_assets, on_published  # noqa: E402
from llm_batch_assets.workload import Workload  # noqa: E402

WORKLOAD_FILE = Path(
    os.environ.get("LLM_BATCH_EXAMPLE_WORKLOAD")
    or Path(__file__).parent / "examples" / "docstring_summaries.yaml"
)
"""The demo points this at a copy with smaller shards and a shorter backoff."""

workload = Workload.from_yaml(WORKLOAD_FILE)
python_versions = dg.DynamicPartitionsDefinition(name=f"{workload.name}__dataset")


def standard_library(dataset: str) -> "Iterator[pa.RecordBatch]":
    """The documented names of the running Python's standard library."""
    from llm_batch_assets.examples.stdlib import Reading, read_docstrings

    limit = os.environ.get("LLM_BATCH_EXAMPLE_RECORDS")
    reading = Reading()
    yield from read_docstrings(dataset, limit=int(limit) if limit else None, reading=reading)
    dg.get_dagster_logger().info(
        f"{reading.rows} documented names in {reading.files} files; "
        f"{len(reading.repeated)} repeated names left out."
    )


@dg.asset(
    ins={"accepted": dg.AssetIn([workload.name, "accepted_results"])},
    partitions_def=python_versions,
    automation_condition=on_published(),
    group_name=workload.name,
    kinds={"pandas"},
    description="How often each topic occurs in each top-level module.",
)
def topics(accepted: Any) -> dg.MaterializeResult:
    """Count the topics of the published answers; wakes when a new version is published.

    ``accepted`` is a DataFrame. Dagster resolves annotations when definitions load, so naming
    ``pd.DataFrame`` here would load pandas for every run; ``Any`` is given one as well.
    """
    modules = accepted["business_key"].str.split(".").str[0].rename("module")
    counts = accepted.groupby([modules, "topic"]).size().rename("names").reset_index()
    top = counts.groupby("topic")["names"].sum().sort_values(ascending=False)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(counts),
            "modules": counts["module"].nunique(),
            "topics": dg.MetadataValue.json({str(t): int(n) for t, n in top.items()}),
        }
    )


defs = dg.Definitions.merge(
    build_llm_batch_assets(workload, source=standard_library, partitions_def=python_versions),
    dg.Definitions(assets=[topics]),
)
