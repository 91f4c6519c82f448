"""``demo``: simulator, Dagster and the example workload, from source to published."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from llm_batch_assets.demo.graphql import Client, Run
    from llm_batch_assets.demo.processes import Supervisor
    from llm_batch_assets.demo.stack import DemoOptions, Stack
    from llm_batch_assets.demo.watch import Result

WAKE_SECONDS = 40.0
"""How long the downstream asset may take to wake once its input is published."""


class Records(click.ParamType):
    """A number of records, or ``all``."""

    name = "n|all"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """At least five, so that there are five shards."""
        if value == "all":
            return "all"
        text = str(value)
        if not text.isdigit() or int(text) < 5:
            self.fail(f"{value!r}: write a number of at least 5, or all.", param, ctx)
        return int(text)


@click.command("demo")
@click.option(
    "--provider",
    type=click.Choice(["openai", "anthropic", "gemini", "bedrock"]),
    default="openai",
    show_default=True,
    help="Whose batch API is simulated.",
)
@click.option("--records", type=Records(), default=600, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--faults",
    type=click.Choice(["none", "default", "hostile"]),
    default="default",
    show_default=True,
    help="What the simulated provider does wrong.",
)
@click.option("--keep-ui", is_flag=True, help="Leave the UI up at the end, until Ctrl-C.")
@click.option("--dev", is_flag=True, help="Only start everything, to play with, until Ctrl-C.")
@click.option("--port", type=int, help="Port of the UI; by default a free one.")
@click.option("--timeout", type=float, default=900.0, show_default=True, help="Seconds.")
def command(
    provider: str,
    records: int | str,
    seed: int,
    faults: str,
    keep_ui: bool,
    dev: bool,
    port: int | None,
    timeout: float,
) -> int:
    """Take real input through a simulated batch provider to a published table, with Dagster.

    Offline, without a key, in a folder of its own. The last line of stdout says how the set
    closed and what the provider's own meter counted. Exit code 0 only if it closed and was
    published.
    """
    import shutil
    import tempfile

    from llm_batch_assets.demo.processes import Supervisor
    from llm_batch_assets.demo.stack import DemoOptions, start_stack

    wanted = None if records == "all" else int(records)
    options = DemoOptions(wanted, seed, faults, provider=provider)
    started = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="llm-batch-demo-")).resolve()
    found = None
    try:
        with Supervisor() as supervisor:
            _say(f"Starting simulator and Dagster in {home}")
            stack = start_stack(supervisor, home, options, web_port=port)
            _say(f"UI: {stack.web}   simulator: {stack.origin}")
            if dev:
                _prepare_to_play(supervisor, stack)
                return _until_interrupted(supervisor)
            found = _run(supervisor, stack, options, started, timeout)
            click.echo(found.table())
            click.echo(found.line())
            if keep_ui:
                _say(f"UI: {stack.web}   Ctrl-C stops it.")
                _until_interrupted(supervisor)
    except KeyboardInterrupt:
        _say("Stopped.")
        return 130
    finally:
        if dev or (found is not None and found.ok):
            shutil.rmtree(home, ignore_errors=True)
        else:
            _say(f"What it wrote is in {home} (logs in output/).")
    if found.ok:
        return 0
    return 3 if not found.closed else 4


def _prepare_to_play(supervisor: Supervisor, stack: Stack) -> None:
    """Add the dataset's partition and say what to click."""
    from llm_batch_assets.demo.graphql import Client
    from llm_batch_assets.demo.stack import LOCATION
    from llm_batch_assets.examples.stdlib import dataset_key

    client = Client(stack.web, LOCATION)
    supervisor.wait_for("The code location", client.location_loaded, timeout=120)
    client.add_partition("docstring_summaries__dataset", dataset_key())
    _say(f"Materialize {dataset_key()} here, then watch the sensors; Ctrl-C stops it all:")
    _say(f"{stack.web}/assets/docstring_summaries/manifest?view=partitions")


