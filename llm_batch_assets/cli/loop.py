"""The command line's loop over the same controller and engine that Dagster calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from llm_batch_assets import controller
from llm_batch_assets.cli.meter import read_paid_twice
from llm_batch_assets.cli.reach import check_reachable
from llm_batch_assets.deps import Deps
from llm_batch_assets.effects import effects_from_env
from llm_batch_assets.engine import execute, freeze, open_deps, submit_next
from llm_batch_assets.engine.holding import held_records
from llm_batch_assets.engine.opening import process_holder
from llm_batch_assets.engine.status import iso
from llm_batch_assets.errors import (
    DownloadError,
    GateClosed,
    GateFault,
    InputError,
    LeaseLost,
    NotReady,
    ProviderError,
    TransitionRefused,
)
from llm_batch_assets.ledger import views
from llm_batch_assets.ledger.states import SENDABLE
from llm_batch_assets.ledger.views import RevisionView
from llm_batch_assets.ledger.worker import Worker
from llm_batch_assets.manifest import open_source
from llm_batch_assets.settings import seconds
from llm_batch_assets.workload import Workload
from llm_batch_assets.workload.needs import declared_only

IDLE_SECONDS = 0.2
"""The shortest pause between two plans when nothing is due."""

PATIENCE = 60.0
"""A deadline that decides instead of a person is waited for when it is so near, in seconds."""

PASSING = (
    GateClosed,
    GateFault,
    NotReady,
    ProviderError,
    DownloadError,
    LeaseLost,
    TransitionRefused,
)
"""What a loop may meet and go on: each says itself when it is due again."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a dataset; ``paid_twice`` is None where the provider cannot tell.

    ``closure`` is the digest that ``verify --closure`` takes: with it a forged or removed closure
    shows too.
    """

    dataset: str
    revision: int
    closed: bool
    published: bool
    records: int
    accepted: int
    human_review: int
    permanent_failure: int
    cancelled: int
    open: int
    attempts: int
    provider_batches: int
    paid_twice: int | None
    closure: str | None = None
    withheld: str | None = None
    waiting: list[dict[str, Any]] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 closed and published, 3 open, 4 closed but withheld."""
        if not self.closed:
            return 3
        return 0 if self.published else 4

    def as_dict(self) -> dict[str, Any]:
        """For ``--format json``."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def table(self) -> list[str]:
        """The closure table for people."""
        names = ("accepted", "human_review", "permanent_failure", "cancelled", "open")
        rows = [f"{name:<18} {getattr(self, name):>9}" for name in names]
        rows.append(f"{'records':<18} {self.records:>9}")
        if self.closure:
            rows.append(f"closure {self.closure}")
        if self.withheld:
            rows.append(f"withheld: {self.withheld}")
        for item in self.waiting:
            line = f"waiting: {item['target']}: {item['why']}"
            line += f" | {item['release']}" if item["release"] else ""
            line += f" | until {item['until']}" if item["until"] else ""
            rows.append(line)
        return rows

    def line(self) -> str:
        """The last line, as the demo prints it."""
        paid = "unknown" if self.paid_twice is None else self.paid_twice
        return (
            f"closed={str(self.closed).lower()} records={self.records} accepted={self.accepted} "
            f"human_review={self.human_review} permanent_failure={self.permanent_failure} "
            f"cancelled={self.cancelled} attempts={self.attempts} "
            f"provider_batches={self.provider_batches} paid_twice={paid}"
        )


def run_dataset(
    workload_file: Path,
    input_file: Path,
    dataset: str,
    *,
    poll_interval: str | None = None,
    settle_interval: str | None = None,
    until: str = "closed",
    quiet: bool = True,
    env: Mapping[str, str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Freeze a dataset and do its due work until it is closed, or until all of it is submitted.

    Raises:
        InputError: wrong use or unreadable input; nothing was sent.
        GateClosed: a gate refuses the whole dataset.
    """
    env = os.environ if env is None else env
    workload = Workload.from_yaml(workload_file)
    versions = (workload.source_version,) if workload.source_version else ()
    source = open_source(input_file, key_columns=workload.key_columns + versions)
    deps = open_deps(
        Worker(process_holder("cli"), "cli"),
        env=env,
        effects=effects_from_env(env),
        progress=_progress(quiet),
    )
    settings = deps.settings
    if poll_interval is not None:
        settings = replace(settings, poll_interval=seconds(poll_interval, "--poll-interval"))
    if settle_interval is not None:
        settings = replace(settings, settle_interval=seconds(settle_interval, "--settle-interval"))
    deps = replace(deps, settings=settings)
    deps.provider(workload.provider)  # a missing key is said before anything is written
    check_reachable(workload.provider, env)
    submitter = env.get("LLM_BATCH_SUBMITTER") or "cli"
    frozen = freeze(
        workload,
        source.batches,
        dataset=dataset,
        deps=deps,
        submitter=submitter,
        text_keys=source.text_keys,
    )
    if not quiet:
        click.echo(frozen.message, err=True)
    if unenforced := declared_only(workload):
        click.echo(f"Declared, but not enforced yet: {', '.join(unenforced)}.", err=True)
    waiting = drive(workload, dataset, deps, until=until, sleep=sleep)
    return _result(workload, dataset, deps, env, waiting)


