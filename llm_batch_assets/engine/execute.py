"""From a piece of due work to the function that does it."""

from __future__ import annotations

from llm_batch_assets import controller, finding, polling, submission
from llm_batch_assets.controller import Work
from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.accounting import account
from llm_batch_assets.engine.cancelling import send_cancel
from llm_batch_assets.engine.cleaning import clean
from llm_batch_assets.engine.collecting import collect
from llm_batch_assets.engine.outcome import Outcome
from llm_batch_assets.engine.publishing import publish
from llm_batch_assets.ledger import claims, facts, leases, views
from llm_batch_assets.ledger import submissions as rows
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.manifest import load_manifest


def plan(deps: Deps, *, workload: str | None = None, dataset: str | None = None) -> list[Work]:
    """Due work, from one snapshot of the ledger."""
    snapshot = views.snapshot(deps.ledger, workload=workload, dataset=dataset)
    return controller.due(snapshot, deps.settings)


def execute(work: Work, deps: Deps) -> Outcome:
    """Do one piece of work. Doing it again, or at the same time elsewhere, is safe.

    Raises:
        GateClosed, NotReady: nothing was done; the message says what would release it.
        ProviderError, DownloadError: nothing changed but the time at which it is due again.
    """
    if work.kind == "account":
        return account(work.revision_id, deps)
    if work.kind == "publish":
        return publish(work.revision_id, deps)
    if work.kind == "look":
        return _look(work, deps)
    if work.kind == "stray":
        return _stray(work, deps)
    with deps.ledger.read() as connection:
        row = rows.load(connection, work.key)
    if work.kind == "submit":
        return submit(row, deps)
    if work.kind == "cancel":
        after = send_cancel(row, deps)
        return submission_outcome("cancel", row, after, changed=after.cancel_sent_at is not None)
    if work.kind == "clean":
        return clean(row, deps)
    if work.kind == "poll":
        return submission_outcome("poll", row, polling.poll(row, deps))
    return collect(row, deps)


def submit(row: SubmissionRow, deps: Deps) -> Outcome:
    """Send one submission as its frozen manifest says."""
    manifest = load_manifest(deps.store, row.manifest_digest)
    after = submission.submit(row, deps, endpoint=manifest.endpoint, model=manifest.model)
    return submission_outcome("submit", row, after)


def submit_next(
    deps: Deps, *, workload: str | None = None, dataset: str | None = None
) -> Outcome | None:
    """Send the next submission that is due and that no other worker is at; None if there is none.

    Raises:
        GateClosed, ProviderError: as ``submit``; the submission is free again.
    """
    taken = claims.take(
        deps.ledger,
        deps.worker,
        ttl=deps.settings.lease_ttl,
        workload=workload,
        dataset=dataset,
    )
    if taken is None:
        return None
    row, lease = taken
    try:
        manifest = load_manifest(deps.store, row.manifest_digest)
        lease = leases.renew(deps.ledger, lease, submission.lease_ttl(row.bytes, deps))
        after = submission.submit_leased(
            row, deps, lease, endpoint=manifest.endpoint, model=manifest.model
        )
    finally:
        leases.release(deps.ledger, lease)
    return submission_outcome("submit", row, after)


def _look(work: Work, deps: Deps) -> Outcome:
    waiting = [
        row
        for (_, account), group in views.waiting_by_account(deps.ledger).items()
        if account == work.key
        for row in group
    ]
    after = finding.look(waiting, deps)
    found = sum(row.state == "SUBMITTED" for row in after)
    absent = sum(row.epoch > 0 and row.state == "VALIDATED" for row in after)
    return Outcome(
        "look",
        work.key,
        "looked",
        bool(found or absent),
        f"{len(waiting)} waited: {found} found, {absent} proven absent",
        {"waiting": len(waiting), "found": found, "absent": absent},
    )


def _stray(work: Work, deps: Deps) -> Outcome:
    with deps.ledger.read() as connection:
        found = [key for key, batch_id in facts.strays(connection) if batch_id == work.key]
        row = rows.load(connection, found[0]) if found else None
    new = row is not None and finding.cancel_stray(row, work.key, deps)
    return Outcome(
        "stray",
        work.shard_key or work.dataset,
        "cancelled",
        new,
        f"{work.key} is a second batch of {work.shard_key}: cancelled and booked",
        {"batch_id": work.key},
    )


def submission_outcome(
    kind: str, before: SubmissionRow, after: SubmissionRow, *, changed: bool = False
) -> Outcome:
    """What became of a submission, with what people ask for first."""
    message = f"{after.shard_key} is {after.state}"
    if after.total is not None:
        message += f" ({after.done or 0}/{after.total})"
    if after.last_error and after.state in {"UNCERTAIN", "VALIDATED", "UPLOADED", "REFUSED"}:
        message += f": {after.last_error}"
    return Outcome(
        kind,
        after.shard_key,
        after.state,
        changed or (before.state, before.batch_id) != (after.state, after.batch_id),
        message,
        {
            "state": after.state,
            "provider": after.provider,
            "batch_id": after.batch_id,
            "bound": after.bound_how,
            "submission_key": after.submission_key,
            "epoch": after.epoch,
            "records": after.records,
            "done": after.done,
            "total": after.total,
            "raw_status": after.raw_status,
            "hold": after.hold,
        },
        after.batch_id,
    )
