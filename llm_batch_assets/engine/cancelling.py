"""A person's cancel: recorded first, then taken to the provider as due work until it took it.

From the record on nothing of the dataset is sent, sent again or published. Rows that still arrive
are paid for: they are collected and accepted, and publishing them needs a person's word.
"""

from __future__ import annotations

from typing import Any

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.outcome import Outcome
from llm_batch_assets.errors import GateClosed, LLMBatchError, NotReady, ProviderError
from llm_batch_assets.ledger import accounting, views
from llm_batch_assets.ledger import submissions as rows
from llm_batch_assets.ledger.leases import held
from llm_batch_assets.ledger.lookup import one_dataset
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.states import CANCELLABLE, LIVE, SENDABLE
from llm_batch_assets.ledger.views import RevisionView
from llm_batch_assets.polling import observe
from llm_batch_assets.reconcile.digests import read_document
from llm_batch_assets.reconcile.evidence import SHARD_CLOSURE

CANCEL_BACKOFF = (5.0, 300.0)
"""First and longest wait in seconds after a cancel that was not answered, doubled each time."""


def cancel(deps: Deps, *, dataset: str, reason: str, workload: str | None = None) -> Outcome:
    """Cancel a dataset: recorded in one transaction, then asked of the provider at once.

    A cancel that the provider does not answer stays due work. Doing it again changes nothing.

    Args:
        deps: what to work with; ``deps.worker.actor`` is who.
        dataset: the dataset's key; its newest revision is meant.
        reason: why, for the log of decisions.
        workload: needed where several workloads have this key.

    Raises:
        InputError: no such dataset, or no reason.
        GateClosed: it is published already.
    """
    revision = one_dataset(deps.ledger, dataset, workload)
    counts = processed(views.view_by_id(deps.ledger, revision.id), deps.store)
    changed = accounting.request_cancel(deps.ledger, revision, deps.worker, reason, counts)
    revision = accounting.revision_by_id(deps.ledger, revision.id)
    if revision.cancel_requested_at is None:
        raise GateClosed(
            f"{dataset} r{revision.revision} is closed and published: nothing of it is open.",
            remedy="`supersede` makes a new revision.",
        )
    for shard in views.view_by_id(deps.ledger, revision.id).shards:
        if shard.state in CANCELLABLE and shard.cancel_sent_at is None:
            try:
                send_cancel(shard, deps)
            except LLMBatchError as error:
                deps.progress("cancel", f"{shard.shard_key}: {error}")
    view = views.view_by_id(deps.ledger, revision.id)
    facts = processed(view, deps.store) | {
        "reason": revision.cancel_reason,
        "by": revision.cancel_by,
        "at": revision.cancel_requested_at,
    }
    message = (
        f"{dataset} r{revision.revision} is cancelled: {facts['live_batches']} live batches, "
        f"{facts['cancels_taken']} cancels taken by the provider, "
        f"{facts['unsent_shards']} shards will never be sent"
    )
    return Outcome("cancel", dataset, "cancelled", changed, message, facts)


def processed(view: RevisionView, store: ArtifactStore) -> dict[str, Any]:
    """How far a revision is: what a cancel can still save, and what is paid for so far.

    ``tokens`` are those in evidence; what live batches have used is known when they are collected.
    """
    live = [s for s in view.shards if s.state in LIVE]
    return {
        "records": view.row.records,
        "accounted_records": sum(s.records for s in view.shards if s.state == "ACCOUNTED"),
        "done": sum(s.done or 0 for s in view.shards),
        "failed": sum(s.failed or 0 for s in view.shards),
        "live_batches": len(live),
        "live_records": sum(s.records for s in live),
        "cancels_taken": sum(s.cancel_sent_at is not None for s in view.shards),
        "unsent_shards": sum(s.state in SENDABLE for s in view.shards),
        "tokens": tokens_so_far(view, store),
    }


def tokens_so_far(view: RevisionView, store: ArtifactStore) -> dict[str, int]:
    """Tokens of every attempt in evidence, by kind; a kind that no row names is left out."""
    total: dict[str, int] = {}
    for shard in view.shards:
        if shard.closure_digest is not None:
            usage = read_document(store, shard.closure_digest, SHARD_CLOSURE)["usage"]
            for kind, count in usage.items():
                if count is not None:
                    total[kind] = total.get(kind, 0) + count
    return total


def send_cancel(row: SubmissionRow, deps: Deps) -> SubmissionRow:
    """Ask the provider to cancel one batch. Idempotent; a lost reply leaves it due.

    Raises:
        NotReady: another worker is at it, or its credential is another one.
        ProviderError: not taken; due again after a backoff.
    """
    provider = deps.provider(row.provider)
    with held(deps.ledger, row.target, deps.worker.holder, deps.settings.lease_ttl):
        with deps.ledger.read() as connection:
            row = rows.load(connection, row.submission_key)
        if row.batch_id is None or row.state not in CANCELLABLE or row.cancel_sent_at is not None:
            return row
        if row.account is not None and row.account != provider.account():
            raise NotReady(
                f"{row.shard_key} was made with another credential.",
                remedy="Run with the key that made it: another key cannot cancel its batch.",
            )
        deps.progress("cancel", row.shard_key)
        try:
            view = provider.cancel(row.batch_id)
        except ProviderError as error:
            rows.put_off(deps.ledger, row, error, rows.doubled(CANCEL_BACKOFF, row.tries))
            raise
        rows.note(deps.ledger, row, cancel_sent_at=deps.ledger.time(), tries=0, last_error=None)
        with deps.ledger.read() as connection:
            row = rows.load(connection, row.submission_key)
    return row if view is None else observe(row, view, deps)
