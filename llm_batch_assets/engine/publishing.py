"""Publish a closed revision: the pointer flips to the candidate that the checks read."""

from __future__ import annotations

from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.outcome import Outcome
from llm_batch_assets.errors import GateClosed, NotReady
from llm_batch_assets.ledger import accounting
from llm_batch_assets.ledger.leases import held
from llm_batch_assets.publish import accepted_fraction, require_publishable


def publish(revision_id: int, deps: Deps) -> Outcome:
    """Publish, or do nothing when this closure is published already.

    Raises:
        NotReady: the revision is open.
        GateClosed: it is closed but withheld; the closure is marked, so that it is tried once.
    """
    target = f"revision:{revision_id}"
    with held(deps.ledger, target, deps.worker.holder, deps.settings.lease_ttl) as lease:
        row = accounting.revision_by_id(deps.ledger, revision_id)
        try:
            require_publishable(row)
        except NotReady:
            raise
        except GateClosed as gate:
            accounting.withhold(deps.ledger, row, str(gate))
            raise
        deps.progress("publish", row.dataset)
        changed = accounting.publish(deps.ledger, row, deps.worker, lease)
        row = accounting.revision_by_id(deps.ledger, revision_id)
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
