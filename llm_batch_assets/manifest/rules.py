"""Faults of one record: they keep it back and leave the dataset alone."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import orjson

LONE_SURROGATE = "lone_surrogate"
CONTROL_CHARACTER = "control_character"
INVALID_UTF8 = "invalid_utf8"
LINE_TOO_LONG = "line_too_long"
TEMPLATE = "template"
NATIVE_BODY = "native_body"
NATIVE_MODEL = "native_model"
NATIVE_STREAM = "native_stream"

_KEY_MARK = re.compile(rb'"[ \t\r\n]*:')
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")


def text_rule(text: str) -> str | None:
    """The rule that keeps back a record with this text, or None.

    Lone surrogates make the body no valid JSON for a provider on every retry; C0 control
    characters other than tab, newline and return are refused or dropped without a word.
    """
    if _CONTROL.search(text) is not None:
        return CONTROL_CHARACTER
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        # Decoding with ``surrogateescape`` leaves U+DC80 to U+DCFF for bytes that are no UTF-8.
        point = ord(text[error.start])
        return INVALID_UTF8 if 0xDC80 <= point <= 0xDCFF else LONE_SURROGATE
    return None


def native_rule(body: bytes, model: str | None) -> tuple[str | None, Any]:
    """(rule or None, parsed body) of a body that a record brings itself.

    Args:
        body: the JSON text.
        model: what the body's ``model`` must say; None where bodies carry no model.
    """
    parsed, rule = parse_strict(body)
    if rule is not None:
        return rule, None
    if not isinstance(parsed, dict):
        return NATIVE_BODY, None
    if model is not None and parsed.get("model") != model:
        return NATIVE_MODEL, None
    if parsed.get("stream"):
        return NATIVE_STREAM, None
    return value_rule(parsed), parsed


def parse_strict(data: bytes) -> tuple[Any, str | None]:
    """(value, rule): JSON without NaN and without repeated keys; surrogates get their own rule."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None, _why_not(data)
    if key_marks(data) != _keys(value) and _repeats(data):
        return None, NATIVE_BODY
    return value, None


def key_marks(data: bytes) -> int:
    """At least as many as a JSON text has keys, repeated ones counted each time.

    Fast parsers keep the last of repeated keys without a word; where this equals the number of
    keys they kept, none was repeated. Text that looks like a key only makes it larger.
    """
    return len(_KEY_MARK.findall(data))


def _keys(value: Any) -> int:
    return len(value) if isinstance(value, dict) else 0


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("repeated key")
    return found


def _constant(name: str) -> Any:
    raise ValueError(name)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def loads_slowly(data: bytes) -> Any:
    """Strict JSON through the standard library, which lets lone surrogates pass.

    Raises:
        ValueError: no UTF-8, no JSON, NaN, a number that is too large, or a repeated key.
        RecursionError: nested too deeply.
    """
    return json.loads(
        data.decode("utf-8"),
        object_pairs_hook=_pairs,
        parse_constant=_constant,
        parse_float=_float,
    )


def _repeats(data: bytes) -> bool:
    try:
        loads_slowly(data)
    except (ValueError, RecursionError):
        return True
    return False


def _why_not(data: bytes) -> str:
    try:
        value = loads_slowly(data)
    except UnicodeDecodeError:
        return INVALID_UTF8
    except (ValueError, RecursionError):
        return NATIVE_BODY
    return value_rule(value) or NATIVE_BODY


def value_rule(value: Any) -> str | None:
    """The rule that a text anywhere in a JSON value breaks, or None."""
    # A stack, not recursion: JSON may nest deeper than Python's own limit.
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            rule = text_rule(item)
            if rule is not None:
                return rule
        elif isinstance(item, dict):
            stack += item.keys()
            stack += item.values()
        elif isinstance(item, list):
            stack += item
    return None
