"""From a frozen manifest to the rows that name it in the ledger."""

from __future__ import annotations

from datetime import timedelta

from llm_batch_assets.identity import submission_key
from llm_batch_assets.ledger.freezing import JobSpec, Label, RevisionSpec, ShardRowSpec
from llm_batch_assets.manifest import Frozen, Manifest
from llm_batch_assets.publish import PPM
from llm_batch_assets.workload import Workload


def job_spec(frozen: Frozen) -> JobSpec:
    """The job, its shards and the keys of their submissions in epoch 0."""
    manifest = frozen.manifest
    return JobSpec(
        attempt=manifest.attempt,
        job_key=manifest.job_key,
        parent_job_key=manifest.parent_job_key,
        input_manifest_hash=manifest.input_manifest_hash,
        manifest_digest=frozen.manifest_digest,
        records_digest=manifest.records_digest,
        records=manifest.expected_record_count,
        kept_back=manifest.preflight_rejected,
        shards=[
            ShardRowSpec(
                ordinal=shard.ordinal,
                shard_key=manifest.shard_key(shard.ordinal),
                request_digest=shard.digest,
                records=shard.records,
                bytes=shard.bytes,
                tag=shard.tag,
                submission_key=submission_key(manifest.job_key, shard.ordinal, 0),
            )
            for shard in manifest.shards
        ],
    )


def revision_spec(manifest: Manifest) -> RevisionSpec:
    """The revision that a first attempt opens."""
    return RevisionSpec(
        tenant_id=manifest.tenant_id,
        workload=manifest.workload,
        dataset=manifest.dataset,
        revision=manifest.revision,
        provider=manifest.provider,
        records=manifest.expected_record_count + manifest.carried_records,
        carried=manifest.carried_records,
        carried_digest=manifest.carried_digest,
        open_datasets=manifest.limits.open_datasets,
        min_accepted_ppm=round(manifest.publish.min_accepted * PPM),
        cut_after=micros(manifest.retry.cut_after),
        close_by=micros(manifest.publish.close_by),
        hold_deadline=micros(manifest.retry.hold_deadline),
        delete_after=_delete_after(manifest),
    )


def _delete_after(manifest: Manifest) -> int | None:
    """The wait between publication and removing the provider's copies; None keeps them."""
    retention = manifest.retention
    if retention.delete_remote == "after_delivery":
        return 0
    wait = retention.delete_after
    return None if wait is None else micros(wait)


def labels(manifest: Manifest | Workload) -> list[Label]:
    """Version labels and the content that they stand for from now on."""
    prompt_version = (
        manifest.prompt.version if isinstance(manifest, Workload) else manifest.prompt_version
    )
    found = [
        Label("prompt", prompt_version, manifest.prompt_digest),
        Label("output", manifest.output.version, manifest.output_digest),
    ]
    if manifest.gate is not None:
        found.append(Label("gate", manifest.gate.version, gate_digest(manifest.gate.function)))
    return found


def gate_digest(function: str) -> str:
    """Digest of a gate: its name and, where Python has it, its source."""
    import inspect

    from llm_batch_assets.identity import digest
    from llm_batch_assets.reconcile.frozen import load_gate

    try:
        source = inspect.getsource(load_gate(function))
    except (OSError, TypeError):  # without a source, or built in
        source = ""
    return digest([function, source])


def micros(duration: timedelta) -> int:
    """A duration in microseconds, exactly."""
    return duration // timedelta(microseconds=1)
