"""What materializing one shard does, whoever asks: a sensor, the button, a backfill, the CLI.

Each function does the due thing, or finds it done, or refuses with what would release it. The
gates themselves are where the claim is made; here they only get their sentence.
"""

from __future__ import annotations

from datetime import UTC, datetime

from llm_batch_assets import controller
from llm_batch_assets.controller import Work
from llm_batch_assets.defs.partitions import parse_shard_key
from llm_batch_assets.deps import Deps
from llm_batch_assets.engine import Outcome, execute
from llm_batch_assets.engine.execute import submission_outcome
from llm_batch_assets.errors import GateClosed, InputError, NotReady
from llm_batch_assets.ledger import views
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.states import COLLECTABLE, POLLED, SENDABLE
from llm_batch_assets.workload import Workload

_WAITS_FOR_LOOK = frozenset({"SUBMITTING", "UNCERTAIN"})


def submit_shard(workload: Workload, shard_key: str, deps: Deps) -> Outcome:
    """Send the shard, or find it sent: then no call is made and the data version is the same.

    Raises:
        InputError: the ledger has no such shard.
        GateClosed: not due, held or gated; the message names the release.
        NotReady: a create is uncertain; the message says until when.
    """
    row = find_shard(workload, shard_key, deps)
    if row.state in _WAITS_FOR_LOOK:
        row = _look_now(row, deps)
    if row.state in SENDABLE:
        outcome = execute(_due("submit", row, deps), deps)
        if outcome.state not in _WAITS_FOR_LOOK:
            return outcome
        row = find_shard(workload, shard_key, deps)
        return submission_outcome("submit", row, row)  # sent, uncertain: the sensor looks
    if row.state in _WAITS_FOR_LOOK:
        raise _uncertain(row, deps)
    return submission_outcome("submit", row, row)


def collect_shard(workload: Workload, shard_key: str, deps: Deps) -> Outcome:
    """Collect the shard's results, or find them collected and whole: then no call is made.

    Raises:
        InputError: the ledger has no such shard.
        NotReady: the batch has not ended; the message says how far it is.
    """
    row = find_shard(workload, shard_key, deps)
    if row.state in POLLED:
        execute(_work("poll", row), deps)  # one cheap look, so that the answer is of now
        row = find_shard(workload, shard_key, deps)
    if row.state in _WAITS_FOR_LOOK:
        raise _uncertain(row, deps)
    if row.state in POLLED:
        # While it validates, a provider may say 0 of 0.
        raise NotReady(
            f"{shard_key}: {row.done or 0}/{row.total or row.records} done, the batch is "
            f"{row.raw_status or row.state}.",
            remedy="The sensor collects it when it has ended.",
        )
    if row.state not in COLLECTABLE | {"ACCOUNTED"}:
        raise NotReady(f"{shard_key} is {row.state}: it has no results.")
    outcome = execute(_work("collect", row), deps)
    # Results just found gone, or a batch that executed nothing and is sent again: that is news,
    # and nothing is materialized. Without news there is nothing to say but no.
    if outcome.data_version is None and not outcome.changed:
        raise NotReady(f"{outcome.message}.", remedy="It has no results to show.")
    return outcome


def find_shard(workload: Workload, shard_key: str, deps: Deps) -> SubmissionRow:
    """The newest epoch of a shard.

    Raises:
        InputError: Dagster has a key that the ledger lacks.
    """
    parts = parse_shard_key(shard_key)
    view = parts and views.revision_view(
        deps.ledger, workload.tenant_id, workload.name, parts.dataset, parts.revision
    )
    for row in view.shards if view else ():
        if row.shard_key == shard_key:
            return row
    raise InputError(
        f"The ledger has no shard {shard_key!r} of {workload.name}.",
        remedy="Shard partitions are made by manifest and retry_shards, never by hand.",
    )


def _look_now(row: SubmissionRow, deps: Deps) -> SubmissionRow:
    """One look at the provider's list if one is due for this account."""
    snapshot = views.snapshot(deps.ledger)
    for work in controller.of_kind(controller.due(snapshot, deps.settings), "look"):
        if work.key == row.account:
            execute(work, deps)
            break
    view = views.view_by_id(deps.ledger, row.revision_id)
    return next(found for found in view.shards if found.shard_id == row.shard_id)


def _uncertain(row: SubmissionRow, deps: Deps) -> NotReady:
    last = views.snapshot(deps.ledger).last_look.get(row.account or "")
    until = controller.look_due(row, last, deps.settings) if row.post_deadline else row.state_at
    return NotReady(
        f"{row.shard_key}: nobody knows yet whether its batch exists "
        f"({row.last_error or row.state}). The next look is at {_clock(until)}.",
        remedy="The sensor looks; nothing is sent before absence is proven.",
    )


def _due(kind: controller.WorkKind, row: SubmissionRow, deps: Deps) -> Work:
    """The shard's work if it is due now.

    Raises:
        GateClosed: it is not; the reason and the release are the controller's.
    """
    snapshot = views.snapshot(deps.ledger)
    for work in controller.due(snapshot, deps.settings):
        if work.kind == kind and work.key == row.submission_key:
            return work
    reasons = [
        item
        for item in controller.waiting(snapshot, deps.settings)
        if item.shard_key == row.shard_key
        or (item.shard_key is None and item.dataset == row.dataset)
    ]
    # A gate of the whole revision says more than the state of one of its shards.
    reason = min(reasons, key=lambda item: item.shard_key is not None, default=None)
    if reason is None:
        raise GateClosed(f"{row.shard_key}: its revision is closed; nothing of it is sent again.")
    text = f"{row.shard_key} is not sent now: {reason.why}"
    if reason.until is not None:
        text += f"; due at {_clock(reason.until)}"
    raise GateClosed(f"{text}.", remedy=reason.release or "The sensor sends it when it is due.")


def _work(kind: controller.WorkKind, row: SubmissionRow) -> Work:
    return Work(
        kind,
        f"{kind}:{row.submission_key}",
        row.submission_key,
        row.tenant_id,
        row.workload,
        row.dataset,
        row.revision,
        row.attempt,
        row.shard_key,
        row.revision_id,
        row.job_key,
        row.due_at,
        row.bytes,
    )


def _clock(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
