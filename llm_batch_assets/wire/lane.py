"""A fast lane learned from the file itself: rows that differ from a proven one only in values.

Nine rows of ten of a file have the same keys in the same order. From one such row, read and proven
the general way, a ``Lane`` makes two patterns with the row's keys and layout as literal bytes. A
line that matches them has exactly the template's keys, so none is repeated and none is new; what
decides how the row is read is pinned to the template's own bytes; every other value is the same
bytes too, or a scalar of the template's kind once a proven line differed in it. The one free text
is cut out between the patterns and parsed by orjson. A line that does not match says nothing: it
takes the general way.
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


Token = tuple[Path | None, str, bytes]
"""(path, kind, bytes with leading space); layout and keys have no path."""

_MARK = 64
"""So much of the literal after the text is searched for; the rest is compared in place."""


class Lane:
    """The patterns of one template.

    Attributes:
        before: matches a line up to and with the text's opening quote.
        literal: the bytes from the text's closing quote on, up to the first value that may differ:
            a text cannot hold its unescaped quote.
        mark: the beginning of ``literal``, short enough to be searched for.
        after: matches from the end of ``literal`` to the line's end.
        names: what the groups of ``before`` and then ``after`` capture, by evidence column; ``id``
            is the wire id.
        stop: the stop reason of every line that matches.
    """

    __slots__ = (
        "_open",
        "_shape",
        "_tokens",
        "after",
        "before",
        "literal",
        "mark",
        "names",
        "stop",
    )

    def __init__(self, shape: Shape, tokens: list[Token], opened: frozenset[int]) -> None:
        """Build the patterns; ``opened`` are the places of scalars that may differ."""
        self._shape, self._tokens, self._open = shape, tokens, opened
        self.stop = shape.stop
        before: list[bytes] = []
        after: list[bytes] = []
        literal: list[bytes] = []
        names: list[str] = []
        piece = before
        for place, (path, kind, source) in enumerate(tokens):
            if path is not None and path == shape.text:
                before.append(re.escape(source[: source.index(b'"') + 1]))
                literal.append(b'"')
                piece = literal
                continue
            fixed = path is None or (path not in shape.fields and place not in opened)
            if piece is literal and not fixed:
                piece = after
            if path is not None and path in shape.fields:
                names.append(shape.fields[path])
            if piece is literal:
                literal.append(source)
            else:
                piece.append(re.escape(source) if fixed else _pattern(path, kind, source, shape))
        self.before = re.compile(b"".join(before)).match
        self.after = re.compile(b"".join(after)).match
        self.literal = b"".join(literal)
        self.mark = self.literal[:_MARK]
        self.names = tuple(names)

    def differing(self, shape: Shape, tokens: list[Token]) -> frozenset[int] | None:
        """The scalars that may differ if this line matches too; None for another layout."""
        if shape is not self._shape or len(tokens) != len(self._tokens):
            return None
        opened = set(self._open)
        for place, (mine, other) in enumerate(zip(self._tokens, tokens, strict=True)):
            if mine[:2] != other[:2]:
                return None
            if mine[2] != other[2] and mine[0] != shape.text:
                if mine[0] is None or mine[0] in shape.pinned:
                    return None
                opened.add(place)
        return frozenset(opened)


def learn(line: bytes, shape: Shape, earlier: Lane | None = None) -> Lane | None:
    """Make a lane from a line that was read and proven; None where the line does not lend itself.

    Values in which it differs from the template of an ``earlier`` lane of the same layout may
    differ from then on; all others stay literal, so a few lines teach what a file repeats.

    Args:
        line: strict JSON without repeated keys, without the newline.
        shape: what to capture and to pin; every path must be in the line.
        earlier: the lane that this line did not match, if there is one.
    """
    tokens = _tokens(line)
    if tokens is None:
        return None
    kinds = {path: kind for path, kind, _ in tokens if path is not None}
    if kinds.get(shape.text) != "string" or not shape.pinned | shape.fields.keys() <= kinds.keys():
        return None
    opened = earlier.differing(shape, tokens) if earlier is not None else None
    return Lane(shape, tokens, frozenset() if opened is None else opened)


def _pattern(path: Path | None, kind: str, source: bytes, shape: Shape) -> bytes:
    space = re.escape(source[: len(source) - len(source.lstrip(b" \t"))])
    if path is not None and path in shape.fields:
        return space + (_SHORT if kind == "string" else _COUNT)
    return space + {"string": _STRING, "number": _NUMBER, "word": _WORD}[kind]


def _tokens(line: bytes) -> list[Token] | None:
    found: list[Token] = []
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
