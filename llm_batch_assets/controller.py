"""Due work, as data, from frozen ledger rows and a clock. Pure: no I/O, no provider, no Dagster."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from llm_batch_assets.holds import (
    abandoned,
    close_by_passed,
    deadlines,
    ended,
    gate_is_lost,
    held_deadline,
    held_deadlines,
    held_overdue,
    overdue,
    released,
)
from llm_batch_assets.ledger.rows import RevisionRow, SubmissionRow
from llm_batch_assets.ledger.states import CANCELLABLE, COLLECTABLE, LIVE, POLLED, SENDABLE
from llm_batch_assets.ledger.views import RevisionView, Snapshot
from llm_batch_assets.settings import Settings

WorkKind = Literal[
    "submit", "look", "poll", "collect", "account", "publish", "cancel", "stray", "clean"
]

URGENCY = ("stray", "collect", "cancel", "poll", "look", "publish", "account", "submit", "clean")
"""What can be lost comes first (results that may expire), what costs money comes last."""

MAX_POLL_SECONDS = 600.0
FIRST_POLL_SECONDS = 1.0
MAX_LOOK_WAIT = 60 * 1_000_000
"""Microseconds before a look that proved nothing is made again."""


@dataclass(frozen=True, slots=True)
class Work:
    """One due thing.

    Attributes:
        work_id: stable for the same need: two workers that plan it name it alike.
        key: submission_key, account digest, batch id or revision id as text, by kind.
        due_at: microseconds UTC.
    """

    kind: WorkKind
    work_id: str
    key: str
    tenant_id: str
    workload: str
    dataset: str
    revision: int
    attempt: int | None
    shard_key: str | None
    revision_id: int
    job_key: str | None
    due_at: int
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that is not due: why, and until when (microseconds) or what releases it.

    ``person``: only a person moves it; ``until`` is when it is looked at again, or given up.
    """

    dataset: str
    shard_key: str | None
    why: str
    until: int | None = None
    release: str | None = None
    person: bool = False


def due(snapshot: Snapshot, settings: Settings) -> list[Work]:
    """Everything that can be done now, the most urgent first."""
    work = [item for view in snapshot.revisions for item in _of_revision(view, snapshot, settings)]
    work += _looks(snapshot, settings)
    work += [_shard_work("clean", row, at) for row, at in snapshot.cleanable if at <= snapshot.now]
    work += [
        replace(_shard_work("stray", row, snapshot.now), work_id=f"stray:{batch}", key=batch)
        for row, batch in snapshot.strays
    ]
    return sorted(work, key=lambda item: (URGENCY.index(item.kind), item.due_at))


def waiting(snapshot: Snapshot, settings: Settings) -> list[Waiting]:
    """Everything that is open and not due now, with its reason."""
    result = []
    doing = {item.shard_key for item in due(snapshot, settings) if item.shard_key}
    for view in snapshot.revisions:
        closed_gate = gate(view.row, snapshot)
        if closed_gate is not None:
            result.append(closed_gate)
        for shard in view.awaited:
            if closed_gate is not None and shard.hold is None and shard.state in SENDABLE:
                continue  # the gate speaks for all of them
            if shard.shard_key not in doing:
                result.append(_why(view, shard, snapshot, settings))
    return result


def next_due(snapshot: Snapshot, settings: Settings) -> int | None:
    """When (microseconds) something goes on by itself, or None: the rest waits for people."""
    found = waiting(snapshot, settings)
    return min((w.until for w in found if w.until is not None and not w.person), default=None)


def next_deadline(snapshot: Snapshot) -> int | None:
    """When (microseconds) the clock decides instead of a person, or None."""
    times: list[int] = []
    for view in snapshot.revisions:
        if view.row.closed_at is None:
            kept_back = _kept_back(view, snapshot)
            times += held_deadlines(view) if kept_back else deadlines(view)
    return min((at for at in times if at > snapshot.now), default=None)


def _kept_back(view: RevisionView, snapshot: Snapshot) -> bool:
    """Whether a hold or a gate keeps all back that is in flight: other deadlines change nothing."""
    gated = gate(view.row, snapshot) is not None
    return bool(view.in_flight) and all(
        shard.hold is not None or (gated and shard.state in SENDABLE) for shard in view.in_flight
    )


def gate(revision: RevisionRow, snapshot: Snapshot) -> Waiting | None:
    """The gate of a whole revision that keeps its submissions back, if one is closed."""
    if revision.hold is not None:
        why = f"on hold: {revision.hold}"
        return Waiting(revision.dataset, None, why, None, revision.hold_release, person=True)
    if revision.cancel_requested_at is not None:
        return Waiting(revision.dataset, None, f"cancelled: {revision.cancel_reason}")
    if revision.superseded_at is not None:
        return Waiting(revision.dataset, None, "superseded")
    running = snapshot.running.get((revision.tenant_id, revision.workload), 0)
    if revision.started_at is None and running >= revision.open_datasets:
        return Waiting(
            revision.dataset,
            None,
            f"{running} datasets are in progress, limits.open_datasets is {revision.open_datasets}",
            release="It opens when one of them closes.",
        )
    return None


