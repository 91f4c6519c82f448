"""Recompute merged evidence, settlement, candidate and closure of jobs and revisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_batch_assets.artifacts.base import object_key
from llm_batch_assets.manifest.model import Manifest
from llm_batch_assets.reconcile.digests import RowsDigest, rows_digest
from llm_batch_assets.reconcile.disposal import SETTLE_VERSION
from llm_batch_assets.reconcile.frozen import policy_of
from llm_batch_assets.reconcile.merge import JobRef, Tally, job_closure, job_tables, load_attempt
from llm_batch_assets.reconcile.revision import (
    RevisionContext,
    candidate_digest,
    read_context,
    revision_closure,
)
from llm_batch_assets.reconcile.settle import settle
from llm_batch_assets.reconcile.tables import EVIDENCE_SCHEMA, read_table
from llm_batch_assets.reconcile.verify.folder import Folder
from llm_batch_assets.reconcile.verify.report import Report, differences, row_differences

Manifests = Mapping[str, Manifest]
"""Digest -> manifest, of those that are sound."""


def check_job(
    folder: Folder, digest: str, document: Mapping[str, Any], manifests: Manifests, report: Report
) -> None:
    """Merge a job's shards again and compare.

    Raises:
        ArtifactError: when something that it names is absent or damaged.
    """
    name = object_key(digest)
    job = JobRef(
        document["job_key"],
        document["manifest"],
        document["records_table"],
        {entry["shard"]: entry["closure"] for entry in document["shards"]},
    )
    _check_job_ref(job, document["attempt"], manifests, name, report)
    tally, sink = Tally(), RowsDigest(EVIDENCE_SCHEMA)
    for table in job_tables(folder, job, attempt=document["attempt"]):
        tally.add(table)
        sink.update(table)
    computed = job_closure(folder, job, attempt=document["attempt"], tally=tally)
    stored = document["table"]["object"]
    computed["table"] = {"object": stored, "rows_digest": sink.hexdigest()}
    for line in differences(document, computed):
        report.fault(name, line)
    if rows_digest(read_table(folder, stored)) != sink.hexdigest():
        report.fault(object_key(stored), "its rows are not those of the job's shards")


def check_revision(
    folder: Folder,
    digest: str,
    document: Mapping[str, Any],
    manifests: Manifests,
    report: Report,
    *,
    rules: str = "recorded",
) -> None:
    """Settle a revision again from its evidence, its policy and its facts, and compare.

    Raises:
        ArtifactError: when something that it names is absent or damaged.
        LLMBatchError: when its evidence does not cover its manifest.
    """
    name = object_key(digest)
    context = read_context(folder, document)
    _check_context(context, manifests, name, report)
    for what in ("table", "candidate"):
        stored = document[what]["object"]
        if rows_digest(read_table(folder, stored)) != document[what]["rows_digest"]:
            report.fault(object_key(stored), f"its rows are not those of {name}")
    report.revisions.append(
        {key: document[key] for key in ("workload", "dataset", "revision", "closed", "records")}
        | {"states": document["states"], "attempts": len(document["attempts"]), "closure": digest}
    )
    if document["settle_version"] != SETTLE_VERSION and rules == "recorded":
        report.note(
            name,
            f"was settled under rules {document['settle_version']}; this program has "
            f"{SETTLE_VERSION}: it was not settled again (--rules current does)",
        )
        return
    settlement = settle(
        [load_attempt(folder, job) for job in context.jobs], context.policy, context.facts
    )
    computed = revision_closure(folder, settlement, context)
    computed["settle_version"] = document["settle_version"]
    computed["facts"] |= {key: document["facts"][key] for key in ("decisions", "carried")}
    stored = document["table"]["object"]
    computed["table"]["object"] = stored
    for line in row_differences(read_table(folder, stored), settlement.table):
        report.fault(object_key(stored), f"(states) {line}")
    rows, count = candidate_digest(folder, settlement.table, context)
    candidate = document["candidate"]["object"]
    computed["candidate"] = {"object": candidate, "rows_digest": rows, "records": count}
    if rows_digest(read_table(folder, candidate)) != rows:
        report.fault(object_key(candidate), "(candidate) its rows are not the accepted answers")
    for line in differences(document, computed):
        report.fault(name, line)
    if settlement.summary["late_rows"]:
        report.note(name, f"{settlement.summary['late_rows']} rows came after an accepted answer")
    report.count("revisions")


def _check_context(
    context: RevisionContext, manifests: Manifests, name: str, report: Report
) -> None:
    for number, job in enumerate(context.jobs, 1):
        _check_job_ref(job, number, manifests, name, report)
    manifest = manifests.get(context.jobs[0].manifest_digest)
    if manifest is None:
        return
    output = manifest.output
    for what, recorded, frozen in (
        ("workload", context.workload, manifest.workload),
        ("dataset", context.dataset, manifest.dataset),
        ("revision", context.revision, manifest.revision),
        ("policy", context.policy, policy_of(manifest)),
        ("answer", context.answer, output.answer),
        ("output_schema", context.output_schema, output.json_schema),
    ):
        if recorded != frozen:
            report.fault(name, f"{what}: recorded {recorded!r}, its manifest froze {frozen!r}")


def _check_job_ref(
    job: JobRef, attempt: int, manifests: Manifests, name: str, report: Report
) -> None:
    manifest = manifests.get(job.manifest_digest)
    if manifest is None:
        return
    for what, recorded, frozen in (
        ("job_key", job.job_key, manifest.job_key),
        ("records_table", job.records_digest, manifest.records_digest),
        ("attempt", attempt, manifest.attempt),
    ):
        if recorded != frozen:
            report.fault(name, f"{what}: recorded {recorded!r}, its manifest froze {frozen!r}")
