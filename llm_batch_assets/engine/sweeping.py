"""The orphan sweep: every batch at the providers that is ours, against what the ledger knows.

Only batches that carry this deployment's label are ever touched. Unbound ones are adopted, never
cancelled; a second batch of a bound submission is reported, and cancelled only when a person (or
an opt-in) says so and it is older than lease plus settle.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from llm_batch_assets import finding, provisional
from llm_batch_assets.deps import Deps
from llm_batch_assets.errors import (
    LeaseLost,
    LLMBatchError,
    NotReady,
    ProviderError,
    TransitionRefused,
)
from llm_batch_assets.ledger import facts, views
from llm_batch_assets.ledger import submissions as rows
from llm_batch_assets.ledger.database import to_micros
from llm_batch_assets.ledger.leases import held
from llm_batch_assets.ledger.people import hold_submission
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.states import ENDED, SENDABLE
from llm_batch_assets.providers.base import BatchProvider
from llm_batch_assets.types import TERMINAL_STATUSES, BatchView


@dataclass(frozen=True, slots=True)
class Stranger:
    """A batch that needs a word: which, of what, why, and whether it still runs."""

    batch_id: str
    provider: str
    submission_key: str
    shard_key: str | None
    why: str
    running: bool
    cancelled: bool = False


@dataclass(slots=True)
class Swept:
    """What one sweep found.

    Attributes:
        bound: batches of ours that are where they belong.
        untouched: batches that do not carry this deployment's label.
        adopted: batches that are bound now.
        duplicates: second batches of bound (or ended) submissions.
        unknown: batches with our label whose key the ledger does not have.
        elsewhere: batches with one of our keys under another deployment: held for a person.
        faults: provider -> why its list could not be read; nothing is concluded there.
    """

    bound: int = 0
    untouched: int = 0
    adopted: list[Stranger] = field(default_factory=list)
    duplicates: list[Stranger] = field(default_factory=list)
    unknown: list[Stranger] = field(default_factory=list)
    elsewhere: list[Stranger] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """3 when something needs a person, else 0."""
        left = [one for one in self.duplicates if one.running and not one.cancelled]
        return 3 if left or self.unknown or self.elsewhere or self.faults else 0

    def as_dict(self) -> dict[str, Any]:
        """For ``--format json``."""
        return asdict(self) | {"exit_code": self.exit_code}


def sweep(deps: Deps, *, providers: Sequence[str] | None = None, cancel: bool = False) -> Swept:
    """Walk the list of each provider once.

    Args:
        deps: what to work with.
        providers: which; None for every provider that the ledger has a dataset of.
        cancel: cancel live duplicates that are older than lease plus settle.
    """
    swept = Swept()
    for name in providers or views.providers(deps.ledger):
        try:
            provider = deps.provider(name)
            # The whole list first: which batch is kept depends on all that carry one key.
            listing = list(provider.list_batches())
        except LLMBatchError as error:
            swept.faults[name] = str(error)
            continue
        ours: dict[str, list[BatchView]] = {}
        for view in listing:
            if view.deployment == deps.ledger.deployment and view.submission_key:
                ours.setdefault(view.submission_key, []).append(view)
            else:
                _other(view, provider, deps, swept)
        for key, found in sorted(ours.items()):
            _key(key, found, provider, deps, swept, cancel=cancel)
        if not provider.settles_by_label:
            try:
                _late(listing, provider, deps, swept)
            except LLMBatchError as error:
                swept.faults[name] = str(error)
    return swept


def _late(listing: Sequence[BatchView], provider: BatchProvider, deps: Deps, swept: Swept) -> None:
    """Batches without a label whose create arrived after its absence was proven.

    Only their first lines tell whose they are, so they are known when they have ended: nothing is
    left to cancel then. One that the shard has not replaced yet is adopted: it is paid for. What
    another one cost is booked.
    """
    account = provider.account()
    for row in views.absent_and_decided(deps.ledger, account):
        with deps.ledger.read() as connection:
            ours = facts.known_batches(connection, account)
            rejected = facts.rejected_of(connection, row.submission_key)
            made = {batch_id for batch_id, _ in facts.facts_of(connection, row.submission_key)}
        if row.state == "UNCERTAIN" and (known := [v for v in listing if v.batch_id in made]):
            # Given up, and yet a late answer named its batch.
            with suppress(NotReady, LeaseLost, TransitionRefused):
                _adopt(row, finding.oldest(known), provider, deps, swept)
            continue
        found = provisional.candidates(row, listing, ours=ours, rejected=rejected)
        verdict = provisional.judge(found, row, provider)
        for view in verdict.foreign:
            facts.reject_batch(deps.ledger, row.submission_key, view.batch_id, finding.ANOTHERS)
        for view in verdict.proven:
            swept.untouched -= 1
            newest = views.epochs_of(deps.ledger, row.shard_id)[-1]
            if newest.state in {"UNCERTAIN"} | SENDABLE:
                with suppress(NotReady, LeaseLost, TransitionRefused):
                    _adopt(newest, view, provider, deps, swept)
                continue
            swept.duplicates.append(_duplicate(view, row, provider, deps, cancel=False))


def _other(view: BatchView, provider: BatchProvider, deps: Deps, swept: Swept) -> None:
    """Not ours and not touched; but one of our keys under another name needs a person."""
    with deps.ledger.read() as connection:
        row = rows.find(connection, view.submission_key) if view.submission_key else None
    if row is None:
        swept.untouched += 1
        return
    why = f"{view.batch_id} carries its key under the deployment {view.deployment or 'none'}"
    if row.hold is None and row.state not in ENDED:
        hold_submission(deps.ledger, row, deps.worker, why)
    swept.elsewhere.append(_stranger(view, provider, row, why))


def _key(
    key: str,
    found: list[BatchView],
    provider: BatchProvider,
    deps: Deps,
    swept: Swept,
    *,
    cancel: bool,
) -> None:
    with deps.ledger.read() as connection:
        row = rows.find(connection, key)
    if row is None:
        why = "the ledger does not have its submission: `adopt --all` rebuilds it"
        swept.unknown += [_stranger(view, provider, None, why, key) for view in found]
        return
    swept.untouched += sum(not finding.fits(row, view, provider) for view in found)
    found = [view for view in found if finding.fits(row, view, provider)]
    if not found:
        return
    try:
        row = _adopt(row, finding.oldest(found), provider, deps, swept)
    except (NotReady, LeaseLost, TransitionRefused):
        return  # a worker is at it: its word stands
    if row.state in {"SUBMITTING", "PROVISIONAL"} | SENDABLE:
        return  # its create is on the way: nothing is a second batch yet
    for view in found:
        if view.batch_id == row.batch_id:
            swept.bound += 1
        else:
            swept.duplicates.append(_duplicate(view, row, provider, deps, cancel=cancel))


def _adopt(
    row: SubmissionRow, view: BatchView, provider: BatchProvider, deps: Deps, swept: Swept
) -> SubmissionRow:
    if row.state not in {"SUBMITTING", "UNCERTAIN"} | SENDABLE:
        return row
    with held(deps.ledger, row.target, deps.worker.holder, deps.settings.lease_ttl) as lease:
        with deps.ledger.read() as connection:
            row = rows.load(connection, row.submission_key)
        if row.state == "SUBMITTING" and deps.ledger.time() > (row.post_deadline or 0):
            row = finding.uncertain(row, deps, lease, "the worker that claimed it is gone")
        if row.state not in {"UNCERTAIN"} | SENDABLE:
            return row
        facts.record_batch(deps.ledger, provider.account(), view, row.submission_key, "sweep")
        if row.state == "UNCERTAIN":
            after = finding.bind(row, view, deps, lease, "found")
        else:
            after = finding.adopt_unsent(row, view, deps, lease)
    swept.adopted.append(_stranger(view, provider, row, f"it was {row.state}"))
    return after


def _duplicate(
    view: BatchView, row: SubmissionRow, provider: BatchProvider, deps: Deps, *, cancel: bool
) -> Stranger:
    why = f"a second batch beside {row.batch_id}" if row.batch_id else f"of {row.state} work"
    running = view.status not in TERMINAL_STATUSES and view.status != "stopping"
    old_enough = _age(view, deps) >= deps.settings.lease_ttl + deps.settings.settle_interval
    done = False
    if _is_booked(view, provider, deps):
        pass
    elif not running or (cancel and old_enough):
        # What has ended can only be booked, and that needs nobody's word.
        facts.record_batch(deps.ledger, provider.account(), view, row.submission_key, "sweep")
        try:
            finding.cancel_stray(row, view.batch_id, deps)
            done = running
        except ProviderError as error:
            why += f"; its cancel was not taken: {error}"
    elif cancel:
        why += "; too young to cancel: a worker may still bind it"
    return _stranger(view, provider, row, why, running=running, cancelled=done)


def _is_booked(view: BatchView, provider: BatchProvider, deps: Deps) -> bool:
    with deps.ledger.read() as connection:
        return facts.is_settled_duplicate(connection, provider.account(), view.batch_id)


def _age(view: BatchView, deps: Deps) -> float:
    """Seconds since its creation; 0 where the provider does not tell."""
    created = to_micros(view.created_at)
    return 0.0 if created is None else (deps.ledger.time() - created) / 1_000_000


def _stranger(
    view: BatchView,
    provider: BatchProvider,
    row: SubmissionRow | None,
    why: str,
    key: str | None = None,
    *,
    running: bool | None = None,
    cancelled: bool = False,
) -> Stranger:
    live = view.status not in TERMINAL_STATUSES if running is None else running
    return Stranger(
        view.batch_id,
        provider.name,
        key or view.submission_key or "",
        None if row is None else row.shard_key,
        why,
        live,
        cancelled,
    )