def basis(view: RevisionView, now: int) -> str:
    """Digest of everything that an accounting of this revision rests on."""
    parts = [
        f"{s.attempt}/{s.ordinal}/{s.epoch}/{s.closure_digest or s.state}" for s in ended(view)
    ]
    parts.append(f"jobs={len(view.jobs)} overdue={sorted(overdue(view, now))}")
    parts.append(f"close_by={close_by_passed(view, now)}")
    parts.append(f"cancel={view.row.cancel_requested_at is not None}")
    for name, people in (("released", released(view)), ("abandoned", abandoned(view))):
        if people:
            parts.append(f"{name}={sorted(people)}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def may_cut(view: RevisionView, now: int) -> bool:
    """Whether the next attempt may be cut: nothing in flight, or the oldest has waited enough."""
    if view.row.cancel_requested_at is not None or view.row.superseded_at is not None:
        return False
    if not view.in_flight:
        return True
    accounted = [s.state_at for s in view.shards if s.state == "ACCOUNTED"]
    return bool(accounted) and now >= min(accounted) + view.row.cut_after


def _of_revision(view: RevisionView, snapshot: Snapshot, settings: Settings) -> Iterator[Work]:
    revision, now = view.row, snapshot.now
    open_gate = gate(revision, snapshot) is None
    for shard in view.shards:
        if shard.state in COLLECTABLE:
            # Nothing is fetched any more where only the gate is wanting.
            if shard.due_at <= now and not gate_is_lost(shard):
                yield _shard_work("collect", shard, shard.due_at)
        elif shard.state in POLLED:
            at = poll_due(shard, settings)
            if at <= now:
                yield _shard_work("poll", shard, at)
            if cancel_due(shard, now):
                yield _shard_work("cancel", shard, shard.due_at)
        elif shard.state in SENDABLE and open_gate and shard.hold is None and shard.due_at <= now:
            yield _shard_work("submit", shard, shard.due_at)
    if revision.closed_at is None:
        if account_due(view, now):
            yield _revision_work("account", view, basis(view, now)[:16], now)
    elif (
        revision.closure_digest is not None
        and revision.published_closure != revision.closure_digest
        and revision.withheld_closure != revision.closure_digest
        and revision.cancel_requested_at is None
    ):
        yield _revision_work("publish", view, revision.closure_digest[:16], revision.closed_at)


def account_due(view: RevisionView, now: int) -> bool:
    """Whether nothing is in flight (or enough was waited) and the evidence asks for something.

    Either it was never accounted, or its accounting asks for an attempt that is not cut yet.
    """
    revision = view.row
    if held_overdue(view, now):
        return True
    waits = view.in_flight
    if revision.cancel_requested_at is not None:
        # What was never sent never will be; what was sent is paid and is waited for.
        waits = tuple(s for s in waits if s.state not in SENDABLE)
    if waits and not may_cut(view, now):
        return False
    if revision.settlement_basis != basis(view, now):
        return True
    return cut_due(view, now)


def cut_due(view: RevisionView, now: int) -> bool:
    """Whether the latest accounting asks for an attempt that nobody has cut from it yet."""
    wanted = bool(view.row.retry_wanted)
    return wanted and may_cut(view, now) and view.jobs[-1].basis != view.row.settlement_basis


def cancel_due(shard: SubmissionRow, now: int) -> bool:
    """Whether a person asked to cancel a live batch and the provider has not taken it yet."""
    wanted = shard.cancel_requested_at is not None and shard.cancel_sent_at is None
    return wanted and shard.state in CANCELLABLE and shard.due_at <= now


def _looks(snapshot: Snapshot, settings: Settings) -> Iterator[Work]:
    """One look per account, for all of its submissions that wait.

    Those that a person gave up too, for as long as two looks take: their records have gone to
    people, but a batch may exist, and it is cancelled when it is found.
    """
    first: dict[str, tuple[int, SubmissionRow]] = {}
    for view in snapshot.revisions:
        for shard in view.shards:
            if shard.state not in {"SUBMITTING", "UNCERTAIN"} or shard.account is None:
                continue
            last_look = snapshot.last_look.get(shard.account)
            if _is_given_up(shard, last_look, settings):
                continue
            at = look_due(shard, last_look, settings)
            known = first.get(shard.account)
            if known is None or at < known[0]:
                first[shard.account] = (at, shard)
    for account, (at, shard) in first.items():
        if at <= snapshot.now:
            yield Work(
                "look",
                f"look:{account}:{at}",
                account,
                shard.tenant_id,
                shard.workload,
                shard.dataset,
                shard.revision,
                shard.attempt,
                None,
                shard.revision_id,
                None,
                at,
            )


def _is_given_up(shard: SubmissionRow, last_look: int | None, settings: Settings) -> bool:
    """Whether the looks after a person's word had time to decide; a sweep finds what is later."""
    if shard.state != "UNCERTAIN" or shard.abandoned_at is None or last_look is None:
        return False
    settle = int(settings.settle_interval * 1_000_000)
    # A candidate that was let go after that word begins its looks anew.
    since = max(shard.abandoned_at, shard.post_deadline or 0, shard.state_at)
    return last_look > since + 3 * settle


def look_due(shard: SubmissionRow, last_look: int | None, settings: Settings) -> int:
    """When the next look for a submission starts.

    The first one right after the deadline (it may find the batch), then the two that can prove
    absence, each a settle interval after what it has to follow.
    """
    assert shard.post_deadline is not None
    settle = int(settings.settle_interval * 1_000_000)
    early = shard.post_deadline + 1
    if last_look is None or last_look < early:
        return early
    if shard.first_look_at is None:
        at = shard.post_deadline + settle
    else:
        at = max(shard.first_look_at, shard.input_deleted_at or 0) + settle
    # A look that failed or proved nothing is not repeated at once.
    return at if last_look < at else last_look + min(settle, MAX_LOOK_WAIT)


def poll_due(shard: SubmissionRow, settings: Settings) -> int:
    """When a bound batch is looked at again; failed looks back off up to ten minutes."""
    if shard.polled_at is None:
        wait = min(FIRST_POLL_SECONDS, settings.poll_interval)
        return (shard.bound_at or shard.state_at) + int(wait * 1_000_000)
    # A look that failed backs off; a batch that ended without its files is asked at the usual pace.
    doublings = min(shard.poll_faults, 8) if shard.last_error is not None else 0
    wait = settings.poll_interval * 2**doublings
    wait = min(wait, max(MAX_POLL_SECONDS, settings.poll_interval))
    return shard.polled_at + int(wait * 1_000_000)


def _why(
    view: RevisionView, shard: SubmissionRow, snapshot: Snapshot, settings: Settings
) -> Waiting:
    revision, name = view.row, shard.shard_key
    if gate_is_lost(shard) or (
        shard.hold is not None and shard.state in SENDABLE | {"PROVISIONAL"}
    ):
        # A candidate is looked at again, but no look has told whose it is.
        open_still = shard.state == "PROVISIONAL"
        until = poll_due(shard, settings) if open_still else held_deadline(view, shard)
        why = f"hold: {shard.hold}"
        return Waiting(revision.dataset, name, why, until, shard.hold_release, person=True)
    if shard.state in POLLED:
        progress = "?" if shard.total is None else f"{shard.done or 0}/{shard.total}"
        why = f"{shard.state} {progress}"
        if shard.last_error is not None:
            why += f": {shard.last_error}"
        elif shard.poll_faults:
            why += f": it has ended and names no result file yet ({shard.poll_faults} looks)"
        return Waiting(revision.dataset, name, why, until=poll_due(shard, settings))
    if shard.state in LIVE:
        why = f"{shard.state}: {shard.last_error or 'its create has not answered yet'}"
        if shard.account is None or shard.post_deadline is None:
            return Waiting(revision.dataset, name, why, until=shard.state_at)
        until = look_due(shard, snapshot.last_look.get(shard.account), settings)
        release = "A look at the provider's list finds its batch, or two prove that there is none."
        return Waiting(revision.dataset, name, why, until, release)
    why = shard.state if shard.last_error is None else f"{shard.state}: {shard.last_error}"
    return Waiting(revision.dataset, name, why, until=shard.due_at)


def _shard_work(kind: WorkKind, shard: SubmissionRow, at: int) -> Work:
    return Work(
        kind,
        f"{kind}:{shard.submission_key}",
        shard.submission_key,
        shard.tenant_id,
        shard.workload,
        shard.dataset,
        shard.revision,
        shard.attempt,
        shard.shard_key,
        shard.revision_id,
        shard.job_key,
        at,
        shard.bytes,
    )


def _revision_work(kind: WorkKind, view: RevisionView, state: str, at: int) -> Work:
    revision = view.row
    return Work(
        kind,
        f"{kind}:{revision.id}:{state}",
        str(revision.id),
        revision.tenant_id,
        revision.workload,
        revision.dataset,
        revision.revision,
        view.attempt,
        None,
        revision.id,
        view.jobs[-1].job_key,
        at,
    )


def of_kind(work: Iterable[Work], *kinds: WorkKind) -> list[Work]:
    """The part of a plan that one caller does."""
    return [item for item in work if item.kind in kinds]
