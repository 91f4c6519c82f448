"""The command group: commands are imported only when they are run."""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper

import click

from llm_batch_assets.errors import LLMBatchError

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "The whole life of one dataset in one process."),
    "reconcile": ("reconcile", "Result files in, the eight sets out: no ledger, no network."),
    "preflight": ("preflight", "Judge a request file before it is uploaded."),
    "verify": ("verify", "Recompute a closure from stored bytes alone."),
    "capabilities": ("capabilities", "What each provider's batch API offers."),
    "simulate": ("simulate", "A local server that speaks the batch APIs, with faults and a meter."),
    "demo": ("demo", "Simulator, Dagster and the example workload, to closure."),
    "collect": ("collect", "Fetch the results of everything that has ended."),
    "cancel": ("cancel", "End a dataset; what is paid for is still collected."),
    "publish": ("publish", "Publish a closed dataset, if need be by a person's word."),
    "status": ("status", "What is open, what it waits for, and what releases it."),
    "show": ("show", "Why a dataset, shard or record is where it is."),
    "hold": ("hold", "Keep a dataset or a shard from being sent."),
    "release": ("release", "Let what is on hold go again."),
    "abandon": ("abandon", "Give a submission up; its records go to human review."),
    "supersede": ("supersede", "Freeze a dataset again; what was accepted is carried over."),
    "sweep": ("sweep", "Hold the providers' batches of this deployment against the ledger."),
    "adopt": ("adopt", "Bind a batch to an uncertain submission, or rebuild a lost ledger."),
    "ledger": ("ledger", "`ledger upgrade`: bring the database to this program's schema."),
}
"""Command -> (module in ``cli``, one line of help); the module's ``command`` is run."""


class LazyGroup(click.Group):
    """Lists commands without importing them, so that ``--help`` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one command that is asked for."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"llm_batch_assets.cli.{COMMANDS[cmd_name][0]}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="llm_batch_assets")
def group() -> None:
    """LLM batch inference with every record accounted for.

    Exit codes: 0 done, or closed and published; 3 open; 4 refused by a gate or closed but
    withheld; 2 wrong use or unreadable input; 1 our fault.
    """


def main(argv: list[str] | None = None) -> None:
    """Entry point of the console script."""
    if isinstance(sys.stdout, TextIOWrapper):
        # An id or a message may hold what a terminal's or a pipe's encoding cannot write.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = group.main(args=argv, standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except LLMBatchError as error:
        click.echo(f"{error}", err=True)
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)
