"""``adopt``: bind a batch by a person's word, or rebuild a ledger that is lost or a day old."""

from __future__ import annotations

import click

from llm_batch_assets.cli.person import (
    format_option,
    open_as,
    print_json,
    print_outcome,
    who,
    workload_option,
)


@click.command("adopt")
@click.argument("target", required=False)
@click.option("--batch", default=None, help="The provider's id of the batch that is TARGET's.")
@click.option("--all", "everything", is_flag=True, help="Rebuild from the store and the providers.")
@click.option("--reason", required=True, help="Why; logged with the decision.")
@click.option("--by", default=None, help="Who decides (LLM_BATCH_SUBMITTER, or you).")
@workload_option
@format_option
def command(
    target: str | None,
    batch: str | None,
    everything: bool,
    reason: str,
    by: str | None,
    workload: str | None,
    output: str,
) -> int:
    """Bind BATCH to TARGET, an uncertain shard or submission; or rebuild the ledger with --all.

    --all takes a ledger that is empty or a day old, the store that it was made with (its
    deployment's name is needed too: keep the file `deployment`, or set LLM_BATCH_DEPLOYMENT) and
    the providers' lists. What they show is bound, what they do not show is looked for twice before
    anything is sent. Run it when no other worker runs.
    """
    if everything == (target is not None) or everything == (batch is not None):
        raise click.UsageError("Give TARGET and --batch, or --all.")
    deps = open_as(who(by))
    if target is not None and batch is not None:
        from llm_batch_assets.engine.people import adopt

        print_outcome(adopt(deps, target, batch, reason, workload=workload), output)
        return 0
    from llm_batch_assets.engine.rebuilding import rebuild

    rebuilt = rebuild(deps, reason=reason)
    if output == "json":
        print_json(rebuilt.as_dict())
    else:
        for line in rebuilt.lines():
            click.echo(line)
    return rebuilt.exit_code
