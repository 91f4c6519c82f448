"""Every row of every classification table, driven through a line of its provider."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_batch_assets.types import BatchFault
from llm_batch_assets.wire.anthropic import rows as anthropic_rows
from llm_batch_assets.wire.bedrock import rows as bedrock_rows
from llm_batch_assets.wire.bedrock import status as bedrock_status
from llm_batch_assets.wire.classes import HTTP, Rule
from llm_batch_assets.wire.claude import STOPS as CLAUDE_STOPS
from llm_batch_assets.wire.gemini import rows as gemini_rows
from llm_batch_assets.wire.gemini import status as gemini_status
from llm_batch_assets.wire.openai import rows as openai_rows
from llm_batch_assets.wire.openai import status as openai_status
from llm_batch_assets.wire.rpc import CODES as RPC
from llm_batch_assets.wire.rpc import NAMES
from llm_batch_assets_tests.wire import rowmaker as make

HELD = {"billing", "account"}
ANSWERS = {"accepted": "succeeded"}


def check(row: dict[str, Any], rule: Rule) -> None:
    """A row of evidence says what its rule says."""
    if rule.cls == "succeeded":
        assert (row["cls"], row["answer"]) == ("succeeded", "fine")
        return
    assert (row["cls"], row["reason"], row["rule"]) == (rule.cls, rule.reason, rule.id)
    assert (row["hold"], row["unqualified"], row["charged"]) == (
        rule.hold,
        rule.unqualified,
        rule.charged,
    )
    assert row["answer"] is None and row["answer_digest"] is None


@pytest.mark.parametrize("status", sorted(HTTP))
@pytest.mark.parametrize("body", [{"error": {"message": "m"}}, None, "<html>"])
def test_openai_status(status: int, body: Any) -> None:
    row = make.only("openai", make.openai("a", body, status))
    check(row, HTTP[status])
    assert row["http_status"] == status


@pytest.mark.parametrize(
    ("status", "cls", "hold"),
    [
        (418, "permanent_failure", None),
        (451, "permanent_failure", None),
        (520, "retryable", None),
        (599, "retryable", None),
        (301, "retryable", None),
        (100, "retryable", None),
        (-1, "retryable", None),
        (2**40, "retryable", None),
    ],
)
def test_a_status_that_no_table_knows(status: int, cls: str, hold: str | None) -> None:
    data = make.openai("a", {"error": {"message": "m"}}, status)
    row = make.only("openai", data)
    assert (row["cls"], row["hold"], row["unqualified"]) == (cls, hold, False)


@pytest.mark.parametrize("code", sorted(openai_rows.CODES))
@pytest.mark.parametrize("status", [None, 200, 400, 429, 500])
def test_openai_codes_decide_before_the_status(code: str, status: int | None) -> None:
    error = {"message": "m", "type": "whatever", "code": code}
    if status is None:
        row = {"custom_id": "a", "response": None, "error": error}
        data = json.dumps(row).encode()
    else:
        data = make.openai("a", {"error": error}, status)
    check(make.only("openai", data), openai_rows.CODES[code])


@pytest.mark.parametrize("kind", sorted(openai_rows.KINDS))
@pytest.mark.parametrize("field", ["code", "type"])
def test_openai_kinds_decide_where_no_status_does(kind: str, field: str) -> None:
    error = {"message": "m", field: kind}
    check(make.only("openai", make.openai("a", {"error": error})), openai_rows.KINDS[kind])
    alone = json.dumps({"custom_id": "a", "response": None, "error": error}).encode()
    check(make.only("openai", alone), openai_rows.KINDS[kind])
    # Under an HTTP error the status decides.
    check(make.only("openai", make.openai("a", {"error": error}, 503)), HTTP[503])


@pytest.mark.parametrize("stop", sorted(openai_rows.FINISHES))
def test_openai_finishes(stop: str) -> None:
    row = make.only("openai", make.openai("a", make.chat(finish=stop)))
    check(row, openai_rows.FINISHES[stop])
    assert row["stop_reason"] == stop
    plain = {"choices": [{"text": "fine", "finish_reason": stop}]}
    check(make.only("openai", make.openai("a", plain)), openai_rows.FINISHES[stop])


@pytest.mark.parametrize("stop", sorted(openai_rows.STATUSES))
def test_openai_statuses_of_responses(stop: str) -> None:
    rule = openai_rows.STATUSES[stop]
    check(make.only("openai", make.openai("a", make.responses(status=stop))), rule)
    body = make.responses(status="incomplete", incomplete_details={"reason": stop})
    if rule.cls == "succeeded":
        rule = openai_rows.STATUSES["incomplete"]
    check(make.only("openai", make.openai("a", body)), rule)


@pytest.mark.parametrize("kind", sorted(anthropic_rows.ERRORS))
def test_anthropic_errors(kind: str) -> None:
    row = make.only("anthropic", make.anthropic_error("a", kind))
    check(row, anthropic_rows.ERRORS[kind])
    assert (row["error_type"], row["provider_request_id"]) == (kind, "req_9")
    flat = {"custom_id": "a", "result": {"type": "errored", "error": {"type": kind}}}
    check(make.only("anthropic", make.line(flat)), anthropic_rows.ERRORS[kind])


@pytest.mark.parametrize("kind", sorted(anthropic_rows.TYPES))
def test_anthropic_rows_that_never_ran(kind: str) -> None:
    data = make.line({"custom_id": "a", "result": {"type": kind}})
    check(make.only("anthropic", data), anthropic_rows.TYPES[kind])


@pytest.mark.parametrize("stop", sorted(CLAUDE_STOPS))
def test_claude_stops(stop: str) -> None:
    message = make.claude(stop=stop)
    check(make.only("anthropic", make.anthropic("a", message)), CLAUDE_STOPS[stop])
    check(make.only("bedrock", make.bedrock("a", message)), CLAUDE_STOPS[stop])


@pytest.mark.parametrize("code", sorted(RPC))
@pytest.mark.parametrize("form", ["number", "text", "name"])
def test_rpc_codes(code: int, form: str) -> None:
    name = {v: k for k, v in NAMES.items()}[code]
    error = {"number": {"code": code}, "text": {"code": str(code)}, "name": {"status": name}}[form]
    check(make.only("gemini", make.line({"key": "a", "error": error})), RPC[code])
    vertex = {"key": "a", "status": f"{name}: something", "response": {}}
    check(make.only("gemini", make.line(vertex)), RPC[code])


@pytest.mark.parametrize("status", sorted(set(HTTP) - {0, 499}))
def test_gemini_http_numbers_are_understood_too(status: int) -> None:
    check(make.only("gemini", make.line({"key": "a", "error": {"code": status}})), HTTP[status])


@pytest.mark.parametrize("stop", sorted(gemini_rows.STOPS))
def test_gemini_stops(stop: str) -> None:
    check(make.only("gemini", make.gemini("a", finish=stop)), gemini_rows.STOPS[stop])


@pytest.mark.parametrize("code", sorted(bedrock_rows.ERRORS))
def test_bedrock_errors_by_name(code: str) -> None:
    check(make.only("bedrock", make.bedrock_error("a", code)), bedrock_rows.ERRORS[code])
    qualified = f"com.amazon.coral#{code}:http://internal"
    check(make.only("bedrock", make.bedrock_error("a", qualified)), bedrock_rows.ERRORS[code])


@pytest.mark.parametrize("status", sorted(HTTP))
@pytest.mark.parametrize("form", [int, str])
def test_bedrock_errors_by_number(status: int, form: Any) -> None:
    check(make.only("bedrock", make.bedrock_error("a", form(status))), HTTP[status])


@pytest.mark.parametrize("stop", sorted(bedrock_rows.STOPS))
def test_bedrock_stops(stop: str) -> None:
    check(
        make.only("bedrock", make.bedrock("a", make.converse(stop=stop))), bedrock_rows.STOPS[stop]
    )
    llama = {"generation": "fine", "stop_reason": stop, "prompt_token_count": 3}
    check(make.only("bedrock", make.bedrock("a", llama)), bedrock_rows.STOPS[stop])


UNKNOWN = {
    "openai": [
        make.openai("a", {"error": {"code": "brand_new", "type": "brand_new"}}),
        make.line({"custom_id": "a", "response": None, "error": {"code": "brand_new"}}),
        make.line({"custom_id": "a", "response": None, "error": "text"}),
        make.line({"custom_id": "a", "response": None, "error": ["x"]}),
    ],
    "anthropic": [
        make.anthropic_error("a", "brand_new"),
        make.anthropic_error("a", None),
        make.line({"custom_id": "a", "result": {"type": "brand_new"}}),
        make.line({"custom_id": "a", "result": {"type": None}}),
        make.line({"custom_id": "a", "result": {"type": "errored", "error": None}}),
    ],
    "gemini": [
        make.line({"key": "a", "error": {"code": 77}}),
        make.line({"key": "a", "error": {"status": "BRAND_NEW"}}),
        make.line({"key": "a", "error": "text"}),
        make.line({"key": "a", "status": "nobody knows", "response": {}}),
    ],
    "bedrock": [
        make.bedrock_error("a", "BrandNewException"),
        make.bedrock_error("a", None),
        make.line({"recordId": "a", "error": "text"}),
    ],
}


@pytest.mark.parametrize(
    ("provider", "data"), [(name, data) for name, rows in UNKNOWN.items() for data in rows]
)
def test_an_error_that_no_table_knows_is_retryable_and_no_answer(
    provider: str, data: bytes
) -> None:
    row = make.only(provider, data)
    assert (row["cls"], row["hold"], row["unqualified"]) == ("retryable", None, False)
    assert row["charged"] and row["reason"] in ("unknown_error", "unknown_result_type")


NEW_STOPS = {
    "openai": [
        make.openai("a", make.chat(finish="brand_new")),
        make.openai("a", make.chat(finish=None)),
        make.openai("a", make.chat(finish=7)),
        make.openai("a", make.responses(status="brand_new")),
        make.openai("a", make.responses(status=None)),
    ],
    "anthropic": [
        make.anthropic("a", make.claude(stop="brand_new")),
        make.anthropic("a", make.claude(stop=None)),
    ],
    "gemini": [make.gemini("a", finish="BRAND_NEW"), make.gemini("a", finish=None)],
    "bedrock": [
        make.bedrock("a", make.converse(stop="brand_new")),
        make.bedrock("a", make.claude(stop=None)),
        make.bedrock("a", {"generation": "fine", "stop_reason": "brand_new"}),
    ],
}


@pytest.mark.parametrize(
    ("provider", "data"), [(name, data) for name, rows in NEW_STOPS.items() for data in rows]
)
def test_a_stop_reason_that_no_table_knows_is_never_a_success(provider: str, data: bytes) -> None:
    row = make.only(provider, data)
    assert (row["cls"], row["reason"], row["unqualified"]) == (
        "retryable",
        "unknown_stop_reason",
        True,
    )


@pytest.mark.parametrize("code", sorted(openai_status.FAULTS))
@pytest.mark.parametrize("line", [None, 2])
def test_openai_batch_faults(code: str, line: int | None) -> None:
    raw = {
        "id": "batch_1",
        "status": "failed",
        "errors": {"object": "list", "data": [{"code": code, "message": "m", "line": line}]},
    }
    view = openai_status.read_batch(raw)
    rule = openai_status.FAULTS[code]
    rows = make.account_for("openai", b"", ("a", "b", "c"), view).table.to_pylist()
    named = [row for row in rows if line is None or row["wire_id"] == "b"]
    for row in named:
        assert (row["cls"], row["reason"], row["hold"], row["rule"]) == (
            rule.cls,
            rule.reason,
            rule.hold,
            rule.id,
        )
        assert row["error_code"] == code
    for row in rows:
        assert not row["charged"]
        if row not in named:
            assert (row["cls"], row["rule"]) == ("retryable", "batch.innocent")


@pytest.mark.parametrize(
    ("line", "cls", "hold"),
    [
        (None, "retryable", "operator"),
        (1, "permanent_failure", None),
        (99, "retryable", "operator"),
    ],
)
def test_an_openai_fault_that_no_table_knows(line: int | None, cls: str, hold: str | None) -> None:
    raw = {"id": "b", "status": "failed", "errors": [{"code": "brand_new", "line": line}]}
    row = make.account_for("openai", b"", ("a",), openai_status.read_batch(raw)).table.to_pylist()[
        0
    ]
    assert (row["cls"], row["hold"], row["charged"]) == (cls, hold, False)


@pytest.mark.parametrize("code", [*sorted(RPC), 77])
def test_gemini_batch_faults(code: int) -> None:
    rule = gemini_status.fault_rule(BatchFault(str(code), "m"))
    raw = {"name": "batches/1", "done": True, "error": {"code": code, "message": "m"}}
    raw["metadata"] = {"state": "BATCH_STATE_FAILED"}
    view = gemini_status.read_batch(raw)
    row = make.account_for("gemini", b"", ("a",), view).table.to_pylist()[0]
    assert (row["cls"], row["hold"], row["charged"]) == (rule.cls, rule.hold, False)
    assert (rule.cls, rule.hold) == (
        (RPC[code].cls, RPC[code].hold) if code in RPC and code != 2 else ("retryable", rule.hold)
    )


MESSAGES = {
    "too_few": "record count 3 is below the minimum of 100 per job",
    "too_many": "The file exceeds the maximum size limit of 1 GB",
    "capacity": "You have reached the concurrent jobs quota",
    "account": "Access denied: the role is not authorized to perform s3:GetObject",
    "service": "Internal error, try again",
}


@pytest.mark.parametrize("name", [name for name, _, _ in bedrock_status.FAULTS])
def test_bedrock_batch_faults(name: str) -> None:
    rule = next(rule for known, _, rule in bedrock_status.FAULTS if known == name)
    view = bedrock_status.read_batch(
        {"jobArn": "arn:x/abc", "status": "Failed", "message": MESSAGES[name]}
    )
    row = make.account_for("bedrock", b"", ("a",), view).table.to_pylist()[0]
    assert (row["rule"], row["cls"], row["hold"], row["charged"]) == (
        rule.id,
        "retryable",
        rule.hold,
        False,
    )


def test_rule_ids_are_unique_within_their_tables() -> None:
    tables = (
        *(
            HTTP,
            RPC,
            CLAUDE_STOPS,
            openai_rows.CODES,
            openai_rows.KINDS,
            openai_rows.FINISHES,
            openai_rows.STATUSES,
        ),
        *(openai_status.FAULTS, anthropic_rows.ERRORS, anthropic_rows.TYPES),
        *(gemini_rows.STOPS, bedrock_rows.ERRORS, bedrock_rows.STOPS),
    )
    ids = [rule.id for table in tables for rule in table.values()]
    assert len(ids) == len(set(ids))
    for table in tables:
        for rule in table.values():
            assert rule.hold is None or (rule.hold in HELD and rule.cls == "retryable")
            assert not rule.unqualified or rule.cls == "retryable"


@pytest.mark.parametrize(
    "message",
    [
        "Too many concurrent jobs",
        "Too many requests, please wait before trying again.",
        "The maximum number of concurrent batch inference jobs is reached",
    ],
)
def test_too_many_jobs_at_once_is_the_queues_not_the_files(message: str) -> None:
    from llm_batch_assets.types import BatchFault
    from llm_batch_assets.wire.bedrock.status import fault_rule

    assert fault_rule(BatchFault(None, message)).reason == "capacity"
