"""Freeze a dataset: the same rows again are a no-op, other rows are refused with counts."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.admitting import admit
from llm_batch_assets.engine.carrying import asked, carry
from llm_batch_assets.engine.outcome import Outcome
from llm_batch_assets.engine.specs import job_spec, labels, revision_spec
from llm_batch_assets.errors import DriftError
from llm_batch_assets.ledger.database import utc_from_micros
from llm_batch_assets.ledger.freezing import (
    check_open_datasets,
    find_revision,
    jobs_of,
    open_revision,
)
from llm_batch_assets.ledger.rows import JobRow, RevisionRow
from llm_batch_assets.ledger.views import settled_revisions
from llm_batch_assets.manifest import drift, load_manifest, prepare, read_records
from llm_batch_assets.workload import Workload, check_dataset_key


def freeze(
    workload: Workload,
    batches: Iterable[pa.RecordBatch],
    *,
    dataset: str,
    deps: Deps,
    submitter: str,
    text_keys: bool = False,
) -> Outcome:
    """Freeze the rows of a dataset as revision 1, or find that they are frozen already.

    Args:
        workload: what is asked of each row.
        batches: the rows, read once.
        dataset: the dataset's key.
        deps: what to work with.
        submitter: who asked for it, for the manifest.
        text_keys: key columns are text already (CSV and JSONL).

    Raises:
        DatasetError: the table has a fault; nothing was written that counts.
        DriftError: other rows are frozen under this key; the message counts them.
        GateClosed: too many datasets are open, or the provider does not offer what is needed.
        LabelConflict: a version label stands for other content.
    """
    check_dataset_key(dataset)
    with deps.ledger.read() as connection:
        known = find_revision(connection, workload.tenant_id, workload.name, dataset)
        jobs = jobs_of(connection, known.id) if known is not None else []
        if known is None:
            check_open_datasets(
                connection, workload.tenant_id, workload.name, workload.limits.open_datasets
            )
    if known is None:
        admit(workload, deps)
    deps.progress("freeze", dataset)
    with prepare(
        workload,
        batches,
        dataset=dataset,
        revision=1 if known is None else known.revision,
        deployment=deps.ledger.deployment,
        submitter=submitter,
        text_keys=text_keys,
    ) as prepared:
        if known is not None:
            return _again(known, jobs, prepared.keys.input_manifest_hash, prepared.records(), deps)
        if workload.reuse == "workload":
            others = settled_revisions(deps.ledger, workload.tenant_id, workload.name)
            carry(prepared, prepared.records(), workload, others, deps.store)
        frozen = prepared.commit(deps.store, utc_from_micros(deps.ledger.time()))
    revision, job, wrote = open_revision(
        deps.ledger,
        revision_spec(frozen.manifest),
        job_spec(frozen),
        labels(frozen.manifest),
        deps.worker,
    )
    if not wrote:
        records = read_records(deps.store, frozen.manifest.records_digest)
        return _again(revision, [job], frozen.manifest.input_manifest_hash, records, deps)
    return freeze_outcome(revision, job, deps, changed=True)


def _again(
    revision: RevisionRow, jobs: list[JobRow], manifest_hash: str, rows: pa.Table, deps: Deps
) -> Outcome:
    first = jobs[0]
    if first.input_manifest_hash == manifest_hash:
        return freeze_outcome(revision, first, deps, changed=False)
    difference = drift(asked(deps.store, load_manifest(deps.store, first.manifest_digest)), rows)
    if not difference:  # what was carried over is in no manifest, and is asked all the same
        return freeze_outcome(revision, first, deps, changed=False)
    raise DriftError(
        f"{revision.dataset} r{revision.revision} is frozen with {revision.records} records, and "
        f"these rows differ: {difference.added} added, {difference.changed} changed, "
        f"{difference.removed} removed. Only a new revision takes them: "
        f"`llm-batch-assets supersede WORKLOAD {revision.dataset} --input FILE --reason WHY`.",
        added=difference.added,
        changed=difference.changed,
        removed=difference.removed,
    )


def freeze_outcome(revision: RevisionRow, job: JobRow, deps: Deps, *, changed: bool) -> Outcome:
    """What a frozen revision is, for events and people."""
    manifest = load_manifest(deps.store, job.manifest_digest)
    message = (
        f"{revision.dataset} r{revision.revision}: {job.records} records in "
        f"{len(manifest.shards)} shards, {job.kept_back} kept back by preflight"
    )
    if manifest.carried_records:
        message += f", {manifest.carried_records} carried over"
    return Outcome(
        "freeze",
        revision.dataset,
        "frozen",
        changed,
        message if changed else f"{message}; frozen before, nothing written",
        {
            "records": job.records,
            "carried": manifest.carried_records,
            "shards": len(manifest.shards),
            "kept_back": job.kept_back,
            "bytes": sum(shard.bytes for shard in manifest.shards),
            "job_key": job.job_key,
            "input_manifest_hash": job.input_manifest_hash,
            "manifest": job.manifest_digest,
            "model": manifest.model,
            "provider": manifest.provider,
            "revision": revision.revision,
        },
        job.input_manifest_hash,
    )
