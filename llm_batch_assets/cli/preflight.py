"""``llm-batch-assets preflight``: judge a request file, without a ledger and without a network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from llm_batch_assets.errors import InputError
from llm_batch_assets.types import ProviderName

if TYPE_CHECKING:
    from llm_batch_assets.manifest.preflight import Verdict

_REFUSED = 4


@click.command(short_help="Judge a request file before it is uploaded.")
@click.option(
    "--provider",
    required=True,
    type=click.Choice(["openai", "anthropic", "gemini", "bedrock"]),
    help="Whose batch it is for (Azure and vLLM take openai's).",
)
@click.option(
    "--requests", "path", required=True, type=click.Path(path_type=Path), help="JSONL request file."
)
@click.option(
    "--metadata", type=click.Path(path_type=Path), help="JSON object of metadata (or tags)."
)
@click.option("--job-name", help="Bedrock's job name.")
@click.option("--client-token", help="Bedrock's client request token.")
@click.option("--model", help="The model every line must name; else what most lines say.")
@click.option("--endpoint", help="The endpoint every line must name; else what most lines say.")
@click.option("--minimum", type=click.IntRange(0), help="Fewest records; else the provider's.")
@click.option("--max-records", type=click.IntRange(1), help="Most records; else the provider's.")
@click.option("--max-bytes", type=click.IntRange(1), help="Most bytes; else the provider's.")
@click.option("--max-inputs", type=click.IntRange(1), help="Most embedding inputs of all lines.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For people, or everything.",
)
def command(
    provider: str,
    path: Path,
    metadata: Path | None,
    form: str,
    **job: Any,
) -> int:
    """Judge a request file before it is uploaded.

    Exit codes: 0 every line may be sent, 4 something must not, 2 the file cannot be read.
    """
    from llm_batch_assets.manifest.preflight import JobFacts, judge

    facts = JobFacts(metadata={} if metadata is None else _metadata(metadata), **job)
    try:
        with path.open("rb") as file:
            verdict = judge(cast(ProviderName, provider), file, facts)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    if form == "json":
        _write_json(verdict)
    else:
        _write_table(verdict)
    return 0 if verdict.ok else _REFUSED


def _metadata(path: Path) -> dict[str, Any]:
    from llm_batch_assets.manifest.rules import loads_slowly

    try:
        found = loads_slowly(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: is no JSON, or repeats a key.") from None
    if isinstance(found, dict) and isinstance(found.get("metadata"), dict):
        found = found["metadata"]
    if not isinstance(found, dict):
        raise InputError(f"{path}: write a JSON object of metadata.")
    return found


def _write_json(verdict: Verdict) -> None:
    found = {
        "accept": list(verdict.accept),
        "reject": [
            {"line": line.line, "id": line.id, "reason": line.reason} for line in verdict.reject
        ],
        "reject_job": list(verdict.reject_job),
        "collisions": [list(group) for group in verdict.collisions],
    }
    # ASCII only: an id may hold a lone surrogate.
    click.echo(json.dumps(found))


def _write_table(verdict: Verdict) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    if verdict.reject:
        table = Table("line", "id", "reason")
        for line in verdict.reject:
            shown = "" if line.id is None else ascii(line.id)[:70]
            table.add_row(str(line.line), Text(shown), line.reason)
        console.print(table)
    for fault in verdict.reject_job:
        key = "" if fault["key"] is None else f" {ascii(fault['key'])[:70]}"
        console.print(Text(f"whole file:{key} {fault['reason']}"))
    for group in verdict.collisions:
        console.print(Text(f"would collide if shortened: {', '.join(map(ascii, group))}"))
    console.print(
        f"{len(verdict.accept)} accepted, {len(verdict.reject)} rejected, "
        f"{len(verdict.reject_job)} faults of the whole file"
    )
