"""Evidence: canonical digests, resolutions, and a closure that says what it rests on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from llm_batch_assets.artifacts import ArtifactStore, open_store
from llm_batch_assets.errors import ArtifactError
from llm_batch_assets.reconcile import digests
from llm_batch_assets.reconcile.digests import hex_set_digest, rows_digest, set_digest
from llm_batch_assets.reconcile.evidence import (
    ShardContext,
    load_shard_evidence,
    read_evidence,
    write_shard_evidence,
)
from llm_batch_assets.reconcile.tables import EVIDENCE_SCHEMA, read_table
from llm_batch_assets.types import BatchCounts, BatchView, Receipt


@dataclass
class Anomaly:
    kind: str
    id: str | None = None
    file: str = "f" * 64
    name: str = "output.jsonl"
    line: int = 3
    offset: int = 20
    length: int = 10
    reason: str = "because"


@dataclass
class Account:
    table: pa.Table
    answers: Any
    anomalies: list[Anomaly] = field(default_factory=list)
    closed: bool = True
    whole: bool = True


def account(classes: list[str], **more: Any) -> Account:
    rows = []
    for number, cls in enumerate(classes):
        rid = hashlib.sha256(str(number).encode()).hexdigest()
        rows.append(
            dict.fromkeys(EVIDENCE_SCHEMA.names)
            | {"record_id": rid, "business_key": f"k{number}", "wire_id": "t-" + rid, "cls": cls}
            | {"reason": cls, "rule": "r", "attempt": 1, "shard": 0, "epoch": 0}
            | {"line": number + 1, "unqualified": False, "charged": True, "input_tokens": 5}
        )
    answers = pa.array(["{}" if c == "succeeded" else None for c in classes], pa.large_string())
    return Account(pa.Table.from_pylist(rows, schema=EVIDENCE_SCHEMA), answers, **more)


def receipt(digest: str) -> Receipt:
    return Receipt("results", "file-1", digest, 200, 9, 9, 9, None, None, True, "length")


CONTEXT = ShardContext(
    manifest_digest="a" * 64,
    job_key="sha256:" + "b" * 64,
    shard=0,
    attempt=1,
    epoch=0,
    submission_key="c" * 64,
    provider_batch_id="batch_1",
    rules_version="1",
    receipts=(receipt("d" * 64),),
)


@pytest.fixture
def store(tmp_path) -> ArtifactStore:
    return open_store(str(tmp_path / "store"))


def test_the_rows_digest_does_not_see_chunks_encodings_or_containers() -> None:
    table = account(["succeeded", "missing", "retryable", "succeeded"]).table
    pieces = pa.concat_tables([table.slice(0, 1), table.slice(1, 0), table.slice(1, 3)])
    encoded = table.set_column(3, "cls", table["cls"].dictionary_encode())
    wide = table.set_column(0, "record_id", table["record_id"].cast(pa.large_string()))
    digests = {rows_digest(t) for t in (table, pieces, encoded, wide)}
    assert len(digests) == 1
    assert rows_digest(table.take([1, 0, 2, 3])) not in digests


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([None, 0], [0, 0]),
        ([None, ""], ["", ""]),
        (["ab", "c"], ["a", "bc"]),
        ([None, "a"], ["a", None]),
        ([1, None], [None, 1]),
        ([True, False], [True, None]),
        ([1], ["1"]),
        ([1], [1.0]),
        ([1], [1, None]),
    ],
)
def test_different_rows_have_different_digests(one: list[Any], other: list[Any]) -> None:
    assert rows_digest(pa.table({"x": one})) != rows_digest(pa.table({"x": other}))


@pytest.mark.parametrize(
    "ids",
    [
        [],
        ["ab"],
        ["ff", "0a", "b1"],
        ["k-1", "k-0"],
        ["a", "bb"],
        ['"', "\\"],
        [hashlib.sha256(bytes([n % 256, n // 256])).hexdigest() for n in range(3000)],
    ],
)
def test_the_fast_set_digest_is_the_plain_one(ids: list[str], monkeypatch) -> None:
    monkeypatch.setattr(digests, "_SLICE", 1000)
    column = pa.chunked_array([ids[:1], ids[1:]], pa.string())
    assert hex_set_digest(column) == set_digest(ids)


def test_writing_twice_gives_the_same_digests_and_no_new_object(store) -> None:
    first = write_shard_evidence(store, account(["succeeded", "retryable"]), CONTEXT)
    objects = sorted(store.digests())
    assert write_shard_evidence(store, account(["succeeded", "retryable"]), CONTEXT) == first
    assert sorted(store.digests()) == objects
    assert load_shard_evidence(store, first.closure_digest) == first


def test_the_closure_leads_to_rows_answers_and_sets(store) -> None:
    given = account(["succeeded", "retryable", "succeeded"])
    evidence = write_shard_evidence(store, given, CONTEXT)
    document, table = read_evidence(store, evidence.closure_digest)
    assert table.equals(given.table)
    ids = given.table["record_id"].to_pylist()
    answers = read_table(store, document["answers"]["object"])
    assert answers.to_pylist() == [{"record_id": ids[n], "answer": "{}"} for n in (0, 2)]
    assert document["sets"]["succeeded"] == set_digest([ids[2], ids[0]])
    assert document["sets"]["missing"] == set_digest([])
    assert document["counts"]["succeeded"] == 2
    assert document["usage"]["input_tokens"] == 15
    assert document["usage"]["output_tokens"] is None
    assert document["raw_files"][0]["digest"] == "d" * 64
    assert evidence.closed and not evidence.confirmed


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("unreadable", "second_download", "quarantined"),
        ("unknown", "second_download", "quarantined_alert"),
        ("duplicate", "second_download", "human_review"),
        ("duplicate_identical", "collapsed", "collapsed"),
    ],
)
def test_an_anomaly_is_resolved_by_a_second_download_of_the_same_bytes(
    store, kind: str, before: str, after: str
) -> None:
    given = account(["succeeded"], anomalies=[Anomaly(kind, "x")], closed=False)
    other = replace(CONTEXT, earlier=((receipt("e" * 64),),))
    same = replace(CONTEXT, earlier=((receipt("e" * 64),), (receipt("d" * 64),)))
    for context, closed, expected in [
        (CONTEXT, False, before),
        (other, False, before),
        (same, True, after),
    ]:
        evidence = write_shard_evidence(store, given, context)
        document, _ = read_evidence(store, evidence.closure_digest)
        assert (evidence.closed, evidence.confirmed) == (closed, closed)
        rows = read_table(store, document["anomalies"]["object"]).to_pylist()
        assert [r["resolution"] for r in rows] == [expected]
        assert document["anomalies"]["counts"] == {kind: 1}
        assert len(document["downloads"]) == len(context.earlier)


def test_provider_counts_that_differ_are_warnings_and_no_class(store) -> None:
    view = BatchView(
        "batch_1", "completed", "done", counts=BatchCounts(3, 1, 0), raw=b'{"id":"batch_1"}'
    )
    evidence = write_shard_evidence(
        store, account(["succeeded", "succeeded"]), replace(CONTEXT, views=(view,))
    )
    assert [w.split(":")[0] for w in evidence.warnings] == ["provider_total", "provider_ended"]
    document, _ = read_evidence(store, evidence.closure_digest)
    assert json.loads(store.get(document["views"][0])) == {"id": "batch_1"}
    assert evidence.counts["succeeded"] == 2


def test_what_is_in_flight_is_no_evidence(store) -> None:
    with pytest.raises(ArtifactError, match="in flight"):
        write_shard_evidence(store, account(["in_flight"]), CONTEXT)
    assert list(store.digests()) == []


def test_a_class_that_nobody_knows_is_refused(store) -> None:
    with pytest.raises(ArtifactError, match="no class"):
        write_shard_evidence(store, account(["fine"]), CONTEXT)
