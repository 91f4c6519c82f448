"""Evidence of one shard: what became of each id, written so that a stranger can check it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.errors import ArtifactError
from llm_batch_assets.reconcile.digests import (
    hex_set_digest,
    put_document,
    read_document,
    rows_digest,
    set_digest,
)
from llm_batch_assets.reconcile.tables import (
    ANOMALY_SCHEMA,
    ANSWERS_SCHEMA,
    EVIDENCE_SCHEMA,
    put_table,
    read_table,
)
from llm_batch_assets.types import BatchView, Receipt

SHARD_CLOSURE = "llm_batch_assets.shard_closure"

Basis = Literal["results", "refused", "never_sent"]
"""What a shard's evidence rests on: result files and the batch's own end (``results``, also for a
batch that failed before it ran), a create that was refused for good, or a cancel before any create.
"""

_CLASSES = (
    "succeeded",
    "retryable",
    "permanent_failure",
    "cancelled",
    "expired",
    "missing",
    "duplicate",
    "in_flight",
)
TOKENS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
)


class AccountLike(Protocol):
    """What evidence needs of an account: its rows, answers and anomalies.

    An anomaly has ``file`` (digest), ``name``, ``line`` (1-based), ``offset``, ``length``,
    ``kind``, ``reason`` and ``id``.
    """

    @property
    def table(self) -> pa.Table:
        """Evidence, one row per id."""

    @property
    def answers(self) -> Any:
        """The text of each accepted answer, null elsewhere."""

    @property
    def anomalies(self) -> Sequence[Any]:
        """Rows that are no record's answer."""

    @property
    def closed(self) -> bool:
        """Nothing is missing, unknown, duplicate, unreadable or in flight."""

    @property
    def whole(self) -> bool:
        """Every file is whole, and every file that the batch names was read."""


@dataclass(frozen=True, slots=True)
class ShardContext:
    """Everything beside the account that the evidence of a shard names.

    Attributes:
        receipts: the transfers of the raw files, in the order in which they were accounted.
        earlier: receipts of former downloads of the same results, oldest first. The evidence is
            ``confirmed`` when the last of them brought the same bytes.
        views: the looks at the batch that were accounted, oldest first.
        refusal: the provider's own words when a create was refused for good.
        person_cancel: a person asked to cancel this shard before it ended.
        gate_version: version of the workload's own gate, or None without one.
    """

    manifest_digest: str
    job_key: str
    shard: int
    attempt: int
    epoch: int
    submission_key: str
    provider_batch_id: str | None
    rules_version: str
    gate_version: str | None = None
    schema_digest: str | None = None
    basis: Basis = "results"
    receipts: tuple[Receipt, ...] = ()
    earlier: tuple[tuple[Receipt, ...], ...] = ()
    views: tuple[BatchView, ...] = field(default=(), repr=False)
    refusal: dict[str, Any] | None = None
    person_cancel: bool = False


@dataclass(frozen=True, slots=True)
class ShardEvidence:
    """What the ledger keeps of a shard's evidence; ``closure_digest`` leads to all of it.

    ``closed`` is *accounted*: every id has a class from evidence and every anomaly a resolution.
    """

    closure_digest: str
    table_digest: str
    answers_digest: str
    rows_digest: str
    counts: dict[str, int]
    confirmed: bool
    closed: bool
    warnings: tuple[str, ...]


def same_bytes(receipts: Sequence[Receipt], earlier: Sequence[Sequence[Receipt]]) -> bool:
    """Whether the last former download brought the same files as this one."""
    if not earlier:
        return False
    return _files(receipts) == _files(earlier[-1])


