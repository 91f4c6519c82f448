"""Publish a closed revision: the pointer flips to the candidate that the checks read."""

from __future__ import annotations

from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.outcome import Outcome
from llm_batch_assets.errors import GateClosed, NotReady
from llm_batch_assets.ledger import accounting
from llm_batch_assets.ledger.leases import held
from llm_batch_assets.ledger.people import give_word
from llm_batch_assets.ledger.rows import RevisionRow
from llm_batch_assets.ledger.views import view_by_id
from llm_batch_assets.manifest import load_manifest
from llm_batch_assets.publish import accepted_fraction, require_publishable


def publish(revision_id: int, deps: Deps, *, word: str | None = None) -> Outcome:
    """Publish, or do nothing when this closure is published already.

    Args:
        revision_id: the ledger's own number.
        deps: what to work with.
        word: a person's reason to publish a closed revision that a gate withholds: one that was
            cancelled, or that has too few accepted records. It holds for this closure only.

    Raises:
        NotReady: the revision is open.
        GateClosed: it is closed but withheld; the closure is marked, so that it is tried once.
    """
    target = f"revision:{revision_id}"
    with held(deps.ledger, target, deps.worker.holder, deps.settings.lease_ttl) as lease:
        row = accounting.revision_by_id(deps.ledger, revision_id)
        if word is not None and row.closed_at is not None and row.superseded_at is None:
            give_word(deps.ledger, row, deps.worker, word)
            row = accounting.revision_by_id(deps.ledger, revision_id)
        first = view_by_id(deps.ledger, revision_id).jobs[0]
        policy = load_manifest(deps.store, first.manifest_digest).publish
        try:
            require_publishable(row, wait_for_review=policy.wait_for_review)
        except NotReady:
            raise
        except GateClosed as gate:
            accounting.withhold(deps.ledger, row, str(gate))
            raise
        deps.progress("publish", row.dataset)
        changed = accounting.publish(deps.ledger, row, deps.worker, lease)
        row = accounting.revision_by_id(deps.ledger, revision_id)
    return publish_outcome(row, changed=changed)


def publish_outcome(row: RevisionRow, *, changed: bool) -> Outcome:
    """What a published revision is, for events and people."""
    return Outcome(
        "publish",
        row.dataset,
        "published",
        changed,
        f"{row.dataset} r{row.revision}: {row.accepted} of {row.records} records published as "
        f"version {row.published_version}.",
        {
            "records": row.records,
            "accepted": row.accepted,
            "accepted_fraction": accepted_fraction(row),
            "version": row.published_version,
            "closure": row.closure_digest,
            "table": row.candidate_digest,
            "rows_digest": row.candidate_rows_digest,
        },
        row.candidate_rows_digest,
    )
