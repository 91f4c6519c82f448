"""``publish``: flip the pointer of a closed dataset, if need be by a person's word."""

from __future__ import annotations

import click

from llm_batch_assets.cli.person import (
    format_option,
    open_as,
    print_outcome,
    who,
    workload_option,
)


@click.command("publish")
@click.argument("dataset")
@click.option("--even-cancelled", is_flag=True, help="Although a person cancelled it.")
@click.option("--even-below-minimum", is_flag=True, help="Although too few are accepted.")
@click.option("--reason", default=None, help="Why; needed with --even-….")
@click.option("--by", default=None, help="Who decides (LLM_BATCH_SUBMITTER, or you).")
@workload_option
@format_option
def command(
    dataset: str,
    even_cancelled: bool,
    even_below_minimum: bool,
    reason: str | None,
    by: str | None,
    workload: str | None,
    output: str,
) -> int:
    """Publish the accepted records of DATASET's newest revision, once it is closed.

    A word given with --even-… holds for exactly the closure that is there now.
    """
    from llm_batch_assets.engine.publishing import publish
    from llm_batch_assets.ledger.lookup import one_dataset

    if (even_cancelled or even_below_minimum) and not (reason or "").strip():
        raise click.UsageError("--even-cancelled and --even-below-minimum need a --reason.")
    deps = open_as(who(by))
    row = one_dataset(deps.ledger, dataset, workload)
    cancelled = row.cancel_requested_at is not None
    # A word about one thing is no word about the other.
    word = reason if (even_cancelled if cancelled else even_below_minimum) else None
    print_outcome(publish(row.id, deps, word=word), output)
    return 0
