"""Why a thing is where it is: transitions, decisions and evidence, by any of its names.

Plain values, from ledger and store alone: no provider is asked.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from llm_batch_assets.costs import cache_hits
from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.status import iso, status
from llm_batch_assets.errors import ArtifactError, InputError
from llm_batch_assets.identity import parse_wire_id
from llm_batch_assets.ledger import people, schema, views
from llm_batch_assets.ledger.lookup import find_datasets, find_submissions
from llm_batch_assets.ledger.rows import JobRow, RevisionRow, SubmissionRow, as_row
from llm_batch_assets.ledger.views import RevisionView
from llm_batch_assets.manifest import read_records
from llm_batch_assets.reconcile.candidate import REVISION_CLOSURE
from llm_batch_assets.reconcile.digests import read_document
from llm_batch_assets.reconcile.evidence import read_evidence
from llm_batch_assets.reconcile.merge import JOB_CLOSURE
from llm_batch_assets.reconcile.tables import read_table

_RECORD_ID = re.compile(r"[0-9a-f]{64}")

_FOUND = ("ordinal", "record_id", "business_key", "source_version", "wire_id", "shard", "line",
          "request_digest", "preflight_rule", "parent_job_key", "parent_shard",
          "retry_reason")  # fmt: skip


def show(
    deps: Deps, target: str, *, workload: str | None = None, dataset: str | None = None
) -> dict[str, Any]:
    """Everything that is known of what a person names.

    Args:
        deps: what to work with; no provider is opened.
        target: a dataset, a shard, submission or batch, or a record by its record_id, wire id or
            business key.
        workload: narrows the search.
        dataset: narrows the search of a record.

    Raises:
        InputError: nothing has this name.
    """
    with deps.ledger.read() as connection:
        shards = find_submissions(connection, target, workload)
        datasets = find_datasets(connection, target, workload)
    if shards:
        return {"kind": "shard", "target": target, "submissions": _epochs(shards, deps)}
    if datasets and dataset is None:
        return {
            "kind": "dataset",
            "target": target,
            "datasets": [_dataset(row, deps) for row in datasets],
        }
    records = _records(deps, target, workload, dataset)
    if not records:
        raise InputError(
            f"No dataset, shard, submission, batch or record is called {target[:200]}.",
            remedy="A record is named by its record_id, its wire id or its business key.",
        )
    return {"kind": "record", "target": target, "records": records}


def _dataset(row: RevisionRow, deps: Deps) -> dict[str, Any]:
    view = views.view_by_id(deps.ledger, row.id)
    found = status(deps, dataset=row.dataset, workload=row.workload).datasets
    (entry,) = [e for e in found if e["tenant"] == row.tenant_id and e["revision"] == row.revision]
    p, r = schema.publications, schema.revisions
    with deps.ledger.read() as connection:
        published = connection.execute(
            sa.select(p, r.c.revision)
            .join(r, r.c.id == p.c.revision_id)
            .where(
                r.c.tenant_id == row.tenant_id,
                r.c.workload == row.workload,
                r.c.dataset == row.dataset,
            )
            .order_by(p.c.id)
        ).all()
    return entry | {
        "closure": row.closure_digest,
        "reasons": _closure(row, deps).get("reasons"),
        "superseded": None
        if row.superseded_at is None
        else {
            "at": iso(row.superseded_at),
            "by": row.superseded_by,
            "reason": row.superseded_reason,
        },
        "usage": [_usage(job, deps) for job in view.jobs],
        "manifests": [{"attempt": j.attempt, "manifest": j.manifest_digest} for j in view.jobs],
        "publications": [
            {
                "revision": one.revision,
                "version": one.version,
                "table": one.candidate_digest,
                "accepted": one.accepted,
                "at": iso(one.published_at),
                "by": one.actor,
            }
            for one in published
        ],
        "decisions": _decisions([row.target, *(s.target for s in view.shards)], deps),
    }


def _usage(job: JobRow, deps: Deps) -> dict[str, Any]:
    """Tokens of an accounted attempt, and how much of a marked prefix came from the cache."""
    if job.closure_digest is None:
        return {"attempt": job.attempt}
    used = read_document(deps.store, job.closure_digest, JOB_CLOSURE)["usage"]
    hits = cache_hits(used)
    return {
        "attempt": job.attempt,
        **used,
        "cache_hits": None if hits is None else round(float(hits), 4),
    }


def _closure(row: RevisionRow, deps: Deps) -> dict[str, Any]:
    if row.closure_digest is None:
        return {}
    return read_document(deps.store, row.closure_digest, REVISION_CLOSURE)


def _epochs(shards: list[SubmissionRow], deps: Deps) -> list[dict[str, Any]]:
    """Every epoch of the shards that were found, oldest first."""
    ids = dict.fromkeys(shard.shard_id for shard in shards)
    return [
        _submission(row, deps) for shard_id in ids for row in views.epochs_of(deps.ledger, shard_id)
    ]


def _submission(row: SubmissionRow, deps: Deps) -> dict[str, Any]:
    d, p = schema.duplicate_batches, schema.provider_batches
    with deps.ledger.read() as connection:
        seen = connection.execute(
            sa.select(p).where(p.c.submission_key == row.submission_key).order_by(p.c.id)
        ).all()
        duplicates = connection.execute(
            sa.select(d).where(d.c.submission_key == row.submission_key)
        ).all()
    return {
        "shard": row.shard_key,
        "workload": row.workload,
        "epoch": row.epoch,
        "submission_key": row.submission_key,
        "job_key": row.job_key,
        "state": row.state,
        "hold": row.hold,
        "release": row.hold_release,
        "last_error": row.last_error,
        "batch_id": row.batch_id,
        "bound": row.bound_how,
        "raw_status": row.raw_status,
        "outcome": row.outcome,
        "records": row.records,
        "request_file": row.request_digest,
        "input_ref": row.input_ref,
        "result_deadline": iso(row.result_deadline),
        "removed_at_provider": iso(row.remote_deleted_at),
        "closure": row.closure_digest,
        "transitions": [
            {
                "from": one.from_state,
                "to": one.to_state,
                "at": iso(one.at),
                "actor": one.actor,
                "run_id": one.run_id,
                "reason": one.reason,
                "raw_status": one.raw_status,
            }
            for one in views.transitions_of(deps.ledger, row.id)
        ],
        "batches": [
            {"batch_id": one.batch_id, "seen": one.seen_how, "at": iso(one.seen_at)} for one in seen
        ],
        "duplicates": [
            {
                "batch_id": one.batch_id,
                "reason": one.reason,
                "found_at": iso(one.found_at),
                "cancelled_at": iso(one.cancelled_at),
            }
            for one in duplicates
        ],
        "raw_files": [
            {
                "download": one.download,
                "kind": one.kind,
                "object": one.digest,
                "bytes": one.bytes,
                "rule": json.loads(one.receipt).get("reason"),
            }
            for one in views.raw_files_of(deps.ledger, row.id)
        ],
        "evidence": _evidence_counts(row, deps),
        "decisions": _decisions([row.target], deps),
    }


def _evidence_counts(row: SubmissionRow, deps: Deps) -> dict[str, Any] | None:
    if row.closure_digest is None:
        return None
    document, _ = read_evidence(deps.store, row.closure_digest)
    return {
        "counts": {name: n for name, n in document["counts"].items() if n},
        "confirmed": document["confirmed"],
        "anomalies": document["anomalies"]["counts"],
        "warnings": document["warnings"],
    }


def _decisions(targets: list[str], deps: Deps) -> list[dict[str, Any]]:
    return [one | {"at": iso(one["at"])} for one in people.decisions_of(deps.ledger, targets)]


def _records(
    deps: Deps, target: str, workload: str | None, dataset: str | None
) -> list[dict[str, Any]]:
    wire = parse_wire_id(target)
    name = wire[1] if wire is not None else target
    column = "record_id" if _RECORD_ID.fullmatch(name) else "business_key"
    r = schema.revisions
    query = sa.select(r).order_by(r.c.id.desc())
    if workload is not None:
        query = query.where(r.c.workload == workload)
    if dataset is not None:
        query = query.where(r.c.dataset == dataset)
    with deps.ledger.read() as connection:
        rows = [as_row(RevisionRow, row) for row in connection.execute(query)]
    found = []
    for row in rows:
        view = views.view_by_id(deps.ledger, row.id)
        found += _in_revision(view, column, name, deps)
    return found


def _in_revision(view: RevisionView, column: str, name: str, deps: Deps) -> list[dict[str, Any]]:
    settled = _settled(view.row, column, name, deps)
    attempts: dict[str, list[dict[str, Any]]] = {}
    for job in view.jobs:
        table = read_records(deps.store, job.records_digest)
        for record in _rows(table, column, name):
            entry = {name: record[name] for name in _FOUND}
            entry |= {"attempt": job.attempt, "job_key": job.job_key}
            shard = [s for s in view.shards if s.job_id == job.id and s.ordinal == record["shard"]]
            entry |= _evidence_row(shard[0], record["record_id"], deps) if shard else {}
            attempts.setdefault(record["record_id"], []).append(entry)
    ids = dict.fromkeys([*attempts, *(one["record_id"] for one in settled)])
    by_id = {one["record_id"]: one for one in settled}
    return [
        {
            "record_id": record_id,
            "workload": view.row.workload,
            "dataset": view.row.dataset,
            "revision": view.row.revision,
            "settled": by_id.get(record_id),
            "attempts": attempts.get(record_id, []),
        }
        for record_id in ids
    ]


def _settled(row: RevisionRow, column: str, name: str, deps: Deps) -> list[dict[str, Any]]:
    document = _closure(row, deps)
    if not document:
        return []
    return _rows(read_table(deps.store, document["table"]["object"]), column, name)


def _evidence_row(shard: SubmissionRow, record_id: str, deps: Deps) -> dict[str, Any]:
    known: dict[str, Any] = {"shard_key": shard.shard_key, "state": shard.state}
    if shard.closure_digest is None:
        return known | {"evidence": None}
    try:
        _, table = read_evidence(deps.store, shard.closure_digest)
    except ArtifactError as error:
        return known | {"evidence": None, "fault": str(error)}
    rows = _rows(table, "record_id", record_id)
    return known | {"closure": shard.closure_digest, "evidence": rows[0] if rows else None}


def _rows(table: pa.Table, column: str, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.filter(pc.equal(table[column], name)).to_pylist()
    return found
