"""Durations and sizes as people write them: ``5m``, ``1h30m``, ``72h``; ``190MB``, ``64KiB``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")
_PIECE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_BYTES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_duration(value: Any) -> timedelta:
    """``5m``, ``1h30m``, ``2d`` as a duration; a ``timedelta`` as it is.

    Raises:
        ValueError: for anything else; a bare number has no unit.
    """
    if isinstance(value, timedelta):
        found = value
    elif isinstance(value, str) and _DURATION.fullmatch(value.strip()):
        pieces = _PIECE.findall(value)
        found = timedelta(seconds=sum(float(n) * _SECONDS[unit] for n, unit in pieces))
    else:
        raise ValueError("write a duration with its unit, such as 30s, 5m, 6h or 3d")
    if found <= timedelta(0):
        raise ValueError("write a duration longer than zero, such as 30s, 5m, 6h or 3d")
    return found


def format_duration(value: timedelta) -> str:
    """The shortest spelling that ``parse_duration`` reads back."""
    seconds = value.total_seconds()
    for unit in ("h", "m"):
        if seconds % _SECONDS[unit] == 0:
            return f"{int(seconds // _SECONDS[unit])}{unit}"
    return f"{seconds:g}s"


def parse_size(value: Any) -> int:
    """``190MB`` (10^6) or ``64KiB`` (2^10) in bytes; an integer is bytes.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        found = value
    else:
        match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or match[2].lower() not in _BYTES:
            raise ValueError("write a size with its unit, such as 500KB, 190MB or 1GB")
        found = int(float(match[1]) * _BYTES[match[2].lower()])
    if found <= 0:
        raise ValueError("write a size above zero, such as 500KB, 190MB or 1GB")
    return found


Duration = Annotated[
    timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)
]
Size = Annotated[int, BeforeValidator(parse_size)]
