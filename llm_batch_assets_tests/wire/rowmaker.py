"""Hand-made result lines of each provider, as their documents write them."""

from __future__ import annotations

import json
from typing import Any

from llm_batch_assets.reconcile.accounting import account
from llm_batch_assets.reconcile.model import Account, Expected, RawFile, Rules
from llm_batch_assets.types import BatchView


def line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


def openai(wire_id: str, body: Any, status: Any = 200, error: Any = None) -> bytes:
    response = {"status_code": status, "request_id": "req_1", "body": body}
    return line({"id": "batch_req_1", "custom_id": wire_id, "response": response, "error": error})


def responses(text: Any = "fine", **body: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {"type": "message", "id": "m", "status": "completed", "content": content}
    return {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "error": None,
        "model": "gpt-5-mini-2025-08-07",
        "output": [item],
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": 6,
            "output_tokens_details": {"reasoning_tokens": 2},
        },
    } | body


def chat(content: Any = "fine", finish: Any = "stop", **message: Any) -> dict[str, Any]:
    return {
        "object": "chat.completion",
        "model": "gpt-4o-mini-2024-07-18",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, "refusal": None} | message,
                "finish_reason": finish,
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 1},
            "completion_tokens": 6,
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }


def claude(content: Any = "fine", stop: Any = "end_turn", **message: Any) -> dict[str, Any]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-haiku-4-5-20251001",
        "content": blocks,
        "stop_reason": stop,
        "usage": {
            "input_tokens": 5,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 1,
            "output_tokens": 6,
            "output_tokens_details": {"thinking_tokens": 2},
        },
    } | message


def anthropic(wire_id: str, message: Any) -> bytes:
    return line({"custom_id": wire_id, "result": {"type": "succeeded", "message": message}})


def anthropic_error(wire_id: str, kind: Any, message: str = "m") -> bytes:
    error = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_9"}
    return line({"custom_id": wire_id, "result": {"type": "errored", "error": error}})


def gemini(wire_id: str, parts: Any = None, finish: Any = "STOP", **response: Any) -> bytes:
    parts = [{"text": "fine"}] if parts is None else parts
    candidate = {"content": {"parts": parts, "role": "model"}, "finishReason": finish, "index": 0}
    body = {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": 10,
            "cachedContentTokenCount": 4,
            "candidatesTokenCount": 4,
            "thoughtsTokenCount": 2,
        },
        "modelVersion": "gemini-2.5-flash",
        "responseId": "resp",
    } | response
    return line({"key": wire_id, "response": body})


def bedrock(wire_id: str, output: Any) -> bytes:
    return line({"recordId": wire_id, "modelInput": {"messages": []}, "modelOutput": output})


def bedrock_error(wire_id: str, code: Any, **error: Any) -> bytes:
    body = {"errorCode": code, "errorMessage": "m"} | error
    return line({"recordId": wire_id, "modelInput": {}, "error": body})


def converse(content: Any = None, stop: Any = "end_turn") -> dict[str, Any]:
    content = [{"text": "fine"}] if content is None else content
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": stop,
        "usage": {
            "inputTokens": 5,
            "outputTokens": 6,
            "cacheReadInputTokens": 4,
            "cacheWriteInputTokens": 1,
        },
    }


def account_for(
    provider: str, data: bytes, ids: tuple[str, ...] = ("a",), view: Any = None, **rules: Any
) -> Account:
    views: list[BatchView] = [] if view is None else [view]
    raw = [RawFile.of("output.jsonl", "results", data)] if data else []
    return account(Expected(list(ids)), Rules(provider, **rules), raw, views)


def only(provider: str, data: bytes, **rules: Any) -> dict[str, Any]:
    """The evidence row of the one id ``a``, with its accepted answer."""
    found = account_for(provider, data, **rules)
    row: dict[str, Any] = found.table.to_pylist()[0]
    return row | {"answer": found.answers[0].as_py()}
