"""``ledger``: the database itself."""

from __future__ import annotations

import click

from llm_batch_assets.cli.person import format_option, print_json


@click.group("ledger")
def command() -> None:
    """Look after the ledger's database."""


@command.command("upgrade")
@format_option
def upgrade(output: str) -> int:
    """Create the ledger, or bring it to this program's schema; other workers may keep running."""
    from sqlalchemy.engine import make_url

    from llm_batch_assets.ledger import Ledger
    from llm_batch_assets.settings import open_home

    home = open_home()
    ledger = Ledger(home.ledger_url, deployment=home.deployment)
    before = ledger.schema_version()
    ledger.upgrade()
    said = {
        "ledger": make_url(home.ledger_url).render_as_string(hide_password=True),
        "deployment": home.deployment,
        "before": before,
        "now": ledger.schema_version(),
    }
    if output == "json":
        print_json(said)
    else:
        click.echo(f"{said['ledger']}: {said['before'] or 'empty'} -> {said['now']}")
    return 0
