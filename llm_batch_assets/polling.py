"""Status of many submissions at little cost. A failed look changes nothing."""

from __future__ import annotations

from typing import Any

from llm_batch_assets import finding
from llm_batch_assets.deps import Deps
from llm_batch_assets.errors import (
    DownloadError,
    LeaseLost,
    NotReady,
    ProviderError,
    TransitionRefused,
)
from llm_batch_assets.ledger import facts
from llm_batch_assets.ledger import submissions as rows
from llm_batch_assets.ledger.database import to_micros
from llm_batch_assets.ledger.leases import held
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.states import POLLED
from llm_batch_assets.retention import result_deadline
from llm_batch_assets.types import TERMINAL_STATUSES, BatchView

OUTCOMES = {"done": "completed", "cancelled": "cancelled", "expired": "expired"}

UNREADY_POLLS = 20
"""A batch that has ended without naming a result file is asked this often before its counts and
its silence are taken as the answer (field notes B32 and B33: files appear late)."""


GONE_LOOKS = 6
"""So often what can be recalled no more, or a result file that answers 404, is asked for again:
one failure may be our own."""


def poll(row: SubmissionRow, deps: Deps) -> SubmissionRow:
    """Look once at a bound batch and take the arc that its status names, if any.

    Returns:
        The row as it is afterwards; unchanged when the look failed.
    """
    provider = deps.provider(row.provider)
    if row.batch_id is None or row.state not in POLLED:
        return row
    if row.account is not None and row.account != provider.account():
        return _missed(row, deps, "made with another credential: only that one can see the batch")
    if row.state == "PROVISIONAL" and (own := _answered(row, deps)) is not None:
        try:
            return finding.let_go(row, row.batch_id, deps, f"its own create made {own}")
        except (NotReady, LeaseLost, TransitionRefused):
            return row
    try:
        view = provider.get(row.batch_id)
    except ProviderError as error:
        return _missed(row, deps, str(error))
    if row.state == "PROVISIONAL" and view.status in TERMINAL_STATUSES:
        try:
            row, proven = finding.prove(row, view, deps)
            if not proven:
                # Nothing of an unproven batch is stored: it waits for its results, or was let go.
                return row if row.state != "PROVISIONAL" else _untold(row, view, deps)
        except (ProviderError, DownloadError, NotReady, LeaseLost, TransitionRefused) as error:
            return _missed(row, deps, str(error))
        if row.hold is not None and row.hold.startswith(view.batch_id):
            rows.set_hold(deps.ledger, row, None, None)  # it was held for this proof
    return observe(row, view, deps)


def _answered(row: SubmissionRow, deps: Deps) -> str | None:
    """The batch that a late answer named, where the candidate is another: no proof is needed."""
    with deps.ledger.read() as connection:
        made = [batch_id for batch_id, _ in facts.facts_of(connection, row.submission_key)]
    return made[0] if made and row.batch_id not in made else None


def _missed(row: SubmissionRow, deps: Deps, why: str) -> SubmissionRow:
    """A failed look changes nothing but when the next one is due, until nothing can be recalled."""
    now = deps.ledger.time()
    if row.poll_faults >= GONE_LOOKS and past_recall(row, now):
        return _gone(row, deps, f"past its provider's time for results: {why}")
    rows.note(
        deps.ledger,
        row,
        polled_at=now,
        poll_faults=row.poll_faults + 1,
        last_error=why[:500],
    )
    return row


def past_recall(row: SubmissionRow, now: int) -> bool:
    """Whether the provider keeps no results of this batch any more, whatever they were.

    Where no look has told when the batch was made, the binding is the later and careful reading.
    """
    deadline = row.result_deadline or result_deadline(
        row.provider, row.provider_created_at or row.bound_at
    )
    return deadline is not None and now >= deadline


def _gone(row: SubmissionRow, deps: Deps, why: str) -> SubmissionRow:
    """Nothing that is asked for later can answer: paid and lost, and a person decides."""
    try:
        with (
            held(deps.ledger, row.target, deps.worker.holder, deps.settings.lease_ttl) as lease,
            deps.ledger.write("past_recall") as connection,
        ):
            for to in ("RESULTS_AVAILABLE", "RESULTS_GONE"):
                rows.move(
                    connection,
                    deps.ledger,
                    row,
                    to,
                    lease=lease,
                    worker=deps.worker,
                    reason=why,
                    polled_at=deps.ledger.now(connection),
                    last_error=why[:500],
                    # What it waited for cannot come any more.
                    hold=None,
                    hold_release=None,
                )
                row = rows.load(connection, row.submission_key)
            return row
    except (NotReady, LeaseLost, TransitionRefused):
        return row  # another worker is at it


def _untold(row: SubmissionRow, view: BatchView, deps: Deps) -> SubmissionRow:
    """A candidate that has ended and whose lines do not tell whose it is: a person has to.

    Results may be named late, so it is looked at often before it is held; given up, it is let go.
    """
    why = f"{view.batch_id} has ended, and its first lines do not tell whose it is"
    asked_enough = row.poll_faults >= UNREADY_POLLS
    if asked_enough and row.abandoned_at is not None:
        return finding.let_go(row, view.batch_id, deps, why)
    if asked_enough and row.hold is None:
        release = (
            f"`llm-batch-assets adopt {row.shard_key} {view.batch_id}` takes it for ours, "
            f"`abandon {row.shard_key}` gives its records to human_review."
        )
        rows.set_hold(deps.ledger, row, why, release)
    return _missed(row, deps, why)


def observe(row: SubmissionRow, view: BatchView, deps: Deps) -> SubmissionRow:
    """Write what a look said: counts as they are, and a transition where there is one."""
    unready = view.status in TERMINAL_STATUSES and not view.results_ready
    faults = row.poll_faults + 1 if unready else 0
    values: dict[str, Any] = {
        "polled_at": deps.ledger.time(),
        "poll_faults": faults,
        "total": view.counts.total,
        "done": view.counts.completed,
        "failed": view.counts.failed,
        "last_error": None,
    }
    to = target_state(row.state, view, ready=not unready or faults >= UNREADY_POLLS)
    if to is None:
        rows.note(deps.ledger, row, raw_status=view.raw_status, **values)
        with deps.ledger.read() as connection:
            return rows.load(connection, row.submission_key)
    if to in {"RESULTS_AVAILABLE", "PROVIDER_FAILED"}:
        values["outcome"] = OUTCOMES.get(view.status, "failed")
        values["due_at"] = values["polled_at"]
        values["tries"] = 0
    created = to_micros(view.created_at) or row.provider_created_at
    try:
        with held(deps.ledger, row.target, deps.worker.holder, deps.settings.lease_ttl) as lease:
            return rows.transition(
                deps.ledger,
                row,
                to,
                lease=lease,
                worker=deps.worker,
                reason=f"polled: {view.raw_status}",
                raw_status=view.raw_status,
                provider_created_at=created,
                result_deadline=row.result_deadline or result_deadline(row.provider, created),
                **values,
            )
    except (NotReady, LeaseLost, TransitionRefused):
        return row  # another worker looks at the same moment: its word is as good


def target_state(state: str, view: BatchView, *, ready: bool) -> str | None:
    """The state that a look leads to, or None to stay. Only known terminal words end a batch."""
    if view.status == "failed":
        return "PROVIDER_FAILED"
    if view.status in OUTCOMES:
        return "RESULTS_AVAILABLE" if ready else None
    if view.status in {"running", "stopping"} and state == "SUBMITTED":
        return "RUNNING"
    return None
