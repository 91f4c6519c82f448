"""A manifest, its records table and its request files: do they say the same?"""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets import identity
from llm_batch_assets.artifacts.base import object_key
from llm_batch_assets.manifest.model import Manifest, ShardSpec, parse_manifest
from llm_batch_assets.manifest.records import record_batches, rows_digest
from llm_batch_assets.reconcile.tables import read_table
from llm_batch_assets.reconcile.verify.folder import Folder
from llm_batch_assets.reconcile.verify.report import Report
from llm_batch_assets.wire.ask import request_module


def check_manifest(folder: Folder, digest: str, report: Report) -> Manifest:
    """Recompute a manifest's names from its records, and its records from its request files.

    Raises:
        ArtifactError: when something that it names is absent or damaged.
    """
    name = object_key(digest)
    manifest = parse_manifest(folder.get(digest), name)
    if manifest.to_bytes() != folder.get(digest):
        report.fault(name, "is not written as this program writes manifests")
    table_name = object_key(manifest.records_digest)
    found = rows_digest(record_batches(folder, manifest.records_digest))
    if found != manifest.rows_digest:
        report.fault(table_name, f"its rows are not those that {name} froze")
    table = read_table(folder, manifest.records_digest)
    report.count("records", table.num_rows)
    for what, recorded, computed in _names(manifest, table):
        if recorded != computed:
            report.fault(name, f"{what}: recorded {recorded}, its records give {computed}")
    for shard in manifest.shards:
        mine = table.filter(pc.equal(table["shard"], shard.ordinal))
        _check_requests(folder, manifest, shard, mine.select(_OF_REQUESTS).to_pylist(), report)
    return manifest


_OF_REQUESTS = ["record_id", "wire_id", "line", "request_digest"]


def _names(manifest: Manifest, table: pa.Table) -> list[tuple[str, Any, Any]]:
    ordered = table.select(["record_id", "request_digest"]).sort_by("record_id")
    pairs = (
        pair
        for batch in ordered.to_batches(max_chunksize=65_536)
        for pair in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    generation = identity.generation_config_hash(manifest.generation)
    manifest_hash = identity.input_manifest_hash(
        deployment=manifest.deployment,
        workload=manifest.workload,
        dataset=manifest.dataset,
        revision=manifest.revision,
        attempt=manifest.attempt,
        parent_job_key=manifest.parent_job_key,
        records_digest=identity.sorted_records_digest(pairs),
    )
    job_key = identity.job_key(
        tenant_id=manifest.tenant_id,
        dataset=manifest.dataset,
        input_manifest_hash=manifest_hash,
        model=manifest.model,
        prompt_version=manifest.prompt_version,
        generation_config_hash=generation,
    )
    kept = pc.sum(pc.less(table["shard"], 0), min_count=0).as_py()
    return [
        ("generation_digest", manifest.generation_digest, generation),
        ("input_manifest_hash", manifest.input_manifest_hash, manifest_hash),
        ("job_key", manifest.job_key, job_key),
        ("expected_record_count", manifest.expected_record_count, table.num_rows),
        ("preflight_rejected", manifest.preflight_rejected, kept),
        ("shards", [s.ordinal for s in manifest.shards], list(range(len(manifest.shards)))),
        (
            "records of shards",
            sum(shard.records for shard in manifest.shards),
            table.num_rows - kept,
        ),
    ]


def _check_requests(
    folder: Folder, manifest: Manifest, shard: ShardSpec, rows: list[dict[str, Any]], report: Report
) -> None:
    """Line n of the request file is the body of the shard's n-th record, under its wire id."""
    name = object_key(shard.digest)
    module = request_module(manifest.provider)
    tag = identity.wire_tag(manifest.job_key, shard.ordinal)
    if shard.tag != tag:
        report.fault(name, f"shard {shard.ordinal} has the tag {shard.tag}, its job gives {tag}")
    if shard.bytes != folder.sizes.get(shard.digest):
        report.fault(name, f"has not the {shard.bytes} bytes that its manifest announces")
    lines = 0
    with folder.fetch(shard.digest) as path, path.open("rb") as file:
        for lines, line in enumerate(file, 1):
            if lines > len(rows):
                break
            row = rows[lines - 1]
            wire_id = identity.wire_id(tag, row["record_id"])
            body = module.request_body(line)
            same = (
                row["line"] == lines - 1
                and row["wire_id"] == wire_id
                and hashlib.sha256(body).hexdigest() == row["request_digest"]
                and module.request_line(wire_id, body, manifest.endpoint) == line
            )
            if not same:
                report.fault(name, f"line {lines} is not the request of record {row['record_id']}")
                return
    if lines != len(rows) or lines != shard.records:
        report.fault(name, f"has {lines} lines for {len(rows)} records, announced {shard.records}")
