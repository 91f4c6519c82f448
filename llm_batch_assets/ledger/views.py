"""What people, sensors and the controller read: one consistent snapshot at a time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.ledger import schema
from llm_batch_assets.ledger.cleaning import deletable
from llm_batch_assets.ledger.database import Ledger
from llm_batch_assets.ledger.facts import strays
from llm_batch_assets.ledger.freezing import find_revision, jobs_of
from llm_batch_assets.ledger.rows import JobRow, RevisionRow, SubmissionRow, as_row
from llm_batch_assets.ledger.states import COLLECTABLE, ENDED, LIVE, POLLED
from llm_batch_assets.ledger.submissions import joined, load


@dataclass(frozen=True, slots=True)
class RevisionView:
    """A revision with its jobs and the newest epoch of each shard, in (attempt, ordinal) order."""

    row: RevisionRow
    jobs: tuple[JobRow, ...]
    shards: tuple[SubmissionRow, ...]

    @property
    def attempt(self) -> int:
        """The newest attempt."""
        return self.jobs[-1].attempt

    @property
    def in_flight(self) -> tuple[SubmissionRow, ...]:
        """Shards whose records are not in evidence yet."""
        return tuple(s for s in self.shards if s.state not in ENDED and s.abandoned_at is None)

    @property
    def awaited(self) -> tuple[SubmissionRow, ...]:
        """What is in flight, and batches that are paid for though a person gave them up."""
        paid = POLLED | COLLECTABLE
        return tuple(
            s
            for s in self.shards
            if s.state not in ENDED and (s.abandoned_at is None or s.state in paid)
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Frozen rows and the instant (microseconds UTC) at which they were read."""

    now: int
    revisions: tuple[RevisionView, ...]
    running: dict[tuple[str, str], int]
    """(tenant, workload) -> datasets that have claimed something and are not closed."""
    last_look: dict[str, int]
    """account -> when its newest walk over the list started."""
    cleanable: tuple[tuple[SubmissionRow, int], ...] = ()
    """Submissions whose copies at the provider may go, and since when (microseconds)."""
    strays: tuple[tuple[SubmissionRow, str], ...] = ()
    """Batches of ours that no submission is bound to, by the submission they were made for."""


def _has_paid_work() -> sa.ColumnElement[bool]:
    """A batch exists or may exist: it is collected whatever became of its revision."""
    s, h, j, r = schema.submissions, schema.shards, schema.jobs, schema.revisions
    return sa.exists(
        sa.select(s.c.id)
        .join(h, h.c.id == s.c.shard_id)
        .join(j, j.c.id == h.c.job_id)
        .where(
            j.c.revision_id == r.c.id,
            s.c.state.in_(sorted(LIVE | COLLECTABLE)),
        )
    )


@cache
def _wanting(*, one_workload: bool, one_dataset: bool) -> sa.Select[Any]:
    r = schema.revisions
    open_still = sa.and_(
        r.c.superseded_at.is_(None),
        sa.or_(
            r.c.closed_at.is_(None),
            sa.and_(
                r.c.cancel_requested_at.is_(None),
                sa.func.coalesce(r.c.published_closure, "") != r.c.closure_digest,
                sa.func.coalesce(r.c.withheld_closure, "") != r.c.closure_digest,
            ),
        ),
    )
    query = sa.select(r).where(sa.or_(open_still, _has_paid_work())).order_by(r.c.id)
    if one_workload:
        query = query.where(r.c.workload == sa.bindparam("workload"))
    if one_dataset:
        query = query.where(r.c.dataset == sa.bindparam("dataset"))
    return query


def _shards() -> sa.Select[Any]:
    j, h, s = schema.jobs, schema.shards, schema.submissions
    return (
        joined()
        .where(schema.revisions.c.id == sa.bindparam("revision_id"))
        .order_by(j.c.attempt, h.c.ordinal, s.c.epoch)
    )


