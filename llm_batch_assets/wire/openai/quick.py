"""OpenAI's commonest rows for the fast lane: one completed text of responses or of chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_batch_assets.wire.lane import Path, Shape
from llm_batch_assets.wire.shapes import Asked

_BODY: Path = ("response", "body")
_USAGE: Path = (*_BODY, "usage")
_COMMON: Mapping[Path, str] = {
    ("custom_id",): "id",
    (*_BODY, "model"): "served_model",
    ("response", "request_id"): "provider_request_id",
}
_RESPONSE = Shape(
    text=(*_BODY, "output", 0, "content", 0, "text"),
    stop="completed",
    fields={
        **_COMMON,
        (*_USAGE, "input_tokens"): "input_tokens",
        (*_USAGE, "input_tokens_details", "cached_tokens"): "cached_input_tokens",
        (*_USAGE, "output_tokens"): "output_tokens",
        (*_USAGE, "output_tokens_details", "reasoning_tokens"): "reasoning_tokens",
    },
    pinned=frozenset(
        {
            ("error",),
            ("response", "status_code"),
            (*_BODY, "error"),
            (*_BODY, "status"),
            (*_BODY, "output", 0, "type"),
            (*_BODY, "output", 0, "status"),
            (*_BODY, "output", 0, "content", 0, "type"),
        }
    ),
)
_CHAT = Shape(
    text=(*_BODY, "choices", 0, "message", "content"),
    stop="stop",
    fields={
        **_COMMON,
        (*_USAGE, "prompt_tokens"): "input_tokens",
        (*_USAGE, "prompt_tokens_details", "cached_tokens"): "cached_input_tokens",
        (*_USAGE, "completion_tokens"): "output_tokens",
        (*_USAGE, "completion_tokens_details", "reasoning_tokens"): "reasoning_tokens",
    },
    pinned=frozenset(
        {
            ("error",),
            ("response", "status_code"),
            (*_BODY, "choices", 0, "finish_reason"),
            (*_BODY, "choices", 0, "message", "refusal"),
        }
    ),
)
_OTHER_BODIES = ("output", "choices", "data", "results")


def shape_of(line: Mapping[str, Any], asked: Asked) -> Shape | None:
    """The shape of a row that the fast lane may take as its template, or None.

    True only for a row whose reading depends on nothing but the keys, what the shape pins and what
    it captures (a test compares the two ways).
    """
    if asked.answer in ("tool", "embedding"):
        return None
    try:
        response = line["response"]
        body = response["body"]
        status = response["status_code"]
        kinds = [name for name in _OTHER_BODIES if name in body]
        if line["error"] is not None or type(status) is not int or status != 200:
            return None
        usage = body["usage"]
        if kinds == ["output"]:
            (item,) = body["output"]
            (part,) = item["content"]
            fits = (
                body["error"] is None
                and body["status"] == "completed"
                and (item["type"], item["status"]) == ("message", "completed")
                and part["type"] == "output_text"
                and type(part["text"]) is str
                and "cache_write_tokens" not in usage["input_tokens_details"]
            )
            return _RESPONSE if fits else None
        if kinds == ["choices"]:
            (choice,) = body["choices"]
            message = choice["message"]
            fits = (
                "error" not in body
                and choice["finish_reason"] == "stop"
                and message["refusal"] is None
                and type(message["content"]) is str
                and "input_tokens" not in usage
                and "output_tokens" not in usage
                and "cache_write_tokens" not in usage["prompt_tokens_details"]
            )
            return _CHAT if fits else None
    except (KeyError, TypeError, ValueError):
        pass
    return None
