"""Ledgers for tests: two shards of five records, frozen and not yet sent."""

from __future__ import annotations

from llm_batch_assets.ledger import Ledger
from llm_batch_assets.ledger.freezing import JobSpec, RevisionSpec, ShardRowSpec, open_revision
from llm_batch_assets.ledger.worker import Worker

WORKER = Worker("holder-1", "test")
HOUR = 3600 * 1_000_000


def revision_spec(dataset: str = "2026-11-30", **changes: object) -> RevisionSpec:
    values = {
        "tenant_id": "t",
        "workload": "w",
        "dataset": dataset,
        "revision": 1,
        "provider": "openai",
        "records": 10,
        "open_datasets": 2,
        "min_accepted_ppm": 950_000,
        "cut_after": 6 * HOUR,
        "close_by": 72 * HOUR,
        "hold_deadline": 48 * HOUR,
    }
    return RevisionSpec(**{**values, **changes})  # type: ignore[arg-type]


def job_spec(dataset: str = "2026-11-30", attempt: int = 1, shards: int = 2) -> JobSpec:
    return JobSpec(
        attempt=attempt,
        job_key=f"sha256:{dataset}-{attempt}",
        parent_job_key=None if attempt == 1 else f"sha256:{dataset}-{attempt - 1}",
        input_manifest_hash=f"h-{dataset}-{attempt}",
        manifest_digest="m",
        records_digest="r",
        records=5 * shards,
        kept_back=0,
        shards=[
            ShardRowSpec(n, f"{dataset}/r1/a{attempt}/p{n:05}", "d", 5, 100, "tag", key)
            for n, key in ((n, f"{dataset}-{attempt}-{n}") for n in range(shards))
        ],
    )


def frozen(ledger: Ledger, dataset: str = "2026-11-30", **changes: object) -> int:
    row, _, _ = open_revision(
        ledger, revision_spec(dataset, **changes), job_spec(dataset), [], WORKER
    )
    return row.id
