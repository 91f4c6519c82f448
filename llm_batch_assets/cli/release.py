"""``release``: what was on hold goes again."""

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


@click.command("release")
@click.argument("target")
@decision_options
@workload_option
@format_option
def command(target: str, reason: str, by: str | None, workload: str | None, output: str) -> int:
    """Release TARGET (a dataset, a shard or a submission): what was kept back goes again.

    That includes records that a shard holds for a quota or an account, and records whose results
    are gone: those are paid for again.
    """
    from llm_batch_assets.engine import people

    print_outcome(people.release(open_as(who(by)), target, reason, workload=workload), output)
    return 0