def drive(
    workload: Workload,
    dataset: str,
    deps: Deps,
    *,
    until: str = "closed",
    sleep: Callable[[float], None] = time.sleep,
) -> list[dict[str, Any]]:
    """Do what is due until nothing is left to do.

    Returns:
        What still waits for a person, with what releases it; empty when the dataset is done.
    """
    while True:
        snapshot = views.snapshot(deps.ledger, workload=workload.name, dataset=dataset)
        mine = [view for view in snapshot.revisions if view.row.tenant_id == workload.tenant_id]
        if until == "submitted" and all(_submitted(view) for view in mine):
            return []
        if not mine and not snapshot.cleanable:
            return []
        did = False
        for work in controller.due(snapshot, deps.settings):
            if until == "submitted" and work.kind not in {"submit", "look"}:
                continue
            did |= _do(work, deps)
        if did:
            continue
        waiting = controller.waiting(snapshot, deps.settings)
        at = controller.next_due(snapshot, deps.settings)
        if at is None and not controller.due(snapshot, deps.settings):
            at = controller.next_deadline(snapshot)
            if at is None or at - snapshot.now > PATIENCE * 1_000_000:
                return _for_people(waiting, mine, deps)
        pause = IDLE_SECONDS if at is None else (at - snapshot.now) / 1_000_000
        sleep(min(max(pause, IDLE_SECONDS), max(deps.settings.poll_interval, IDLE_SECONDS)))


def _for_people(
    waiting: list[controller.Waiting], views_: list[RevisionView], deps: Deps
) -> list[dict[str, Any]]:
    """What is held, what releases it, and until when a person can decide."""
    found: list[tuple[str, str, str | None, int | None]] = [
        (w.shard_key or w.dataset, w.why, w.release, w.until) for w in waiting
    ]
    for view in views_:
        found += [(h.shard_key, h.why, h.release, h.until) for h in held_records(view, deps)]
    names = ("target", "why", "release", "until")
    return [dict(zip(names, (*rest, iso(until)), strict=True)) for *rest, until in found]


def _do(work: controller.Work, deps: Deps) -> bool:
    """Execute one piece of work; False when it has to wait."""
    try:
        if work.kind == "submit":
            # Whichever is free: other processes may be at this dataset too.
            outcome = submit_next(deps, workload=work.workload, dataset=work.dataset)
            return outcome is not None and outcome.changed
        return execute(work, deps).changed
    except PASSING as error:
        deps.progress(work.kind, f"{work.shard_key or work.dataset}: {error}")
        return False


def _submitted(view: RevisionView) -> bool:
    unsent = SENDABLE | {"SUBMITTING", "UNCERTAIN"}
    return all(shard.state not in unsent for shard in view.shards)


def _result(
    workload: Workload,
    dataset: str,
    deps: Deps,
    env: Mapping[str, str],
    waiting: list[dict[str, Any]],
) -> Result:
    view = views.revision_view(deps.ledger, workload.tenant_id, workload.name, dataset)
    if view is None:
        raise InputError(f"The ledger has no dataset {dataset} of {workload.name}.")
    row = view.row
    return Result(
        dataset=dataset,
        revision=row.revision,
        closed=row.closed_at is not None,
        published=row.published_closure is not None and row.published_closure == row.closure_digest,
        records=row.records,
        accepted=row.accepted or 0,
        human_review=row.human_review or 0,
        permanent_failure=row.permanent_failure or 0,
        cancelled=row.cancelled or 0,
        open=row.records if row.open is None else row.open,
        attempts=view.attempt,
        provider_batches=views.counts(deps.ledger, row.id)["provider_batches"],
        paid_twice=read_paid_twice(workload.provider, env),
        closure=row.closure_digest,
        withheld=row.withheld_reason if row.withheld_closure == row.closure_digest else None,
        waiting=waiting,
    )


def _progress(quiet: bool) -> Callable[[str, str], None]:
    def say(what: str, detail: str) -> None:
        if not quiet:
            click.echo(f"{what:<8} {detail}", err=True)

    return say
