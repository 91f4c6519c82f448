"""Anthropic result lines: ``{"custom_id", "result": {"type", …}}`` (providers.md 2.4, 2.6).

The type ``succeeded`` means that the call returned, not that the answer is whole; the SDK itself
parses an unknown type as a success (2.8).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llm_batch_assets.wire.classes import (
    HELD,
    MALFORMED,
    PERMANENT,
    TRANSIENT,
    UNKNOWN_ERROR,
    Rule,
    table,
)
from llm_batch_assets.wire.claude import read_message, usage_of
from llm_batch_assets.wire.shapes import Asked, Row, short
from llm_batch_assets.wire.strict import map_of, text_of

TYPES = table(
    "anthropic.result",
    (
        ("canceled", "cancelled", "batch_cancelled"),
        ("cancelled", "cancelled", "batch_cancelled"),
        ("expired", "expired", "batch_expired"),
    ),
)
"""result.type of rows that were never executed."""

ERRORS = table(
    "anthropic.error",
    (
        ("invalid_request_error", PERMANENT, "invalid_request"),
        ("not_found_error", PERMANENT, "not_found"),
        ("request_too_large", PERMANENT, "request_too_large"),
        ("authentication_error", HELD, "account"),
        ("permission_error", HELD, "account"),
        ("billing_error", HELD, "billing"),
        ("rate_limit_error", TRANSIENT, "rate_limit"),
        ("conflict_error", TRANSIENT, "conflict"),
        ("api_error", TRANSIENT, "server_error"),
        ("timeout_error", TRANSIENT, "timeout"),
        ("overloaded_error", TRANSIENT, "overloaded"),
    ),
)
"""Nested ``error.type`` of an errored row."""

UNKNOWN_TYPE = Rule("anthropic.result.unknown", "retryable", "unknown_result_type")
"""A result.type that we do not know: never a success."""

LOW_CREDIT = Rule(
    "anthropic.error.low_credit", "retryable", "billing", hold="billing", charged=False
)
"""Low credit arrives typed as invalid_request_error (field report B99): the account's fault."""

DISABLED = Rule("anthropic.error.disabled", "retryable", "account", hold="account", charged=False)
"""A disabled organization has no type of its own either."""

_DISABLED = re.compile(r"organization (?:has been|is|was) (?:disabled|suspended)", re.IGNORECASE)
_CREDIT = re.compile(
    r"credit balance|purchase credits|plans? (?:&|and) billing|billing (?:issue|limit|details)"
    r"|insufficient (?:credits?|funds|balance)|out of credits?|spend(?:ing)? limit|usage limits?\b",
    re.IGNORECASE,
)


def row_id(line: Mapping[str, Any]) -> Any:
    """The line's ``custom_id``, of whatever type."""
    return line.get("custom_id")


def error_rule(kind: Any, message: Any) -> Rule:
    """The rule for an error's type; its text counts only for an account's fault without a type."""
    if kind == "invalid_request_error" and isinstance(message, str):
        if _CREDIT.search(message[:2000]):
            return LOW_CREDIT
        if _DISABLED.search(message[:2000]):
            return DISABLED
    return ERRORS.get(kind, UNKNOWN_ERROR) if isinstance(kind, str) else UNKNOWN_ERROR


def read(line: Mapping[str, Any], raw: bytes, asked: Asked) -> Row:
    """Read one line. Total: any mapping gives a row."""
    result = line.get("result")
    if type(result) is not dict:
        return Row(MALFORMED)
    kind = result.get("type")
    if kind == "succeeded":
        message = result.get("message")
        if type(message) is not dict:
            return Row(MALFORMED)
        if message.get("type") == "error" or (message.get("error") and "content" not in message):
            return _errored(message)
        rule, stop, answer = read_message(message, raw, ("result", "message"), asked)
        return Row(
            rule,
            answer,
            stop_reason=stop,
            served_model=short(message.get("model")),
            usage=usage_of(message.get("usage")),
        )
    if kind == "errored":
        return _errored(map_of(result.get("error")))
    if isinstance(kind, str) and kind in TYPES:
        return Row(TYPES[kind], error_type=kind)
    return Row(UNKNOWN_TYPE, error_type=short(kind))


def _errored(outer: Mapping[str, Any]) -> Row:
    """The error nests twice: ``result.error.error.type``; older rows nest once."""
    inner = outer.get("error")
    error = map_of(inner) if type(inner) is dict else outer
    return Row(
        error_rule(error.get("type"), error.get("message")),
        error_type=short(error.get("type")),
        request_id=text_of(short(outer.get("request_id"))),
    )
