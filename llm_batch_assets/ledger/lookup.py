"""From what a person types to the row that it names."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.errors import InputError
from llm_batch_assets.ledger import schema
from llm_batch_assets.ledger.database import Ledger
from llm_batch_assets.ledger.rows import RevisionRow, SubmissionRow, as_row
from llm_batch_assets.ledger.submissions import joined

SHARD_KEY = r"^(?P<dataset>.+)/r\d+/a\d+/p\d{5,}$"


def find_datasets(
    connection: Connection, dataset: str, workload: str | None = None, revision: int | None = None
) -> list[RevisionRow]:
    """The newest (or the named) revision of each dataset that has this key."""
    r = schema.revisions
    query = sa.select(r).where(r.c.dataset == dataset).order_by(r.c.revision)
    if workload is not None:
        query = query.where(r.c.workload == workload)
    if revision is not None:
        query = query.where(r.c.revision == revision)
    newest: dict[tuple[str, str], RevisionRow] = {}
    for row in connection.execute(query):
        found = as_row(RevisionRow, row)
        newest[found.tenant_id, found.workload] = found
    return list(newest.values())


def one_dataset(
    ledger: Ledger, dataset: str, workload: str | None = None, revision: int | None = None
) -> RevisionRow:
    """The newest (or the named) revision of the one dataset that a person means.

    Raises:
        InputError: the ledger has none, or several workloads have this key.
    """
    with ledger.read() as connection:
        found = find_datasets(connection, dataset, workload, revision)
    if not found:
        suffix = f" of {workload}" if workload else ""
        which = f" r{revision}" if revision is not None else ""
        raise InputError(f"The ledger has no dataset {dataset}{which}{suffix}.")
    if len(found) > 1:
        names = ", ".join(sorted(f"{row.tenant_id}/{row.workload}" for row in found))
        raise InputError(f"{dataset} is a dataset of {names}.", remedy="Name one with --workload.")
    return found[0]


def find_submissions(
    connection: Connection, target: str, workload: str | None = None
) -> list[SubmissionRow]:
    """Submissions that a shard key, submission key or batch id names, newest epoch first."""
    s, h, r = schema.submissions, schema.shards, schema.revisions
    p = schema.provider_batches
    seen = sa.select(p.c.submission_key).where(p.c.batch_id == target)
    query = (
        joined()
        .where(
            sa.or_(
                h.c.shard_key == target,
                s.c.submission_key == target,
                s.c.batch_id == target,
                s.c.submission_key.in_(seen),
            )
        )
        .order_by(s.c.epoch.desc(), s.c.id)
    )
    if workload is not None:
        query = query.where(r.c.workload == workload)
    return [as_row(SubmissionRow, row) for row in connection.execute(query)]


def one_submission(ledger: Ledger, target: str, workload: str | None = None) -> SubmissionRow:
    """The submission that a person means: of a shard key, its newest epoch.

    Raises:
        InputError: the ledger has none, or several workloads have this shard.
    """
    with ledger.read() as connection:
        found = find_submissions(connection, target, workload)
    if not found:
        raise InputError(
            f"The ledger has no shard, submission or batch {target}.",
            remedy="`llm-batch-assets status` lists them.",
        )
    if len({row.shard_id for row in found}) > 1:
        names = ", ".join(sorted({row.workload for row in found}))
        raise InputError(f"{target} is a shard of {names}.", remedy="Name one with --workload.")
    return found[0]
