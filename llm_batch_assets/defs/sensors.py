"""The sensors of a code location: one tick asks for runs, one polls. Both read the ledger.

Each is one module-level object for all workloads, so that merging two workloads' definitions
finds no duplicate. Both are level-triggered: what a crash lost is still due at the next tick.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from llm_batch_assets.defs import keys
from llm_batch_assets.defs.resources import LLMBatchResource, paid_work_is_off
from llm_batch_assets.defs.spaces import Partitions, shard_spaces

if TYPE_CHECKING:
    from llm_batch_assets.controller import Work, WorkKind
    from llm_batch_assets.defs.dispatch import Ask
    from llm_batch_assets.deps import Deps
    from llm_batch_assets.ledger.rows import SubmissionRow

POLL_SECONDS = 20.0
"""What one tick of the poll sensor may take; Dagster gives a sensor 60 s."""

POLL_KINDS: Final[tuple[WorkKind, ...]] = ("stray", "cancel", "look", "poll", "clean")
"""What the poll sensor does; runs do the other kinds."""

ORPHAN_SECONDS = 120.0
ORPHANS = 2
"""Shards of a workload that this location lacks are collected here, so late and so many a tick:
another location that shares the ledger may have it and has asked for its run by then.
"""

_OURS = dg.AssetSelection.tag(keys.LOOP_TAG, "on")


@dg.sensor(
    name="llm_batch_tick",
    asset_selection=_OURS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=1,
    description="Asks for a run of everything that the ledger says is due.",
)
def llm_batch_tick(
    context: dg.SensorEvaluationContext, llm_batch: LLMBatchResource
) -> dg.SensorResult | dg.SkipReason:
    """Dispatch due work; tell Dagster the partitions and facts that the ledger has and it lacks."""
    from llm_batch_assets import engine
    from llm_batch_assets.defs import announce
    from llm_batch_assets.defs.dispatch import ALERT_AFTER, Dispatch, asks, needs_of_run
    from llm_batch_assets.defs.liveness import live_runs
    from llm_batch_assets.ledger.dispatching import claim_alert, dispatched, record_dispatch

    with llm_batch.open(actor="sensor") as deps:
        partitions = Partitions(context, deps.ledger)
        order = partitions.order
        # Runs first, then the ledger: a run that ends in between has moved its work already.
        runs = live_runs(
            context.instance, deps.ledger, silence=deps.settings.run_silence, log=context.log
        )
        live = {need for run in runs for need in needs_of_run(run.tags, order)}
        told = announce.tell(
            deps,
            context.instance,
            list(order),
            exists=partitions.has,
            live=live,
            log=context.log,
        )
        work = [item for item in engine.plan(deps) if partitions.can_run(item)]
        off = paid_work_is_off(os.environ)
        if off:
            work = [item for item in work if item.kind not in ("submit", "publish")]
        numbers = dispatched(deps.ledger, (item.work_id for item in work))
        found = asks(
            work,
            order=order,
            live=live,
            dispatched={name: Dispatch(*value) for name, value in numbers.items()},
            now=deps.ledger.time(),
        )
        record_dispatch(
            deps.ledger, {item.work_id: ask.number for ask in found for item in ask.work}
        )
        requests = [run_request(ask, deps.ledger.deployment) for ask in found]
        for stuck in (item for ask in found if ask.number > ALERT_AFTER for item in ask.work):
            if claim_alert(deps.ledger, stuck.work_id):
                context.log.error(
                    f"{stuck.work_id} was given {ALERT_AFTER} runs and has not moved. "
                    f"It is asked for again with longer waits; see its runs, then "
                    f"`llm-batch-assets status {stuck.dataset}`."
                )
    added = partitions.requests()
    if not requests and not added:
        reason = f"Nothing is due that has no run yet ({len(live)} things have one)."
        if told.emitted:
            reason += f" {told.emitted} facts were announced."
        if told.failed:
            reason += f" {told.failed} could not be announced: see this tick's log."
        if off:
            reason = (
                "Submitting and publishing are off: a development UI against a real provider. "
                "Set LLM_BATCH_ALLOW_DEV=1 to allow them."
            )
        return dg.SkipReason(reason)
    return dg.SensorResult(run_requests=requests, dynamic_partitions_requests=added)


def run_request(ask: Ask, deployment: str) -> dg.RunRequest:
    """The run that does an ask. Publishing takes the blocking checks along, others take none."""
    publishing = ask.kind == "publish"
    return dg.RunRequest(
        run_key=ask.run_key,
        asset_selection=[keys.asset_key(ask.workload, step) for step in ask.steps],
        asset_check_keys=keys.check_keys(ask.workload) if publishing else [],
        partition_key=ask.partitions[0] if len(ask.work) == 1 else None,
        tags=ask.tags(deployment),
    )


@dg.sensor(
    name="llm_batch_poll",
    asset_selection=_OURS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=1,
    description="Asks the providers about open batches and lists; writes only facts.",
)
def llm_batch_poll(
    context: dg.SensorEvaluationContext, llm_batch: LLMBatchResource
) -> dg.SensorResult | dg.SkipReason:
    """Poll and look, for a bounded time; what changed becomes an observation of its shard."""
    from llm_batch_assets import engine
    from llm_batch_assets.controller import of_kind
    from llm_batch_assets.defs.shards import observation
    from llm_batch_assets.errors import LLMBatchError

    here = shard_spaces(context)
    end = time.monotonic() + POLL_SECONDS
    events: list[Any] = []
    done = 0
    with llm_batch.open(actor="sensor") as deps:
        plan = engine.plan(deps)
        # Cancels and removals are cheap calls that need no run of their own.
        work = of_kind(plan, *POLL_KINDS)
        work += orphans(plan, here, deps.ledger.time())
        for item in work:
            if time.monotonic() > end:
                break
            done += 1
            waiting = waiting_rows(deps) if item.kind == "look" else []
            try:
                outcome = engine.execute(item, deps)
            except LLMBatchError as error:
                context.log.warning(f"{item.work_id}: {error}")
                continue
            if item.shard_key is not None and outcome.changed and item.workload in here:
                events.append(observation(_job(item.workload), item.shard_key, outcome))
            elif item.kind == "look":
                events += bound_events(deps, waiting, here)
    if not events:
        return dg.SkipReason(f"Looked {done} of {len(work)} times; nothing has changed.")
    return dg.SensorResult(asset_events=events)


def orphans(plan: Sequence[Work], here: Mapping[str, Any], now: int) -> list[Work]:
    """Results to collect that no asset of this location collects, the longest due first.

    A workload that has left the code has no asset to run, and what it paid for may expire.
    """
    late = now - int(ORPHAN_SECONDS * 1_000_000)
    found = [
        item
        for item in plan
        if item.kind == "collect" and item.workload not in here and item.due_at <= late
    ]
    return sorted(found, key=lambda item: item.due_at)[:ORPHANS]


def waiting_rows(deps: Deps) -> list[SubmissionRow]:
    """Submissions of which nobody knows yet whether their batch exists."""
    from llm_batch_assets.ledger import views

    return [row for rows in views.waiting_by_account(deps.ledger).values() for row in rows]


def bound_events(
    deps: Deps, waiting: Sequence[SubmissionRow], here: Mapping[str, Any]
) -> list[dg.AssetMaterialization]:
    """``provider_job`` of the submissions that a look has found: the run that sent them could
    not know.
    """
    from llm_batch_assets.defs.shards import materialization
    from llm_batch_assets.engine.execute import submission_outcome
    from llm_batch_assets.ledger import submissions

    with deps.ledger.read() as connection:
        now = [submissions.load(connection, row.submission_key) for row in waiting]
    return [
        materialization(_job(row.workload), row.shard_key, submission_outcome("look", row, row))
        for row in now
        if row.batch_id is not None and row.workload in here
    ]


def _job(workload: str) -> dg.AssetKey:
    return keys.asset_key(workload, keys.PROVIDER_JOB)
