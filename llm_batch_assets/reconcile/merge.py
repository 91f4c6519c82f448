"""From shards to a job: one table, one closure; and back, from digests to settlement's input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.errors import ArtifactError
from llm_batch_assets.reconcile.book import EVIDENCE_COLUMNS, Accounted, Attempt
from llm_batch_assets.reconcile.digests import (
    RowsDigest,
    hex_set_digest,
    put_document,
    read_document,
)
from llm_batch_assets.reconcile.disposal import CLASSES
from llm_batch_assets.reconcile.evidence import SHARD_CLOSURE, TOKENS
from llm_batch_assets.reconcile.tables import EVIDENCE_SCHEMA, parquet_writer, read_table

JOB_CLOSURE = "llm_batch_assets.job_closure"


@dataclass(frozen=True, slots=True)
class JobRef:
    """Where one attempt's bytes are: everything else is read from them.

    ``shards`` maps the ordinals of accounted shards to their closures.
    """

    job_key: str
    manifest_digest: str
    records_digest: str
    shards: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class JobEvidence:
    """The merged evidence of one job."""

    closure_digest: str
    table_digest: str
    rows_digest: str
    counts: dict[str, int]
    accounted: bool


def load_attempt(store: ArtifactStore, job: JobRef) -> Attempt:
    """Settlement's input of one attempt, from the store.

    Raises:
        ArtifactError: for objects that are absent, damaged, or of another job.
    """
    shards = []
    for ordinal in sorted(job.shards):
        document = _shard(store, job, ordinal)
        table = read_table(store, document["table"]["object"], EVIDENCE_COLUMNS.names, coded=True)
        shards.append(
            Accounted(
                shard=ordinal,
                closure_digest=job.shards[ordinal],
                table=table,
                confirmed=document["confirmed"],
                foreign=_has_strangers(document["anomalies"]),
                person_cancel=document["person_cancel"],
            )
        )
    records = read_table(store, job.records_digest)
    return Attempt(job.job_key, job.manifest_digest, records, tuple(shards))


def _has_strangers(anomalies: Mapping[str, Any]) -> bool:
    """Whether rows of a shard are no record's, by a foreign id or by none."""
    return anomalies["counts"].get("unknown", 0) > 0 or anomalies.get("nameless", 0) > 0


def write_job_evidence(store: ArtifactStore, job: JobRef, *, attempt: int) -> JobEvidence:
    """Merge the evidence of a job's shards; one shard is in memory at a time.

    Repeating it writes nothing new. Records that preflight kept back follow the shards.

    Raises:
        ArtifactError: as ``load_attempt``.
    """
    writer, sink = store.writer(), RowsDigest(EVIDENCE_SCHEMA)
    with writer, parquet_writer(writer, EVIDENCE_SCHEMA) as parquet:
        tally = Tally()
        for table in job_tables(store, job, attempt=attempt):
            parquet.write_table(table)
            sink.update(table)
            tally.add(table)
    document = job_closure(store, job, attempt=attempt, tally=tally)
    document["table"] = {"object": writer.digest, "rows_digest": sink.hexdigest()}
    return JobEvidence(
        closure_digest=put_document(store, document),
        table_digest=writer.digest,
        rows_digest=sink.hexdigest(),
        counts=document["counts"],
        accounted=document["accounted"],
    )


def job_tables(store: ArtifactStore, job: JobRef, *, attempt: int) -> Iterator[pa.Table]:
    """The evidence of every accounted shard in order, then of what preflight kept back."""
    for ordinal in sorted(job.shards):
        yield read_table(store, _shard(store, job, ordinal)["table"]["object"])
    records = read_table(
        store,
        job.records_digest,
        ["record_id", "business_key", "wire_id", "shard", "preflight_rule"],
    )
    kept = records.filter(pc.less(records["shard"], 0))
    if kept.num_rows:
        yield preflight_evidence(kept, attempt=attempt)


