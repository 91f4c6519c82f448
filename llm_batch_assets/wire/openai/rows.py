"""OpenAI result lines: responses, chat completions, completions, embeddings, moderations.

Shapes from providers.md 1.5 (openai SDK 3.57, openai-openapi 2.3.0); Azure and vLLM write the same
envelope, vLLM with an ``error`` beside a null body (field report B88). Which file a row is in
proves nothing: status, code and body decide (B87).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_batch_assets.wire.classes import (
    ACCEPTED,
    EMPTY,
    MALFORMED,
    PERMANENT,
    REFUSAL,
    SEVERAL,
    UNKNOWN_ERROR,
    UNKNOWN_STOP,
    WRONG_KIND,
    Rule,
    status_of,
    table,
)
from llm_batch_assets.wire.embedding import ordered_vectors
from llm_batch_assets.wire.openai.errors import CODES, KINDS, decisive_rule, error_rule
from llm_batch_assets.wire.shapes import NO_USAGE, Asked, Row, Usage, short
from llm_batch_assets.wire.strict import int64_of, map_of, raw_at, text_of

FINISHES = table(
    "openai.finish",
    (
        ("stop", "succeeded", "accepted"),
        ("length", "unqualified", "cut"),
        ("content_filter", PERMANENT, "content_filter"),
        ("tool_calls", "unqualified", "tool_call"),
        ("function_call", "unqualified", "tool_call"),
    ),
)
"""finish_reason of chat and completions."""

STATUSES = table(
    "openai.status",
    (
        ("completed", "succeeded", "accepted"),
        ("incomplete", "unqualified", "incomplete"),
        ("in_progress", "unqualified", "incomplete"),
        ("queued", "unqualified", "incomplete"),
        ("cancelled", "unqualified", "response_cancelled"),
        ("max_output_tokens", "unqualified", "cut"),
        ("max_tokens", "unqualified", "cut"),
        ("content_filter", PERMANENT, "content_filter"),
    ),
)
"""status of a response, or why it is incomplete."""

TOOL_FINISHES = frozenset({"stop", "tool_calls", "function_call"})
"""With a forced function chat answers ``stop``, with a free one ``tool_calls``."""


def row_id(line: Mapping[str, Any]) -> Any:
    """The line's ``custom_id``, of whatever type."""
    return line.get("custom_id")


def _failed(
    error: Any, status: int | None, request_id: str | None, beside: Any = None, **seen: Any
) -> Row:
    body = map_of(error)
    code, kind = body.get("code"), body.get("type")
    rule = decisive_rule((body.get("innererror"), body, beside)) or error_rule(code, kind, status)
    return Row(
        rule,
        None,
        status,
        short(kind),
        short(code),
        request_id=request_id,
        **seen,
    )


def read(line: Mapping[str, Any], raw: bytes, asked: Asked) -> Row:
    """Read one line. Total: any mapping gives a row."""
    response = line.get("response")
    error = line.get("error")
    if type(response) is not dict:
        if error is None or error == "" or error == {}:
            return Row(MALFORMED)
        return _failed(error, None, None)
    request_id = short(response.get("request_id"))
    status = status_of(response.get("status_code"))
    body = response.get("body")
    if status is None or not 200 <= status < 300:
        if status is None and not error:
            return Row(MALFORMED, request_id=request_id)
        return _failed(map_of(body).get("error") or error or body, status, request_id, error)
    if error is not None and error != "" and error != {}:
        return _failed(error, status, request_id)
    if type(body) is not dict or type(response["status_code"]) is not int:
        return Row(MALFORMED, http_status=status, request_id=request_id)
    return _body(body, raw, asked, status, request_id)


def _body(
    body: dict[str, Any], raw: bytes, asked: Asked, status: int, request_id: str | None
) -> Row:
    model = short(body.get("model"))
    usage = usage_of(body.get("usage"))
    seen: dict[str, Any] = {"served_model": model, "usage": usage}
    # A failed response carries its own error beside its status; elsewhere an error under HTTP 200
    # is the whole body (case 011).
    if body.get("error"):
        seen["stop_reason"] = short(body.get("status"))
        return _failed(body["error"], status, request_id, **seen)
    embedding = False
    if "output" in body:
        rule, stop, answer = _response(body, asked)
    elif "choices" in body:
        rule, stop, answer = read_choices(body["choices"], asked)
    elif "data" in body:
        stop, embedding = None, True
        answer = ordered_vectors(body["data"], raw, ("response", "body", "data"))
        rule = MALFORMED if answer is None else ACCEPTED
        if asked.answer not in ("auto", "embedding"):
            rule = WRONG_KIND
    elif "results" in body:
        stop = None
        piece = raw_at(raw, "response", "body", "results")
        answer = piece.decode("utf-8", "surrogatepass") if piece else None
        rule = ACCEPTED if answer else MALFORMED
        if not body["results"]:
            rule = EMPTY
    elif body.get("object") == "error":
        # vLLM's errors are flat, and may come under HTTP 200.
        return _failed(body, status, request_id, **seen)
    else:
        rule, stop, answer = MALFORMED, None, None
    if rule is ACCEPTED and asked.answer == "embedding" and not embedding:
        rule = WRONG_KIND
    return Row(rule, answer, status, None, None, stop, model, request_id, usage, embedding)


