"""``sweep``: every batch of this deployment at the providers, against the ledger."""

from __future__ import annotations

import click

from llm_batch_assets.cli.person import format_option, open_as, print_json, who


@click.command("sweep")
@click.option(
    "--provider",
    "providers",
    multiple=True,
    type=click.Choice(["openai", "anthropic", "gemini", "bedrock"]),
    help="Which to ask (all that the ledger has datasets of).",
)
@click.option(
    "--cancel",
    is_flag=True,
    help="Cancel second batches of bound submissions that are older than lease plus settle.",
)
@click.option("--by", default=None, help="Who decides (LLM_BATCH_SUBMITTER, or you).")
@format_option
def command(providers: tuple[str, ...], cancel: bool, by: str | None, output: str) -> int:
    """Adopt batches of this deployment that nothing is bound to, and report second ones.

    What does not carry this deployment's label is never touched. Exits 3 when something needs a
    person, else 0.
    """
    from llm_batch_assets.engine.sweeping import sweep

    swept = sweep(open_as(who(by)), providers=providers or None, cancel=cancel)
    if output == "json":
        print_json(swept.as_dict())
        return swept.exit_code
    for name in ("adopted", "duplicates", "unknown", "elsewhere"):
        for one in getattr(swept, name):
            state = "cancelled" if one.cancelled else "running" if one.running else "ended"
            click.echo(f"{name}: {one.provider} {one.batch_id} {state} {one.shard_key or '?'}")
            click.echo(f"  {one.why}")
    for provider, why in swept.faults.items():
        click.echo(f"{provider}: {why}", err=True)
    click.echo(
        f"bound={swept.bound} adopted={len(swept.adopted)} duplicates={len(swept.duplicates)} "
        f"unknown={len(swept.unknown)} elsewhere={len(swept.elsewhere)} "
        f"untouched={swept.untouched}"
    )
    return swept.exit_code