def preflight_evidence(kept: pa.Table, *, attempt: int) -> pa.Table:
    """Evidence of records that were never sent: the manifest itself is the proof."""
    rows = kept.num_rows
    why = pc.binary_join_element_wise("preflight", kept["preflight_rule"], ":")
    given: dict[str, Any] = {
        "record_id": kept["record_id"],
        "business_key": kept["business_key"],
        "wire_id": kept["wire_id"],
        "cls": pa.repeat("permanent_failure", rows),
        "reason": why,
        "rule": why,
        "attempt": pa.repeat(pa.scalar(attempt, pa.int32()), rows),
        "shard": kept["shard"],
        "unqualified": pa.repeat(False, rows),
        "charged": pa.repeat(False, rows),
    }
    columns = [given.get(f.name, pa.nulls(rows, f.type)).cast(f.type) for f in EVIDENCE_SCHEMA]
    return pa.table(columns, schema=EVIDENCE_SCHEMA)


class Tally:
    """Counts, sets and usage over the tables of a job."""

    def __init__(self) -> None:
        self.rows = 0
        self.counts: Counter[str] = Counter()
        self.usage: dict[str, int | None] = dict.fromkeys(TOKENS)
        self._ids: list[pa.Table] = []

    def add(self, table: pa.Table) -> None:
        """Count one table."""
        self.rows += table.num_rows
        self._ids.append(table.select(["record_id", "cls"]))
        for entry in table["cls"].value_counts().to_pylist():
            self.counts[entry["values"]] += entry["counts"]
        for flag in ("unqualified", "charged"):
            self.counts[flag] += pc.sum(table[flag]).as_py() or 0
        self.counts["hold"] += table.num_rows - table["hold"].null_count
        for name in TOKENS:
            found = pc.sum(table[name]).as_py()
            if found is not None:
                self.usage[name] = (self.usage[name] or 0) + found

    def sets(self) -> dict[str, str]:
        """Digest of the ids of every class."""
        if not self._ids:
            return {name: hex_set_digest(pa.array([], pa.string())) for name in CLASSES}
        all_ids = pa.concat_tables(self._ids)
        return {
            name: hex_set_digest(all_ids["record_id"].filter(pc.equal(all_ids["cls"], name)))
            for name in CLASSES
        }


def job_closure(store: ArtifactStore, job: JobRef, *, attempt: int, tally: Tally) -> dict[str, Any]:
    """The job's closure without its table's digests; writes nothing."""
    documents = [_shard(store, job, ordinal) for ordinal in sorted(job.shards)]
    expected = read_table(store, job.records_digest, ["shard"]).num_rows
    return {
        "kind": JOB_CLOSURE,
        "version": 1,
        "job_key": job.job_key,
        "attempt": attempt,
        "manifest": job.manifest_digest,
        "records_table": job.records_digest,
        "records": expected,
        "evidence_records": tally.rows,
        "counts": {
            name: tally.counts[name] for name in (*CLASSES, "unqualified", "charged", "hold")
        },
        "sets": tally.sets(),
        "usage": tally.usage,
        "shards": [
            {"shard": ordinal, "closure": job.shards[ordinal]} for ordinal in sorted(job.shards)
        ],
        "accounted": tally.rows == expected and all(d["closed"] for d in documents),
        "rules_versions": versions(documents, "rules_version"),
        "gate_versions": versions(documents, "gate_version"),
        "warnings": [f"shard {d['shard']}: {w}" for d in documents for w in d["warnings"]],
    }


def versions(documents: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """The distinct versions that documents were made under."""
    return sorted({d[name] for d in documents if d[name] is not None})


def _shard(store: ArtifactStore, job: JobRef, ordinal: int) -> dict[str, Any]:
    document = read_document(store, job.shards[ordinal], SHARD_CLOSURE)
    if (document["job_key"], document["shard"]) != (job.job_key, ordinal):
        raise ArtifactError(
            f"The closure {job.shards[ordinal]} is of shard {document['shard']} of "
            f"{document['job_key']}, not of shard {ordinal} of {job.job_key}."
        )
    return document
