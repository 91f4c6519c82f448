"""``cancel``: a person ends a dataset. What is paid for is still collected and accepted."""

from __future__ import annotations

import click

from llm_batch_assets.cli.person import (
    decision_options,
    format_option,
    open_as,
    print_outcome,
    who,
    workload_option,
)


@click.command("cancel")
@click.argument("dataset")
@decision_options
@workload_option
@format_option
def command(dataset: str, reason: str, by: str | None, workload: str | None, output: str) -> int:
    """Cancel DATASET: nothing of it is sent, sent again or published from now on.

    Live batches are cancelled at the provider; what it does not answer is asked again by
    whatever loop runs. Rows that still arrive are paid for: they are collected and accepted.
    Doing it again changes nothing.
    """
    from llm_batch_assets.engine.cancelling import cancel

    outcome = cancel(open_as(who(by)), dataset=dataset, reason=reason, workload=workload)
    print_outcome(outcome, output)
    return 0
