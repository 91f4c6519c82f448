"""The second pass of a freeze: spooled bodies become request files, a records table, a manifest."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_batch_assets import identity
from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.errors import DatasetError
from llm_batch_assets.manifest.layout import ShardLimits, cut
from llm_batch_assets.manifest.model import Manifest, ShardSpec
from llm_batch_assets.manifest.records import RecordsWriter
from llm_batch_assets.manifest.spool import Spool
from llm_batch_assets.types import ProviderName
from llm_batch_assets.wire.ask import request_module
from llm_batch_assets.wire.capabilities import find
from llm_batch_assets.workload import Limits


@dataclass(frozen=True, slots=True)
class Frozen:
    """A manifest whose objects, itself included, are durable in the store."""

    manifest: Manifest
    manifest_digest: str


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of a job, known once every record is."""

    input_manifest_hash: str
    job_key: str


def shard_limits(provider: ProviderName, model: str, endpoint: str, limits: Limits) -> ShardLimits:
    """The narrowest of the workload's, the provider's and the model's limits.

    Where one answer is large (embeddings), a shard is also kept so small that its result file
    survives a download.
    """
    theirs = request_module(provider).LIMITS
    cell = find(provider, model, endpoint)
    bounds = [
        2**31,
        theirs.records,
        None if cell is None else cell.limits.get("records"),
        None if cell is None else cell.records_for_results(),
    ]
    most = min(bound for bound in bounds if bound is not None)
    return ShardLimits(
        records=min(most, limits.records_per_shard),
        most=most,
        bytes=min(limits.bytes_per_shard, theirs.bytes - theirs.overhead),
        inputs=theirs.inputs,
        minimum=least_records(provider, model, endpoint, limits),
        distinct=not theirs.labelled,
    )


def least_records(provider: ProviderName, model: str, endpoint: str, limits: Limits) -> int:
    """Fewest records that the provider runs a batch for: the account's quota, or the table's."""
    if limits.records_minimum is not None:
        return limits.records_minimum
    cell = find(provider, model, endpoint)
    theirs = request_module(provider).LIMITS
    return theirs.minimum if cell is None else cell.limits.get("minimum", 1)


def job_keys(
    spool: Spool,
    by_id: NDArray[np.intp],
    *,
    tenant_id: str,
    deployment: str,
    workload: str,
    dataset: str,
    revision: int,
    attempt: int,
    parent_job_key: str | None,
    model: str,
    prompt_version: str,
    generation_digest: str,
) -> Keys:
    """The names of the job that a spool holds; the order of its input has no part in them."""
    records = identity.sorted_records_digest(
        (spool.id_at(index).hex(), spool.digest_at(index).hex()) for index in by_id.tolist()
    )
    manifest_hash = identity.input_manifest_hash(
        deployment=deployment,
        workload=workload,
        dataset=dataset,
        revision=revision,
        attempt=attempt,
        parent_job_key=parent_job_key,
        records_digest=records,
    )
    return Keys(
        manifest_hash,
        identity.job_key(
            tenant_id=tenant_id,
            dataset=dataset,
            input_manifest_hash=manifest_hash,
            model=model,
            prompt_version=prompt_version,
            generation_config_hash=generation_digest,
        ),
    )


def assemble(
    spool: Spool,
    by_id: NDArray[np.intp],
    keys: Keys,
    fields: dict[str, Any],
    *,
    now: datetime,
    store: ArtifactStore,
) -> Frozen:
    """Write request files, then the records table, then the manifest that names them.

    Args:
        spool: finished; one entry per record of the job.
        by_id: its indices in ascending order of record id.
        keys: from ``job_keys``.
        fields: every field of the manifest that is not computed here.
        now: time of creation, aware.
        store: what is written here counts only once a ledger row names the manifest.
    """
    provider: ProviderName = fields["provider"]
    endpoint: str = fields["endpoint"]
    limits = shard_limits(provider, fields["model"], endpoint, fields["limits"])
    module = request_module(provider)
    order = spool.in_manifest_order(by_id)
    kept = int(spool.kept_back[by_id].sum())
    sent = order[: len(order) - kept]
    overhead = len(module.request_line("x" * 60, b"", endpoint))
    ranges = cut(spool.body_sizes[sent] + overhead, limits, spool.inputs[sent])
    small = min((end - start for start, end in ranges), default=limits.minimum)
    if small < limits.minimum and fields["attempt"] == 1:
        few = len(sent) < limits.minimum
        raise DatasetError(
            f"{provider} runs no batch of fewer than {limits.minimum} records, and "
            + (f"only {len(sent)} are left to ask" if few else f"these limits leave one of {small}")
            + ": "
            + ("put more records into it." if few else "give bytes_per_shard more room.")
        )
    shards: list[ShardSpec] = []
    with tempfile.TemporaryDirectory(prefix="llm_batch_assets-") as folder:
        path = Path(folder) / "records.parquet"
        records = RecordsWriter(path)
        try:
            for ordinal, (start, end) in enumerate(ranges):
                tag = identity.wire_tag(keys.job_key, ordinal)
                with store.writer() as writer:
                    for line, index in enumerate(sent[start:end].tolist()):
                        body, meta = spool.entry(index)
                        rid = spool.id_at(index)
                        wire_id = identity.wire_id_raw(tag, rid)
                        writer.write(module.request_line(wire_id, body, endpoint))
                        records.add(
                            (
                                rid.hex(),
                                meta[0],
                                meta[1],
                                wire_id,
                                ordinal,
                                line,
                                spool.digest_at(index).hex(),
                                len(body),
                                None,
                                *meta[2:],
                            )
                        )
                    size = writer.bytes
                shards.append(
                    ShardSpec(
                        ordinal=ordinal,
                        digest=writer.digest,
                        records=end - start,
                        bytes=size,
                        tag=tag,
                    )
                )
            for index in order[len(sent) :].tolist():
                _, meta = spool.entry(index)
                records.add(
                    (
                        spool.id_at(index).hex(),
                        meta[0],
                        meta[1],
                        "",
                        -1,
                        -1,
                        spool.digest_at(index).hex(),
                        0,
                        spool.rule_at(index),
                        *meta[2:],
                    )
                )
        except BaseException:
            records.abort()
            raise
        rows = records.close()
        table = store.put_file(path)
    manifest = Manifest(
        **fields,
        job_key=keys.job_key,
        input_manifest_hash=keys.input_manifest_hash,
        created_at=now,
        expected_record_count=len(order),
        preflight_rejected=kept,
        batch_minimum=limits.minimum,
        shards=tuple(shards),
        records_digest=table,
        rows_digest=rows,
    )
    return Frozen(manifest, store.put(manifest.to_bytes()))
