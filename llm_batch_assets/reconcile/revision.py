"""A revision's evidence: one row per manifest id, the candidate, and the closure over both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.reconcile.candidate import (
    REVISION_CLOSURE,
    candidate_schema,
    candidate_tables,
)
from llm_batch_assets.reconcile.digests import (
    RowsDigest,
    hex_set_digest,
    put_document,
    read_document,
    rows_digest,
)
from llm_batch_assets.reconcile.disposal import SETTLE_VERSION, STATES, Policy
from llm_batch_assets.reconcile.evidence import SHARD_CLOSURE
from llm_batch_assets.reconcile.merge import JobRef, versions
from llm_batch_assets.reconcile.settle import Facts, Settlement
from llm_batch_assets.reconcile.tables import parquet_writer, put_table, read_table


@dataclass(frozen=True, slots=True)
class RevisionContext:
    """What the revision's closure names beside the settlement.

    Attributes:
        jobs: every attempt, oldest first, with the shards that were settled.
        job_closures: merged evidence of those jobs, in the same order; fewer while some are open.
        answer: the workload's answer kind; ``output_schema`` its frozen schema.
    """

    workload: str
    dataset: str
    revision: int
    jobs: tuple[JobRef, ...]
    policy: Policy
    facts: Facts = field(repr=False)
    job_closures: tuple[str, ...] = ()
    answer: str = "json"
    output_schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RevisionEvidence:
    """What the ledger keeps of a settled revision."""

    closure_digest: str
    table_digest: str
    candidate_digest: str
    rows_digest: str
    candidate_rows_digest: str
    states: dict[str, int]
    accepted_fraction: float
    closed: bool


def write_revision(
    store: ArtifactStore, settlement: Settlement, context: RevisionContext
) -> RevisionEvidence:
    """Store a settlement, its candidate and the closure, in this order.

    The same settlement in the same context gives the same digests. A revision that is still open
    may be written too: its closure says so.

    Raises:
        ArtifactError: when an accepted answer is not in the evidence that it rests on.
    """
    document = revision_closure(store, settlement, context)
    document["table"]["object"] = put_table(store, settlement.table)
    schema = candidate_schema(context.answer, context.output_schema)
    writer, sink = store.writer(), RowsDigest(schema)
    rows = 0
    with writer, parquet_writer(writer, schema) as parquet:
        for table in _candidate(store, settlement.table, context):
            parquet.write_table(table)
            sink.update(table)
            rows += table.num_rows
    document["candidate"] = {
        "object": writer.digest,
        "rows_digest": sink.hexdigest(),
        "records": rows,
    }
    for name in ("decisions", "carried"):
        table = getattr(context.facts, name)
        document["facts"][name] = put_table(store, table) if table is not None else None
    return _summary(put_document(store, document), document)


def load_revision(store: ArtifactStore, closure_digest: str) -> RevisionEvidence:
    """The summary of a revision's evidence that was written before."""
    return _summary(closure_digest, read_document(store, closure_digest, REVISION_CLOSURE))


def revision_closure(
    store: ArtifactStore, settlement: Settlement, context: RevisionContext
) -> dict[str, Any]:
    """The closure without object digests and candidate; writes nothing."""
    shards = [
        read_document(store, digest, SHARD_CLOSURE)
        for job in context.jobs
        for _, digest in sorted(job.shards.items())
    ]
    table, summary = settlement.table, settlement.summary
    return {
        "kind": REVISION_CLOSURE,
        "version": 1,
        "workload": context.workload,
        "dataset": context.dataset,
        "revision": context.revision,
        "closed": settlement.closed,
        "records": summary["records"],
        "states": summary["states"],
        "next": summary["next"],
        "reasons": summary["reasons"],
        "late_rows": summary["late_rows"],
        "accepted_fraction": summary["accepted_fraction"],
        "sets": {
            state: hex_set_digest(table["record_id"].filter(pc.equal(table["state"], state)))
            for state in STATES
        },
        "attempts": [
            {
                "job_key": job.job_key,
                "manifest": job.manifest_digest,
                "records_table": job.records_digest,
                "shards": [
                    {"shard": ordinal, "closure": digest}
                    for ordinal, digest in sorted(job.shards.items())
                ],
            }
            for job in context.jobs
        ],
        "job_closures": list(context.job_closures),
        "policy": policy_document(context.policy),
        "facts": facts_document(context.facts),
        "answer": context.answer,
        "output_schema": context.output_schema,
        "settle_version": SETTLE_VERSION,
        "rules_versions": versions(shards, "rules_version"),
        "gate_versions": versions(shards, "gate_version"),
        "schema_digests": versions(shards, "schema_digest"),
        "table": {"rows_digest": rows_digest(table)},
    }


