"""``account``: joins, anomalies, gates, batches that are not over, and what evidence shows."""

from __future__ import annotations

import hashlib
import json
import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets.errors import InputError, LLMBatchError
from llm_batch_assets.reconcile.accounting import account
from llm_batch_assets.reconcile.digests import rows_digest
from llm_batch_assets.reconcile.model import Account, Answer, Expected, RawFile, Rules
from llm_batch_assets.reconcile.report import report
from llm_batch_assets.reconcile.tables import EVIDENCE_SCHEMA
from llm_batch_assets.wire.gemini.status import read_batch as read_gemini
from llm_batch_assets.wire.openai.status import read_batch
from llm_batch_assets_tests.wire import rowmaker as make

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def row(wire_id: str, n: Any = 1, **body: Any) -> bytes:
    return make.openai(wire_id, make.responses(json.dumps({"n": n}), **body))


def run(
    data: bytes,
    ids: list[str],
    *,
    tag: str | None = None,
    views: tuple[Any, ...] = (),
    **rules: Any,
) -> Account:
    asked = {"schema": SCHEMA, "answer": "json"} | rules
    raw = RawFile.of("output.jsonl", "results", data)
    return account(Expected(ids, tag=tag), Rules("openai", **asked), [raw], views)


def test_evidence_shows_where_everything_is() -> None:
    bad = make.openai("b", {"error": {"code": "x", "type": "y"}}, 500)
    data = row("a", 7) + bad
    expected = Expected(
        ["b", "a", "c"],
        record_ids=["rb", "ra", "rc"],
        business_keys=["kb", "ka", "kc"],
        shard=3,
        epoch=2,
        submission_key="s",
    )
    raw = RawFile.of("output.jsonl", "results", data)
    view = read_batch({"id": "batch_9", "status": "completed", "output_file_id": "o"})
    rules = Rules("openai", schema=SCHEMA, attempt=2)
    found = account(expected, rules, [raw], [view])
    assert found.table.schema == EVIDENCE_SCHEMA
    rows = {r["wire_id"]: r for r in found.table.to_pylist()}
    assert [r["record_id"] for r in found.table.to_pylist()] == ["rb", "ra", "rc"]
    first = rows["a"]
    assert data[first["offset"] : first["offset"] + first["length"]] == row("a", 7).rstrip()
    text = '{"n": 7}'
    assert (
        first
        | {
            "business_key": "ka",
            "cls": "succeeded",
            "rule": "answer.accepted",
            "attempt": 2,
            "shard": 3,
            "epoch": 2,
            "submission_key": "s",
            "provider_batch_id": "batch_9",
            "file": hashlib.sha256(data).hexdigest(),
            "line": 1,
            "stop_reason": "completed",
            "served_model": "gpt-5-mini-2025-08-07",
            "provider_request_id": "req_1",
            "answer_digest": hashlib.sha256(text.encode()).hexdigest(),
            "http_status": 200,
            "unqualified": False,
            "hold": None,
            "charged": True,
        }
        == first
    )
    assert (rows["b"]["error_type"], rows["b"]["error_code"], rows["b"]["line"]) == ("y", "x", 2)
    assert rows["b"]["answer_digest"] is None and rows["b"]["charged"]
    assert (rows["c"]["cls"], rows["c"]["file"], rows["c"]["charged"]) == ("missing", None, False)
    assert found.answers.to_pylist() == [None, text, None]


def test_a_known_record_under_a_foreign_tag_is_another_shards() -> None:
    data = row("othertagothertag-r1") + row("othertagothertag-r9") + row("mytagmytagmytagm-r1")
    found = run(data, ["mytagmytagmytagm-r1"], tag="mytagmytagmytagm")
    assert [(a.kind, a.reason, a.line) for a in found.anomalies] == [
        ("unknown", "other_shard", 1),
        ("unknown", "unknown_id", 2),
    ]
    assert found.sets()["unknown"] == ["othertagothertag-r1", "othertagothertag-r9"]
    assert not found.closed
    untagged = run(data, ["mytagmytagmytagm-r1"])
    assert {a.reason for a in untagged.anomalies} == {"unknown_id"}


