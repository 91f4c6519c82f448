"""Whether a loose file is whole, from notes on its download."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from llm_batch_assets.wire.strict import int64_of


def whole_by_note(note: Any, data: bytes) -> bool:
    """What a note (``download.json``) proves; no note proves nothing against the file.

    Keys: ``status``, ``content_type``, ``content_encoding``, ``content_length`` (announced),
    ``file_bytes`` (the file object's size), ``received``, ``sha256``, ``complete``, ``truncated``,
    ``error``. A key that is null says nothing; sizes may be decimal text.
    """
    if not isinstance(note, Mapping):
        return True
    if note.get("status") is not None and int64_of(note["status"]) != 200:
        return False
    if note.get("complete") is False or note.get("truncated") is True or note.get("error"):
        return False
    digest = note.get("sha256")
    if isinstance(digest, str) and digest.lower() != hashlib.sha256(data).hexdigest():
        return False
    if "html" in str(note.get("content_type") or "").lower():
        return False
    encoding = note.get("content_encoding")
    encoded = encoding is not None and str(encoding).strip().lower() not in ("", "identity")
    received = int64_of(note.get("received"))
    size = len(data) if received is None else received
    if size != len(data) and not encoded:
        return False
    bounds = [int64_of(note.get("file_bytes"))]
    if not encoded:
        bounds.append(int64_of(note.get("content_length")))
    return all(bound is None or bound == size for bound in bounds)