def write_shard_evidence(
    store: ArtifactStore, account: AccountLike, context: ShardContext
) -> ShardEvidence:
    """Store a shard's rows, answers, anomalies and closure; the closure comes last.

    The same account in the same context gives the same digests, so that a repeat after a crash
    writes nothing new.

    Raises:
        ArtifactError: for an account whose table is not evidence, or that is still in flight.
    """
    tables = shard_tables(account, context)
    views = [store.put(view.raw) for view in context.views if view.raw]
    # Hashing and Parquet encoding both run outside Python: side by side on two cores. Only this
    # thread writes, so that the order of effects is always the same.
    with ThreadPoolExecutor(1) as pool:
        closure = pool.submit(shard_closure, tables, account, context)
        table_digest = put_table(store, tables.table)
        answers_digest = put_table(store, tables.answers)
        anomalies = put_table(store, tables.anomalies) if tables.anomalies.num_rows else None
        document = closure.result()
    document["table"]["object"] = table_digest
    document["answers"]["object"] = answers_digest
    document["anomalies"]["object"] = anomalies
    document["views"] = views
    return _summary(put_document(store, document), document)


def load_shard_evidence(store: ArtifactStore, closure_digest: str) -> ShardEvidence:
    """The summary of evidence that was written before."""
    return _summary(closure_digest, read_document(store, closure_digest, SHARD_CLOSURE))


def read_evidence(store: ArtifactStore, closure_digest: str) -> tuple[dict[str, Any], pa.Table]:
    """A shard's closure document and its evidence table."""
    document = read_document(store, closure_digest, SHARD_CLOSURE)
    return document, read_table(store, document["table"]["object"])


@dataclass(frozen=True, slots=True)
class ShardTables:
    """An account's rows as they are stored."""

    table: pa.Table = field(repr=False)
    answers: pa.Table = field(repr=False)
    anomalies: pa.Table = field(repr=False)
    counts: dict[str, int]
    confirmed: bool


def shard_tables(account: AccountLike, context: ShardContext) -> ShardTables:
    """Check an account and shape its tables.

    Raises:
        ArtifactError: for an account whose table is not evidence, or that is still in flight.
    """
    table = _checked(account.table)
    counts = _counts(table)
    if flying := counts["in_flight"]:
        raise ArtifactError(f"{flying} records of shard {context.shard} are in flight.")
    confirmed = account.whole and same_bytes(context.receipts, context.earlier)
    return ShardTables(
        table,
        _answers(table, account.answers),
        _anomalies(account.anomalies, confirmed),
        counts,
        confirmed,
    )


def shard_closure(
    tables: ShardTables, account: AccountLike, context: ShardContext
) -> dict[str, Any]:
    """The closure without the digests of objects; writes nothing."""
    table, answers, anomalies = tables.table, tables.answers, tables.anomalies
    return {
        "kind": SHARD_CLOSURE,
        "version": 1,
        "job_key": context.job_key,
        "shard": context.shard,
        "attempt": context.attempt,
        "epoch": context.epoch,
        "submission_key": context.submission_key,
        "provider_batch_id": context.provider_batch_id,
        "basis": context.basis,
        "refusal": context.refusal,
        "person_cancel": context.person_cancel,
        "manifest": context.manifest_digest,
        "rules_version": context.rules_version,
        "gate_version": context.gate_version,
        "schema_digest": context.schema_digest,
        "records": table.num_rows,
        "counts": tables.counts,
        "sets": _sets(table, account.anomalies),
        "usage": {name: pc.sum(table[name]).as_py() for name in TOKENS},
        "table": {"rows_digest": rows_digest(table)},
        "answers": {"rows_digest": rows_digest(answers), "records": answers.num_rows},
        "anomalies": {
            "rows_digest": rows_digest(anomalies),
            "counts": dict(sorted(Counter(anomalies["kind"].to_pylist()).items())),
            **_nameless(anomalies),
        },
        "raw_files": [asdict(r) for r in context.receipts],
        "downloads": [[asdict(r) for r in receipts] for receipts in context.earlier],
        "confirmed": tables.confirmed,
        "closed": bool(account.closed or tables.confirmed),
        "warnings": _warnings(table, context),
    }


def _nameless(anomalies: pa.Table) -> dict[str, int]:
    """How many rows are whole and carry no id: each may be the answer of a record that is missing,
    paid for and never to be assigned by elimination (field notes B78); absent for none.
    """
    count = anomalies["reason"].to_pylist().count("no_id")
    return {"nameless": count} if count else {}


