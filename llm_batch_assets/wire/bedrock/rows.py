"""Bedrock records: ``{"recordId", "modelInput", "modelOutput" | "error"}`` (providers.md 4.3).

InvokeModel outputs are the model's own (Claude, Nova, Llama, Mistral, Cohere, Titan, OpenAI's chat
shape of gpt-oss and others, Titan and Cohere embeddings);
Converse outputs are one shape for all, and may carry explicit nulls for unused union members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_batch_assets.wire.classes import (
    ACCEPTED,
    EMPTY,
    HELD,
    MALFORMED,
    PERMANENT,
    SEVERAL,
    TRANSIENT,
    UNKNOWN_ERROR,
    UNKNOWN_STOP,
    WRONG_KIND,
    Rule,
    http_rule,
    table,
)
from llm_batch_assets.wire.claude import STOPS as CLAUDE_STOPS
from llm_batch_assets.wire.claude import decoded, read_message
from llm_batch_assets.wire.claude import usage_of as claude_usage
from llm_batch_assets.wire.openai.rows import read_choices
from llm_batch_assets.wire.openai.rows import usage_of as chat_usage
from llm_batch_assets.wire.shapes import Asked, Row, Usage, short
from llm_batch_assets.wire.strict import int64_of, map_of, raw_at

ERRORS = table(
    "bedrock.error",
    (
        ("ValidationException", PERMANENT, "invalid_request"),
        ("ResourceNotFoundException", PERMANENT, "not_found"),
        ("ModelErrorException", TRANSIENT, "server_error"),
        ("ThrottlingException", TRANSIENT, "rate_limit"),
        ("TooManyRequestsException", TRANSIENT, "rate_limit"),
        ("ServiceQuotaExceededException", TRANSIENT, "rate_limit"),
        ("ServiceUnavailableException", TRANSIENT, "unavailable"),
        ("ServiceUnavailable", TRANSIENT, "unavailable"),
        ("InternalServerException", TRANSIENT, "server_error"),
        ("InternalFailure", TRANSIENT, "server_error"),
        ("ModelTimeoutException", TRANSIENT, "timeout"),
        ("RequestTimeoutException", TRANSIENT, "timeout"),
        ("ModelNotReadyException", TRANSIENT, "unavailable"),
        ("ConflictException", TRANSIENT, "conflict"),
        ("AccessDeniedException", HELD, "account"),
        ("UnrecognizedClientException", HELD, "account"),
        ("ExpiredTokenException", HELD, "account"),
        ("InvalidSignatureException", HELD, "account"),
    ),
)
"""errorCode as text (case 100); numbers are HTTP statuses."""

EXPIRED = Rule("bedrock.error.expired", "expired", "batch_expired", charged=False)
"""error.expired: the record was not reached in time."""

STOPS = table(
    "bedrock.stop",
    (
        ("end_turn", "succeeded", "accepted"),
        ("stop_sequence", "succeeded", "accepted"),
        ("stop", "succeeded", "accepted"),
        ("FINISH", "succeeded", "accepted"),
        ("COMPLETE", "succeeded", "accepted"),
        ("tool_use", "unqualified", "tool_call"),
        ("max_tokens", "unqualified", "cut"),
        ("length", "unqualified", "cut"),
        ("LENGTH", "unqualified", "cut"),
        ("MAX_TOKENS", "unqualified", "cut"),
        ("model_context_window_exceeded", "unqualified", "cut"),
        ("malformed_model_output", "unqualified", "other_stop"),
        ("malformed_tool_use", "unqualified", "malformed_tool_call"),
        ("guardrail_intervened", PERMANENT, "content_filter"),
        ("content_filtered", PERMANENT, "content_filter"),
        ("CONTENT_FILTERED", PERMANENT, "content_filter"),
        ("refusal", PERMANENT, "refusal"),
    ),
)
"""stopReason of Converse and Nova, stop_reason of Llama and Mistral."""


def row_id(line: Mapping[str, Any]) -> Any:
    """The line's ``recordId``, of whatever type."""
    return line.get("recordId")


def error_rule(error: Mapping[str, Any]) -> Rule:
    """The rule for an error object; ``errorCode`` is documented as a number but may be text."""
    if error.get("expired") is True:
        return EXPIRED
    code = error.get("errorCode")
    if isinstance(code, str):
        name = code.rsplit("#", 1)[-1].split(":", 1)[0]
        # Members of a response stream are named alike, with a small first letter.
        name = name[:1].upper() + name[1:]
        if name in ERRORS:
            return ERRORS[name]
        if code.isascii() and code.isdigit() and len(code) <= 3:
            code = int(code)
    if type(code) is int:
        return http_rule(code)
    return UNKNOWN_ERROR


