"""Gemini result lines: of files (``key``), inline (``metadata.key``), of Vertex (``status``).

Shapes from providers.md 3.3 and 3.8. A blocked prompt is a "successful" response without
candidates; thoughts are not in ``candidatesTokenCount``; Vertex writes ``status`` into every row,
empty where all is well (field report B85).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_batch_assets.wire.classes import (
    ACCEPTED,
    EMPTY,
    MALFORMED,
    PERMANENT,
    SEVERAL,
    UNKNOWN_STOP,
    WRONG_KIND,
    Rule,
    table,
)
from llm_batch_assets.wire.claude import decoded
from llm_batch_assets.wire.rpc import code_rule, error_of_text
from llm_batch_assets.wire.shapes import NO_USAGE, Asked, Row, Usage, short
from llm_batch_assets.wire.strict import int64_of, map_of, raw_at

STOPS = table(
    "gemini.stop",
    (
        ("STOP", "succeeded", "accepted"),
        ("MAX_TOKENS", "unqualified", "cut"),
        ("SAFETY", PERMANENT, "content_filter"),
        ("PROHIBITED_CONTENT", PERMANENT, "content_filter"),
        ("BLOCKLIST", PERMANENT, "content_filter"),
        ("SPII", PERMANENT, "content_filter"),
        # Partly random by reports (B93); permanent by decision.
        ("RECITATION", PERMANENT, "recitation"),
        ("IMAGE_SAFETY", PERMANENT, "content_filter"),
        ("IMAGE_PROHIBITED_CONTENT", PERMANENT, "content_filter"),
        ("IMAGE_RECITATION", PERMANENT, "recitation"),
        ("MODEL_ARMOR", PERMANENT, "content_filter"),
        ("LANGUAGE", "unqualified", "language"),
        ("OTHER", "unqualified", "other_stop"),
        ("MALFORMED_FUNCTION_CALL", "unqualified", "malformed_tool_call"),
        ("UNEXPECTED_TOOL_CALL", "unqualified", "malformed_tool_call"),
        ("TOO_MANY_TOOL_CALLS", "unqualified", "malformed_tool_call"),
        ("MISSING_THOUGHT_SIGNATURE", "unqualified", "other_stop"),
        ("MALFORMED_RESPONSE", "unqualified", "other_stop"),
        ("NO_IMAGE", "unqualified", "other_stop"),
        ("IMAGE_OTHER", "unqualified", "other_stop"),
        ("FINISH_REASON_UNSPECIFIED", "unqualified", "unknown_stop_reason"),
    ),
)
"""finishReason of a candidate."""

BLOCKED = Rule("gemini.blocked_prompt", "permanent_failure", "blocked_prompt")
"""promptFeedback.blockReason: a policy block, whatever the reason is called."""


def row_id(line: Mapping[str, Any]) -> Any:
    """``key``, else the inline row's ``metadata.key``; two that differ are none."""
    key = line.get("key")
    inner = map_of(line.get("metadata")).get("key")
    if key is None:
        return inner
    return key if inner is None or inner == key else None


def read(line: Mapping[str, Any], raw: bytes, asked: Asked) -> Row:
    """Read one line. Total: any mapping gives a row."""
    error = line.get("error")
    if error is not None and error != {} and error != "":
        return _failed(map_of(error).get("code"), map_of(error).get("status"))
    status = line.get("status")
    if isinstance(status, str) and status:
        return _failed(*error_of_text(status))
    if isinstance(status, dict) and status.get("code"):
        return _failed(status.get("code"), status.get("status"))
    response = line.get("response")
    if type(response) is not dict:
        return Row(MALFORMED)
    if type(response.get("error")) is dict and "candidates" not in response:
        return _failed(response["error"].get("code"), response["error"].get("status"))
    seen: dict[str, Any] = {
        "served_model": short(response.get("modelVersion")),
        "request_id": short(response.get("responseId")),
        "usage": usage_of(response),
    }
    if "embedding" in response or "embeddings" in response:
        return _embedding(response, raw, asked, seen)
    blocked = map_of(response.get("promptFeedback")).get("blockReason")
    candidates = response.get("candidates")
    if not candidates:
        if blocked:
            return Row(BLOCKED, stop_reason=short(blocked), **seen)
        return Row(EMPTY if candidates is None or candidates == [] else MALFORMED, **seen)
    if type(candidates) is not list or type(candidates[0]) is not dict:
        return Row(MALFORMED, **seen)
    rule, stop, answer = _candidate(candidates[0], raw, asked)
    if rule is ACCEPTED and len(candidates) > 1:
        rule = SEVERAL
    if rule is ACCEPTED and blocked and blocked != "BLOCK_REASON_UNSPECIFIED":
        # Beside an answer, too: what the provider blocked is not published.
        return Row(BLOCKED, stop_reason=short(blocked), **seen)
    return Row(rule, answer, stop_reason=stop, **seen)


