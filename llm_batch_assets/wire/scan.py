"""Finding a value's bytes in JSON that msgspec refuses as a whole.

A lone surrogate or a NaN anywhere makes msgspec refuse the whole text, also the values beside it
(field report B73: one bad character must not take the rest with it). This scanner only finds where
values begin and end; whoever gets the bytes still parses them strictly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_SPACE = re.compile(rb"[ \t\r\n]*+")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_MARK = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_SCALAR = re.compile(rb"[^ \t\r\n,\]}:]++")


def found_at(data: bytes, *path: str | int) -> bytes | None:
    """The exact bytes of the value at ``path``, or None; of repeated keys the last counts."""
    try:
        for step in path:
            piece = None
            for name, value in _children(data):
                if name == step and type(name) is type(step):
                    piece = value
            if piece is None:
                return None
            data = piece
    except ValueError:
        return None
    return data


def items_of(data: bytes) -> list[bytes]:
    """The exact bytes of a list's items.

    Raises:
        ValueError: for what is no list.
    """
    if data[_space(data, 0) :][:1] != b"[":
        raise ValueError("no list")
    return [value for _, value in _children(data)]


def _children(data: bytes) -> Iterator[tuple[str | int, bytes]]:
    at = _space(data, 0)
    kind = data[at : at + 1]
    if kind not in (b"{", b"["):
        return
    count = 0
    at = _space(data, at + 1)
    while data[at : at + 1] not in (b"}", b"]"):
        name: str | int = count
        if kind == b"{":
            if data[at : at + 1] != b'"':
                raise ValueError("no key")
            end = _end(data, at)
            name = json.loads(data[at:end].decode("utf-8", "surrogatepass"))
            at = _space(data, _space(data, end) + 1)
        end = _end(data, at)
        yield name, data[at:end]
        count += 1
        at = _space(data, end)
        if data[at : at + 1] == b",":
            at = _space(data, at + 1)


def _end(data: bytes, at: int) -> int:
    first = data[at : at + 1]
    if first not in (b"{", b"["):
        found = (_STRING if first == b'"' else _SCALAR).match(data, at)
        if found is None:
            raise ValueError("no value")
        return found.end()
    depth = 0
    for mark in _MARK.finditer(data, at):
        if mark.group() in (b"{", b"["):
            depth += 1
        elif mark.group() in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return mark.end()
    raise ValueError("cut")


def _space(data: bytes, at: int) -> int:
    found = _SPACE.match(data, at)
    return at if found is None else found.end()
