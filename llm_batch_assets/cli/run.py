"""``run``: the whole life of one dataset in one process. Killed and started again it continues."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from llm_batch_assets.cli.loop import Result

UNTIL = click.Choice(["closed", "submitted"])


@click.command("run")
@click.argument("workload", type=click.Path(path_type=Path))
@click.option(
    "--input",
    "input_file",
    required=True,
    type=click.Path(path_type=Path),
    help="The records: Parquet, CSV or JSONL.",
)
@click.option("--dataset", required=True, help="The dataset's key, such as 2026-11-30.")
@click.option("--poll-interval", default=None, help="Between two looks at a batch (30s).")
@click.option(
    "--settle-interval",
    default=None,
    help="How long a create may stay invisible in the provider's list (15m, 60s on loopback).",
)
@click.option("--until", type=UNTIL, default="closed", show_default=True)
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text")
def command(
    workload: Path,
    input_file: Path,
    dataset: str,
    poll_interval: str | None,
    settle_interval: str | None,
    until: str,
    output: str,
) -> int:
    """Take WORKLOAD's records through the provider's batch API until the dataset is closed.

    State lives under LLM_BATCH_HOME; the same command again continues where it was killed. The
    last line of stdout is the result.
    """
    from llm_batch_assets.cli.loop import run_dataset

    result = run_dataset(
        workload,
        input_file,
        dataset,
        poll_interval=poll_interval,
        settle_interval=settle_interval,
        until=until,
        quiet=not sys.stderr.isatty(),
    )
    _print(result, output)
    return result.exit_code


def _print(result: Result, output: str) -> None:
    if output == "json":
        import json

        click.echo(json.dumps(result.as_dict()))
        return
    for line in result.table():
        click.echo(line)
    click.echo(result.line())
