"""``collect``: fetch everything that has ended. From cron it needs nothing else to be running."""

from __future__ import annotations

import click

from llm_batch_assets.cli.person import format_option, open_as, print_json, workload_option


@click.command("collect")
@click.argument("dataset", required=False)
@workload_option
@format_option
def command(dataset: str | None, workload: str | None, output: str) -> int:
    """Collect the results of every batch that has ended, of all datasets or of DATASET.

    Nothing is sent or published. Exits 3 while batches are running or results could not be
    fetched, else 0.
    """
    from dataclasses import asdict

    from llm_batch_assets.engine.gathering import collect_all

    gathered = collect_all(open_as("collect"), workload=workload, dataset=dataset)
    if output == "json":
        print_json(
            {
                "collected": [
                    {"shard": one.target, "state": one.state, "facts": one.facts}
                    for one in gathered.collected
                ],
                "faults": gathered.faults,
                "running": gathered.running,
                "deadlines": [asdict(one) for one in gathered.deadlines],
            }
        )
        return gathered.exit_code
    for outcome in gathered.collected:
        click.echo(outcome.message)
    for shard, why in gathered.faults.items():
        click.echo(f"{shard}: {why}", err=True)
    click.echo(
        f"collected={len(gathered.collected)} running={len(gathered.running)} "
        f"faults={len(gathered.faults)} near_deadlines={len(gathered.deadlines)}"
    )
    return gathered.exit_code