def _running() -> sa.Select[Any]:
    r = schema.revisions
    return (
        sa.select(r.c.tenant_id, r.c.workload, sa.func.count())
        .where(r.c.started_at.is_not(None), r.c.closed_at.is_(None), r.c.superseded_at.is_(None))
        .group_by(r.c.tenant_id, r.c.workload)
    )


def _last_looks() -> sa.Select[Any]:
    looks = schema.looks
    return sa.select(looks.c.account, sa.func.max(looks.c.started_at)).group_by(looks.c.account)


_NEWER = schema.submissions.alias("newer")
_SHARDS = _shards()
_RUNNING = _running()
_LAST_LOOKS = _last_looks()
"""Built once: building them costs more than running them, and every loop and tick asks."""


def snapshot(
    ledger: Ledger, *, workload: str | None = None, dataset: str | None = None
) -> Snapshot:
    """Every revision that can still need something, oldest first."""
    query = _wanting(one_workload=workload is not None, one_dataset=dataset is not None)
    given = {"workload": workload, "dataset": dataset}
    with ledger.read() as connection:
        now = ledger.now(connection)
        rows = [as_row(RevisionRow, row) for row in connection.execute(query, given)]
        views = tuple(_view(connection, row) for row in rows)
        running = connection.execute(_RUNNING)
        counts = {(tenant, name): int(count) for tenant, name, count in running}
        looks = connection.execute(_LAST_LOOKS)
        last_look = {account: int(at) for account, at in looks}
        cleanable = deletable(connection, now, workload=workload, dataset=dataset)
        found = [(load(connection, key), batch_id) for key, batch_id in strays(connection)]
    mine = tuple(
        (row, batch_id)
        for row, batch_id in found
        if workload in (None, row.workload) and dataset in (None, row.dataset)
    )
    return Snapshot(now, views, counts, last_look, tuple(cleanable), mine)


def revision_view(
    ledger: Ledger, tenant_id: str, workload: str, dataset: str, revision: int | None = None
) -> RevisionView | None:
    """One dataset's newest (or named) revision with its jobs and shards."""
    with ledger.read() as connection:
        row = find_revision(connection, tenant_id, workload, dataset, revision)
        return None if row is None else _view(connection, row)


def view_by_id(ledger: Ledger, revision_id: int) -> RevisionView:
    """A revision by the ledger's own number."""
    with ledger.read() as connection:
        row = connection.execute(
            sa.select(schema.revisions).where(schema.revisions.c.id == revision_id)
        ).one()
        return _view(connection, as_row(RevisionRow, row))


def providers(ledger: Ledger) -> list[str]:
    """The providers that this ledger has datasets of."""
    r = schema.revisions
    with ledger.read() as connection:
        return sorted(connection.execute(sa.select(r.c.provider).distinct()).scalars())


def all_revisions(ledger: Ledger) -> list[RevisionView]:
    """Every revision, oldest first."""
    r = schema.revisions
    with ledger.read() as connection:
        found = [
            as_row(RevisionRow, row) for row in connection.execute(sa.select(r).order_by(r.c.id))
        ]
        return [_view(connection, row) for row in found]


def settled_revisions(
    ledger: Ledger, tenant_id: str, workload: str, dataset: str | None = None
) -> list[RevisionView]:
    """Revisions of a workload (of one dataset) that have an accounting, the newest first."""
    r = schema.revisions
    query = (
        sa.select(r)
        .where(
            r.c.tenant_id == tenant_id,
            r.c.workload == workload,
            r.c.closure_digest.is_not(None),
        )
        .order_by(r.c.id.desc())
    )
    if dataset is not None:
        query = query.where(r.c.dataset == dataset)
    with ledger.read() as connection:
        rows = [as_row(RevisionRow, row) for row in connection.execute(query)]
        return [_view(connection, row) for row in rows]


def _view(connection: Connection, revision: RevisionRow) -> RevisionView:
    rows = connection.execute(_SHARDS, {"revision_id": revision.id})
    newest: dict[int, SubmissionRow] = {}
    for row in rows:
        newest[row.shard_id] = as_row(SubmissionRow, row)
    return RevisionView(revision, tuple(jobs_of(connection, revision.id)), tuple(newest.values()))


