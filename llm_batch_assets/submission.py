"""Claim and create: at most one live batch for a submission (invariants 1, 2, 4, 5).

A create is one POST whose intent is committed first. Whatever it answers other than an id or the
provider's own refusal leaves the submission UNCERTAIN, and only looks decide from there.
"""

from __future__ import annotations

from llm_batch_assets.deps import Deps
from llm_batch_assets.errors import LeaseLost, ProviderError, TransitionRefused
from llm_batch_assets.finding import adopt_unsent, bind, cancel_stray, uncertain
from llm_batch_assets.ledger import claims, facts
from llm_batch_assets.ledger import submissions as rows
from llm_batch_assets.ledger.leases import Lease, held, still_held
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.states import SENDABLE
from llm_batch_assets.ledger.uploads import uploaded_at
from llm_batch_assets.providers.base import BatchProvider
from llm_batch_assets.provisional import newest
from llm_batch_assets.retention import upload_expired
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
    with held(deps.ledger, row.target, deps.worker.holder, lease_ttl(row.bytes, deps)) as lease:
        with deps.ledger.read() as connection:
            row = rows.load(connection, row.submission_key)
        return submit_leased(row, deps, lease, endpoint=endpoint, model=model)


def lease_ttl(size: int, deps: Deps) -> float:
    """How long a create's lease lasts: it outlives upload and create by a margin."""
    return 2 * deps.settings.post_limit(size) + LEASE_MARGIN


def submit_leased(
    row: SubmissionRow, deps: Deps, lease: Lease, *, endpoint: str, model: str
) -> SubmissionRow:
    """``submit`` for a worker that holds the lease already."""
    provider = deps.provider(row.provider)
    limit = deps.settings.post_limit(row.bytes)
    with deps.ledger.read() as connection:
        made = facts.facts_of(connection, row.submission_key)
        uploaded = uploaded_at(connection, row.id)
    if made and row.state in SENDABLE:
        try:
            return adopt_unsent(row, provider.get(made[0][0]), deps, lease)
        except ProviderError as error:
            _postpone(row, deps, error)
            raise
    if provider.has_upload and (row.state == "VALIDATED" or _stale(row, uploaded, provider, deps)):
        row = _upload(row, deps, provider, lease, limit)
    unlabelled = not provider.settles_by_label
    row = claims.claim(
        deps.ledger,
        row,
        lease=lease,
        worker=deps.worker,
        account=provider.account(),
        post_seconds=limit,
        fence=newest(provider) if unlabelled else None,
        exclusive=unlabelled,
    )
    return _create(row, deps, provider, lease, limit, endpoint, model)


def _stale(row: SubmissionRow, uploaded: int | None, provider: BatchProvider, deps: Deps) -> bool:
    """Whether a create that names the uploaded file would be refused for good.

    It waited longer than the provider keeps files, or another account uploaded it: a key was
    changed between the upload and the create, and the new one may not see the file.
    """
    if row.state != "UPLOADED":
        return False
    return row.account != provider.account() or upload_expired(
        row.provider, uploaded, deps.ledger.time()
    )


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
    """Make a submission due later; what will not pass by itself is a hold for a person."""
    rows.put_off(deps.ledger, row, error, _backoff(row.tries, error.retry_after))
    if error.fault in ("account", "refused"):
        # Neither passes by itself: asking again until somebody looks would only look busy.
        what = "account" if error.fault == "account" else f"{error.operation} refused"
        mend = "account" if error.fault == "account" else "cause"
        rows.set_hold(
            deps.ledger,
            row,
            f"{what}: {error.code or error.http_status}",
            f"Mend the {row.provider} {mend}, then `llm-batch-assets release {row.shard_key}`.",
        )


def _backoff(tries: int, retry_after: float | None) -> float:
    if retry_after is not None:
        # The provider's own word, within reason.
        return float(min(max(retry_after, 0.0), REFUSED_BACKOFF[1]))
    return rows.doubled(REFUSED_BACKOFF, tries)


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
            return uncertain(row, deps, lease, "the deadline passed before the first byte")
        try:
            view = provider.create(request, path, timeout=min(limit, remaining))
        except ProviderError as error:
            return _not_created(row, deps, lease, error)
    facts.record_batch(deps.ledger, provider.account(), view, row.submission_key, "create")
    try:
        return bind(row, view, deps, lease, "answer")
    except (LeaseLost, TransitionRefused):
        return _late_answer(row, view, deps)


def _late_answer(row: SubmissionRow, view: BatchView, deps: Deps) -> SubmissionRow:
    """Another worker has decided while this create was on its way: the batch is known, that's all.

    Still undecided, a look binds it; decided otherwise, it is a second batch and is cancelled.
    """
    with deps.ledger.read() as connection:
        row = rows.load(connection, row.submission_key)
    if row.state not in {"SUBMITTING", "UNCERTAIN", "PROVISIONAL"} and (
        row.batch_id != view.batch_id
    ):
        cancel_stray(row, view.batch_id, deps)
    return row


def _not_created(
    row: SubmissionRow, deps: Deps, lease: Lease, error: ProviderError
) -> SubmissionRow:
    if error.effect != "none":
        return uncertain(row, deps, lease, str(error))
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
