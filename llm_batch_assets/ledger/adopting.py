"""What this ledger never wrote, though a ledger that is lost has: rows for the store's manifests,
and submissions that somebody may have sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from llm_batch_assets.errors import LedgerError
from llm_batch_assets.ledger import schema
from llm_batch_assets.ledger.database import Ledger, insert_first
from llm_batch_assets.ledger.freezing import (
    JobSpec,
    RevisionSpec,
    find_revision,
    insert_job,
    insert_submissions,
    jobs_of,
)
from llm_batch_assets.ledger.labels import Label, bind_labels
from llm_batch_assets.ledger.leases import Lease
from llm_batch_assets.ledger.rows import JobRow, RevisionRow, SubmissionRow
from llm_batch_assets.ledger.submissions import load, move
from llm_batch_assets.ledger.worker import Worker


def take_for_sent(
    ledger: Ledger,
    row: SubmissionRow,
    *,
    lease: Lease,
    worker: Worker,
    account: str,
    reason: str,
    **values: Any,
) -> SubmissionRow:
    """Move an unsent submission to SUBMITTING without a create: somebody may have sent it.

    Its deadline is now, so that looks decide: found, it is bound; proven absent, the next epoch
    sends it. Nothing is sent on the word of a ledger that is behind.

    Raises:
        TransitionRefused: it is not VALIDATED or UPLOADED (any more).
        LeaseLost: another worker has it.
    """
    r = schema.revisions
    with ledger.write("taken_for_sent") as connection:
        now = ledger.now(connection)
        move(
            connection,
            ledger,
            row,
            "SUBMITTING",
            lease=lease,
            worker=worker,
            reason=reason,
            account=account,
            posted_at=now,
            post_deadline=now,
            first_look_at=None,
            input_deleted_at=None,
            looks=0,
            **values,
        )
        connection.execute(
            sa.update(r)
            .where(r.c.id == row.revision_id, r.c.started_at.is_(None))
            .values(started_at=now)
        )
        return load(connection, row.submission_key)


def restore_revision(
    ledger: Ledger, spec: RevisionSpec, labels: Iterable[Label], created_at: int
) -> tuple[RevisionRow, bool]:
    """The row of a revision that a manifest proves, as old as the manifest; and whether it is new.

    No gate is asked: it was opened before. Labels that are bound already stay as they are.
    """
    with ledger.write("restore_revision") as connection:
        row = {**asdict(spec), "created_at": created_at}
        new = insert_first(connection, schema.revisions, row)
        if new:
            bind_labels(connection, spec.tenant_id, spec.workload, labels, created_at)
        found = find_revision(
            connection, spec.tenant_id, spec.workload, spec.dataset, spec.revision
        )
    assert found is not None
    return found, new


def restore_job(
    ledger: Ledger, revision: RevisionRow, spec: JobSpec, worker: Worker, created_at: int
) -> tuple[JobRow, bool]:
    """The row of a job that a manifest proves; and whether it is new.

    Raises:
        LedgerError: the ledger has another job as this attempt.
    """
    r = schema.revisions
    with ledger.write("restore_job") as connection:
        for job in jobs_of(connection, revision.id):
            if job.attempt == spec.attempt:
                if job.job_key != spec.job_key:
                    raise LedgerError(
                        f"Attempt {spec.attempt} of {revision.dataset} r{revision.revision} is "
                        f"{job.job_key} in the ledger and {spec.job_key} in the store."
                    )
                return job, False
        job = insert_job(
            connection, revision.id, spec, worker, created_at, due_at=created_at, basis=None
        )
        if not spec.shards:
            connection.execute(
                sa.update(r)
                .where(r.c.id == revision.id, r.c.started_at.is_(None))
                .values(started_at=created_at)
            )
        return job, True


def restore_epochs(
    ledger: Ledger, shard_id: int, keys: dict[int, str], worker: Worker
) -> list[int]:
    """Open the epochs (number -> submission_key) of a shard that the ledger lacks."""
    s = schema.submissions
    with ledger.write("restore_epochs") as connection:
        known = connection.execute(sa.select(s.c.epoch).where(s.c.shard_id == shard_id)).scalars()
        missing = sorted(keys.keys() - set(known))
        if missing:
            now = ledger.now(connection)
            new = [(shard_id, epoch, keys[epoch]) for epoch in missing]
            insert_submissions(connection, new, worker, now, now)
    return missing
