"""Which unfinished runs somebody still works in.

Dagster hears of a worker's death from what watched it. Where both die together (the code server
and the runs that it started, a machine) the run stays STARTED until its longest runtime, two
hours in our settings: its work waits as long, and so do others for its place in the queue and the
pool. The ledger and the event log know better: who works holds leases and says something, and a
step that waits for its pool says so every five minutes.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import dagster as dg

from llm_batch_assets.defs import keys
from llm_batch_assets.defs.resources import holder_of
from llm_batch_assets.ledger import Ledger, leases
from llm_batch_assets.ledger.database import to_micros

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def live_runs(
    instance: dg.DagsterInstance, ledger: Ledger, *, silence: float, log: logging.Logger
) -> list[dg.DagsterRun]:
    """This deployment's unfinished runs, without those that are dead, which are declared failed.

    A run that has started is taken for dead when it has said nothing and held no lease for
    ``silence`` seconds. That is no proof, and need not be one: a second run of the same work finds
    the leases and states that keep it from doing anything twice. Runs that have not started yet
    are the daemon's, which gives up on them by itself.
    """
    records = instance.get_run_records(
        dg.RunsFilter(statuses=UNFINISHED, tags={keys.DEPLOYMENT_TAG: ledger.deployment})
    )
    since = ledger.time() - int(silence * 1_000_000)
    old = [
        record.dagster_run
        for record in records
        if record.dagster_run.status is dg.DagsterRunStatus.STARTED
        and record.start_time is not None
        and _micros(record.start_time) < since
    ]
    held = leases.expiries(ledger, [holder_of(run) for run in old]) if old else {}
    dead = set()
    for run in old:
        if held.get(holder_of(run), 0) < since and _last_said(instance, run) < since:
            dead.add(run.run_id)
            why = f"No event and no lease for {silence:g} s: the worker of this run is gone."
            instance.report_run_failed(run, f"{why} What is left of its work is asked for again.")
            log.warning(f"Run {run.run_id} was declared failed. {why}")
    return [r.dagster_run for r in records if r.dagster_run.run_id not in dead]


def _last_said(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int:
    """When the newest event of a run was written, in microseconds."""
    newest = instance.get_records_for_run(run.run_id, limit=1, ascending=False).records
    return _micros(newest[0].event_log_entry.timestamp) if newest else 0


def _micros(at: float) -> int:
    return to_micros(datetime.fromtimestamp(at, UTC)) or 0
