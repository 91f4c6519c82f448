"""Find and bind: what a walk over the provider's list says of submissions that wait (invariant 3).

Found by its own key, a submission is bound. Proven absent by two walks to the end of the list, it
makes way for the next epoch. Anything else proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_batch_assets.deps import Deps
from llm_batch_assets.errors import LeaseLost, NotReady, ProviderError, TransitionRefused
from llm_batch_assets.identity import submission_key
from llm_batch_assets.ledger import facts
from llm_batch_assets.ledger import submissions as rows
from llm_batch_assets.ledger.database import to_micros
from llm_batch_assets.ledger.leases import Lease, held
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.providers.base import BatchProvider
from llm_batch_assets.retention import result_deadline
from llm_batch_assets.types import BatchView


def uncertain(row: SubmissionRow, deps: Deps, lease: Lease, reason: str) -> SubmissionRow:
    """Nobody knows whether a batch exists: only looks decide from here."""
    return rows.transition(
        deps.ledger,
        row,
        "UNCERTAIN",
        lease=lease,
        worker=deps.worker,
        reason=reason,
        last_error=reason[:500],
    )


def bind(row: SubmissionRow, view: BatchView, deps: Deps, lease: Lease, how: str) -> SubmissionRow:
    """Bind the batch that is this submission's: from SUBMITTING or UNCERTAIN to SUBMITTED."""
    created = to_micros(view.created_at)
    return rows.transition(
        deps.ledger,
        row,
        "SUBMITTED",
        lease=lease,
        worker=deps.worker,
        reason=f"bound to {view.batch_id} ({how})",
        raw_status=view.raw_status,
        batch_id=view.batch_id,
        bound_how=how,
        bound_at=deps.ledger.time(),
        provider_created_at=created,
        # Where the provider tells no time, the intent came before the creation.
        result_deadline=result_deadline(row.provider, created or row.posted_at),
    )


def look(waiting: Sequence[SubmissionRow], deps: Deps) -> list[SubmissionRow]:
    """One walk over an account's list, for every submission of the account that waits.

    A walk counts as evidence of absence only when it came to the list's end, was made with the
    account that the intent recorded, started after the deadline plus the settle interval, and
    showed a batch that we know of that account, if there is one.

    Args:
        waiting: submissions of one provider and one account, SUBMITTING or UNCERTAIN.
        deps: what to work with.

    Returns:
        The rows as they are afterwards.

    Raises:
        ProviderError: the walk did not come to its end; nothing is concluded.
    """
    if not waiting:
        return []
    provider = deps.provider(waiting[0].provider)
    account = provider.account()
    started = deps.ledger.time()
    if account != waiting[0].account:
        raise NotReady(
            f"{len(waiting)} submissions wait for a look with another credential.",
            remedy="Run with the key that made them: another key cannot see their batches.",
        )
    deps.progress("look", f"{len(waiting)} waiting")
    found: dict[str, list[BatchView]] = {}
    seen = set()
    try:
        for view in provider.list_batches():
            seen.add(view.batch_id)
            if view.deployment == deps.ledger.deployment and view.submission_key:
                found.setdefault(view.submission_key, []).append(view)
    except ProviderError as error:
        facts.record_look(
            deps.ledger,
            account,
            started_at=started,
            batches=len(seen),
            counts=False,
            reason=str(error)[:500],
        )
        raise
    with deps.ledger.read() as connection:
        known = facts.known_batches(connection, account)
    counts = not known or bool(known & seen)
    facts.record_look(
        deps.ledger,
        account,
        started_at=started,
        batches=len(seen),
        counts=counts,
        reason="to the end" if counts else "shows no batch that we know of this account",
    )
    for key, views in found.items():
        for view in views:
            if view.batch_id not in known:
                facts.record_batch(deps.ledger, account, view, key, "list")
    result = []
    for row in waiting:
        try:
            with held(deps.ledger, row.target, deps.worker.holder, deps.settings.lease_ttl) as lse:
                result.append(
                    _conclude(row, found.get(row.submission_key, []), deps, lse, started, counts)
                )
        except (NotReady, LeaseLost, TransitionRefused):
            continue  # another worker is at it, or has been: its word stands
    for key, views in found.items():
        _settle_duplicates(key, views, deps, provider)
    return result


def _conclude(
    row: SubmissionRow,
    views: Sequence[BatchView],
    deps: Deps,
    lease: Lease,
    started: int,
    counts: bool,
) -> SubmissionRow:
    with deps.ledger.read() as connection:
        row = rows.load(connection, row.submission_key)
    deadline = row.post_deadline or 0
    if row.state == "SUBMITTING":
        if started <= deadline:
            return row  # its create may still be on the way
        row = uncertain(row, deps, lease, "the worker that claimed it is gone")
    if row.state != "UNCERTAIN":
        return row
    if views:
        return bind(row, oldest(views), deps, lease, "found")
    settle = int(deps.settings.settle_interval * 1_000_000)
    if not counts or started < deadline + settle:
        return row
    if row.first_look_at is None:
        rows.note(deps.ledger, row, first_look_at=started, looks=row.looks + 1)
        return _delete_input(row, deps)
    if row.input_deleted_at is None and row.input_ref is not None:
        return _delete_input(row, deps)
    if started < max(row.first_look_at, row.input_deleted_at or 0) + settle:
        return row
    return _absent(row, deps, lease)


def _delete_input(row: SubmissionRow, deps: Deps) -> SubmissionRow:
    """After the first clean look the upload goes: a POST that arrives later finds no file."""
    if row.input_ref is not None:
        deps.provider(row.provider).delete_input(row.input_ref)
    rows.note(deps.ledger, row, input_deleted_at=deps.ledger.time())
    with deps.ledger.read() as connection:
        return rows.load(connection, row.submission_key)


def _absent(row: SubmissionRow, deps: Deps, lease: Lease) -> SubmissionRow:
    key = submission_key(row.job_key, row.ordinal, row.epoch + 1)
    with deps.ledger.write("absent") as connection:
        if facts.facts_of(connection, row.submission_key):
            return row  # some worker saw it meanwhile: the next look binds it
        now = deps.ledger.now(connection)
        rows.move(
            connection,
            deps.ledger,
            row,
            "ABSENT",
            lease=lease,
            worker=deps.worker,
            reason="two looks to the end of the list, a settle interval apart, show no batch",
            looks=row.looks + 1,
        )
        rows.next_epoch(connection, row, key, deps.worker, now=now, due_at=now)
        return rows.load(connection, key)


def oldest(views: Sequence[BatchView]) -> BatchView:
    """The batch that is kept when several carry one key: by creation time, then by id."""
    return min(views, key=lambda v: (to_micros(v.created_at) or 0, v.batch_id))


def _settle_duplicates(
    key: str, views: Sequence[BatchView], deps: Deps, provider: BatchProvider
) -> None:
    """Cancel and book every live batch of a submission that is not the bound one."""
    with deps.ledger.read() as connection:
        row = rows.find(connection, key)
    if row is None or row.state in {"SUBMITTING", "UNCERTAIN"}:
        return  # nothing is bound yet: guessing could cancel the one to keep
    for view in views:
        if view.batch_id == row.batch_id:
            continue
        reason = "a second batch of a bound submission" if row.batch_id else f"of {row.state} work"
        new = facts.record_duplicate(deps.ledger, provider.account(), view.batch_id, key, reason)
        if new and view.status in {"queued", "running", "unknown"}:
            provider.cancel(view.batch_id)
            facts.mark_duplicate_cancelled(deps.ledger, provider.account(), view.batch_id)