def read_choices(choices: Any, asked: Asked) -> tuple[Rule, str | None, str | None]:
    """(rule, stop reason, answer) of chat completions and completions."""
    if type(choices) is not list or not choices or type(choices[0]) is not dict:
        return MALFORMED, None, None
    choice = choices[0]
    stop = choice.get("finish_reason")
    message = choice.get("message")
    if type(message) is not dict:
        message = {"content": choice.get("text")}
    if message.get("refusal") or _refuses(message.get("content")):
        return REFUSAL, short(stop), None
    rule = FINISHES.get(stop, UNKNOWN_STOP) if isinstance(stop, str) else UNKNOWN_STOP
    if asked.answer == "tool":
        if isinstance(stop, str) and stop in TOOL_FINISHES:
            rule = FINISHES["stop"]
        calls = message.get("tool_calls")
        if calls is None and type(message.get("function_call")) is dict:
            calls = [{"function": message["function_call"]}]
        answer, count = None, 0
        if type(calls) is list:
            count = len(calls)
            if count == 1:
                answer = map_of(map_of(calls[0]).get("function")).get("arguments")
    else:
        count, answer = 1, _text(message.get("content"), "text")
    if rule.cls != "succeeded":
        return rule, short(stop), None
    if len(choices) != 1 or count > 1:
        return SEVERAL, stop, None
    if type(answer) is not str or not answer:
        return EMPTY, stop, None
    return ACCEPTED, stop, answer


def _refuses(content: Any) -> bool:
    """Whether a message in parts has one that refuses."""
    parts = content if type(content) is list else ()
    return any(type(part) is dict and part.get("type") == "refusal" for part in parts)


def _text(content: Any, part_type: str) -> str | None:
    """The text of a message: a string, or the text parts joined (several are one answer)."""
    if type(content) is str:
        return content
    if type(content) is not list:
        return None
    texts = [
        part.get("text")
        for part in content
        if type(part) is dict and part.get("type") in (part_type, "text", "output_text")
    ]
    if not texts or not all(isinstance(text, str) for text in texts):
        return None
    return "".join(text for text in texts if isinstance(text, str))


def _response(body: dict[str, Any], asked: Asked) -> tuple[Rule, str | None, str | None]:
    """(rule, stop reason, answer) of the responses endpoint: the body has its own status."""
    stop = body.get("status")
    if stop == "incomplete":
        reason = map_of(body.get("incomplete_details")).get("reason") or stop
        rule = STATUSES.get(reason) if isinstance(reason, str) else None
        # Whatever cut it, and whatever that is called, ``incomplete`` is no answer.
        if rule is None or rule.cls == "succeeded":
            rule = STATUSES["incomplete"]
        return rule, short(reason), None
    if stop == "failed":
        return UNKNOWN_ERROR, "failed", None
    output = body["output"]
    if type(output) is not list:
        return MALFORMED, short(stop), None
    texts: list[str] = []
    calls: list[Any] = []
    whole = True
    for item in output:
        if type(item) is not dict:
            return MALFORMED, short(stop), None
        kind = item.get("type")
        if kind == "message":
            if item.get("status") not in (None, "completed"):
                whole = False
            content = item.get("content")
            if type(content) is not list:
                return MALFORMED, short(stop), None
            for part in content:
                part_type = part.get("type") if type(part) is dict else None
                if part_type == "output_text":
                    text = part.get("text")
                    if type(text) is not str:
                        return MALFORMED, short(stop), None
                    texts.append(text)
                elif part_type == "refusal":
                    return REFUSAL, short(stop), None
        elif kind == "function_call":
            if asked.tool and item.get("status") not in (None, "completed"):
                whole = False
            calls.append(item.get("arguments"))
    if stop != "completed":
        known = STATUSES.get(stop, UNKNOWN_STOP) if isinstance(stop, str) else UNKNOWN_STOP
        return known, short(stop), None
    if not whole:
        return STATUSES["incomplete"], stop, None
    if asked.answer == "tool":
        if len(calls) > 1:
            return SEVERAL, stop, None
        answer = calls[0] if calls else None
    else:
        # Several message items are one answer: the first may be a cut fragment (B97), so the whole
        # text must qualify.
        answer = texts[0] if len(texts) == 1 else "".join(texts)
    if type(answer) is not str or not answer:
        return EMPTY, stop, None
    return ACCEPTED, stop, answer


def usage_of(usage: Any) -> Usage:
    """Tokens of chat (prompt_/completion_) and responses (input_/output_); absent is unknown."""
    if type(usage) is not dict:
        return NO_USAGE
    if "input_tokens" in usage or "output_tokens" in usage:
        names = ("input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details")
    else:
        names = (
            "prompt_tokens",
            "prompt_tokens_details",
            "completion_tokens",
            "completion_tokens_details",
        )
    into, out = map_of(usage.get(names[1])), map_of(usage.get(names[3]))
    return (
        int64_of(usage.get(names[0])),
        int64_of(into.get("cached_tokens")),
        int64_of(into.get("cache_write_tokens")),
        int64_of(usage.get(names[2])),
        int64_of(out.get("reasoning_tokens")),
    )


__all__ = [
    "CODES",
    "FINISHES",
    "KINDS",
    "STATUSES",
    "error_rule",
    "read",
    "row_id",
    "text_of",
    "usage_of",
]