def _candidate(
    candidate: Mapping[str, Any], raw: bytes, asked: Asked
) -> tuple[Rule, str | None, str | None]:
    stop = candidate.get("finishReason")
    rule = STOPS.get(stop, UNKNOWN_STOP) if isinstance(stop, str) else UNKNOWN_STOP
    if rule.cls != "succeeded":
        return rule, short(stop), None
    if asked.answer == "embedding":
        return WRONG_KIND, short(stop), None
    parts = map_of(candidate.get("content")).get("parts")
    if parts is None:
        return EMPTY, short(stop), None
    if type(parts) is not list or not all(type(part) is dict for part in parts):
        return MALFORMED, short(stop), None
    if asked.tool:
        places = [place for place, part in enumerate(parts) if part.get("functionCall")]
        if len(places) != 1:
            return (SEVERAL if places else EMPTY), short(stop), None
        path = ("response", "candidates", 0, "content", "parts", places[0], "functionCall", "args")
        piece = raw_at(raw, *path)
        return (ACCEPTED if piece else MALFORMED), short(stop), decoded(piece)
    texts = [part["text"] for part in parts if "text" in part and not part.get("thought")]
    if not all(type(text) is str for text in texts):
        return MALFORMED, short(stop), None
    answer = "".join(texts)
    return (ACCEPTED if answer else EMPTY), short(stop), answer or None


def _embedding(response: Mapping[str, Any], raw: bytes, asked: Asked, seen: dict[str, Any]) -> Row:
    """One vector per record: ``response.embedding.values``."""
    if asked.answer not in ("auto", "embedding"):
        return Row(WRONG_KIND, embedding=True, **seen)
    if "embedding" in response:
        pieces = [raw_at(raw, "response", "embedding", "values")]
    else:
        listed = response["embeddings"]
        count = len(listed) if type(listed) is list else 0
        pieces = [raw_at(raw, "response", "embeddings", at, "values") for at in range(count)]
    if not pieces or None in pieces:
        return Row(MALFORMED, embedding=True, **seen)
    text = "[" + ",".join(decoded(piece) or "" for piece in pieces) + "]"
    return Row(ACCEPTED, text, embedding=True, **seen)


def _failed(code: Any, name: Any) -> Row:
    return Row(code_rule(code, name), error_type=short(name), error_code=short(code))


def usage_of(response: Mapping[str, Any]) -> Usage:
    """Tokens: the prompt includes cached tokens; thoughts are billed beside the candidates."""
    usage = response.get("usageMetadata")
    if type(usage) is not dict:
        count = int64_of(response.get("tokenCount"))
        return NO_USAGE if count is None else (count, None, None, None, None)
    prompt = int64_of(usage.get("promptTokenCount"))
    tools = int64_of(usage.get("toolUsePromptTokenCount"))
    answer = int64_of(usage.get("candidatesTokenCount"))
    thoughts = int64_of(usage.get("thoughtsTokenCount"))
    return (
        None if prompt is None else int64_of(prompt + (tools or 0)),
        int64_of(usage.get("cachedContentTokenCount")),
        None,
        None if answer is None and thoughts is None else int64_of((answer or 0) + (thoughts or 0)),
        thoughts,
    )