def _run(
    supervisor: Supervisor, stack: Stack, options: DemoOptions, started: float, timeout: float
) -> Result:
    from llm_batch_assets.demo import watch
    from llm_batch_assets.demo.graphql import Client
    from llm_batch_assets.demo.stack import LOCATION
    from llm_batch_assets.examples.stdlib import dataset_key
    from llm_batch_assets.ledger import Ledger
    from llm_batch_assets.settings import open_home
    from llm_batch_assets.workload import Workload

    workload = Workload.from_yaml(stack.home / "docstring_summaries.yaml")
    dataset = dataset_key()
    client = Client(stack.web, LOCATION)
    supervisor.wait_for("The code location", client.location_loaded, timeout=120)
    client.add_partition(f"{workload.name}__dataset", dataset)
    client.materialize([workload.name, "manifest"], dataset)
    _say(f"Launched manifest of {dataset}; from here on the sensors do it.")
    home = open_home(stack.env)
    ledger = Ledger(home.ledger_url, deployment=home.deployment)
    ready = supervisor.wait_for(
        "The manifest", lambda: _manifest(client, home.folder, dataset), timeout=180, every=1.0
    )
    assert ready
    seen: dict[str, str] = {}
    failed: set[str] = set()
    end = time.monotonic() + timeout
    while True:
        supervisor.check()
        view = watch.find(ledger, workload.tenant_id, workload.name, dataset)
        assert view is not None
        for line in watch.changes(seen, view):
            _say(f"{time.monotonic() - started:6.1f} s  {line}")
        for run in client.runs():
            if run.status == "FAILURE" and run.run_id not in failed:
                failed.add(run.run_id)
                _say(
                    f"{time.monotonic() - started:6.1f} s  the run of {_about(run)} failed: "
                    f"{client.failure(run.run_id)}"
                )
        over = view.row.closed_at is not None and view.row.withheld_closure is not None
        if view.row.published_at is not None or over or time.monotonic() > end:
            break
        time.sleep(1.0)
    if view.row.published_at is not None:
        _wait_for_downstream(supervisor, client, workload.name)
    _say_runs(client.runs())
    found = watch.result(view, watch.meter(stack.origin))
    _say(f"{time.monotonic() - started:6.1f} s in all.")
    ledger.close()
    return found


def _manifest(client: Client, home: Path, dataset: str) -> bool | None:
    """True once the manifest's run has ended well.

    Raises:
        GraphQLError: it failed: nothing will happen.
    """
    from llm_batch_assets.demo.graphql import GraphQLError

    first = client.runs()[0]
    if first.status == "FAILURE":
        raise GraphQLError(f"The manifest of {dataset} failed: {client.failure(first.run_id)}")
    return True if first.status == "SUCCESS" else None


def _wait_for_downstream(supervisor: Supervisor, client: Client, workload: str) -> None:
    from llm_batch_assets.demo.processes import NotUpError

    def woken() -> bool | None:
        done = [run for run in client.runs() if "topics" in run.assets]
        return True if done and done[-1].status in ("SUCCESS", "FAILURE") else None

    try:
        supervisor.wait_for("topics", woken, timeout=WAKE_SECONDS, every=1.0)
    except NotUpError as error:
        _say(str(error))


def _say_runs(runs: list[Run]) -> None:
    by_sensor = [run for run in runs if run.by_sensor]
    _say(
        f"{len(runs)} runs: 1 launched here, {len(by_sensor)} asked for by "
        f"{', '.join(sorted({str(run.by_sensor) for run in by_sensor}))}."
    )


def _about(run: Run) -> str:
    partition = run.tags.get("dagster/partition") or run.tags.get(
        "dagster/asset_partition_range_start", ""
    )
    return f"{', '.join(run.assets)} [{partition}]"


def _until_interrupted(supervisor: Supervisor) -> int:
    try:
        while True:
            supervisor.check()
            time.sleep(1.0)
    except KeyboardInterrupt:
        _say("Stopping.")
        return 0


def _say(text: str) -> None:
    click.echo(text, err=True)
    sys.stderr.flush()
