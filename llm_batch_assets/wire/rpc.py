"""google.rpc codes: Gemini's own, and what Vertex writes as text into ``status``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from llm_batch_assets.wire.classes import (
    HELD,
    PERMANENT,
    TRANSIENT,
    UNKNOWN_ERROR,
    Rule,
    http_rule,
    table,
)
from llm_batch_assets.wire.strict import map_of

NAMES: Mapping[str, int] = {
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}

CODES = table(
    "rpc",
    (
        (1, "cancelled", "batch_cancelled"),
        (2, TRANSIENT, "unknown_error"),
        (3, PERMANENT, "invalid_request"),
        (4, TRANSIENT, "timeout"),
        (5, PERMANENT, "not_found"),
        (6, PERMANENT, "invalid_request"),
        (7, HELD, "account"),
        (8, TRANSIENT, "rate_limit"),
        (9, PERMANENT, "invalid_request"),
        (10, TRANSIENT, "conflict"),
        (11, PERMANENT, "invalid_request"),
        (12, PERMANENT, "invalid_request"),
        (13, TRANSIENT, "server_error"),
        (14, TRANSIENT, "unavailable"),
        (15, TRANSIENT, "server_error"),
        (16, HELD, "account"),
    ),
)
"""google.rpc code -> rule (providers.md 3.6; the account's faults per cases/README.md)."""

_NAME = re.compile(r"\b(" + "|".join(NAMES) + r")\b")
_NUMBER = re.compile(r"\b(?:code|status)\b\D{0,12}(\d{1,3})\b|\b([45]\d\d)\b", re.IGNORECASE)


def code_rule(code: Any, name: Any) -> Rule:
    """The rule for a code (rpc, or HTTP from 100 on; a number or its text) or an rpc name."""
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) <= 3:
        code = int(code)
    if type(code) is int and code != 0:
        if code in CODES:
            return CODES[code]
        if code >= 100:
            return CODES[1] if code == 499 else http_rule(code)
    for word in (name, code):
        if isinstance(word, str) and word.upper() in NAMES:
            return CODES[NAMES[word.upper()]]
    return UNKNOWN_ERROR


def error_of_text(text: str) -> tuple[Any, Any]:
    """(code, name) from Vertex's status text: JSON where it is JSON, else by its words."""
    try:
        found = map_of(orjson.loads(text))
    except ValueError:
        found = {}
    error = found.get("error") if isinstance(found.get("error"), dict) else found
    if isinstance(error, dict) and (error.get("code") is not None or error.get("status")):
        return error.get("code"), error.get("status")
    head = text[:2000]
    name = _NAME.search(head)
    number = _NUMBER.search(head)
    code = int(number.group(1) or number.group(2)) if number else None
    return code, name.group(1) if name else None
