"""Find and bind: what a walk over the provider's list says of submissions that wait (invariant 3).

Found by its own key, a submission is bound. Proven absent by two walks to the end of the list, it
makes way for the next epoch. Anything else proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_batch_assets import provisional
from llm_batch_assets.deps import Deps
from llm_batch_assets.errors import LeaseLost, NotReady, ProviderError, TransitionRefused
from llm_batch_assets.identity import submission_key
from llm_batch_assets.ledger import facts
from llm_batch_assets.ledger import submissions as rows
from llm_batch_assets.ledger.adopting import take_for_sent
from llm_batch_assets.ledger.database import to_micros
from llm_batch_assets.ledger.leases import Lease, held
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.providers.base import BatchProvider
from llm_batch_assets.retention import result_deadline
from llm_batch_assets.types import BatchView

ANOTHERS = "its first lines are another's"


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


def adopt_unsent(row: SubmissionRow, view: BatchView, deps: Deps, lease: Lease) -> SubmissionRow:
    """Bind a batch that carries the key of a submission which this ledger never sent.

    A ledger that is lost did, or a create that was refused has run all the same: it is paid for.
    """
    sent = take_for_sent(
        deps.ledger,
        row,
        lease=lease,
        worker=deps.worker,
        account=deps.provider(row.provider).account(),
        reason=f"{view.batch_id} carries its key, though no create of it is on record",
    )
    return bind(sent, view, deps, lease, "found")


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
        ProviderError: the walk did not come to its end and nothing is concluded, or a later call
            for one of the submissions failed.
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
    listing: list[BatchView] = []
    try:
        for view in provider.list_batches():
            listing.append(view)
            if view.deployment == deps.ledger.deployment and view.submission_key:
                found.setdefault(view.submission_key, []).append(view)
    except ProviderError as error:
        facts.record_look(
            deps.ledger,
            account,
            started_at=started,
            batches=len(listing),
            counts=False,
            reason=str(error)[:500],
        )
        raise
    with deps.ledger.read() as connection:
        known = facts.known_batches(connection, account)
    counts = not known or any(view.batch_id in known for view in listing)
    facts.record_look(
        deps.ledger,
        account,
        started_at=started,
        batches=len(listing),
        counts=counts,
        reason="to the end" if counts else "shows no batch that we know of this account",
    )
    found = _ours(found, deps, provider)
    for key, views in found.items():
        for view in views:
            if view.batch_id not in known:
                facts.record_batch(deps.ledger, account, view, key, "list")
    walk = _Walk(started, counts, tuple(listing), found)
    result = []
    fault: ProviderError | None = None
    for row in waiting:
        try:
            with held(deps.ledger, row.target, deps.worker.holder, deps.settings.lease_ttl) as lse:
                result.append(_conclude(row, walk, deps, lse, provider))
        except (NotReady, LeaseLost, TransitionRefused):
            continue  # another worker is at it, or has been: its word stands
        except ProviderError as error:
            fault = error  # of this one nothing is concluded; the others do not wait for it
    if fault is not None:
        raise fault
    return result


def _ours(
    found: dict[str, list[BatchView]], deps: Deps, provider: BatchProvider
) -> dict[str, list[BatchView]]:
    """Without what only looks like ours, and what this ledger knows nothing of."""
    kept = {}
    with deps.ledger.read() as connection:
        for key, views in found.items():
            row = rows.find(connection, key)
            if row is not None:
                kept[key] = [v for v in views if fits(row, v, provider)]
    return {key: views for key, views in kept.items() if views}


def fits(row: SubmissionRow, view: BatchView, provider: BatchProvider) -> bool:
    """Whether a batch that carries a submission's key is that submission's.

    Where anybody can give a batch the same name, it also has to be made from the file that we
    uploaded, as far as both say.
    """
    if provider.label_proves or row.input_ref is None or view.input_ref is None:
        return True
    return row.input_ref == view.input_ref


@dataclass(frozen=True, slots=True)
class _Walk:
    """One walk over an account's list.

    Attributes:
        counts: it came to the end and showed what it should: absence may rest on it.
        found: batches that carry a submission_key of this deployment.
    """

    started: int
    counts: bool
    listing: tuple[BatchView, ...]
    found: dict[str, list[BatchView]]


def _conclude(
    row: SubmissionRow, walk: _Walk, deps: Deps, lease: Lease, provider: BatchProvider
) -> SubmissionRow:
    with deps.ledger.read() as connection:
        row = rows.load(connection, row.submission_key)
        known = facts.facts_of(connection, row.submission_key)
    deadline = row.post_deadline or 0
    if row.state == "SUBMITTING":
        if walk.started <= deadline:
            return row  # its create may still be on the way
        row = uncertain(row, deps, lease, "the worker that claimed it is gone")
    if row.state != "UNCERTAIN":
        return row
    views = walk.found.get(row.submission_key, [])
    if known and not views:
        # Some worker saw it answered; the list is only late.
        views = [provider.get(batch_id) for batch_id, _ in known[:1]]
    if views:
        return bind(row, oldest(views), deps, lease, "found")
    if not provider.settles_by_label:
        bound = _provisional(row, walk, deps, lease, provider)
        if bound is not None:
            return bound
    settle = int(deps.settings.settle_interval * 1_000_000)
    if not walk.counts or walk.started < deadline + settle:
        return row
    if row.first_look_at is None:
        rows.note(deps.ledger, row, first_look_at=walk.started, looks=row.looks + 1)
        return _delete_input(row, deps)
    if row.input_deleted_at is None and row.input_ref is not None:
        return _delete_input(row, deps)
    if walk.started < max(row.first_look_at, row.input_deleted_at or 0) + settle:
        return row
    return _absent(row, deps, lease)


def _provisional(
    row: SubmissionRow, walk: _Walk, deps: Deps, lease: Lease, provider: BatchProvider
) -> SubmissionRow | None:
    """What the candidates say, or None when there is none and absence may be considered."""
    with deps.ledger.read() as connection:
        ours = facts.known_batches(connection, provider.account())
        rejected = facts.rejected_of(connection, row.submission_key)
    found = provisional.candidates(row, walk.listing, ours=ours, rejected=rejected)
    verdict = provisional.judge(found, row, provider)
    for view in verdict.foreign:
        facts.reject_batch(deps.ledger, row.submission_key, view.batch_id, ANOTHERS)
    if verdict.proven:
        if row.epoch and verdict.later:
            # The proven one may be an earlier epoch's that the list showed late, and this one's
            # can still tell. Bound too soon, what that one answers would be asked again.
            return row
        for view in verdict.proven:
            facts.record_batch(deps.ledger, provider.account(), view, row.submission_key, "proof")
        # Of several the newest is this epoch's own; the others are booked as second batches.
        return bind(row, verdict.proven[-1], deps, lease, "proven")
    if len(verdict.open) == 1:
        view = verdict.open[0]
        return rows.transition(
            deps.ledger,
            row,
            "PROVISIONAL",
            lease=lease,
            worker=deps.worker,
            reason=f"{view.batch_id} fits; its first lines will prove it",
            raw_status=view.raw_status,
            batch_id=view.batch_id,
            bound_how="provisional",
            bound_at=deps.ledger.time(),
            # What an earlier candidate could not tell says nothing about this one.
            polled_at=None,
            poll_faults=0,
            provider_created_at=to_micros(view.created_at),
        )
    # Several that cannot be told apart: wait for their ends, never guess.
    return row if verdict.open else None


def prove(row: SubmissionRow, view: BatchView, deps: Deps) -> tuple[SubmissionRow, bool]:
    """At the end of a provisional batch: its first lines make it ours, or it is let go.

    Returns:
        The row as it is now, and whether the batch is proven to be ours.

    Raises:
        ProviderError: a fault of the account; nothing is concluded.
    """
    provider = deps.provider(row.provider)
    verdict = provisional.judge([view], row, provider)
    if verdict.open:
        return row, False
    if verdict.proven:
        facts.record_batch(deps.ledger, provider.account(), view, row.submission_key, "proof")
        return row, True
    return let_go(row, view.batch_id, deps, ANOTHERS), False


def let_go(row: SubmissionRow, batch_id: str, deps: Deps, why: str) -> SubmissionRow:
    """A candidate is not taken: looks go on without it."""
    facts.reject_batch(deps.ledger, row.submission_key, batch_id, why)
    with held(deps.ledger, row.target, deps.worker.holder, deps.settings.lease_ttl) as lease:
        return rows.transition(
            deps.ledger,
            row,
            "UNCERTAIN",
            lease=lease,
            worker=deps.worker,
            reason=f"{batch_id}: {why}",
            batch_id=None,
            bound_how=None,
            first_look_at=None,
            looks=0,
        )


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
        if row.abandoned_at is not None:
            return rows.load(connection, row.submission_key)  # nothing more of it is sent
        rows.next_epoch(connection, row, key, deps.worker, now=now, due_at=now)
        return rows.load(connection, key)


def oldest(views: Sequence[BatchView]) -> BatchView:
    """The batch that is kept when several carry one key: by creation time, then by id."""
    return min(views, key=lambda v: (to_micros(v.created_at) or 0, v.batch_id))


def cancel_stray(row: SubmissionRow, batch_id: str, deps: Deps) -> bool:
    """Cancel and book a batch of ours that no submission is bound to: it was paid for in vain.

    Returns:
        True when it was not booked before.
    """
    provider = deps.provider(row.provider)
    account = provider.account()
    deps.progress("stray", row.shard_key)
    why = (
        f"a second batch beside {row.batch_id}" if row.batch_id else f"a batch of {row.state} work"
    )
    new = facts.record_duplicate(deps.ledger, account, batch_id, row.submission_key, why)
    provider.cancel(batch_id)
    facts.mark_duplicate_cancelled(deps.ledger, account, batch_id)
    return new
