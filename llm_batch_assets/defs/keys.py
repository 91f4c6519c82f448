"""Names in Dagster: asset keys, tags, check names. One place, so that none can drift."""

from __future__ import annotations

from typing import Final

from dagster import AssetCheckKey, AssetKey

STEP_TAG: Final = "llm_batch/step"
WORKLOAD_TAG: Final = "llm_batch/workload"
WORK_TAG: Final = "llm_batch/work_id"
KIND_TAG: Final = "llm_batch/work"
JOB_KEY_TAG: Final = "llm_batch/job_key"
ATTEMPT_TAG: Final = "llm_batch/attempt"
SHARD_TAG: Final = "llm_batch/shard"
DEPLOYMENT_TAG: Final = "llm_batch/deployment"
SUBMITTER_TAG: Final = "llm_batch/submitter"
PARTITION_TAG: Final = "dagster/partition"
RANGE_START_TAG: Final = "dagster/asset_partition_range_start"
RANGE_END_TAG: Final = "dagster/asset_partition_range_end"
DATA_VERSION_TAG: Final = "dagster/data_version"

MANIFEST: Final = "manifest"
PROVIDER_JOB: Final = "provider_job"
RAW_RESULTS: Final = "raw_results"
RECONCILED: Final = "reconciled_records"
RETRY_SHARDS: Final = "retry_shards"
ACCEPTED: Final = "accepted_results"
HUMAN_REVIEW: Final = "human_review"

STEPS: Final = (
    MANIFEST,
    PROVIDER_JOB,
    RAW_RESULTS,
    RECONCILED,
    RETRY_SHARDS,
    ACCEPTED,
    HUMAN_REVIEW,
)

CHECKS: Final = (
    "no_missing",
    "no_unknown",
    "no_duplicate",
    "sets_cover_manifest",
    "nothing_open",
    "output_contract",
    "quality_gate",
    "served_model",
    "accepted_fraction",
)


def asset_key(workload: str, step: str) -> AssetKey:
    """``[workload, step]``."""
    return AssetKey([workload, step])


def check_keys(workload: str) -> list[AssetCheckKey]:
    """The blocking checks of a workload, in the order people read them."""
    return [AssetCheckKey(asset_key(workload, RECONCILED), name) for name in CHECKS]


def run_tags(**values: object) -> dict[str, str]:
    """``llm_batch/<name>`` tags of the values that are not None."""
    return {f"llm_batch/{name}": str(value) for name, value in values.items() if value is not None}
