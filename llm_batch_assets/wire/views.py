"""What the four status readers share: times, counts, and the bytes a view rests on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from llm_batch_assets.wire.strict import int64_of, text_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def from_seconds(value: Any) -> datetime | None:
    """A unix time in seconds as an aware UTC instant; None for anything else."""
    if type(value) not in (int, float) or not 0 <= value < 2**36:
        return None
    return _EPOCH + timedelta(seconds=value)


def from_iso(value: Any) -> datetime | None:
    """An RFC 3339 instant (Gemini writes nanoseconds); a time without a zone is UTC."""
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, str) and value:
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
    else:
        return None
    # A naive local time stored as UTC shifts expiries by hours (field report B125).
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def count_of(value: Any) -> int | None:
    """A provider's counter: a number or decimal text (B49), None when it is null (B47)."""
    return int64_of(value)


def bytes_of(raw: Mapping[str, Any]) -> bytes:
    """The view's JSON, for evidence where the reply's own bytes are not at hand."""
    try:
        return orjson.dumps(raw, default=str)
    except TypeError:
        return json.dumps(raw, default=str).encode("utf-8", "backslashreplace")


_LABEL = re.compile(r"(?:(?P<deployment>.+)[^0-9A-Za-z])?(?P<key>[0-9a-f]{64})", re.DOTALL)


def label_of(value: Any) -> tuple[str | None, str | None]:
    """(deployment, submission key) of a name that ends in our key, after any separator."""
    name = text_of(value)
    found = _LABEL.fullmatch(name) if name is not None and len(name) < 1000 else None
    return (found["deployment"], found["key"]) if found else (None, None)
