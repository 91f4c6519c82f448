"""Each fault of a record alone: what its row looks like and how the meter labels it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from llm_batch_assets.simulator.faults import RECORD_KINDS
from llm_batch_assets_tests.simulator.raw import (
    SCHEMA,
    Raw,
    answer_text,
    chat_body,
    ids,
    line,
    lines,
    read_rows,
)

COUNT = 12
ALL = {f"r-{n}" for n in range(COUNT)}
LABELS = {
    "missing": "withheld",
    "duplicate_identical": "good",
    "duplicate_conflicting": "withheld",
    "mangled_id": "withheld",
    "unreadable": "withheld",
    "refusal": "refused",
    "content_filter": "refused",
    "cut": "cut",
    "u2028": "good",
}


def bent(raw: Raw) -> str:
    """The one record that met the fault."""
    (hit,) = [one for one in raw.sim.executions() if one["fault"]]
    return str(hit["custom_id"])


@pytest.mark.parametrize("kind", RECORD_KINDS)
def test_one_record_is_hit_labelled_and_well_when_asked_again(
    start: Callable[..., Raw], kind: str
) -> None:
    raw = start({"kind": kind})
    batch = raw.finish(lines(COUNT))
    hit = bent(raw)
    label = LABELS.get(kind, "failed")
    expected = Counter({"good": COUNT - 1}) + Counter({label: 1})
    executions = raw.sim.meter()["executions"]
    assert {name: n for name, n in executions.items() if n} == dict(expected)
    assert raw.sim.meter()["paid_twice"] == 0

    number = int(hit.removeprefix("r-"))
    again = lines(COUNT).split(b"\n")[number].replace(hit.encode(), b"again-1", 1)
    output, errors = raw.rows_of(raw.finish(again))
    assert (ids(output), errors) == (["again-1"], [])
    jsonschema_rs.validate(SCHEMA, json.loads(answer_text(output[0])))
    assert raw.sim.meter()["paid_twice"] == (1 if label == "good" else 0)
    assert batch["status"] == "completed"


def rows_with(start: Callable[..., Raw], kind: str) -> tuple[str, list[Any], list[Any]]:
    raw = start({"kind": kind})
    batch = raw.finish(lines(COUNT))
    output, errors = raw.rows_of(batch)
    return bent(raw), output, errors


def test_missing(start: Callable[..., Raw]) -> None:
    hit, output, errors = rows_with(start, "missing")
    assert (set(ids(output)), errors) == (ALL - {hit}, [])


def test_duplicate_identical(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "duplicate_identical"})
    data = raw.content(raw.finish(lines(COUNT))["output_file_id"])
    rows = [one for one in data.split(b"\n") if one]
    (twice,) = [row for row, n in Counter(rows).items() if n == 2]
    assert json.loads(twice)["custom_id"] == bent(raw)
    assert len(rows) == COUNT + 1


def test_duplicate_conflicting(start: Callable[..., Raw]) -> None:
    hit, output, _ = rows_with(start, "duplicate_conflicting")
    first, second = [row for row in output if row["custom_id"] == hit]
    assert first["id"] != second["id"]
    assert answer_text(first) != answer_text(second)
    assert len(output) == COUNT + 1


def test_mangled_id(start: Callable[..., Raw]) -> None:
    hit, output, _ = rows_with(start, "mangled_id")
    assert len(output) == COUNT
    assert set(ids(output)) & ALL == ALL - {hit}


def test_unreadable(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "unreadable"})
    data = raw.content(raw.finish(lines(COUNT))["output_file_id"])
    bad = []
    for row in data.split(b"\n"):
        try:
            json.loads(row or b"{}")
        except ValueError:
            bad.append(row)
    assert len(bad) == 1
    assert bent(raw).encode() in bad[0]


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("error_429", 429, "rate_limit_exceeded"),
        ("error_500", 500, "server_error"),
        ("error_400", 400, None),
        ("error_quota", 429, "insufficient_quota"),
    ],
)
def test_http_errors_go_to_the_error_file_with_a_null_error(
    start: Callable[..., Raw], kind: str, status: int, code: str | None
) -> None:
    hit, output, errors = rows_with(start, kind)
    assert set(ids(output)) == ALL - {hit}
    assert (errors[0]["custom_id"], errors[0]["error"]) == (hit, None)
    assert errors[0]["response"]["status_code"] == status
    assert errors[0]["response"]["body"]["error"]["code"] == code


def body_of(start: Callable[..., Raw], kind: str) -> dict[str, Any]:
    hit, output, _ = rows_with(start, kind)
    return next(row for row in output if row["custom_id"] == hit)["response"]["body"]


def text_of(start: Callable[..., Raw], kind: str) -> str:
    return answer_text({"response": {"body": body_of(start, kind)}})


def test_refusal(start: Callable[..., Raw]) -> None:
    body = body_of(start, "refusal")
    (part,) = body["output"][0]["content"]
    assert (body["status"], part["type"]) == ("completed", "refusal")


def test_content_filter(start: Callable[..., Raw]) -> None:
    body = body_of(start, "content_filter")
    assert (body["status"], body["incomplete_details"]) == (
        "incomplete",
        {"reason": "content_filter"},
    )


def test_cut(start: Callable[..., Raw]) -> None:
    body = body_of(start, "cut")
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(answer_text({"response": {"body": body}}))


def test_invalid_json_ends_normally(start: Callable[..., Raw]) -> None:
    body = body_of(start, "invalid_json")
    assert body["status"] == "completed"
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(answer_text({"response": {"body": body}}))


def test_schema_violation(start: Callable[..., Raw]) -> None:
    answer = json.loads(text_of(start, "schema_violation"))
    assert not jsonschema_rs.is_valid(SCHEMA, answer)


def test_odd_answers(start: Callable[..., Raw]) -> None:
    assert text_of(start, "fenced").startswith("```json\n{")
    assert text_of(start, "empty") == ""
    assert '"summary": NaN' in text_of(start, "nan")
    assert json.loads(text_of(start, "lone_surrogate"))["summary"] == "\ud83d"
    separated = text_of(start, "u2028")
    assert "\u2028" in separated
    jsonschema_rs.validate(SCHEMA, json.loads(separated))
    assert body_of(start, "other_model")["model"] != "gpt-4o-mini-2024-07-18"
    failed = body_of(start, "response_failed")
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")


def test_u2028_is_raw_in_the_file(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "u2028"})
    assert "\u2028".encode() in raw.content(raw.finish(lines(3))["output_file_id"])


@pytest.mark.parametrize(
    ("kind", "finish", "content"),
    [("refusal", "stop", None), ("cut", "length", str), ("content_filter", "content_filter", None)],
)
def test_chat_says_the_same_in_its_own_words(
    start: Callable[..., Raw], kind: str, finish: str, content: type | None
) -> None:
    raw = start({"kind": kind})
    data = line("a", chat_body("Some text"), "/v1/chat/completions").encode()
    output, _ = raw.rows_of(raw.finish(data, "/v1/chat/completions"))
    choice = output[0]["response"]["body"]["choices"][0]
    assert choice["finish_reason"] == finish
    assert type(choice["message"]["content"]) is (content or type(None))
    assert (choice["message"]["refusal"] is not None) == (kind == "refusal")


def test_choice_follows_the_seed_and_the_body_not_the_batch(start: Callable[..., Raw]) -> None:
    def hits(seed: int, prefix: str) -> set[str]:
        raw = start({"kind": "missing", "count": 3}, seed=seed)
        raw.finish(lines(50, prefix))
        return {one["custom_id"].split("-")[1] for one in raw.sim.executions() if one["fault"]}

    assert hits(1, "a") == hits(1, "b")
    assert hits(1, "a") != hits(2, "a")


def test_named_ids_fractions_totals_and_executions(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "error_429", "ids": ["r-3", "r-5"], "executions": 2})
    for expected in ({"r-3", "r-5"}, {"r-3", "r-5"}, set()):
        _, errors = raw.rows_of(raw.finish(lines(8)))
        assert set(ids(errors)) == expected

    raw = start({"kind": "error_400", "fraction": 0.25, "executions": -1})
    first = set(ids(raw.rows_of(raw.finish(lines(40)))[1]))
    assert len(first) == 10
    for _ in range(2):
        assert first <= set(ids(raw.rows_of(raw.finish(lines(40)))[1]))

    raw = start({"kind": "missing", "count": 2, "total": 3})
    sizes = [len(raw.rows_of(raw.finish(lines(10, f"b{n}")))[0]) for n in range(1)]
    more = [len(raw.rows_of(raw.finish(lines(30, f"c{n}")))[0]) for n in range(2)]
    assert (sizes, more[0] + more[1]) == ([8], 59)


def test_only_one_fault_meets_a_record(start: Callable[..., Raw]) -> None:
    raw = start(*({"kind": kind, "count": 2} for kind in RECORD_KINDS))
    raw.finish(lines(len(RECORD_KINDS) * 2))
    met = Counter(one["fault"] for one in raw.sim.executions())
    assert met == dict.fromkeys(RECORD_KINDS, 2)


def test_embeddings_ignore_what_only_text_can_have(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "cut"})
    body = {"model": "text-embedding-3-small", "input": "x", "dimensions": 4}
    batch = raw.finish(line("a", body, "/v1/embeddings").encode(), "/v1/embeddings")
    (row,) = read_rows(raw.content(batch["output_file_id"]))
    assert len(row["response"]["body"]["data"][0]["embedding"]) == 4
    assert raw.sim.meter()["executions"]["good"] == 1
