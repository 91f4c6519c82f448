"""Names in Dagster: asset keys, tags, check names. One place, so that none can drift."""

from __future__ import annotations

from typing import Final

from dagster import AssetCheckKey, AssetKey

STEP_TAG: Final = "llm_batch/step"
LOOP_TAG: Final = "llm_batch/loop"
WORKLOAD_TAG: Final = "llm_batch/workload"
WORK_TAG: Final = "llm_batch/work_id"
KIND_TAG: Final = "llm_batch/work"
JOB_KEY_TAG: Final = "llm_batch/job_key"
ATTEMPT_TAG: Final = "llm_batch/attempt"
SHARD_TAG: Final = "llm_batch/shard"
DEPLOYMENT_TAG: Final = "llm_batch/deployment"
SUBMITTER_TAG: Final = "llm_batch/submitter"
TENANT_METADATA: Final = "llm_batch/tenant"
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


IN_TIME: Final = "results_in_time"
"""A check on ``raw_results``, not blocking: a schedule evaluates it."""


def asset_key(workload: str, step: str) -> AssetKey:
    """``[workload, step]``."""
    return AssetKey([workload, step])


def check_keys(workload: str) -> list[AssetCheckKey]:
    """The blocking checks of a workload, in the order people read them."""
    return [AssetCheckKey(asset_key(workload, RECONCILED), name) for name in CHECKS]


def asset_tags(workload: str, step: str) -> dict[str, str]:
    """What marks an asset as ours, so that sensors and selections find it in any location."""
    return {LOOP_TAG: "on", WORKLOAD_TAG: workload, STEP_TAG: step}
