"""``hold``: a person keeps a dataset or a shard from being sent."""

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


@click.command("hold")
@click.argument("target")
@decision_options
@workload_option
@format_option
def command(target: str, reason: str, by: str | None, workload: str | None, output: str) -> int:
    """Keep TARGET (a dataset, a shard or a submission) from being sent until it is released.

    Collecting goes on: what is sent is paid for.
    """
    from llm_batch_assets.engine import people

    print_outcome(people.hold(open_as(who(by)), target, reason, workload=workload), output)
    return 0
