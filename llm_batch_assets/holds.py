"""What waits for a person in a revision, and when the clock decides instead. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from llm_batch_assets.ledger.people import ABANDONED, GATE_LOST
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.states import JUDGED, SENDABLE
from llm_batch_assets.ledger.views import RevisionView

Shards = frozenset[tuple[int, int]]
"""Shards by (attempt, ordinal)."""


def deadlines(view: RevisionView) -> list[int]:
    """When (microseconds) the clock alone changes what an accounting says."""
    row = view.row
    held = [s.state_at + row.hold_deadline for s in ended(view)]
    return [row.created_at + row.close_by, *held, *held_deadlines(view)]


def held_deadlines(view: RevisionView) -> list[int]:
    """When (microseconds) holds of shards without evidence end."""
    found = [held_deadline(view, shard) for shard in view.in_flight]
    return [at for at in found if at is not None]


def held_deadline(view: RevisionView, shard: SubmissionRow) -> int | None:
    """When the hold of a shard without evidence gives its records to people; None without one.

    Nothing that is paid for can come any more: it was never sent, or what came is in the store.
    """
    if shard.hold is None or shard.hold_at is None:
        return None
    if shard.state not in SENDABLE and not gate_is_lost(shard):
        return None
    return shard.hold_at + view.row.hold_deadline


def gate_is_lost(shard: SubmissionRow) -> bool:
    """Whether its results are in the store and nothing is left to judge them by."""
    return shard.state in JUDGED and (shard.hold or "").startswith(GATE_LOST)


def held_overdue(view: RevisionView, now: int) -> list[SubmissionRow]:
    """Shards without evidence that were held past their deadline."""
    found = [(held_deadline(view, shard), shard) for shard in view.in_flight]
    return [shard for at, shard in found if at is not None and at <= now]


def overdue(view: RevisionView, now: int) -> Shards:
    """Shards whose holds have waited past their deadline, or whose held records were given up."""
    limit = view.row.hold_deadline
    return _names(
        s
        for s in view.shards
        if (
            s.state_at + limit <= now or s.abandoned_at is not None
            if is_ended(s)
            else s.abandoned_at is not None and s.hold != ABANDONED
        )
    )


def released(view: RevisionView) -> Shards:
    """Shards whose held records a person let go again."""
    return _names(s for s in ended(view) if s.released_at is not None)


def abandoned(view: RevisionView) -> Shards:
    """Shards without evidence that were given up, by a person or at a hold's deadline."""
    return _names(s for s in view.shards if s.abandoned_at is not None and not is_ended(s))


def close_by_passed(view: RevisionView, now: int) -> bool:
    """Whether nothing of this revision is sent again because its time is over."""
    return now >= view.row.created_at + view.row.close_by


def ended(view: RevisionView) -> list[SubmissionRow]:
    """Shards of which nothing more will come."""
    return [s for s in view.shards if is_ended(s)]


def is_ended(shard: SubmissionRow) -> bool:
    """Whether a shard's records stand on evidence, or on the loss of it."""
    return shard.state in {"ACCOUNTED", "RESULTS_GONE"}


def _names(shards: Iterable[SubmissionRow]) -> Shards:
    return frozenset((s.attempt, s.ordinal) for s in shards)
