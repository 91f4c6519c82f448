"""OpenAI's commonest rows for the fast lane: one completed text of responses or of chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_batch_assets.wire.classes import ACCEPTED
from llm_batch_assets.wire.lane import Counts, Path, Shape, Words
from llm_batch_assets.wire.shapes import Asked, Row

_BODY: Path = ("response", "body")
_RESPONSE = Shape(
    text=(*_BODY, "output", 0, "content", 0, "text"),
    fields=(
        ("custom_id",),
        (*_BODY, "model"),
        ("response", "request_id"),
        (*_BODY, "usage", "input_tokens"),
        (*_BODY, "usage", "input_tokens_details", "cached_tokens"),
        (*_BODY, "usage", "output_tokens"),
        (*_BODY, "usage", "output_tokens_details", "reasoning_tokens"),
    ),
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
    fields=(
        ("custom_id",),
        (*_BODY, "model"),
        ("response", "request_id"),
        (*_BODY, "usage", "prompt_tokens"),
        (*_BODY, "usage", "prompt_tokens_details", "cached_tokens"),
        (*_BODY, "usage", "completion_tokens"),
        (*_BODY, "usage", "completion_tokens_details", "reasoning_tokens"),
    ),
    pinned=frozenset(
        {
            ("error",),
            ("response", "status_code"),
            (*_BODY, "choices", 0, "finish_reason"),
            (*_BODY, "choices", 0, "message", "refusal"),
        }
    ),
)
_STOPS = {_RESPONSE.text: "completed", _CHAT.text: "stop"}
_OTHER_BODIES = ("output", "choices", "data", "results")


def shape_of(line: Mapping[str, Any], asked: Asked) -> Shape | None:
    """The shape of a row that the fast lane may take as its template, or None.

    True only for a row whose reading depends on nothing but the keys, what the shape pins and what
    it captures; ``row`` then gives what ``read`` gives (a test compares them).
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


def row(shape: Shape, text: str, cells: tuple[bytes, ...], words: Words, counts: Counts) -> Row:
    """The row of a captured line; ``words`` and ``counts`` keep what files repeat."""
    _, model, request_id, into, cached, out, reasoning = cells
    return (  # type: ignore[return-value]
        ACCEPTED,
        text,
        200,
        None,
        None,
        _STOPS[shape.text],
        words[model],
        request_id.decode("ascii"),
        (counts[into], counts[cached], None, counts[out], counts[reasoning]),
        False,
    )