def resolution(kind: str, confirmed: bool) -> str:
    """What becomes of an anomaly. Identical repeats need no second download to collapse."""
    if kind == "duplicate_identical":
        return "collapsed"
    if not confirmed:
        return "second_download"
    return {"duplicate": "human_review", "unknown": "quarantined_alert"}.get(kind, "quarantined")


def _checked(table: pa.Table) -> pa.Table:
    if table.schema.names != EVIDENCE_SCHEMA.names:
        raise ArtifactError(f"Columns {table.schema.names} are not those of evidence.")
    return table.cast(EVIDENCE_SCHEMA).combine_chunks()


def _answers(table: pa.Table, answers: pa.Array | pa.ChunkedArray) -> pa.Table:
    if len(answers) != table.num_rows:
        raise ArtifactError(f"{len(answers)} answers for {table.num_rows} records.")
    both = pa.table([table["record_id"], answers.cast(pa.large_string())], schema=ANSWERS_SCHEMA)
    return both.filter(pc.equal(table["cls"], "succeeded")).combine_chunks()


def _anomalies(anomalies: Sequence[Any], confirmed: bool) -> pa.Table:
    rows = [
        {
            "file": a.file,
            "name": a.name,
            "line": a.line,
            "offset": a.offset,
            "length": a.length,
            "kind": a.kind,
            "reason": a.reason,
            "id": a.id,
            "resolution": resolution(a.kind, confirmed),
        }
        for a in anomalies
    ]
    rows.sort(key=lambda row: (row["file"] or "", row["line"] or 0, row["kind"], row["id"] or ""))
    return pa.Table.from_pylist(rows, schema=ANOMALY_SCHEMA)


def _counts(table: pa.Table) -> dict[str, int]:
    found = {v["values"]: v["counts"] for v in table["cls"].value_counts().to_pylist()}
    if unknown := found.keys() - set(_CLASSES):
        raise ArtifactError(f"Evidence has no class {sorted(map(str, unknown))}.")
    counts = {name: found.get(name, 0) for name in _CLASSES}
    counts["unqualified"] = pc.sum(table["unqualified"]).as_py() or 0
    counts["charged"] = pc.sum(table["charged"]).as_py() or 0
    counts["hold"] = table.num_rows - table["hold"].null_count
    return counts


def _sets(table: pa.Table, anomalies: Sequence[Any]) -> dict[str, str]:
    sets = {
        name: hex_set_digest(table["record_id"].filter(pc.equal(table["cls"], name)))
        for name in _CLASSES
    }
    sets["unknown"] = set_digest({a.id or "" for a in anomalies if a.kind == "unknown"})
    return sets


def _files(receipts: Sequence[Receipt]) -> list[tuple[str, str]]:
    return sorted((r.kind, r.digest) for r in receipts)


def _warnings(table: pa.Table, context: ShardContext) -> list[str]:
    """Where the provider's own counts differ from the rows. They never decide a class."""
    if not context.views:
        return []
    counts = context.views[-1].counts
    rows = table.num_rows - table["line"].null_count
    warnings = []
    if counts.total is not None and counts.total != table.num_rows:
        warnings.append(f"provider_total: {counts.total} announced, {table.num_rows} sent")
    if counts.completed is not None:
        ended = counts.completed + (counts.failed or 0)
        if ended != rows:
            warnings.append(f"provider_ended: {ended} announced, {rows} rows")
    return warnings


def _summary(closure_digest: str, document: dict[str, Any]) -> ShardEvidence:
    return ShardEvidence(
        closure_digest=closure_digest,
        table_digest=document["table"]["object"],
        answers_digest=document["answers"]["object"],
        rows_digest=document["table"]["rows_digest"],
        counts=document["counts"],
        confirmed=document["confirmed"],
        closed=document["closed"],
        warnings=tuple(document["warnings"]),
    )