@pytest.mark.parametrize("wire_id", ["A", " a", "a ", "a\u200b", "\u0430", "1", "null", "a\u0000"])
def test_ids_are_never_normalised(wire_id: str) -> None:
    found = run(row(wire_id), ["a"])
    assert (found.sets()["missing"], len(found.sets()["unknown"])) == (["a"], 1)


def test_a_conflict_shows_every_row_and_accepts_none() -> None:
    same, other = row("a"), row("a", 2)
    found = run(same + same + other + row("b"), ["a", "b"])
    assert [(a.kind, a.line) for a in found.anomalies] == [
        ("duplicate", 1),
        ("duplicate_identical", 2),
        ("duplicate", 3),
    ]
    evidence = found.table.to_pylist()[0]
    assert (evidence["cls"], evidence["answer_digest"], evidence["file"]) == (
        "duplicate",
        None,
        None,
    )
    assert found.answers.to_pylist() == [None, '{"n": 1}']
    assert found.identical == [] and not found.closed


def test_identical_means_the_line_without_cr() -> None:
    line = row("a").rstrip()
    for other, same in (
        (line + b"\r\n", True),
        (line + b" \n", False),
        (b" " + line + b"\n", False),
    ):
        found = run(line + b"\n" + other, ["a"])
        assert (found.sets()["succeeded"] == ["a"]) == same
        assert (list(found.identical) == [0]) == same == found.closed
    twice = account(
        Expected(["a"]),
        Rules("openai", schema=SCHEMA),
        [RawFile.of(name, kind, line) for name, kind in (("o", "results"), ("e", "errors"))],  # type: ignore[arg-type]
    )
    assert twice.closed and list(twice.identical) == [0]


def test_a_row_with_two_ids_is_nobodys() -> None:
    twice = row("a").replace(b'"custom_id": "a"', b'"custom_id": "a", "custom_id": "b"')
    found = run(twice + row("b"), ["a", "b"])
    assert [a.reason for a in found.anomalies] == ["duplicate_key"]
    assert (found.sets()["missing"], found.sets()["succeeded"]) == (["a"], ["b"])


def test_the_fast_lane_and_the_slow_way_meet_in_one_file() -> None:
    """Lines of the lane, errors and damage in turn, over many blocks."""
    ids = [f"r-{n}" for n in range(5000)]
    lines = []
    for n, wire_id in enumerate(ids):
        if n % 7 == 3:
            lines.append(make.openai(wire_id, {"error": {}}, 500))
        elif n % 11 == 5:
            lines.append(row(wire_id, n).replace(b'"temperature"', b'"temp"') + b"garbage\n")
        else:
            lines.append(row(wire_id, n))
    found = run(b"".join(lines), ids)
    assert len(found.sets()["retryable"]) == len([n for n in range(5000) if n % 7 == 3])
    assert not found.sets()["missing"]
    answers = [None if t is None else json.loads(t)["n"] for t in found.answers.to_pylist()]
    assert all(answer in (None, n) for n, answer in enumerate(answers))
    assert [a.kind for a in found.anomalies] == ["unreadable"] * len(found.anomalies)


def test_rows_of_one_layout_are_judged_one_by_one() -> None:
    data = row("a") + row("b", "x") + row("c", 3, model="gpt-5-nano") + row("d", 4)
    found = run(data, ["a", "b", "c", "d"], model="gpt-5-mini")
    reasons = dict(zip("abcd", found.table["reason"].to_pylist(), strict=True))
    assert reasons == {"a": "accepted", "b": "schema", "c": "served_model", "d": "accepted"}


@pytest.mark.parametrize("limit", [20, 10_000_000])
def test_answer_bytes_are_bounded(limit: int) -> None:
    long = make.openai("b", make.responses(json.dumps({"n": 1, "x": "y" * 50})))
    wide = make.openai("c", make.responses(json.dumps({"n": 1, "x": "é" * 6}, ensure_ascii=False)))
    found = run(row("a") + long + wide, ["a", "b", "c"], max_answer_bytes=limit)
    reasons = found.table["reason"].to_pylist()
    assert reasons == ["accepted", *(["answer_too_long"] * 2 if limit == 20 else ["accepted"] * 2)]


