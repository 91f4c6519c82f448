"""Hand-made record and evidence tables for settlement tests: one letter is one class."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa

from llm_batch_assets.reconcile.book import Accounted, Attempt
from llm_batch_assets.reconcile.tables import EVIDENCE_SCHEMA

RECORDS_SCHEMA = pa.schema(
    [
        ("ordinal", pa.int64()),
        ("record_id", pa.string()),
        ("business_key", pa.string()),
        ("source_version", pa.string()),
        ("shard", pa.int32()),
        ("line", pa.int32()),
        ("preflight_rule", pa.string()),
    ]
)

LETTERS: dict[str, dict[str, Any]] = {
    "s": {"cls": "succeeded", "reason": "accepted"},
    "r": {"cls": "retryable", "reason": "rate_limited", "charged": False},
    "u": {"cls": "retryable", "reason": "schema", "unqualified": True},
    "h": {"cls": "retryable", "reason": "billing", "hold": "billing", "charged": False},
    "p": {"cls": "permanent_failure", "reason": "refusal"},
    "c": {"cls": "cancelled", "reason": "batch_cancelled", "charged": False},
    "e": {"cls": "expired", "reason": "batch_expired", "charged": False},
    "m": {"cls": "missing", "reason": "no_row", "charged": False},
    "d": {"cls": "duplicate", "reason": "conflict"},
    "x": {"cls": "retryable", "reason": "server_error", "charged": True},
}


def record_id(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def records(shards: dict[int, str]) -> pa.Table:
    """``{0: "ab", -1: "c"}``: keys by shard, in this order; -1 was kept back by preflight."""
    rows = []
    for shard, keys in shards.items():
        for line, key in enumerate(keys):
            rows.append(
                {
                    "ordinal": len(rows),
                    "record_id": record_id(key),
                    "business_key": key,
                    "source_version": "v1",
                    "shard": shard,
                    "line": -1 if shard < 0 else line,
                    "preflight_rule": "line_too_long" if shard < 0 else None,
                }
            )
    return pa.Table.from_pylist(rows, schema=RECORDS_SCHEMA)


def evidence(keys: str, letters: str, shard: int = 0, attempt: int = 1) -> pa.Table:
    """One row per key, its class by letter."""
    rows = []
    for line, (key, letter) in enumerate(zip(keys, letters, strict=True)):
        rid = record_id(key)
        rows.append(
            dict.fromkeys(EVIDENCE_SCHEMA.names)
            | {"record_id": rid, "business_key": key, "wire_id": "t-" + rid, "rule": "row"}
            | {"attempt": attempt, "shard": shard, "epoch": 0, "line": line + 1, "offset": line}
            | {"file": "f" * 64, "unqualified": False, "charged": True}
            | LETTERS[letter]
        )
    return pa.Table.from_pylist(rows, schema=EVIDENCE_SCHEMA)


def attempt(number: int, shards: dict[int, str], rows: dict[int, str], **flags: Any) -> Attempt:
    """An attempt whose shards in ``rows`` are accounted with these letters."""
    return Attempt(
        job_key=f"sha256:job{number}",
        manifest_digest=f"manifest{number}",
        records=records(shards),
        shards=tuple(
            Accounted(
                shard,
                f"closure-{number}-{shard}",
                evidence(shards[shard], letters, shard, number),
                **flags,
            )
            for shard, letters in rows.items()
        ),
    )