def candidate_digest(
    store: ArtifactStore, settled: pa.Table, context: RevisionContext
) -> tuple[str, int]:
    """Rows digest and number of rows of the candidate that a settlement gives; writes nothing."""
    sink, rows = RowsDigest(candidate_schema(context.answer, context.output_schema)), 0
    for table in _candidate(store, settled, context):
        sink.update(table)
        rows += table.num_rows
    return sink.hexdigest(), rows


def policy_document(policy: Policy) -> dict[str, Any]:
    """A policy as JSON."""
    document = asdict(policy)
    if policy.minimum == 1:  # absent from closures that were written before it was known
        del document["minimum"]
    return document


def facts_document(facts: Facts) -> dict[str, Any]:
    """Facts as JSON; the tables among them are objects that the closure names."""
    document: dict[str, Any] = {
        "cancel_requested": facts.cancel_requested,
        "released": _pairs(facts.released),
        "deadline_over": _pairs(facts.deadline_over),
        "gone": _pairs(facts.gone),
        "close_by_passed": facts.close_by_passed,
        "budget_used_up": facts.budget_used_up,
    }
    if facts.abandoned:  # absent from closures that were written before people could do this
        document["abandoned"] = _pairs(facts.abandoned)
    return document


def read_context(store: ArtifactStore, document: Mapping[str, Any]) -> RevisionContext:
    """The context that a revision's closure was written in."""
    facts = document["facts"]
    tables = {
        name: read_table(store, facts[name]) if facts[name] else None
        for name in ("decisions", "carried")
    }
    return RevisionContext(
        workload=document["workload"],
        dataset=document["dataset"],
        revision=document["revision"],
        jobs=tuple(
            JobRef(
                entry["job_key"],
                entry["manifest"],
                entry["records_table"],
                {shard["shard"]: shard["closure"] for shard in entry["shards"]},
            )
            for entry in document["attempts"]
        ),
        policy=Policy(**document["policy"]),
        facts=Facts(
            cancel_requested=facts["cancel_requested"],
            released=_shards(facts["released"]),
            deadline_over=_shards(facts["deadline_over"]),
            gone=_shards(facts["gone"]),
            abandoned=_shards(facts.get("abandoned", [])),
            close_by_passed=facts["close_by_passed"],
            budget_used_up=facts["budget_used_up"],
            **tables,
        ),
        job_closures=tuple(document["job_closures"]),
        answer=document["answer"],
        output_schema=document["output_schema"],
    )


def _candidate(
    store: ArtifactStore, settled: pa.Table, context: RevisionContext
) -> Iterator[pa.Table]:
    return candidate_tables(
        store, settled, answer=context.answer, output_schema=context.output_schema
    )


def _pairs(shards: frozenset[tuple[int, int]]) -> list[list[int]]:
    return [list(pair) for pair in sorted(shards)]


def _shards(pairs: Sequence[Sequence[int]]) -> frozenset[tuple[int, int]]:
    return frozenset((attempt, shard) for attempt, shard in pairs)


def _summary(closure_digest: str, document: Mapping[str, Any]) -> RevisionEvidence:
    return RevisionEvidence(
        closure_digest=closure_digest,
        table_digest=document["table"]["object"],
        candidate_digest=document["candidate"]["object"],
        rows_digest=document["table"]["rows_digest"],
        candidate_rows_digest=document["candidate"]["rows_digest"],
        states=document["states"],
        accepted_fraction=document["accepted_fraction"],
        closed=document["closed"],
    )
