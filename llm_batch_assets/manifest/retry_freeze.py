"""Freezing the next attempt: the same bodies under new wire ids, from the stored request files."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.errors import ArtifactError, DatasetError
from llm_batch_assets.manifest.assemble import Frozen, assemble, job_keys
from llm_batch_assets.manifest.model import Manifest
from llm_batch_assets.manifest.prompt import embedding_inputs, prefix_group
from llm_batch_assets.manifest.records import read_records
from llm_batch_assets.manifest.rules import parse_strict
from llm_batch_assets.manifest.spool import Spool
from llm_batch_assets.wire.ask import request_module

_COMPUTED = (
    "kind",
    "version",
    "job_key",
    "input_manifest_hash",
    "created_at",
    "expected_record_count",
    "preflight_rejected",
    "batch_minimum",
    "shards",
    "records_digest",
    "rows_digest",
)


def freeze_retry(
    parents: Sequence[Manifest],
    *,
    selection: pa.Table,
    attempt: int,
    submitter: str,
    now: datetime,
    store: ArtifactStore,
    records_per_shard: int | None = None,
) -> Frozen:
    """Freeze attempt n+1 of a revision.

    Prompt, schema, config and policy are the parents', never those of the code of the day.

    Args:
        parents: the revision's jobs so far, oldest first; the last one is the parent.
        selection: ``record_id``, ``parent_job_key``, ``parent_shard`` (where the record was last
            sent) and ``retry_reason``, one row per record.
        attempt: of the new job.
        submitter: who asked, for the manifest only.
        now: time of creation, aware.
        store: holds the parents' objects, and takes the new ones.
        records_per_shard: smaller shards than the parents', from now on; None keeps their limit.

    Raises:
        DatasetError: nothing is selected, a record twice, or one that its parent did not send.
        ArtifactError: a stored object is absent or damaged.
    """
    if selection.num_rows == 0:
        raise DatasetError("Nothing is left to send again.")
    if pc.count_distinct(selection["record_id"]).as_py() != selection.num_rows:
        raise DatasetError("A record is selected twice for the next attempt.")
    parent = parents[-1]
    by_key = {manifest.job_key: manifest for manifest in parents}
    wanted: dict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
    rows = zip(
        *(
            selection[name].to_pylist()
            for name in ("record_id", "parent_job_key", "parent_shard", "retry_reason")
        ),
        strict=True,
    )
    for record_id, job_key, shard, reason in rows:
        if job_key not in by_key:
            raise DatasetError(f"Record {record_id}: {job_key} is no job of this revision.")
        wanted[job_key, shard][record_id] = reason
    fields = {
        name: getattr(parent, name) for name in Manifest.model_fields if name not in _COMPUTED
    }
    fields |= {"attempt": attempt, "submitter": submitter, "parent_job_key": parent.job_key}
    if records_per_shard is not None:
        smaller = min(records_per_shard, parent.limits.records_per_shard)
        fields["limits"] = parent.limits.model_copy(update={"records_per_shard": smaller})
    with Spool() as spool:
        for (job_key, shard), reasons in sorted(wanted.items()):
            _spool_shard(spool, by_key[job_key], shard, reasons, store)
        spool.finish()
        order = spool.by_id()
        keys = job_keys(
            spool,
            order,
            tenant_id=parent.tenant_id,
            deployment=parent.deployment,
            workload=parent.workload,
            dataset=parent.dataset,
            revision=parent.revision,
            attempt=attempt,
            parent_job_key=parent.job_key,
            model=parent.model,
            prompt_version=parent.prompt_version,
            generation_digest=parent.generation_digest,
        )
        return assemble(spool, order, keys, fields, now=now, store=store)


_FACTS = ("record_id", "business_key", "source_version", "wire_id", "shard", "request_digest")


def _spool_shard(
    spool: Spool,
    parent: Manifest,
    ordinal: int,
    reasons: Mapping[str, str | None],
    store: ArtifactStore,
) -> None:
    """Copy the selected bodies of one request file, each proven by its digest."""
    if not 0 <= ordinal < len(parent.shards):
        raise DatasetError(f"{parent.job_key} has no shard {ordinal}.")
    module = request_module(parent.provider)
    counts_inputs = parent.body == "native" and parent.endpoint == module.EMBEDDING_ENDPOINT
    table = read_records(store, parent.records_digest, _FACTS)
    table = table.filter(pc.equal(table["shard"], ordinal))
    columns = [table[name].to_pylist() for name in _FACTS]
    digest = parent.shards[ordinal].digest
    found = 0
    with store.fetch(digest) as path, path.open("rb") as file:
        for row, line in zip(zip(*columns, strict=True), file, strict=True):
            record_id, key, version, wire_id, _, request_digest = row
            if record_id not in reasons:
                continue
            body = module.request_body(line)
            raw = hashlib.sha256(body).digest()
            if raw.hex() != request_digest or wire_id.encode() not in line[: len(line) - len(body)]:
                raise ArtifactError(f"Request file {digest} is not the one its records describe.")
            parsed: Any = parse_strict(body)[0] if counts_inputs or parent.cache else None
            inputs = embedding_inputs(parsed) if counts_inputs else 1
            group = prefix_group(parsed["messages"][:-1]) if parent.cache else 0
            meta = (key, version, parent.job_key, ordinal, reasons[record_id])
            spool.add(bytes.fromhex(record_id), raw, body, meta, group=group, inputs=inputs)
            found += 1
    if found != len(reasons):
        raise DatasetError(
            f"{len(reasons) - found} selected records were not sent in shard {ordinal} of "
            f"{parent.job_key}."
        )
