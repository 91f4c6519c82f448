"""Strict JSON over raw bytes: what orjson and msgspec let through, refused by name.

The quick parsers accept repeated keys, and they fail alike for a lone surrogate and for garbage. So
a line is parsed by orjson, one cheap count proves that no key was repeated, and only what is odd
takes the slow parser, which says why. Both give the same verdict on every input (a test compares
them).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from llm_batch_assets.wire.scan import found_at, items_of

LINE_DEPTH = 254
"""Deepest nesting of one result line: the limit of orjson's writer, which proves the keys."""

ANSWER_DEPTH = 254
"""Deepest nesting of one accepted answer: the same limit, proven by the same writer."""

INT_DIGITS = 4300
"""Longest integer of an accepted answer: what Python itself reads back by default."""


class Fault(ValueError):
    """JSON that is refused. ``reason`` is one of the words that evidence uses."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Huge:
    """Stands for a number of a line that is too large to read; no field accepts it."""

    def __str__(self) -> str:
        return "huge"


HUGE = Huge()


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Fault("duplicate_key")
    return found


def _constant(_: str) -> Any:
    raise Fault("invalid_json")


def _line_int(digits: str) -> Any:
    return HUGE if len(digits) > INT_DIGITS else int(digits)


def _line_float(text: str) -> Any:
    value = float(text)
    return value if math.isfinite(value) else HUGE


def _answer_int(digits: str) -> int:
    if len(digits.lstrip("-")) > INT_DIGITS:
        raise Fault("integer_too_long")
    return int(digits)


def _answer_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Fault("number_out_of_range")
    return value


_LINE = json.JSONDecoder(
    object_pairs_hook=_pairs,
    parse_constant=_constant,
    parse_int=_line_int,
    parse_float=_line_float,
)
_LOOSE = json.JSONDecoder(parse_int=_line_int)
_ANSWER = json.JSONDecoder(
    object_pairs_hook=_pairs,
    parse_constant=_constant,
    parse_int=_answer_int,
    parse_float=_answer_float,
)


_DECODE = msgspec.json.Decoder().decode
_DUMP = orjson.dumps


def too_deep(value: Any, limit: int) -> bool:
    """Whether containers nest deeper than ``limit``; without recursion."""
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for item in level
            if isinstance(item, (dict, list))
            for inner in (item.values() if isinstance(item, dict) else item)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def _slow(decoder: json.JSONDecoder, text: str, depth: int) -> Any:
    try:
        value = decoder.decode(text)
    except Fault:
        raise
    except RecursionError:
        raise Fault("too_deep") from None
    except ValueError:
        raise Fault("unparseable") from None
    if too_deep(value, depth):
        raise Fault("too_deep")
    return value


def line_slowly(line: bytes) -> Any:
    """Parse one line the slow way: every refusal has its reason.

    Raises:
        Fault: not_utf8, unparseable, invalid_json (NaN, Infinity), duplicate_key, too_deep.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise Fault("not_utf8") from None
    # JSON allows four white-space characters; Python's decoder skips just these.
    return _slow(_LINE, text, LINE_DEPTH)


def line(raw: bytes) -> Any:
    """Parse one line of a result file.

    Raises:
        Fault: as ``line_slowly``.
    """
    try:
        value = orjson.loads(raw)
        again = orjson.dumps(value)
    except (ValueError, TypeError):
        return line_slowly(raw)
    # Colons of the source minus colons of what was kept: 0 unless a key was dropped, or a colon was
    # written as an escape, and only those escapes could hide a dropped key.
    if raw.count(b":") != again.count(b":") or b"\\u003" in raw:
        return line_slowly(raw)
    return value


def loosely(data: bytes) -> Any:
    """Parse an object that carries rows, to look into it: one odd row must not hide the others.

    What is accepted of a row is cut from its own bytes and parsed strictly.

    Raises:
        ValueError: no UTF-8 or no JSON.
        RecursionError: nested too deeply.
    """
    return _LOOSE.decode(data.decode("utf-8-sig"))


def answer_slowly(text: str) -> Any:
    """Parse an answer the slow way.

    Raises:
        Fault: unparseable, invalid_json, duplicate_key, too_deep, integer_too_long,
            number_out_of_range, lone_surrogate.
    """
    value = _slow(_ANSWER, text, ANSWER_DEPTH)
    if "\\u" in text or not text.isascii():
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise Fault("lone_surrogate") from None
    return value


def answer(text: str) -> Any:
    """Parse an answer: integers of any allowed size stay exact.

    Raises:
        Fault: as ``answer_slowly``.
    """
    value = quick_answer(text)
    return answer_slowly(text) if value is None else value


def quick_answer(text: str) -> Any:
    """The value of an answer that is proven strict at once; None when nothing is proven."""
    try:
        value = _DECODE(text)
        colons = text.count(":")
        if type(value) is dict and len(value) == colons:
            # As many keys as colons: no key was dropped, and only lists can nest.
            if "[" not in text:
                return value
        elif _DUMP(value).count(b":") == colons and "\\u003" not in text:
            return value
    except (ValueError, TypeError, RecursionError):
        pass
    return None


def raw_at(line_bytes: bytes, *path: str | int) -> bytes | None:
    """The exact bytes of the value at ``path``, or None where there is no such value."""
    piece: bytes = line_bytes
    try:
        for step in path:
            if isinstance(step, str):
                inner: Any = msgspec.json.decode(piece, type=dict[str, msgspec.Raw]).get(step)
            else:
                items = msgspec.json.decode(piece, type=list[msgspec.Raw])
                inner = items[step] if 0 <= step < len(items) else None
            if inner is None:
                return None
            piece = bytes(inner)
    except (ValueError, RecursionError):
        return found_at(line_bytes, *path)
    return piece


def raw_items(data: bytes) -> list[bytes]:
    """The exact bytes of a list's items.

    Raises:
        ValueError: for what is no list.
    """
    try:
        return [bytes(item) for item in msgspec.json.decode(data, type=list[msgspec.Raw])]
    except (ValueError, RecursionError):
        return items_of(data)


def text_of(value: Any) -> str | None:
    """A non-empty string of Unicode text, else None.

    An empty string is an absent value (field report B31); a lone surrogate cannot be written.
    """
    return value if isinstance(value, str) and value and writable(value) else None


def int64_of(value: Any) -> int | None:
    """An integer that a column can hold; a bool is none, decimal text is (Gemini's counters)."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdigit():
        value = int(value)
    if type(value) is int and 0 <= value < 2**63:
        return value
    return None


def map_of(value: Any) -> Mapping[str, Any]:
    """The mapping, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def writable(text: str) -> bool:
    """Whether a string is Unicode text: a lone surrogate cannot be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
