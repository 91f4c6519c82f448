"""Envelopes that hold no answer, or an answer beside an error."""

from __future__ import annotations

from typing import Any

import pytest

from llm_batch_assets_tests.wire import rowmaker as make


@pytest.mark.parametrize(
    ("provider", "data"),
    [
        *[
            ("openai", make.line({"custom_id": "a"} | rest))
            for rest in (
                {},
                {"response": None, "error": None},
                {"response": [], "error": None},
                {"response": {"status_code": 200, "body": None}},
                {"response": {"status_code": 200, "body": "<html>"}},
                {"response": {"status_code": "200", "body": make.responses()}},
                {"response": {"status_code": 200.0, "body": make.responses()}},
                {"response": {"status_code": True, "body": make.responses()}},
                {"response": {"status_code": None, "body": make.responses()}},
                {"response": {"body": make.responses()}},
            )
        ],
        *[
            ("openai", make.openai("a", body))
            for body in (
                {},
                {"choices": None},
                {"choices": []},
                {"choices": [None]},
                {"output": None},
                {"output": [None], "status": "completed"},
                {"output": [{"type": "message", "content": None}], "status": "completed"},
                {"choices": [{"finish_reason": "stop", "message": None}]},
                {"choices": [{"finish_reason": "stop", "message": {"content": [1]}}]},
                {"choices": make.chat()["choices"] * 2},
            )
        ],
        *[
            ("anthropic", make.line({"custom_id": "a"} | rest))
            for rest in (
                {},
                {"result": None},
                {"result": {"type": "succeeded"}},
                {"result": {"type": "succeeded", "message": []}},
                {"result": {"type": "succeeded", "message": {"stop_reason": "end_turn"}}},
                {
                    "result": {
                        "type": "succeeded",
                        "message": {"stop_reason": "end_turn", "content": []},
                    }
                },
            )
        ],
        *[
            ("gemini", make.line({"key": "a"} | rest))
            for rest in (
                {},
                {"response": None},
                {"response": {}},
                {"response": {"candidates": [1]}},
                {"response": {"candidates": "x"}},
                {"response": {"candidates": [{"finishReason": "STOP"}]}},
                {"response": {"candidates": [{"finishReason": "STOP", "content": {"parts": 1}}]}},
            )
        ],
        *[
            ("bedrock", make.line({"recordId": "a"} | rest))
            for rest in (
                {},
                {"modelOutput": None},
                {"modelOutput": []},
                {"modelOutput": {}},
                {"modelOutput": {"output": None, "stopReason": "end_turn"}},
                {"modelOutput": {"content": None, "stop_reason": "end_turn"}},
            )
        ],
    ],
)
def test_an_envelope_that_is_none_is_unqualified_never_an_answer(
    provider: str, data: bytes
) -> None:
    row = make.only(provider, data)
    assert (row["cls"], row["unqualified"], row["answer"]) == ("retryable", True, None)


@pytest.mark.parametrize(
    ("provider", "data"),
    [
        ("openai", make.openai("a", make.responses(), error={"code": "server_error"})),
        ("gemini", make.gemini("a").replace(b'{"key"', b'{"error": {"code": 13}, "key"')),
        ("gemini", make.gemini("a").replace(b'{"key"', b'{"status": "INTERNAL", "key"')),
        (
            "bedrock",
            make.bedrock("a", make.claude()).replace(
                b'{"recordId"', b'{"error": {"errorCode": 500}, "recordId"'
            ),
        ),
    ],
)
def test_an_error_beside_an_answer_is_an_error(provider: str, data: bytes) -> None:
    row = make.only(provider, data)
    assert (row["cls"], row["answer"], row["unqualified"]) == ("retryable", None, False)


@pytest.mark.parametrize("empty", [None, "", {}])
def test_an_empty_error_is_none(empty: Any) -> None:
    assert make.only("openai", make.openai("a", make.chat(), error=empty))["cls"] == "succeeded"
