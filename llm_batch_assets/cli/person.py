"""What the commands of people share: who decides, why, and how an outcome is printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from llm_batch_assets.deps import Deps
    from llm_batch_assets.engine import Outcome

F = TypeVar("F", bound=Callable[..., Any])

format_option = click.option(
    "--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True
)
workload_option = click.option(
    "--workload", default=None, help="Its name, where several workloads have this key."
)


def decision_options(command: F) -> F:
    """``--reason`` and ``--by``: every decision of a person is logged with both."""
    command = click.option("--reason", required=True, help="Why; logged with the decision.")(
        command
    )
    return click.option("--by", default=None, help="Who decides (LLM_BATCH_SUBMITTER, or you).")(
        command
    )


def who(by: str | None) -> str:
    """The name that a decision is logged under. It stays in the ledger: no provider sees it."""
    given = by or os.environ.get("LLM_BATCH_SUBMITTER")
    if given:
        return given[:200]
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, in a container
        return "cli"


def open_as(actor: str, *, quiet: bool | None = None) -> Deps:
    """Everything that an engine works with, under a person's name."""
    from llm_batch_assets.engine import open_deps
    from llm_batch_assets.engine.opening import process_holder
    from llm_batch_assets.ledger.worker import Worker

    silent = not sys.stderr.isatty() if quiet is None else quiet

    def say(what: str, detail: str) -> None:
        if not silent:
            click.echo(f"{what:<8} {detail}", err=True)

    return open_deps(Worker(process_holder("cli"), actor), progress=say)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    import json

    click.echo(json.dumps(value, indent=1, sort_keys=True, default=str))


def print_outcome(outcome: Outcome, output: str) -> None:
    """What was done: a sentence for people, every fact for machines."""
    if output == "text":
        click.echo(outcome.message)
        return
    print_json(
        {
            "kind": outcome.kind,
            "target": outcome.target,
            "state": outcome.state,
            "changed": outcome.changed,
            "message": outcome.message,
            "facts": outcome.facts,
        }
    )
