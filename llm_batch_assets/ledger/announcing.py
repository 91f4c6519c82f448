"""Which facts an orchestrator was told, and which it still has to be told.

A partition of an asset shows the newest fact about it, so what is kept is that fact's id per
partition: an older one is never announced after a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from llm_batch_assets.ledger import schema
from llm_batch_assets.ledger.database import Ledger, insert_first
from llm_batch_assets.ledger.schema import announced


@dataclass(frozen=True, slots=True)
class Fact:
    """The newest fact about one partition of one step.

    Attributes:
        fact_id: names the fact: the same id says nothing new.
        key: submission_key of a shard, revision id as text of a dataset.
        at: when it became true, microseconds UTC.
    """

    workload: str
    step: str
    partition: str
    fact_id: str
    key: str
    at: int


def _shard_facts(step: str) -> sa.Select[Any]:
    """Bound batches, or evidence, of the newest epoch that has it."""
    s, h, j, r = schema.submissions, schema.shards, schema.jobs, schema.revisions
    newer = s.alias()
    later = sa.and_(newer.c.shard_id == s.c.shard_id, newer.c.epoch > s.c.epoch)
    if step == "provider_job":
        fact, at = s.c.batch_id, s.c.bound_at
        mine = sa.and_(s.c.batch_id.is_not(None), s.c.state != "PROVISIONAL")
        later = sa.and_(later, newer.c.batch_id.is_not(None), newer.c.state != "PROVISIONAL")
    else:
        fact, at = s.c.closure_digest, s.c.state_at
        mine = sa.and_(s.c.state == "ACCOUNTED", s.c.closure_digest.is_not(None))
    when = sa.func.coalesce(at, s.c.state_at)
    found = _columns(r.c.workload, h.c.shard_key, fact, s.c.submission_key, when)
    return (
        found.select_from(s)
        .join(h, h.c.id == s.c.shard_id)
        .join(j, j.c.id == h.c.job_id)
        .join(r, r.c.id == j.c.revision_id)
        .outerjoin(announced, _told(step, r.c.workload, h.c.shard_key))
        .where(mine, ~sa.exists().where(later))
    )


def _dataset_facts(step: str) -> sa.Select[Any]:
    """Of the newest revision that is frozen, accounted or published."""
    j, r, p = schema.jobs, schema.revisions, schema.publications
    newer = r.alias()
    later = sa.and_(
        newer.c.tenant_id == r.c.tenant_id,
        newer.c.workload == r.c.workload,
        newer.c.dataset == r.c.dataset,
        newer.c.revision > r.c.revision,
    )
    source: sa.FromClause = r
    fact: sa.ColumnElement[Any]
    at: sa.ColumnElement[Any]
    mine: sa.ColumnElement[bool]
    if step == "manifest":
        source = r.join(j, sa.and_(j.c.revision_id == r.c.id, j.c.attempt == 1))
        fact, at, mine = j.c.job_key, r.c.created_at, sa.true()
    elif step == "accepted_results":
        source = r.join(p, sa.and_(p.c.revision_id == r.c.id, p.c.version == r.c.published_version))
        fact, at, mine = p.c.closure_digest, p.c.published_at, sa.true()
        later = sa.and_(later, newer.c.published_version.is_not(None))
    else:
        later = sa.and_(later, newer.c.closure_digest.is_not(None))
        mine = r.c.closure_digest.is_not(None)
        fact, at = r.c.closure_digest, r.c.settled_at
        if step == "retry_shards":
            newest = sa.select(sa.func.max(j.c.attempt)).where(j.c.revision_id == r.c.id)
            source = r.join(
                j,
                sa.and_(
                    j.c.revision_id == r.c.id, j.c.attempt == newest.correlate(r).scalar_subquery()
                ),
            )
            fact, at = (
                j.c.job_key,
                sa.case((j.c.created_at > r.c.settled_at, j.c.created_at), else_=r.c.settled_at),
            )
    found = _columns(r.c.workload, r.c.dataset, fact, r.c.id, at)
    return found.select_from(
        source.outerjoin(announced, _told(step, r.c.workload, r.c.dataset))
    ).where(mine, ~sa.exists().where(later))


def _columns(
    workload: sa.ColumnElement[Any],
    partition: sa.ColumnElement[Any],
    fact: sa.ColumnElement[Any],
    key: sa.ColumnElement[Any],
    at: sa.ColumnElement[Any],
) -> sa.Select[Any]:
    return (
        sa.select(
            workload.label("workload"),
            partition.label("partition"),
            fact.label("fact_id"),
            key.label("key"),
            at.label("at"),
        )
        .where(
            sa.or_(announced.c.fact_id.is_(None), announced.c.fact_id != fact),
            at <= sa.bindparam("before"),
            workload.in_(sa.bindparam("workloads", expanding=True)),
        )
        .order_by(at)
        .limit(sa.bindparam("at_most"))
    )


def _told(
    step: str, workload: sa.ColumnElement[Any], partition: sa.ColumnElement[Any]
) -> sa.ColumnElement[bool]:
    return sa.and_(
        announced.c.instance == sa.bindparam("instance"),
        announced.c.workload == workload,
        announced.c.step == step,
        announced.c.partition == partition,
    )


_FACTS = {
    **{step: _dataset_facts(step) for step in ("accepted_results", "manifest")},
    **{step: _shard_facts(step) for step in ("provider_job", "raw_results")},
    **{step: _dataset_facts(step) for step in ("reconciled_records", "retry_shards")},
}
"""Built once, in the order of announcing: what others wait for comes first."""


def untold(
    ledger: Ledger, instance: str, workloads: Sequence[str], *, settled_for: float, at_most: int
) -> list[Fact]:
    """Facts that an orchestrator's instance was not told, published tables first.

    Args:
        ledger: the ledger.
        instance: names the orchestrator's own storage: a new one knows nothing.
        workloads: those whose assets it has.
        settled_for: seconds since a fact became true: the run that made it tells it by itself.
        at_most: facts of one step.
    """
    if not workloads:
        return []
    found: list[Fact] = []
    with ledger.read() as connection:
        values = {
            "instance": instance,
            "workloads": list(workloads),
            "before": ledger.now(connection) - int(settled_for * 1_000_000),
            "at_most": at_most,
        }
        for step, query in _FACTS.items():
            rows = connection.execute(query, values)
            found += [
                Fact(x.workload, step, x.partition, x.fact_id, str(x.key), int(x.at)) for x in rows
            ]
    return found


def record_told(ledger: Ledger, instance: str, facts: Iterable[Fact]) -> None:
    """Note facts whose events the orchestrator has stored. Never before: a repeat does no harm."""
    told = list(facts)
    if not told:
        return
    with ledger.write("announced") as connection:
        now = ledger.now(connection)
        for fact in told:
            name = {
                "instance": instance,
                "workload": fact.workload,
                "step": fact.step,
                "partition": fact.partition,
            }
            values = {"fact_id": fact.fact_id, "at": now}
            if not insert_first(connection, announced, name | values):
                same = [announced.c[column] == value for column, value in name.items()]
                connection.execute(sa.update(announced).where(*same).values(**values))
