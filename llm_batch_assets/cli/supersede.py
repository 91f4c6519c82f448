"""``supersede``: the next revision of a dataset, with what was accepted carried over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from llm_batch_assets.cli.person import decision_options, format_option, open_as, print_outcome, who

if TYPE_CHECKING:
    from llm_batch_assets.deps import Deps
    from llm_batch_assets.engine import Outcome
    from llm_batch_assets.engine.superseding import OpenWork
    from llm_batch_assets.workload import Workload


@click.command("supersede")
@click.argument("workload", type=click.Path(path_type=Path))
@click.argument("dataset")
@click.option(
    "--input",
    "input_file",
    required=True,
    type=click.Path(path_type=Path),
    help="All records of the dataset: Parquet, CSV or JSONL.",
)
@click.option("--cancel", is_flag=True, help="Cancel what the old revision has at the provider.")
@click.option(
    "--pay-again",
    is_flag=True,
    help="Do not wait for questions that are at the provider: ask and pay for them again.",
)
@decision_options
@format_option
def command(
    workload: Path,
    dataset: str,
    input_file: Path,
    cancel: bool,
    pay_again: bool,
    reason: str,
    by: str | None,
    output: str,
) -> int:
    """Freeze DATASET again, as WORKLOAD's next revision: late rows, or a new prompt version.

    Records whose question was accepted before are carried over with their evidence at no cost;
    `run` with the same file then asks the others. If the new revision asks questions that the old
    one has at the provider, this waits until they are collected; killed, the same command
    continues. The published table stays until the new revision is published.
    """
    from llm_batch_assets.workload import Workload

    if cancel and pay_again:
        raise click.UsageError("Give --cancel or --pay-again, not both.")
    open_work: OpenWork = "cancel" if cancel else "pay_again" if pay_again else "wait"
    declared = Workload.from_yaml(workload)
    deps = open_as(who(by))
    print_outcome(_until_open(declared, dataset, input_file, deps, reason, open_work), output)
    return 0


def _until_open(
    workload: Workload,
    dataset: str,
    input_file: Path,
    deps: Deps,
    reason: str,
    open_work: OpenWork,
) -> Outcome:
    """Ask until the old revision's open work is collected; it is polled meanwhile."""
    import time

    from llm_batch_assets.engine.gathering import collect_all
    from llm_batch_assets.engine.superseding import supersede
    from llm_batch_assets.errors import NotReady
    from llm_batch_assets.manifest import open_source

    versions = (workload.source_version,) if workload.source_version else ()
    while True:
        source = open_source(input_file, key_columns=workload.key_columns + versions)
        try:
            return supersede(
                workload,
                source.batches,
                dataset=dataset,
                deps=deps,
                submitter=deps.worker.actor,
                reason=reason,
                text_keys=source.text_keys,
                open_work=open_work,
            )
        except NotReady as wait:
            click.echo(str(wait), err=True)
        while collect_all(deps, workload=workload.name, dataset=dataset).exit_code:
            time.sleep(deps.settings.poll_interval)
