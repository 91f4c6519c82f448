"""Cutting records into shards: pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ShardLimits:
    """What one shard may hold; ``inputs`` None means no limit.

    Attributes:
        records: as many as are wanted.
        minimum: fewest that the provider runs a batch for.
        most: as many as the provider takes; None where ``records`` says it.
        distinct: no two shards of a job hold equally many, because their number is all by which
            an open batch can be told from another.
    """

    records: int
    bytes: int
    inputs: int | None = None
    minimum: int = 1
    most: int | None = None
    distinct: bool = False


def cut(
    sizes: NDArray[np.int64], limits: ShardLimits, inputs: NDArray[np.int64] | None = None
) -> list[tuple[int, int]]:
    """Ranges [start, end) of records, in order, each within the limits.

    Where the last range falls below ``minimum``, all ranges are made about equal instead, or,
    where that is not enough, one fewer: the provider's minimum wins over a wish for small shards,
    up to ``most`` records.

    Args:
        sizes: bytes of each request line; none may exceed ``limits.bytes`` by itself.
        limits: of one shard.
        inputs: embedding inputs of each record; None for one each.
    """
    total = len(sizes)
    if limits.distinct:
        return _distinct(sizes, limits, inputs)
    ranges = _greedy(sizes, limits, inputs, limits.records)
    if len(ranges) > 1 and _size(ranges[-1]) < limits.minimum:
        even = _greedy(sizes, limits, inputs, -(-total // len(ranges)))
        if min(map(_size, even)) >= limits.minimum:
            return even
        most = limits.records if limits.most is None else limits.most
        fewer = _greedy(sizes, limits, inputs, min(most, -(-total // (len(ranges) - 1))))
        if min(map(_size, fewer)) >= limits.minimum:
            return fewer
    return ranges


_SPREADS = 16
"""So many beginnings are tried; where bytes alone make shards equal, none of them may help."""


def _distinct(
    sizes: NDArray[np.int64], limits: ShardLimits, inputs: NDArray[np.int64] | None
) -> list[tuple[int, int]]:
    """Every range one record smaller than the one before, and the last one like none of them.

    Begins as evenly as so many ranges allow, so that the last is no crumb. Where this would cost
    another batch the shards stay as full as they may be: the tags in its results prove a batch.
    """
    plain = _greedy(sizes, limits, inputs, limits.records)
    even = -(-len(sizes) // max(1, len(plain))) + len(plain) // 2
    for wanted in range(min(even, limits.records), 0, -1)[:_SPREADS]:
        ranges = _greedy(sizes, limits, inputs, wanted, less=1)
        if len(set(map(_size, ranges))) == len(ranges) == len(plain):
            return ranges
    return plain


def _size(found: tuple[int, int]) -> int:
    return found[1] - found[0]


def _greedy(
    sizes: NDArray[np.int64],
    limits: ShardLimits,
    inputs: NDArray[np.int64] | None,
    records: int,
    less: int = 0,
) -> list[tuple[int, int]]:
    """As much as fits into each range; ``less`` records fewer in every further one."""
    total = len(sizes)
    ends = np.cumsum(sizes, dtype=np.int64)
    counts = None if inputs is None else np.cumsum(inputs, dtype=np.int64)
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
        records = max(1, records - less)
    return found