def read(line: Mapping[str, Any], raw: bytes, asked: Asked) -> Row:
    """Read one line. Total: any mapping gives a row."""
    error = line.get("error")
    if error is not None and error != {} and error != "":
        known = map_of(error)
        code = known.get("errorCode")
        status = code if type(code) is int and 0 <= code < 1000 else None
        return Row(error_rule(known), http_status=status, error_code=short(code))
    output = line.get("modelOutput")
    if type(output) is not dict:
        return Row(MALFORMED)
    model = short(output.get("model"))
    usage = usage_of(output)
    embedding = False
    if type(output.get("content")) is list or ("stop_reason" in output and "content" in output):
        rule, stop, answer = read_message(output, raw, ("modelOutput",), asked)
        usage = claude_usage(output.get("usage"))
    elif "output" in output:
        rule, stop, answer = _converse(output, raw, asked)
    elif "choices" in output:
        rule, stop, answer = read_choices(output["choices"], asked)
        usage = chat_usage(output.get("usage"))
    elif "generation" in output:
        rule, stop, answer = _plain(output.get("generation"), output.get("stop_reason"), asked)
    elif type(output.get("outputs")) is list and len(output["outputs"]) == 1:
        only = map_of(output["outputs"][0])
        rule, stop, answer = _plain(only.get("text"), only.get("stop_reason"), asked)
    elif type(output.get("results")) is list and len(output["results"]) == 1:
        only = map_of(output["results"][0])
        rule, stop, answer = _plain(only.get("outputText"), only.get("completionReason"), asked)
    elif type(output.get("generations")) is list and len(output["generations"]) == 1:
        only = map_of(output["generations"][0])
        rule, stop, answer = _plain(only.get("text"), only.get("finish_reason"), asked)
    elif "text" in output and "finish_reason" in output:
        rule, stop, answer = _plain(output["text"], output["finish_reason"], asked)
    elif "embedding" in output or "embeddings" in output:
        embedding = True
        rule, answer = _embedding(output, raw, asked)
        stop = None
    else:
        rule, stop, answer = MALFORMED, None, None
    return Row(rule, answer, stop_reason=stop, served_model=model, usage=usage, embedding=embedding)


def _converse(
    output: Mapping[str, Any], raw: bytes, asked: Asked
) -> tuple[Rule, str | None, str | None]:
    stop = output.get("stopReason")
    rule = STOPS.get(stop, UNKNOWN_STOP) if isinstance(stop, str) else UNKNOWN_STOP
    if asked.tool and stop == "tool_use":
        rule = STOPS["end_turn"]
    elif asked.tool and rule.cls == "succeeded":
        rule = WRONG_KIND
    if rule.cls != "succeeded":
        return rule, short(stop), None
    if asked.answer == "embedding":
        return WRONG_KIND, short(stop), None
    content = map_of(map_of(output["output"]).get("message")).get("content")
    if type(content) is not list or not all(type(part) is dict for part in content):
        return MALFORMED, short(stop), None
    if asked.tool:
        places = [place for place, part in enumerate(content) if part.get("toolUse")]
        if len(places) != 1:
            return (SEVERAL if places else EMPTY), short(stop), None
        path = ("modelOutput", "output", "message", "content", places[0], "toolUse", "input")
        piece = raw_at(raw, *path)
        return (ACCEPTED if piece else MALFORMED), short(stop), decoded(piece)
    texts = [part["text"] for part in content if part.get("text") is not None]
    if not all(type(text) is str for text in texts):
        return MALFORMED, short(stop), None
    answer = "".join(texts)
    return (ACCEPTED if answer else EMPTY), short(stop), answer or None


def _plain(text: Any, stop: Any, asked: Asked) -> tuple[Rule, str | None, str | None]:
    rule = STOPS.get(stop, UNKNOWN_STOP) if isinstance(stop, str) else UNKNOWN_STOP
    if rule.cls != "succeeded":
        return rule, short(stop), None
    if asked.answer in ("tool", "embedding"):
        return WRONG_KIND, short(stop), None
    if text is not None and type(text) is not str:
        return MALFORMED, short(stop), None
    return (ACCEPTED if text else EMPTY), short(stop), text or None


def _embedding(output: Mapping[str, Any], raw: bytes, asked: Asked) -> tuple[Rule, str | None]:
    """Titan gives one ``embedding``; Cohere a list, or lists by type (``float``)."""
    if asked.answer not in ("auto", "embedding"):
        return WRONG_KIND, None
    if "embedding" in output:
        piece = decoded(raw_at(raw, "modelOutput", "embedding"))
        return (ACCEPTED, f"[{piece}]") if piece else (MALFORMED, None)
    path: tuple[str, ...] = ("modelOutput", "embeddings")
    if type(output["embeddings"]) is dict:
        path = (*path, "float")
    piece = decoded(raw_at(raw, *path))
    return (ACCEPTED, piece) if piece else (MALFORMED, None)


def usage_of(output: Mapping[str, Any]) -> Usage:
    """Tokens of Converse (input excludes cache tokens for Claude) and of the plain outputs."""
    usage = output.get("usage")
    if type(usage) is dict:
        plain = int64_of(usage.get("inputTokens"))
        read_, written = (
            int64_of(usage.get(name)) for name in ("cacheReadInputTokens", "cacheWriteInputTokens")
        )
        total = None if plain is None else int64_of(plain + (read_ or 0) + (written or 0))
        return total, read_, written, int64_of(usage.get("outputTokens")), None
    prompt = int64_of(output.get("prompt_token_count", output.get("inputTextTokenCount")))
    answer = int64_of(output.get("generation_token_count"))
    return prompt, None, None, answer, None


__all__ = ["CLAUDE_STOPS", "ERRORS", "EXPIRED", "STOPS", "error_rule", "read", "row_id"]
