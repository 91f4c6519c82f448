"""What a dataset's published table is: the pointer that downstream reads."""

from __future__ import annotations

import sqlalchemy as sa

from llm_batch_assets.ledger.database import Ledger
from llm_batch_assets.ledger.schema import publications, revisions


def published_candidate(ledger: Ledger, tenant_id: str, workload: str, dataset: str) -> str | None:
    """Digest of the table that is published: of the newest revision, its newest version."""
    query = (
        sa.select(publications.c.candidate_digest)
        .join(revisions, revisions.c.id == publications.c.revision_id)
        .where(
            revisions.c.tenant_id == tenant_id,
            revisions.c.workload == workload,
            revisions.c.dataset == dataset,
        )
        .order_by(revisions.c.revision.desc(), publications.c.version.desc())
        .limit(1)
    )
    with ledger.read() as connection:
        found = connection.execute(query).scalar()
    return None if found is None else str(found)
