"""Hand-made record and evidence tables for settlement tests: one letter is one class."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.reconcile.book import Accounted, Attempt
from llm_batch_assets.reconcile.evidence import ShardContext, write_shard_evidence
from llm_batch_assets.reconcile.merge import JobRef
from llm_batch_assets.reconcile.tables import EVIDENCE_SCHEMA, put_table

RECORDS_SCHEMA = pa.schema(
    [
        ("ordinal", pa.int64()),
        ("record_id", pa.string()),
        ("business_key", pa.string()),
        ("source_version", pa.string()),
        ("wire_id", pa.string()),
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
                    "wire_id": "t-" + record_id(key),
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


@dataclass(frozen=True)
class Foreign:
    """A row that is no record's."""

    kind: str = "unknown"
    id: str | None = "stranger"
    file: str = "f" * 64
    name: str = "output.jsonl"
    line: int = 3
    offset: int = 20
    length: int = 10
    reason: str = "unknown_id"


@dataclass
class HandMade:
    """What ``account`` would give."""

    table: pa.Table
    answers: Any
    anomalies: list[Any]
    closed: bool
    whole: bool = True


def stored_job(
    store: ArtifactStore,
    number: int,
    shards: dict[int, str],
    rows: dict[int, str],
    answer: Callable[[str], str],
    anomalies: dict[int, list[Foreign]] | None = None,
    **context: Any,
) -> JobRef:
    """A job in a store, with evidence of the shards in ``rows``."""
    closures = {}
    for shard, letters in rows.items():
        table = evidence(shards[shard], letters, shard, number)
        answers = [
            answer(k) if x == "s" else None for k, x in zip(shards[shard], letters, strict=True)
        ]
        strange = (anomalies or {}).get(shard, [])
        given = HandMade(
            table,
            pa.array(answers, pa.large_string()),
            strange,
            closed=not strange and not set(letters) & set("md"),
        )
        closures[shard] = write_shard_evidence(
            store,
            given,
            ShardContext(
                manifest_digest=f"manifest{number}",
                job_key=f"sha256:job{number}",
                shard=shard,
                attempt=number,
                epoch=0,
                submission_key="c" * 64,
                provider_batch_id=f"batch_{number}_{shard}",
                rules_version="7",
                **context,
            ),
        ).closure_digest
    return JobRef(
        f"sha256:job{number}", f"manifest{number}", put_table(store, records(shards)), closures
    )


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
