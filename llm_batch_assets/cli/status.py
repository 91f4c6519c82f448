"""``status``: what is open, what it waits for, what releases it and until when."""

from __future__ import annotations

import click

from llm_batch_assets.cli.person import format_option, open_as, print_json, workload_option


@click.command("status")
@click.argument("dataset", required=False)
@workload_option
@click.option("--all-shards", is_flag=True, help="Also the shards that are done.")
@format_option
def command(dataset: str | None, workload: str | None, all_shards: bool, output: str) -> int:
    """Show all open datasets, or DATASET whether it is open or not.

    Exits 3 when something is open or a result deadline is nearer than three days, else 0.
    """
    from llm_batch_assets.engine.status import status, table
    from llm_batch_assets.errors import InputError

    found = status(open_as("status"), dataset=dataset, workload=workload)
    if dataset is not None and not found.datasets:
        raise InputError(f"The ledger has no dataset {dataset}.")
    if output == "json":
        print_json(found.as_dict())
    else:
        for line in table(found, every_shard=all_shards):
            click.echo(line)
        if not found.datasets:
            click.echo("Nothing is open.")
    return found.exit_code
