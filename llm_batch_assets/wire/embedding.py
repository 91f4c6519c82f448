"""Embedding vectors: put in index order, with the provider's own digits."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from llm_batch_assets.wire.strict import raw_at


def ordered_vectors(data: Any, raw: bytes, path: tuple[str | int, ...]) -> str | None:
    """A JSON array of the vectors in ``index`` order, cut from the line's own bytes.

    None where an item has no vector, or the indexes are not exactly 0..n-1.
    """
    if type(data) is not list or not data:
        return None
    place: list[int] = [-1] * len(data)
    for position, item in enumerate(data):
        index = item.get("index") if type(item) is dict else None
        if type(index) is not int or not 0 <= index < len(data) or place[index] >= 0:
            return None
        place[index] = position
    whole = raw_at(raw, *path)
    if whole is None:
        return None
    try:
        items = msgspec.json.decode(whole, type=list[dict[str, msgspec.Raw]])
        return "[" + ",".join(bytes(items[at]["embedding"]).decode() for at in place) + "]"
    except (ValueError, KeyError):
        return None


def vector_fault(
    vectors: Any, *, count: int | None = None, dimensions: int | None = None
) -> str | None:
    """Why vectors are no acceptable answer, or None: count, dimension, finite numbers."""
    if type(vectors) is not list or not vectors:
        return "empty_answer"
    if count is not None and len(vectors) != count:
        return "vector_count"
    size = dimensions
    for vector in vectors:
        values = _values(vector)
        if values is None:
            return "vector_value"
        if len(values) == 0 or (size is not None and len(values) != size):
            return "vector_dimension"
        size = len(values)
    return None


def _values(vector: Any) -> Sequence[float] | None:
    """The numbers of one vector (a list, or base64 of little-endian float32), if all are finite."""
    if type(vector) is list:
        for value in vector:
            kind = type(value)
            if kind is not float and kind is not int:
                return None
            if kind is float and not math.isfinite(value):
                return None
        return vector
    if type(vector) is str:
        try:
            packed = base64.b64decode(vector, validate=True)
        except ValueError:
            return None
        if len(packed) % 4:
            return None
        numbers = np.frombuffer(packed, dtype="<f4")
        return numbers if bool(np.isfinite(numbers).all()) else None  # type: ignore[return-value]
    return None
