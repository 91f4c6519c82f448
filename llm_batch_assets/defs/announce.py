"""Telling Dagster what the ledger knows and it does not: a crash before an event, the CLI.

An event is stored first and noted in the ledger after it. A crash between the two tells it again
under the same data version, which wakes nobody; nothing is ever noted that was not told.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from llm_batch_assets.defs import keys
from llm_batch_assets.defs.dispatch import ALERT_AFTER, RUN_KINDS, Need
from llm_batch_assets.errors import LLMBatchError
from llm_batch_assets.ledger.announcing import Fact, record_told, untold
from llm_batch_assets.ledger.dispatching import claim_alert, dispatched, record_dispatch

if TYPE_CHECKING:
    import logging

    from llm_batch_assets.deps import Deps
    from llm_batch_assets.engine import Outcome

INSTANCE_CURSOR = "LLM_BATCH_INSTANCE"

TOLD_BY_RUN = 3.0
"""Seconds in which the run that made a fact emits its event by itself."""

MAX_FACTS = 500
MAX_SECONDS = 5.0
"""What one tick compares of each asset, and how long it emits; an event takes about 50 ms."""


def instance_id(instance: dg.DagsterInstance) -> str:
    """Names the storage of a Dagster instance: a fresh one under the same home knows nothing."""
    cursors = instance.daemon_cursor_storage
    found = cursors.get_cursor_values({INSTANCE_CURSOR})
    if INSTANCE_CURSOR not in found:
        # Two that start at once may both write; the loser's notes are made again, no more.
        cursors.set_cursor_values({INSTANCE_CURSOR: uuid.uuid4().hex})
        found = cursors.get_cursor_values({INSTANCE_CURSOR})
    return found[INSTANCE_CURSOR]


def due_facts(deps: Deps, instance: dg.DagsterInstance, workloads: Sequence[str]) -> list[Fact]:
    """Facts that this instance may lack, published tables first."""
    return untold(
        deps.ledger,
        instance_id(instance),
        workloads,
        settled_for=TOLD_BY_RUN,
        at_most=MAX_FACTS,
    )


@dataclass(frozen=True, slots=True)
class Told:
    """What one tick told an instance, and how many facts it could not tell."""

    emitted: int = 0
    failed: int = 0


def tell(
    deps: Deps,
    instance: dg.DagsterInstance,
    workloads: Sequence[str],
    *,
    exists: Callable[[Fact], bool],
    live: set[Need],
    log: logging.Logger,
) -> Told:
    """``announce`` what is due; whatever goes wrong with it, the tick that calls goes on.

    Dispatching is what work waits for. What could not be told is due again at the next tick, and
    is an error in the tick's log once it has failed often.
    """
    try:
        facts = due_facts(deps, instance, workloads)
        return announce(facts, deps, instance, exists=exists, live=live, log=log)
    except Exception as error:
        _cannot(deps, "facts", "facts", error, log)
        return Told(failed=1)


def announce(
    facts: Iterable[Fact],
    deps: Deps,
    instance: dg.DagsterInstance,
    *,
    exists: Callable[[Fact], bool],
    live: set[Need],
    log: logging.Logger,
) -> Told:
    """Emit what the instance lacks, for a bounded time; what is left over is still due.

    Args:
        facts: the newest of each partition.
        deps: ledger and store; no call to a provider is made.
        instance: whom to tell.
        exists: whether a fact's partition exists in Dagster.
        live: what runs that have not ended are about: they tell it by themselves.
        log: gets what cannot be told.

    One fact that cannot be told keeps no other from it.
    """
    makers = {step: kind for kind, steps in RUN_KINDS.items() for step in steps}
    groups: dict[tuple[str, str], list[Fact]] = defaultdict(list)
    for fact in facts:
        busy = (makers.get(fact.step, ""), fact.workload, fact.partition) in live
        if not busy and exists(fact):
            groups[fact.workload, fact.step].append(fact)
    name = instance_id(instance) if groups else ""
    end = time.monotonic() + MAX_SECONDS
    emitted = failed = 0
    for (workload, step), group in groups.items():
        key = keys.asset_key(workload, step)
        shown = data_versions(instance, key, [fact.partition for fact in group])
        told = []
        try:
            for fact in group:
                if time.monotonic() > end:
                    break
                try:
                    outcome = outcome_of(fact, deps)
                    if shown.get(fact.partition) != outcome.data_version:
                        instance.report_runless_asset_event(event(key, fact, outcome))
                        emitted += 1
                except Exception as error:
                    failed += 1
                    what = f"{workload} {step} {fact.partition}"
                    _cannot(deps, f"{what} {fact.fact_id}", what, error, log)
                    continue
                told.append(fact)
        finally:
            record_told(deps.ledger, name, told)
    return Told(emitted, failed)


def _cannot(deps: Deps, name: str, what: str, error: Exception, log: logging.Logger) -> None:
    """Say what could not be told: as a warning, and once as an error when it keeps failing."""
    work_id = f"announce:{name}"
    number = dispatched(deps.ledger, [work_id]).get(work_id, (0, 0))[0] + 1
    record_dispatch(deps.ledger, {work_id: number})
    kind = "" if isinstance(error, LLMBatchError) else f"{type(error).__name__}: "
    log.warning(f"{what} cannot be announced: {kind}{error}")
    if number > ALERT_AFTER and claim_alert(deps.ledger, work_id):
        log.error(
            f"{what} could not be announced {number} times, the last time because of {kind}{error}."
            f" The ledger is right and the work goes on; Dagster shows an older state of it."
        )


def data_versions(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Sequence[str]
) -> Mapping[str, str]:
    """The data version that each partition's newest materialization has; one query."""
    found = instance.event_log_storage.get_latest_tags_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, [keys.DATA_VERSION_TAG], list(partitions)
    )
    return {
        partition: tags[keys.DATA_VERSION_TAG]
        for partition, tags in found.items()
        if keys.DATA_VERSION_TAG in tags
    }