def test_line_bytes_are_bounded() -> None:
    found = run(row("a") + row("b"), ["a", "b"], max_line_bytes=100)
    assert [a.reason for a in found.anomalies] == ["line_too_long"] * 2


class Gate:
    """Refuses odd numbers; remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[Answer]] = []

    def __call__(self, answers: list[Answer]) -> list[str | None]:
        self.batches.append(answers)
        return ["odd" if answer.value["n"] % 2 else None for answer in answers]


def test_the_gate_judges_what_passed_in_the_order_of_the_ids() -> None:
    gate = Gate()
    data = row("c", 3) + row("a", 2) + row("b", 5) + row("d", "no") + row("e", 1) + row("e", 2)
    ids = ["a", "b", "c", "d", "e"]
    found = run(data, ids, gate=gate, gate_batch=2)
    assert [[a.wire_id for a in batch] for batch in gate.batches] == [["a", "b"], ["c"]]
    assert [a.text for a in gate.batches[0]] == ['{"n": 2}', '{"n": 5}']
    rows = {r["wire_id"]: r for r in found.table.to_pylist()}
    assert rows["a"]["cls"] == "succeeded"
    for name in ("b", "c"):
        assert (rows[name]["cls"], rows[name]["rule"]) == ("retryable", "quality.gate")
        assert (rows[name]["reason"], rows[name]["unqualified"]) == ("gate: odd", True)
        assert rows[name]["answer_digest"] is None
    assert found.answers.to_pylist() == ['{"n": 2}', None, None, None, None]
    again = run(data, ids, gate=Gate(), gate_batch=1)
    assert rows_digest(again.table) == rows_digest(found.table)


@pytest.mark.parametrize(
    "gate",
    [
        lambda answers: [],
        lambda answers: [1],
        lambda answers: [None, None],
        lambda answers: 1 / 0,
        lambda answers: None,
    ],
)
def test_a_gate_that_fails_is_no_records_outcome(gate: Any) -> None:
    with pytest.raises(LLMBatchError, match="gate"):
        run(row("a"), ["a"], gate=gate)


@pytest.mark.parametrize(
    "schema", [{"type": "strin"}, {"$ref": "https://example.com/x.json"}, {"pattern": "("}]
)
def test_a_schema_that_does_not_compile_is_wrong_input(schema: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="schema"):
        run(row("a"), ["a"], schema=schema)


@pytest.mark.parametrize(("schema", "cls"), [(True, "succeeded"), (False, "retryable")])
def test_boolean_schemas(schema: bool, cls: str) -> None:
    assert run(row("a"), ["a"], schema=schema).table["cls"].to_pylist() == [cls]


def test_draft_2020_12() -> None:
    schema = {"type": "array", "prefixItems": [{"type": "integer"}], "items": False}
    for text, good in (("[1]", True), ("[1, 2]", False), ('["x"]', False)):
        found = run(make.openai("a", make.responses(text)), ["a"], schema=schema)
        assert (found.table["cls"].to_pylist() == ["succeeded"]) == good


def test_ids_that_repeat_are_wrong_input() -> None:
    with pytest.raises(InputError, match="twice"):
        run(b"", ["a", "a"])


@pytest.mark.parametrize("status", ["validating", "in_progress", "finalizing", "cancelling", "new"])
def test_a_batch_that_is_not_over_fills_no_set(status: str) -> None:
    found = run(row("a"), ["a", "b"], views=(read_batch({"id": "b", "status": status}),))
    assert found.in_flight and not found.closed and not found.anomalies
    assert not any(found.sets().values())
    facts = report(found)
    assert facts["in_flight"] == ["a", "b"] and facts["partition_ok"] and facts["next"][0] == "poll"


def test_rows_of_a_failed_or_expired_batch_are_kept() -> None:
    for status in ("failed", "expired", "cancelled"):
        view = read_batch(
            {"id": "b", "status": status, "errors": [{"code": "token_limit_exceeded"}]}
        )
        found = run(row("a"), ["a", "b"], views=(view,))
        assert (found.sets()["succeeded"], found.sets()["missing"]) == (["a"], ["b"])


def test_only_a_batch_that_never_started_expires_its_ids() -> None:
    for provider, job in (
        ("gemini", {"name": "x", "metadata": {"state": "BATCH_STATE_EXPIRED"}}),
        ("bedrock", {"jobArn": "x", "status": "Expired"}),
    ):
        module = __import__(f"llm_batch_assets.wire.{provider}.status", fromlist=["x"])
        view = module.read_batch(job)
        empty = account(Expected(["a"]), Rules(provider), [], [view])
        assert empty.sets()["expired"] == ["a"] and empty.closed
    openai = account(
        Expected(["a"]), Rules("openai"), [], [read_batch({"id": "b", "status": "expired"})]
    )
    assert openai.sets()["missing"] == ["a"]


def test_a_file_that_the_batch_names_must_be_read() -> None:
    job = {"id": "b", "status": "completed", "output_file_id": "o", "error_file_id": "e"}
    found = run(row("a"), ["a"], views=(read_batch(job),))
    assert found.unread == ("errors",) and not found.closed
    assert report(found)["next"] == ["refetch"]


@pytest.mark.parametrize(
    ("more", "again"),
    [(b"", ["b"]), (row("z"), []), (b"{broken\n", []), (b'{"response": {}}\n', [])],
)
def test_what_was_not_reached_goes_again_unless_a_row_may_be_its(
    more: bytes, again: list[str]
) -> None:
    job = {"name": "b", "metadata": {"state": "JOB_STATE_PARTIALLY_SUCCEEDED"}}
    data = make.gemini("a") + more.replace(b"custom_id", b"key")
    raw = RawFile.of("output.jsonl", "results", data)
    found = account(Expected(["a", "b"]), Rules("gemini"), [raw], [read_gemini(job)])
    assert found.sets()["missing"] == ["b"] and report(found)["retry_shard"] == again


def test_the_gravest_complaint_about_a_line_counts() -> None:
    faults = [
        {"code": "server_error", "line": 1},
        {"code": "invalid_json_line", "line": 1},
        {"code": "billing_hard_limit_reached", "line": 2},
        {"code": "invalid_json_line", "line": 2},
    ]
    view = read_batch({"id": "b", "status": "failed", "errors": {"data": faults}})
    found = account(Expected(["a", "b", "c"]), Rules("openai"), [], [view])
    assert found.sets()["permanent_failure"] == ["a"]
    assert found.table["hold"].to_pylist() == [None, "billing", None]


def test_a_mapped_file_reads_like_bytes(tmp_path: Path) -> None:
    """Over many blocks, with the pages given back behind the reader."""
    ids = [f"r-{n}" for n in range(30_000)]
    data = b"".join(row(wire_id, n) for n, wire_id in enumerate(ids))
    path = tmp_path / "output.jsonl"
    path.write_bytes(data)
    raw = RawFile.of("output.jsonl", "results", data)
    with (
        path.open("rb") as handle,
        mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        found = account(Expected(ids), Rules("openai", schema=SCHEMA), [replace(raw, data=mapped)])
    wanted = account(Expected(ids), Rules("openai", schema=SCHEMA), [raw])
    assert rows_digest(found.table) == rows_digest(wanted.table) and found.closed


def test_no_ids_and_no_files() -> None:
    empty = account(Expected([]), Rules("openai"), [])
    assert empty.table.num_rows == 0 and empty.closed and report(empty)["partition_ok"]
    assert account(Expected(["a"]), Rules("openai"), []).sets()["missing"] == ["a"]


def test_one_corrupted_row_in_many_shows() -> None:
    ids = [f"r-{n}" for n in range(3000)]
    lines = [row(wire_id, n) for n, wire_id in enumerate(ids)]
    lines[1234] = lines[1234].replace(b'"custom_id"', b'"custom_id', 1)
    found = run(b"".join(lines), ids)
    assert found.sets()["missing"] == ["r-1234"] and not found.closed
    assert [(a.line, a.kind) for a in found.anomalies] == [(1235, "unreadable")]
