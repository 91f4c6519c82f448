"""Result lines as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson


def dumps(row: Mapping[str, Any]) -> bytes:
    """One line without its newline.

    Half a surrogate pair is written as the escape that only the standard library writes.
    """
    try:
        return orjson.dumps(row)
    except TypeError:
        return json.dumps(row, separators=(",", ":")).encode()
