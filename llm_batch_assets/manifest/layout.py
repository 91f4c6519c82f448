"""Cutting records into shards: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ShardLimits:
    """What one shard may hold; ``inputs`` None means no limit."""

    records: int
    bytes: int
    inputs: int | None = None
    minimum: int = 1


def cut(
    sizes: NDArray[np.int64], limits: ShardLimits, inputs: NDArray[np.int64] | None = None
) -> list[tuple[int, int]]:
    """Ranges [start, end) of records, in order, each within the limits.

    The last range is filled up from the one before it where it would fall below ``minimum``.

    Args:
        sizes: bytes of each request line; none may exceed ``limits.bytes`` by itself.
        limits: of one shard.
        inputs: embedding inputs of each record; None for one each.
    """
    total = len(sizes)
    ends = np.cumsum(sizes, dtype=np.int64)
    counts = None if inputs is None else np.cumsum(inputs, dtype=np.int64)
    records = limits.records
    if limits.inputs is not None and inputs is None:
        records = min(records, limits.inputs)
    found: list[tuple[int, int]] = []
    start = 0
    while start < total:
        before = int(ends[start - 1]) if start else 0
        end = min(start + records, int(np.searchsorted(ends, before + limits.bytes, "right")))
        if counts is not None and limits.inputs is not None:
            used = int(counts[start - 1]) if start else 0
            end = min(end, int(np.searchsorted(counts, used + limits.inputs, "right")))
        end = max(end, start + 1)
        found.append((start, end))
        start = end
    return _top_up(found, sizes, limits)


def _top_up(
    ranges: Sequence[tuple[int, int]], sizes: NDArray[np.int64], limits: ShardLimits
) -> list[tuple[int, int]]:
    found = list(ranges)
    if len(found) < 2:
        return found
    (first, middle), (_, end) = found[-2:]
    lacking = limits.minimum - (end - middle)
    if lacking <= 0 or (middle - lacking) - first < limits.minimum:
        return found
    moved = middle - lacking
    if int(sizes[moved:end].sum()) <= limits.bytes:
        found[-2:] = [(first, moved), (moved, end)]
    return found
