"""Whether a loose file is whole, from notes on its download."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def whole_by_note(note: Any, data: bytes) -> bool:
    """What a note (``download.json``) proves; no note proves nothing against the file.

    Keys: ``status``, ``content_type``, ``content_encoding``, ``content_length`` (announced),
    ``file_bytes`` (the file object's size), ``received``.
    """
    if not isinstance(note, Mapping):
        return True
    if note.get("status", 200) != 200:
        return False
    if "html" in str(note.get("content_type") or "").lower():
        return False
    encoding = note.get("content_encoding")
    received = note.get("received")
    size = received if type(received) is int else len(data)
    if size != len(data) and not encoding:
        return False
    announced = None if encoding else note.get("content_length")
    return all(
        type(bound) is not int or bound == size for bound in (announced, note.get("file_bytes"))
    )