def event(key: dg.AssetKey, fact: Fact, outcome: Outcome) -> dg.AssetMaterialization:
    """The event that the run would have emitted."""
    from llm_batch_assets.defs.shards import materialization

    return materialization(key, fact.partition, outcome, {"announced": True})


def outcome_of(fact: Fact, deps: Deps) -> Outcome:
    """What a fact says, as the engine words it; nothing is done.

    Raises:
        LLMBatchError: its evidence is absent or damaged.
    """
    return _OUTCOMES[fact.step](fact, deps)


def _job(fact: Fact, deps: Deps) -> Outcome:
    from llm_batch_assets.engine.execute import submission_outcome
    from llm_batch_assets.ledger import submissions

    with deps.ledger.read() as connection:
        row = submissions.load(connection, fact.key)
    return submission_outcome("submit", row, row)


def _results(fact: Fact, deps: Deps) -> Outcome:
    from llm_batch_assets.engine.collecting import collect
    from llm_batch_assets.ledger import submissions

    with deps.ledger.read() as connection:
        row = submissions.load(connection, fact.key)
    return collect(row, deps)  # accounted: its evidence is read, and no call is made


def _manifest(fact: Fact, deps: Deps) -> Outcome:
    from llm_batch_assets.engine.freezing import freeze_outcome
    from llm_batch_assets.ledger import views

    view = views.view_by_id(deps.ledger, int(fact.key))
    return freeze_outcome(view.row, view.jobs[0], deps, changed=True)


def _reconciled(fact: Fact, deps: Deps) -> Outcome:
    from llm_batch_assets.engine.accounting import account_outcome
    from llm_batch_assets.ledger import views

    return account_outcome(views.view_by_id(deps.ledger, int(fact.key)), changed=False)


def _retry(fact: Fact, deps: Deps) -> Outcome:
    from llm_batch_assets.engine.accounting import retry_outcome
    from llm_batch_assets.ledger import views

    return retry_outcome(views.view_by_id(deps.ledger, int(fact.key)))


def _accepted(fact: Fact, deps: Deps) -> Outcome:
    from llm_batch_assets.engine.publishing import publish_outcome
    from llm_batch_assets.ledger import accounting

    return publish_outcome(accounting.revision_by_id(deps.ledger, int(fact.key)), changed=False)


_OUTCOMES: dict[str, Callable[[Fact, Any], Any]] = {
    keys.MANIFEST: _manifest,
    keys.PROVIDER_JOB: _job,
    keys.RAW_RESULTS: _results,
    keys.RECONCILED: _reconciled,
    keys.RETRY_SHARDS: _retry,
    keys.ACCEPTED: _accepted,
}
