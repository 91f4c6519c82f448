"""Evidence of shards that no batch ran for: refused for good, or cancelled before any create."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.errors import ArtifactError, ProviderError
from llm_batch_assets.reconcile.evidence import ShardContext
from llm_batch_assets.reconcile.tables import EVIDENCE_SCHEMA

_SHAPE = re.compile(
    r"less records|fewer than|required minimum|request_too_large|exceeds the maximum"
    r"|too many (?:requests in|tasks|records)",
    re.IGNORECASE,
)
"""Words of a refusal that is about the file's shape: no record of it is wrong (field notes B21,
B25; Bedrock may check its minimum at create, which is not documented)."""


@dataclass(frozen=True)
class Unanswered:
    """What ``account`` would give, for a shard without result files."""

    table: pa.Table
    answers: pa.Array
    anomalies: list[Any] = field(default_factory=list)
    closed: bool = True
    whole: bool = True


def refusal_of(error: ProviderError) -> dict[str, Any]:
    """A refused create as evidence keeps it: the provider's own words, bounded."""
    return {
        "http_status": error.http_status,
        "code": error.code,
        "message": str(error)[:500].encode("utf-8", "replace").decode("utf-8"),
        "request_id": error.request_id,
    }


def unanswered(records: pa.Table, context: ShardContext) -> Unanswered:
    """Class every record of a shard from its ``basis``; nobody is charged.

    Args:
        records: the job's records table.
        context: of basis ``refused`` (every record is a permanent failure, because the provider
            will not take this file; only where the file's shape is at fault it is none) or
            ``never_sent`` (a person cancelled before any create).

    Raises:
        ArtifactError: for a basis that needs result files.
    """
    rule = f"create.{context.basis}"
    if context.basis == "refused":
        cls, reason, refusal = "permanent_failure", "create_refused", context.refusal or {}
        if _SHAPE.search(str(refusal.get("message") or "")):
            cls, reason, rule = "retryable", "reshape", "create.reshape"
    elif context.basis == "never_sent":
        cls, reason, refusal = "cancelled", "never_sent", {}
    else:
        raise ArtifactError(f"Evidence of basis {context.basis!r} comes from result files.")
    mine = records.filter(pc.equal(records["shard"], context.shard)).combine_chunks()
    given: Mapping[str, Any] = {
        "cls": cls,
        "reason": reason,
        "rule": rule,
        "attempt": context.attempt,
        "shard": context.shard,
        "epoch": context.epoch,
        "submission_key": context.submission_key,
        "error_code": refusal.get("code"),
        "http_status": refusal.get("http_status"),
        "unqualified": False,
        "charged": False,
    }
    columns = [
        mine[name]
        if name in ("record_id", "business_key", "wire_id")
        else pa.repeat(pa.scalar(given.get(name), kind), mine.num_rows)
        for name, kind in zip(EVIDENCE_SCHEMA.names, EVIDENCE_SCHEMA.types, strict=True)
    ]
    table = pa.table(columns, schema=EVIDENCE_SCHEMA)
    return Unanswered(table, pa.nulls(mine.num_rows, pa.large_string()))
