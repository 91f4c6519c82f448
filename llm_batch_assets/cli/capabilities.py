"""``llm-batch-assets capabilities``: what each provider's batch API offers, and who said so."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from llm_batch_assets.wire.capabilities import Cell


_WIDE = 200
"""Columns where the reader is no terminal."""


@click.command(short_help="What each provider's batch API offers.")
@click.option("--provider", type=click.Choice(["openai", "anthropic", "gemini", "bedrock"]))
@click.option("--model", help="Only the rows that speak of this model.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table")
def command(provider: str | None, model: str | None, form: str) -> int:
    """What each provider's batch API offers: limits, features, source and last live test."""
    from fnmatch import fnmatchcase

    from llm_batch_assets.wire.capabilities import cells

    found = [
        cell
        for cell in cells()
        if (provider is None or cell.provider == provider)
        and (model is None or fnmatchcase(model, cell.model))
    ]
    if form == "json":
        click.echo(json.dumps([_row(cell) for cell in found]))
    else:
        _write_table(found)
    return 0


def _row(cell: Cell) -> dict[str, object]:
    return {
        "provider": cell.provider,
        "model": cell.model,
        "endpoint": cell.endpoint,
        "limits": dict(cell.limits),
        "features": sorted(cell.features),
        "learned_from": cell.learned_from,
        "learned_on": cell.learned_on.isoformat(),
        "last_tested": None if cell.last_tested is None else cell.last_tested.isoformat(),
    }


def _write_table(found: list[Cell]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in ("provider", "model", "endpoint", "limits", "features", "learned", "tested"):
        table.add_column(name, overflow="fold")  # nothing is cut off
    for cell in found:
        limits = ", ".join(f"{name} {value:,}" for name, value in cell.limits.items())
        table.add_row(
            cell.provider,
            Text(cell.model),
            cell.endpoint,
            limits,
            ", ".join(sorted(cell.features)),
            f"{cell.learned_on} {cell.learned_from}",
            "never" if cell.last_tested is None else str(cell.last_tested),
        )
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE).print(table)
