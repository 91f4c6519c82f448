"""A fast lane learned from the file itself: rows that differ from a proven one only in values.

Nine rows of ten of a file have the same keys in the same order. From one such row, read and proven
the general way, a ``Lane`` makes two patterns with the row's keys and layout as literal bytes. A
line that matches them has exactly the template's keys, so none is repeated and none is new; what
decides how the row is read is pinned to the template's own bytes; every other value is a scalar
of the template's kind. The one free text is cut out between the patterns and parsed by orjson. A
line that does not match says nothing: it takes the general way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Path = tuple[str | int, ...]

_TOKEN = re.compile(
    rb'[ \t]*(?:([{}\[\],:])|"((?:[^"\\]|\\.)*)"|(-?\d[\d.eE+-]*)|(true|false|null))'
)
_STRING = rb'"[ !#-\[\]-~]*+"'
_NUMBER = rb"-?(?:0|[1-9]\d*+)(?:\.\d++)?+(?:[eE][-+]?\d++)?+"
_WORD = rb"(?:true|false|null)"
_SHORT = rb'"([ !#-\[\]-~]{1,199}+)"'
_COUNT = rb"(0|[1-9]\d{0,17}+)"


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape of row, in paths from the line's root.

    Attributes:
        text: the free text.
        stop: the stop reason that the pinned values say.
        fields: evidence column (or ``id``) by path: strings of at most 199 plain characters, or
            counts of at most 18 digits.
        pinned: scalars whose bytes must be the template's own. Together with the keys they must
            determine how the row is read.
    """

    text: Path
    stop: str
    fields: Mapping[Path, str]
    pinned: frozenset[Path]


class Lane:
    """The patterns of one template.

    Attributes:
        before: matches a line up to and with the text's opening quote.
        after: matches from the text's closing quote to the line's end.
        mark: literal bytes from the closing quote on: a text cannot hold its unescaped quote.
        names: what the groups of ``before`` and then ``after`` capture, by evidence column; ``id``
            is the wire id.
        stop: the stop reason of every line that matches.
    """

    __slots__ = ("after", "before", "mark", "names", "stop")

    def __init__(
        self, before: bytes, after: bytes, mark: bytes, names: tuple[str, ...], stop: str
    ) -> None:
        self.before = re.compile(before).match
        self.after = re.compile(after).match
        self.mark, self.names, self.stop = mark, names, stop


def learn(line: bytes, shape: Shape) -> Lane | None:
    """Make a lane from a line that was read and proven; None where the line does not lend itself.

    Args:
        line: strict JSON without repeated keys, without the newline.
        shape: what to capture and to pin; every path must be in the line.
    """
    tokens = _tokens(line)
    if tokens is None:
        return None
    before: list[bytes] = []
    after: list[bytes] = []
    mark, marking = b'"', True
    captured: list[str] = []
    pinned: set[Path] = set()
    piece = before
    for path, kind, source in tokens:
        if path is not None and path == shape.text:
            if kind != "string" or piece is after:
                return None
            lead = source[: source.index(b'"') + 1]
            piece.append(re.escape(lead))
            piece = after
            after.append(b'"')
            continue
        if piece is after and marking:
            marking = len(mark) < 24 and (kind == "layout" or path in shape.pinned)
            mark += source if marking else b""
        if path is not None and path in shape.pinned:
            pinned.add(path)
        elif path is not None and path in shape.fields:
            captured.append(shape.fields[path])
        piece.append(_pattern(path, kind, source, shape))
    if len(captured) != len(shape.fields) or len(pinned) != len(shape.pinned) or piece is before:
        return None
    return Lane(b"".join(before), b"".join(after), mark, tuple(captured), shape.stop)


def _pattern(path: Path | None, kind: str, source: bytes, shape: Shape) -> bytes:
    if kind == "layout" or path in shape.pinned:
        return re.escape(source)
    space = re.escape(source[: len(source) - len(source.lstrip(b" \t"))])
    if path in shape.fields:
        return space + (_SHORT if kind == "string" else _COUNT)
    return space + {"string": _STRING, "number": _NUMBER, "word": _WORD}[kind]


def _tokens(line: bytes) -> list[tuple[Path | None, str, bytes]] | None:
    """(path, kind, bytes with leading space) of every token; layout and keys have no path."""
    found: list[tuple[Path | None, str, bytes]] = []
    stack: list[str | int] = []
    kinds: list[bytes] = []
    wants_key = False
    at = 0
    while at < len(line):
        token = _TOKEN.match(line, at)
        if token is None:
            return None
        at = token.end()
        mark, string, number, _ = token.groups()
        if mark in (b"{", b"["):
            kinds.append(mark)
            stack.append(0)
            wants_key = mark == b"{"
        elif mark in (b"}", b"]"):
            kinds.pop()
            stack.pop()
            wants_key = False
        elif mark == b",":
            wants_key = kinds[-1] == b"{"
            if not wants_key:
                stack[-1] = int(stack[-1]) + 1
        elif mark == b":":
            wants_key = False
        elif string is not None and wants_key:
            if b"\\" in string or not string.isascii():
                return None
            stack[-1] = string.decode("ascii")
        else:
            kind = "string" if string is not None else "number" if number is not None else "word"
            found.append((tuple(stack), kind, token.group()))
            continue
        found.append((None, "layout", token.group()))
    return found