def shard_keys(ledger: Ledger, workload: str) -> list[str]:
    """Every shard key of a workload, oldest first: the shard partitions that Dagster shows."""
    h, j, r = schema.shards, schema.jobs, schema.revisions
    with ledger.read() as connection:
        rows = connection.execute(
            sa.select(h.c.shard_key)
            .join(j, j.c.id == h.c.job_id)
            .join(r, r.c.id == j.c.revision_id)
            .where(r.c.workload == workload)
            .order_by(h.c.id)
        )
        return [row.shard_key for row in rows]


def raw_files_of(ledger: Ledger, submission_id: int) -> list[sa.Row]:
    """The whole raw files of a submission, oldest download first."""
    f = schema.raw_files
    with ledger.read() as connection:
        return list(
            connection.execute(
                sa.select(f)
                .where(f.c.submission_id == submission_id)
                .order_by(f.c.download, f.c.id)
            )
        )


def transitions_of(ledger: Ledger, submission_id: int) -> list[sa.Row]:
    """What happened to a submission, in order."""
    t = schema.transitions
    with ledger.read() as connection:
        return list(
            connection.execute(
                sa.select(t).where(t.c.submission_id == submission_id).order_by(t.c.id)
            )
        )


def waiting_by_account(ledger: Ledger) -> dict[tuple[str, str], list[SubmissionRow]]:
    """Submissions that wait for a look, by (provider, account)."""
    s = schema.submissions
    with ledger.read() as connection:
        rows = [
            as_row(SubmissionRow, row)
            for row in connection.execute(
                joined().where(s.c.state.in_(("SUBMITTING", "UNCERTAIN"))).order_by(s.c.id)
            )
        ]
    groups: dict[tuple[str, str], list[SubmissionRow]] = defaultdict(list)
    for row in rows:
        if row.account is not None:
            groups[row.provider, row.account].append(row)
    return dict(groups)


def absent_and_decided(ledger: Ledger, account: str) -> list[SubmissionRow]:
    """Submissions of an account that were proven absent, and whose shard waits for no batch.

    So do those that a person gave up and that no look has decided yet. While a newer epoch still
    waits for its own batch, what turns up may be that one.
    """
    s = schema.submissions
    newer = _NEWER
    waits = sa.exists().where(
        newer.c.shard_id == s.c.shard_id,
        newer.c.epoch > s.c.epoch,
        newer.c.state.in_(("SUBMITTING", "UNCERTAIN", "PROVISIONAL")),
    )
    with ledger.read() as connection:
        rows = connection.execute(
            joined()
            .where(
                sa.or_(
                    s.c.state == "ABSENT",
                    sa.and_(s.c.state == "UNCERTAIN", s.c.abandoned_at.is_not(None)),
                ),
                s.c.account == account,
                ~waits,
            )
            .order_by(s.c.id)
        )
        return [as_row(SubmissionRow, row) for row in rows]


def epochs_of(ledger: Ledger, shard_id: int) -> list[SubmissionRow]:
    """Every epoch of one shard, oldest first."""
    s = schema.submissions
    with ledger.read() as connection:
        rows = connection.execute(joined().where(s.c.shard_id == shard_id).order_by(s.c.epoch))
        return [as_row(SubmissionRow, row) for row in rows]


def counts(ledger: Ledger, revision_id: int) -> dict[str, int]:
    """How many distinct batches and creates a revision has used, duplicates included."""
    s, h, j, p = schema.submissions, schema.shards, schema.jobs, schema.provider_batches
    with ledger.read() as connection:
        batches = connection.execute(
            sa.select(sa.func.count(sa.distinct(p.c.batch_id)))
            .select_from(p)
            .join(s, s.c.submission_key == p.c.submission_key)
            .join(h, h.c.id == s.c.shard_id)
            .join(j, j.c.id == h.c.job_id)
            .where(j.c.revision_id == revision_id)
        ).scalar_one()
    return {"provider_batches": int(batches)}
