"""``abandon``: a person gives a submission up."""

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


@click.command("abandon")
@click.argument("target")
@decision_options
@workload_option
@format_option
def command(target: str, reason: str, by: str | None, workload: str | None, output: str) -> int:
    """Give TARGET (a shard or a submission) up: its open records go to human_review.

    Nothing more of it is sent or waited for. A batch of it is cancelled; rows that arrive before
    the dataset closes still count.
    """
    from llm_batch_assets.engine import people

    print_outcome(people.abandon(open_as(who(by)), target, reason, workload=workload), output)
    return 0
