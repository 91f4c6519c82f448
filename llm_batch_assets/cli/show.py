"""``show``: why a dataset, shard, submission or record is where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from llm_batch_assets.cli.person import format_option, open_as, print_json, workload_option


@click.command("show")
@click.argument("target")
@workload_option
@click.option("--dataset", default=None, help="Where to look for a record.")
@format_option
def command(target: str, workload: str | None, dataset: str | None, output: str) -> int:
    """Show what is known of TARGET, from ledger and store alone.

    TARGET is a dataset, a shard (d1/r1/a1/p00000), a submission key, a batch id, or a record by
    its record_id, wire id or business key. Of a record every attempt is shown with the class, the
    rule, and the file, line and offset that give it.
    """
    from llm_batch_assets.engine.showing import show

    found = show(open_as("show"), target, workload=workload, dataset=dataset)
    if output == "json":
        print_json(found)
        return 0
    for line in _lines(found, ""):
        click.echo(line)
    return 0


def _lines(value: Any, indent: str) -> Iterator[str]:
    """An indented outline; what is empty is left out."""
    items = value.items() if isinstance(value, dict) else ((None, one) for one in value)
    for name, one in items:
        if one is None or one == [] or one == {}:
            continue
        label = f"{name}: " if name is not None else "- "
        if isinstance(one, dict | list):
            yield f"{indent}{label}".rstrip()
            yield from _lines(one, indent + "  ")
        else:
            # One line each: what a provider or a source wrote is data here, not layout.
            yield f"{indent}{label}{_plain(one)}"


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if text.isprintable() else repr(text)
