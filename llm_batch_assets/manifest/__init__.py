"""Freezing records into shards: what a job asks, fixed before anything is sent."""

from llm_batch_assets.manifest.assemble import Frozen
from llm_batch_assets.manifest.drift import Drift, drift
from llm_batch_assets.manifest.freeze import Prepared, freeze, prepare
from llm_batch_assets.manifest.model import Manifest, ShardSpec, load_manifest
from llm_batch_assets.manifest.records import (
    RECORDS_SCHEMA,
    read_records,
    record_batches,
    rows_digest,
)
from llm_batch_assets.manifest.retry_freeze import freeze_retry
from llm_batch_assets.manifest.sources import Source, open_source, source_of

__all__ = [
    "RECORDS_SCHEMA",
    "Drift",
    "Frozen",
    "Manifest",
    "Prepared",
    "ShardSpec",
    "Source",
    "drift",
    "freeze",
    "freeze_retry",
    "load_manifest",
    "open_source",
    "prepare",
    "read_records",
    "record_batches",
    "rows_digest",
    "source_of",
]
