"""Remove the provider's copies of a delivered submission: only what our ledger created."""

from __future__ import annotations

from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.outcome import Outcome
from llm_batch_assets.errors import GateClosed, NotReady, ProviderError
from llm_batch_assets.ledger import cleaning, facts
from llm_batch_assets.ledger import submissions as rows
from llm_batch_assets.ledger.leases import held
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.states import ENDED
from llm_batch_assets.providers.base import BatchProvider
from llm_batch_assets.types import TERMINAL_STATUSES, BatchView

CLEAN_BACKOFF = (60.0, 3600.0)
"""First and longest wait in seconds after a removal that failed, doubled each time."""


def clean(row: SubmissionRow, deps: Deps) -> Outcome:
    """Delete the request file, the result files and, where the provider can, the batches.

    Raises:
        GateClosed: the account has an uncertain submission, or a batch is not labelled as ours.
        NotReady: another worker is at it, a batch is still running, or the credential differs.
        ProviderError: the provider did not delete; due again after a backoff.
    """
    provider = deps.provider(row.provider)
    with held(deps.ledger, row.target, deps.worker.holder, deps.settings.lease_ttl):
        with deps.ledger.read() as connection:
            row = rows.load(connection, row.submission_key)
            batches = [batch for batch, _ in facts.facts_of(connection, row.submission_key)]
        if row.remote_deleted_at is not None:
            return _outcome(row, 0, changed=False)
        try:
            _check(row, provider, deps)
            deps.progress("clean", row.shard_key)
            for batch_id in batches:
                _delete_batch(row, batch_id, provider, deps)
            if row.input_ref is not None and row.input_deleted_at is None:
                provider.delete_input(row.input_ref)
        except (ProviderError, GateClosed) as error:  # NotReady is a GateClosed
            rows.put_off(deps.ledger, row, error, rows.doubled(CLEAN_BACKOFF, row.tries))
            raise
        rows.note(deps.ledger, row, remote_deleted_at=deps.ledger.time(), last_error=None)
    return _outcome(row, len(batches), changed=True)


def _check(row: SubmissionRow, provider: BatchProvider, deps: Deps) -> None:
    account = provider.account()
    if row.account is not None and row.account != account:
        raise NotReady(
            f"{row.shard_key} was made with another credential.",
            remedy="Run with the key that made it.",
        )
    if row.state not in ENDED:
        raise NotReady(f"{row.shard_key} is {row.state}: its results are not in evidence yet.")
    if cleaning.is_unsettled(deps.ledger, account):
        raise GateClosed(
            f"The {row.provider} account has a submission that is uncertain.",
            remedy="It goes on when a look has decided; deleting now could spoil the proof.",
        )


def _delete_batch(row: SubmissionRow, batch_id: str, provider: BatchProvider, deps: Deps) -> None:
    try:
        view = provider.get(batch_id)
    except ProviderError as error:
        if error.fault != "not_found":
            raise
    else:
        _check_ours(row, view, provider, deps)
        provider.delete_remote(batch_id, tuple(result.ref for result in view.results))
    cleaning.mark_batch_deleted(deps.ledger, provider.account(), batch_id)


def _check_ours(row: SubmissionRow, view: BatchView, provider: BatchProvider, deps: Deps) -> None:
    labels = (view.deployment, view.submission_key)
    ours = (deps.ledger.deployment, row.submission_key)
    if provider.settles_by_label and labels != ours:
        raise GateClosed(f"{view.batch_id} does not carry the labels of {row.shard_key}.")
    if view.status not in TERMINAL_STATUSES:
        raise NotReady(f"{view.batch_id} is still {view.raw_status}.")


def _outcome(row: SubmissionRow, batches: int, *, changed: bool) -> Outcome:
    return Outcome(
        "clean",
        row.shard_key,
        "cleaned",
        changed,
        f"{row.shard_key}: the provider's copies are gone",
        {"batches": batches, "input": row.input_ref, "submission_key": row.submission_key},
    )
