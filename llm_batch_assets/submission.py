"""Claim, create, find, bind: at most one live batch for a submission (invariants 1 to 5).

A create is one POST whose intent is committed first. Whatever it answers other than an id or the
provider's own refusal leaves the submission UNCERTAIN, and only looks at the provider's list
decide from there: found, it is bound; proven absent, the next epoch is opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_batch_assets.deps import Deps
from llm_batch_assets.errors import LeaseLost, NotReady, ProviderError, TransitionRefused
from llm_batch_assets.identity import submission_key
from llm_batch_assets.ledger import submissions as rows
from llm_batch_assets.ledger.database import to_micros
from llm_batch_assets.ledger.leases import Lease, held, still_held
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.providers.base import BatchProvider
from llm_batch_assets.types import BatchView, CreateRequest

LEASE_MARGIN = 10.0
"""Seconds by which the lease of a create outlives its deadline."""

REFUSED_BACKOFF = (30.0, 3600.0)
"""First and longest wait in seconds after a refusal for now, doubled each time."""


def submit(row: SubmissionRow, deps: Deps, *, endpoint: str, model: str) -> SubmissionRow:
    """Send one submission, once.

    Args:
        row: the submission; anything but VALIDATED and UPLOADED makes no call.
        deps: what to work with.
        endpoint: of the manifest.
        model: the exact model of the manifest.

    Returns:
        The row as it is afterwards.

    Raises:
        GateClosed: a gate refuses, saying what would release it.
        NotReady: another worker is at it.
        ProviderError: the upload failed; nothing was created and the submission stays due.
    """
    provider = deps.provider(row.provider)
    limit = deps.settings.post_limit(row.bytes)
    ttl = 2 * limit + LEASE_MARGIN
    with held(deps.ledger, row.target, deps.worker.holder, ttl) as lease:
        with deps.ledger.read() as connection:
            row = rows.load(connection, row.submission_key)
        if row.state == "VALIDATED" and provider.has_upload:
            row = _upload(row, deps, provider, lease, limit)
        row = rows.claim(
            deps.ledger,
            row.submission_key,
            lease=lease,
            worker=deps.worker,
            account=provider.account(),
            post_seconds=limit,
        )
        return _create(row, deps, provider, lease, limit, endpoint, model)


def _upload(
    row: SubmissionRow, deps: Deps, provider: BatchProvider, lease: Lease, limit: float
) -> SubmissionRow:
    deps.progress("upload", row.shard_key)
    with deps.store.fetch(row.request_digest) as path:
        try:
            uploaded = provider.upload(path, name=f"{row.submission_key}.jsonl", timeout=limit)
        except ProviderError as error:
            _postpone(row, deps, error)
            raise
    return rows.transition(
        deps.ledger,
        row,
        "UPLOADED",
        lease=lease,
        worker=deps.worker,
        reason="request file named by the provider",
        input_ref=uploaded.ref,
        account=provider.account(),
    )


def _postpone(row: SubmissionRow, deps: Deps, error: ProviderError) -> None:
    """Make a submission due later; a fault of the account is a hold for a person."""
    wait = _backoff(row.tries, error.retry_after)
    rows.note(
        deps.ledger,
        row,
        due_at=deps.ledger.time() + int(wait * 1_000_000),
        tries=row.tries + 1,
        last_error=str(error)[:500],
    )
    if error.fault == "account":
        rows.set_hold(
            deps.ledger,
            row,
            f"account: {error.code or error.http_status}",
            f"Mend the {row.provider} account, then `llm-batch-assets release {row.shard_key}`.",
        )


def _backoff(tries: int, retry_after: float | None) -> float:
    first, longest = REFUSED_BACKOFF
    wait = min(longest, first * 2 ** min(tries, 10))
    if retry_after is not None:
        # The provider's own word, within reason.
        return float(min(max(retry_after, 0.0), longest))
    return wait


def _create(
    row: SubmissionRow,
    deps: Deps,
    provider: BatchProvider,
    lease: Lease,
    limit: float,
    endpoint: str,
    model: str,
) -> SubmissionRow:
    request = CreateRequest(
        endpoint=endpoint,
        model=model,
        input_ref=row.input_ref,
        request_file_digest=row.request_digest,
        records=row.records,
        deployment=deps.ledger.deployment,
        submission_key=row.submission_key,
        job_key=row.job_key,
        shard_key=row.shard_key,
    )
    deps.progress("create", row.shard_key)
    with deps.store.fetch(row.request_digest) as path:
        # The last thing before the first byte: is this worker still the one, and in time?
        still_held(deps.ledger, lease)
        assert row.post_deadline is not None
        remaining = (row.post_deadline - deps.ledger.time()) / 1_000_000
        if remaining <= 0:
            return _uncertain(row, deps, lease, "the deadline passed before the first byte")
        try:
            view = provider.create(request, path, timeout=min(limit, remaining))
        except ProviderError as error:
            return _not_created(row, deps, lease, error)
    rows.record_batch(deps.ledger, provider.account(), view, row.submission_key, "create")
    return bind(row, view, deps, lease, "answer")


def _not_created(
    row: SubmissionRow, deps: Deps, lease: Lease, error: ProviderError
) -> SubmissionRow:
    if error.effect != "none":
        return _uncertain(row, deps, lease, str(error))
    if error.fault == "refused":
        return rows.transition(
            deps.ledger,
            row,
            "REFUSED",
            lease=lease,
            worker=deps.worker,
            reason=str(error),
            last_error=str(error)[:500],
            outcome=f"refused:{error.http_status}:{error.code or ''}"[:200],
        )
    back = rows.transition(
        deps.ledger,
        row,
        "UPLOADED" if row.input_ref else "VALIDATED",
        lease=lease,
        worker=deps.worker,
        reason=str(error),
    )
    _postpone(back, deps, error)
    with deps.ledger.read() as connection:
        return rows.load(connection, row.submission_key)


def _uncertain(row: SubmissionRow, deps: Deps, lease: Lease, reason: str) -> SubmissionRow:
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
        provider_created_at=to_micros(view.created_at),
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
        rows.record_look(
            deps.ledger,
            account,
            started_at=started,
            batches=len(seen),
            counts=False,
            reason=str(error)[:500],
        )
        raise
    with deps.ledger.read() as connection:
        known = rows.known_batches(connection, account)
    counts = not known or bool(known & seen)
    rows.record_look(
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
                rows.record_batch(deps.ledger, account, view, key, "list")
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
        row = _uncertain(row, deps, lease, "the worker that claimed it is gone")
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
        if rows.facts_of(connection, row.submission_key):
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
        new = rows.record_duplicate(deps.ledger, provider.account(), view.batch_id, key, reason)
        if new and view.status in {"queued", "running", "unknown"}:
            provider.cancel(view.batch_id)
            rows.mark_duplicate_cancelled(deps.ledger, provider.account(), view.batch_id)
