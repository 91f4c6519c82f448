"""Rows of every provider: answers by kind, usage, and envelopes that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_batch_assets_tests.wire import rowmaker as make

GOOD = {"label": "a", "score": 0.5}
TEXT = json.dumps(GOOD)
SCHEMA = {
    "type": "object",
    "required": ["label", "score"],
    "properties": {"label": {"type": "string"}, "score": {"type": "number"}},
}


@pytest.mark.parametrize(
    ("provider", "data"),
    [
        ("openai", make.openai("a", make.responses())),
        ("openai", make.openai("a", make.chat())),
        (
            "openai",
            make.openai(
                "a", make.chat([{"type": "text", "text": "fi"}, {"type": "text", "text": "ne"}])
            ),
        ),
        ("openai", make.openai("a", {"choices": [{"text": "fine", "finish_reason": "stop"}]})),
        ("anthropic", make.anthropic("a", make.claude())),
        (
            "anthropic",
            make.anthropic(
                "a",
                make.claude(
                    [
                        {"type": "thinking", "thinking": "t"},
                        {"type": "text", "text": "fi"},
                        {"type": "redacted_thinking", "data": "x"},
                        {"type": "text", "text": "ne"},
                    ]
                ),
            ),
        ),
        ("gemini", make.gemini("a")),
        (
            "gemini",
            make.gemini("a", [{"text": "t", "thought": True}, {"text": "fi"}, {"text": "ne"}]),
        ),
        (
            "gemini",
            make.line(
                {"metadata": {"key": "a"}, "response": json.loads(make.gemini("a"))["response"]}
            ),
        ),
        (
            "gemini",
            make.line(
                {
                    "key": "a",
                    "status": "",
                    "processed_time": "x",
                    "request": {},
                    "response": json.loads(make.gemini("a"))["response"],
                }
            ),
        ),
        ("bedrock", make.bedrock("a", make.claude())),
        ("bedrock", make.bedrock("a", make.converse())),
        (
            "bedrock",
            make.bedrock(
                "a",
                make.converse(
                    [
                        {"reasoningContent": {"text": "t"}, "text": None},
                        {"text": "fi", "toolUse": None},
                        {"text": "ne"},
                    ]
                ),
            ),
        ),
        ("bedrock", make.bedrock("a", {"generation": "fine", "stop_reason": "stop"})),
        ("bedrock", make.bedrock("a", {"outputs": [{"text": "fine", "stop_reason": "stop"}]})),
        (
            "bedrock",
            make.bedrock("a", {"results": [{"outputText": "fine", "completionReason": "FINISH"}]}),
        ),
    ],
)
def test_text(provider: str, data: bytes) -> None:
    row = make.only(provider, data)
    assert (row["cls"], row["answer"]) == ("succeeded", "fine")


TOOLS: list[tuple[str, Any]] = [
    (
        "openai",
        lambda calls: make.openai(
            "a",
            make.chat(
                None,
                "tool_calls",
                tool_calls=[
                    {"type": "function", "function": {"name": "f", "arguments": one}}
                    for one in calls
                ],
            ),
        ),
    ),
    (
        "openai",
        lambda calls: make.openai(
            "a",
            make.chat(
                None,
                "stop",
                tool_calls=[
                    {"type": "function", "function": {"name": "f", "arguments": one}}
                    for one in calls
                ],
            ),
        ),
    ),
    (
        "openai",
        lambda calls: make.openai(
            "a",
            make.responses(
                output=[
                    {"type": "reasoning", "summary": []},
                    *({"type": "function_call", "name": "f", "arguments": one} for one in calls),
                ]
            ),
        ),
    ),
    (
        "anthropic",
        lambda calls: make.anthropic(
            "a",
            make.claude(
                [
                    {"type": "text", "text": "I call"},
                    *({"type": "tool_use", "name": "f", "input": json.loads(one)} for one in calls),
                ],
                "tool_use",
            ),
        ),
    ),
    (
        "gemini",
        lambda calls: make.gemini(
            "a", [{"functionCall": {"name": "f", "args": json.loads(one)}} for one in calls]
        ),
    ),
    (
        "bedrock",
        lambda calls: make.bedrock(
            "a",
            make.claude(
                [{"type": "tool_use", "name": "f", "input": json.loads(one)} for one in calls],
                "tool_use",
            ),
        ),
    ),
    (
        "bedrock",
        lambda calls: make.bedrock(
            "a",
            make.converse(
                [{"toolUse": {"name": "f", "input": json.loads(one)}} for one in calls], "tool_use"
            ),
        ),
    ),
]


@pytest.mark.parametrize(("provider", "row"), TOOLS)
def test_a_tools_input_is_the_answer(provider: str, row: Any) -> None:
    found = make.only(provider, row([TEXT]), answer="tool", schema=SCHEMA)
    assert (found["cls"], json.loads(found["answer"])) == ("succeeded", GOOD)
    wrong = make.only(provider, row(['{"label": "x"}']), answer="tool", schema=SCHEMA)
    assert (wrong["cls"], wrong["reason"], wrong["unqualified"]) == ("retryable", "schema", True)
    for calls in ([], [TEXT, TEXT]):
        other = make.only(provider, row(calls), answer="tool", schema=SCHEMA)
        assert (other["cls"], other["unqualified"]) == ("retryable", True)
        assert other["reason"] in ("empty_answer", "several_candidates")
    # Asked for text, a tool call is none.
    assert make.only(provider, row([TEXT]))["cls"] == "retryable"


def test_a_tools_input_keeps_its_digits() -> None:
    row = make.anthropic("a", make.claude([{"type": "tool_use", "input": 0}], "tool_use"))
    exact = '{"n": 9007199254740993, "x": 1.50, "big": 123456789012345678901234567890}'
    found = make.only(
        "anthropic", row.replace(b'"input": 0', b'"input": ' + exact.encode()), answer="tool"
    )
    assert found["answer"] == exact
    for hostile, reason in (("9" * 5000, "integer_too_long"), ("1e400", "number_out_of_range")):
        data = row.replace(b'"input": 0', f'"input": {{"n": {hostile}}}'.encode())
        assert make.only("anthropic", data, answer="tool")["reason"] == reason


def test_several_message_items_are_one_answer() -> None:
    """Field report B97: the first item may be a cut fragment of the second."""
    whole = make.responses(TEXT)
    fragment = json.loads(json.dumps(whole["output"][0]))
    fragment["content"][0]["text"] = TEXT[:10]
    both = {**whole, "output": [fragment, *whole["output"]]}
    row = make.only("openai", make.openai("a", both), schema=SCHEMA)
    assert (row["cls"], row["reason"]) == ("retryable", "unparseable")
    split = [{"type": "output_text", "text": TEXT[:10]}, {"type": "output_text", "text": TEXT[10:]}]
    whole["output"][0]["content"] = split
    assert make.only("openai", make.openai("a", whole), schema=SCHEMA)["cls"] == "succeeded"
    whole["output"][0]["status"] = "incomplete"
    assert make.only("openai", make.openai("a", whole), schema=SCHEMA)["reason"] == "incomplete"


@pytest.mark.parametrize(
    ("provider", "data", "usage"),
    [
        ("openai", make.openai("a", make.responses()), (10, 4, None, 6, 2)),
        ("openai", make.openai("a", make.chat()), (10, 4, 1, 6, 2)),
        (
            "openai",
            make.openai(
                "a", {"data": [{"index": 0, "embedding": [1.0]}], "usage": {"prompt_tokens": 7}}
            ),
            (7, None, None, None, None),
        ),
        ("anthropic", make.anthropic("a", make.claude()), (10, 4, 1, 6, 2)),
        ("gemini", make.gemini("a"), (10, 4, None, 6, 2)),
        (
            "gemini",
            make.line({"key": "a", "response": {"embedding": {"values": [1]}, "tokenCount": "7"}}),
            (7, None, None, None, None),
        ),
        ("bedrock", make.bedrock("a", make.claude()), (10, 4, 1, 6, 2)),
        ("bedrock", make.bedrock("a", make.converse()), (10, 4, 1, 6, None)),
        (
            "bedrock",
            make.bedrock("a", {"embedding": [1.0], "inputTextTokenCount": 7}),
            (7, None, None, None, None),
        ),
        ("openai", make.openai("a", make.responses(usage=None)), (None,) * 5),
        ("openai", make.openai("a", make.responses(usage={"input_tokens": "x"})), (None,) * 5),
        (
            "gemini",
            make.gemini("a", usageMetadata={"promptTokenCount": "12"}),
            (12, None, None, None, None),
        ),
    ],
)
def test_usage(provider: str, data: bytes, usage: tuple[int | None, ...]) -> None:
    row = make.only(provider, data)
    names = ("input", "cached_input", "cache_write", "output", "reasoning")
    assert tuple(row[f"{name}_tokens"] for name in names) == usage
    assert row["cls"] == "succeeded"


def test_moderations_are_their_results() -> None:
    body = {"id": "modr", "model": "omni", "results": [{"flagged": False}]}
    assert make.only("openai", make.openai("a", body))["answer"] == '[{"flagged": false}]'


@pytest.mark.parametrize("results", [[], None])
def test_no_results_are_no_moderation(results: Any) -> None:
    row = make.only("openai", make.openai("a", {"model": "omni", "results": results}))
    assert (row["cls"], row["reason"], row["answer"]) == ("retryable", "empty_answer", None)


def test_refusals() -> None:
    body = make.responses()
    part = {"type": "refusal", "refusal": "no"}
    body["output"][0]["content"] = [part]
    chats = [make.chat(None, refusal="no"), make.chat([{"type": "text", "text": "x"}, part])]
    for data in (make.openai("a", one) for one in (body, *chats)):
        row = make.only("openai", data)
        assert (row["cls"], row["reason"]) == ("permanent_failure", "refusal")


def test_a_call_that_was_cut_is_no_answer() -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}", "status": "incomplete"}
    cut = make.openai("a", make.responses(output=[call]))
    assert make.only("openai", cut, answer="tool")["reason"] == "incomplete"
    whole = make.openai("a", make.responses(output=[call | {"status": "completed"}]))
    assert make.only("openai", whole, answer="tool")["cls"] == "succeeded"


@pytest.mark.parametrize(
    ("reason", "cls"),
    [("SAFETY", "permanent_failure"), ("BLOCK_REASON_UNSPECIFIED", "succeeded")],
)
def test_an_answer_to_a_blocked_prompt_is_none(reason: str, cls: str) -> None:
    data = make.gemini("a", promptFeedback={"blockReason": reason})
    assert make.only("gemini", data)["cls"] == cls


@pytest.mark.parametrize(
    ("output", "cls", "tokens"),
    [
        (make.chat(), "succeeded", 10),
        (make.chat(finish="length"), "retryable", 10),
        ({"text": "fine", "finish_reason": "COMPLETE"}, "succeeded", None),
        ({"text": "fi", "finish_reason": "MAX_TOKENS"}, "retryable", None),
        ({"generations": [{"text": "fine", "finish_reason": "COMPLETE"}]}, "succeeded", None),
        ({"generations": [{"text": "x", "finish_reason": "COMPLETE"}] * 2}, "retryable", None),
    ],
)
def test_other_vendors_outputs_on_bedrock(output: Any, cls: str, tokens: int | None) -> None:
    row = make.only("bedrock", make.bedrock("a", output))
    assert (row["cls"], row["answer"]) == (cls, "fine" if cls == "succeeded" else None)
    assert row["input_tokens"] == tokens


@pytest.mark.parametrize(
    ("text", "cls", "hold"),
    [
        ('{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}', "retryable", None),
        ('{"code": 3}', "permanent_failure", None),
        ("Bad Request: code 400", "permanent_failure", None),
        ("PERMISSION_DENIED on resource", "retryable", "account"),
        ("something odd", "retryable", None),
        ("{broken", "retryable", None),
    ],
)
def test_vertex_status_text(text: str, cls: str, hold: str | None) -> None:
    row = make.only("gemini", make.line({"key": "a", "status": text, "response": {}}))
    assert (row["cls"], row["hold"]) == (cls, hold)


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ({"key": "a"}, True),
        ({"metadata": {"key": "a"}}, True),
        ({"key": "a", "metadata": {"key": "a"}}, True),
        ({"key": "a", "metadata": {"key": "b"}}, False),
        ({"key": "", "metadata": {"key": "a"}}, False),
        ({"metadata": None}, False),
        ({"key": 1}, False),
    ],
)
def test_gemini_ids(line: dict[str, Any], known: bool) -> None:
    found = make.account_for("gemini", make.line(line | {"error": {"code": 13}}))
    assert (found.sets()["retryable"] == ["a"]) == known
    assert [a.reason for a in found.anomalies] == ([] if known else ["no_id"])


def test_bedrocks_expired_flag() -> None:
    row = make.only("bedrock", make.bedrock_error("a", 408, expired=True))
    assert (row["cls"], row["charged"]) == ("expired", False)
