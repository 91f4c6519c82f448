"""``llm-batch-assets reconcile``: result files in, the eight sets out. No ledger, no network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from llm_batch_assets.reconcile.model import Account, RawFile
    from llm_batch_assets.types import BatchView, ResultKind

_WIDE = 140
"""Columns for a pipe or a file, so that nothing is folded that a terminal would show."""
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("reconcile")
@click.option(
    "--provider",
    type=click.Choice(["openai", "anthropic", "gemini", "bedrock"]),
    required=True,
    help="Whose files these are (Azure and vLLM write openai's, Vertex gemini's).",
)
@click.option("--expected", type=_FILE, required=True, help="The manifest's ids, one a line.")
@click.option("--status", type=_FILE, help="Polled job objects, a JSON array, oldest first.")
@click.option("--results", type=_FILE, multiple=True, help="A result file; may be repeated.")
@click.option("--errors", type=_FILE, multiple=True, help="An error file; may be repeated.")
@click.option("--bedrock-manifest", type=_FILE, help="Bedrock's manifest.json.out.")
@click.option("--schema", type=_FILE, help="JSON Schema of an answer; absent: any text.")
@click.option(
    "--answer",
    type=click.Choice(["auto", "json", "text", "tool", "embedding"]),
    default="auto",
    show_default=True,
    help="What an answer is.",
)
@click.option(
    "--inputs-per-record",
    type=_FILE,
    help="JSON: id -> number of embedding inputs; then an answer is vectors.",
)
@click.option("--model", help="The model that was asked for.")
@click.option("--download-receipt", type=_FILE, help="JSON: file name -> what is known of it.")
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Which attempt this job is.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="After so many a record is exhausted.",
)
@click.option(
    "--format",
    "style",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For people, or everything.",
)
def command(
    provider: str,
    expected: Path,
    status: Path | None,
    results: tuple[Path, ...],
    errors: tuple[Path, ...],
    bedrock_manifest: Path | None,
    schema: Path | None,
    answer: Any,
    inputs_per_record: Path | None,
    model: str | None,
    download_receipt: Path | None,
    attempt: int,
    max_attempts: int,
    style: str,
) -> int:
    """Account for one job's result files.

    Exit codes: 0 the job is accounted for (closed), 3 something is open, 2 unreadable input.
    """
    from llm_batch_assets.reconcile.accounting import account
    from llm_batch_assets.reconcile.model import Expected, Rules
    from llm_batch_assets.reconcile.report import report

    receipts = _json(download_receipt, dict) if download_receipt else {}
    views, inline = _views(provider, status)
    raws = [
        *(_raw(path, "results", receipts) for path in results),
        *(_raw(path, "errors", receipts) for path in errors),
        *inline,
    ]
    if bedrock_manifest:
        raws.append(_raw(bedrock_manifest, "bedrock_manifest", receipts))
    rules = Rules(
        provider=provider,
        # Who counts inputs has asked for embeddings.
        answer="embedding" if inputs_per_record and answer == "auto" else answer,
        schema=_json(schema, (dict, bool)) if schema else None,
        model=model,
        attempt=attempt,
        max_attempts=max_attempts,
        inputs_per_record=_counts(inputs_per_record) if inputs_per_record else None,
    )
    found = account(Expected(_ids(expected)), rules, raws, views)
    if style == "json":
        click.echo(json.dumps(report(found)))
    else:
        _table(found, report(found))
    return 0 if found.closed else 3


def _ids(path: Path) -> list[str]:
    from llm_batch_assets.errors import InputError

    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error}.") from None
    ids = [line.rstrip("\r") for line in text.split("\n")]
    return [line for line in ids if line]


def _json(path: Path, kind: Any) -> Any:
    from llm_batch_assets.errors import InputError
    from llm_batch_assets.wire.strict import loosely

    try:
        value = loosely(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}.") from None
    if not isinstance(value, kind):
        raise InputError(f"{path} holds no JSON of the expected kind.")
    return value


def _counts(path: Path) -> dict[str, int]:
    from llm_batch_assets.errors import InputError

    found: dict[str, int] = _json(path, dict)
    for wire_id, count in found.items():
        if type(count) is not int or count < 1:
            raise InputError(f"{path}: write a number of inputs from 1 on for {wire_id!a}.")
    return found


def _views(provider: str, path: Path | None) -> tuple[list[BatchView], list[RawFile]]:
    """The looks, and the rows that a Gemini job carries inline.

    A look that found no job, but an error object, is a failed look: it changes nothing (field
    reports B08, B51), and where no look found one, nothing is known of the job (B09).
    """
    from llm_batch_assets.errors import InputError
    from llm_batch_assets.reconcile.model import RawFile
    from llm_batch_assets.wire.readers import wire_of

    if path is None:
        return [], []
    wire = wire_of(provider)
    objects = _json(path, (list, dict))
    objects = objects if isinstance(objects, list) else [objects]
    if not objects or not all(isinstance(item, dict) for item in objects):
        raise InputError(f"{path} holds no job objects.")
    looks = [(place, wire.read_batch(item)) for place, item in enumerate(objects)]
    looks = [(place, view) for place, view in looks if view.batch_id or view.raw_status]
    inline: list[RawFile] = []
    if wire.inline_rows is not None and looks:
        rows = wire.inline_rows(path.read_bytes(), looks[-1][0])
        if rows is not None:
            inline.append(RawFile.of(f"{path}:inlinedResponses", "results", rows))
    return [view for _, view in looks], inline


def _raw(path: Path, kind: ResultKind, receipts: dict[str, Any]) -> RawFile:
    from llm_batch_assets.reconcile.model import RawFile
    from llm_batch_assets.reconcile.receipts import whole_by_note

    data = path.read_bytes()
    return RawFile.of(str(path), kind, data, whole=whole_by_note(receipts.get(path.name), data))


def _table(found: Account, facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def _shown(cell: object) -> Text:
        """Text, not str: nothing of a provider's is rendered as markup, or moves the cursor."""
        text = "" if cell is None else str(cell)
        return Text("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))

    wide = None if sys.stdout.isatty() else _WIDE
    console = Console(file=sys.stdout, highlight=False, width=wide)
    counts = Table(title="Sets")
    counts.add_column("set")
    counts.add_column("records", justify="right")
    for name, ids in facts["sets"].items():
        counts.add_row(name, str(len(ids)))
    for name in ("unqualified", "hold", "exhausted", "in_flight", "duplicate_identical"):
        if facts[name]:
            counts.add_row(f"  {name}", str(len(facts[name])))
    console.print(counts)
    why = Table(title="Why")
    for name in ("id", "class", "reason", "rule", "file:line"):
        why.add_column(name, overflow="fold")
    open_rows = [pair for pair in facts["reasons"].items() if pair[1]["class"] != "succeeded"]
    for wire_id, row in open_rows[:50]:
        where = None if row["file"] is None else f"{Path(row['file']).name}:{row['line']}"
        cells = (wire_id, row["class"], row["reason"], row["rule"], where)
        why.add_row(*map(_shown, cells))
    for anomaly in found.anomalies[:50]:
        where = f"{Path(anomaly.name).name}:{anomaly.line}"
        why.add_row(*map(_shown, (anomaly.id, anomaly.kind, anomaly.reason, None, where)))
    if why.row_count:
        console.print(why)
    if (more := len(open_rows) + len(found.anomalies) - why.row_count) > 0:
        click.echo(f"{more} more rows: --format json shows all.", err=True)
    state = "closed" if facts["closed"] else "open"
    console.print(Text(f"{state}; next: {', '.join(facts['next']) or 'nothing'}"))
    for warning in facts["warn"]:
        click.echo(f"warning: {warning}", err=True)
