"""Refusals of the engine as Dagster failures: one sentence, and no retry of a closed gate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from llm_batch_assets.errors import DriftError, LLMBatchError


def as_failure(error: LLMBatchError) -> dg.Failure:
    """The error's own sentence; what it knows of effects and counts as metadata."""
    facts = {"error": type(error).__name__, "effect": error.effect}
    for name in ("added", "changed", "removed", "http_status", "code", "request_id"):
        value = getattr(error, name, None)
        if value is not None:
            facts[name] = value
    text = str(error)
    if isinstance(error, DriftError):
        # No price is known here: silence would read as "free".
        facts["price"] = "unknown"
        asked = error.added + error.changed
        text += f" What asking {asked} records again would cost is unknown."
    return dg.Failure(description=text, metadata=facts, allow_retries=False)


@contextmanager
def failures() -> Iterator[None]:
    """Turn a refusal inside the block into a Failure that is not tried again."""
    try:
        yield
    except LLMBatchError as error:
        raise as_failure(error) from error


def require_one_partition(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> str:
    """The dataset of this run.

    Raises:
        Failure: for a range run: datasets are judged one at a time.
    """
    partitions = list(context.op_execution_context.partition_keys)
    if len(partitions) != 1:
        raise dg.Failure(
            description=(
                f"This run covers {len(partitions)} datasets, from {partitions[0]} to "
                f"{partitions[-1]}. Materialize one dataset per run."
            ),
            allow_retries=False,
        )
    return partitions[0]
