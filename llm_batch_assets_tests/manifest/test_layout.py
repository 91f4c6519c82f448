"""Cutting: every record in exactly one shard, in order, within every limit."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llm_batch_assets.manifest.layout import ShardLimits, cut


@given(
    sizes=st.lists(st.integers(1, 50), max_size=60),
    records=st.integers(1, 20),
    room=st.integers(50, 300),
    inputs=st.one_of(st.none(), st.integers(5, 30)),
    minimum=st.integers(1, 8),
    data=st.data(),
)
def test_every_limit_holds(
    sizes: list[int],
    records: int,
    room: int,
    inputs: int | None,
    minimum: int,
    data: st.DataObject,
) -> None:
    count = len(sizes)
    each = data.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    limits = ShardLimits(records, room, inputs, minimum)
    ranges = cut(np.array(sizes, dtype=np.int64), limits, np.array(each, dtype=np.int64))
    covered = [n for start, end in ranges for n in range(start, end)]
    assert covered == list(range(count))
    for start, end in ranges:
        assert 0 < end - start <= records
        assert sum(sizes[start:end]) <= room
        assert inputs is None or sum(each[start:end]) <= inputs
    # No two neighbours would fit into one, unless they were evened out for the minimum.
    if minimum == 1:
        for (start, middle), (_, end) in itertools.pairwise(ranges):
            longer = middle + 1
            assert (
                longer - start > records
                or sum(sizes[start:longer]) > room
                or (inputs is not None and sum(each[start:longer]) > inputs)
            )
            assert end > middle


def test_a_last_shard_below_the_minimum_is_evened_out() -> None:
    sizes = np.full(310, 10, dtype=np.int64)
    limits = ShardLimits(records=150, bytes=10_000, minimum=100)
    assert [end - start for start, end in cut(sizes, limits)] == [104, 104, 102]
    # Where that is impossible the limits win.
    tight = ShardLimits(records=150, bytes=10_000, minimum=160)
    assert [end - start for start, end in cut(sizes, tight)] == [150, 150, 10]


def test_the_minimum_wins_over_a_wish_for_small_shards() -> None:
    sizes = np.full(150, 10, dtype=np.int64)
    wish = ShardLimits(records=120, bytes=10_000, minimum=100, most=50_000)
    assert [end - start for start, end in cut(sizes, wish)] == [150]
    # What the provider takes is no wish.
    hard = ShardLimits(records=120, bytes=10_000, minimum=100, most=120)
    assert [end - start for start, end in cut(sizes, hard)] == [120, 30]


def test_one_input_each_where_nothing_else_is_said() -> None:
    sizes = np.full(10, 1, dtype=np.int64)
    assert cut(sizes, ShardLimits(100, 100, inputs=4)) == [(0, 4), (4, 8), (8, 10)]


@given(
    total=st.integers(0, 3000),
    records=st.integers(40, 400),
    size=st.integers(1, 9),
    room=st.integers(400, 4000),
)
def test_shards_that_only_their_number_tells_apart_differ_in_it(
    total: int, records: int, size: int, room: int
) -> None:
    sizes = np.full(total, size, dtype=np.int64)
    limits = ShardLimits(records, room, distinct=True)
    ranges = cut(sizes, limits)
    held = [end - start for start, end in ranges]
    assert sum(held) == total
    assert all(count <= records and count * size <= room for count in held)
    plain = cut(sizes, ShardLimits(records, room))
    assert len(ranges) == len(plain)
    # Where the shards have room for it, all differ.
    most = min(records, room // size)
    if total <= len(plain) * (most - len(plain)):
        assert len(set(held)) == len(held)


def test_distinct_totals_cost_no_further_batch() -> None:
    sizes = np.full(600, 10, dtype=np.int64)
    held = {
        most: [end - start for start, end in cut(sizes, ShardLimits(most, 10_000, distinct=True))]
        for most in (130, 120)
    }
    assert held == {130: [122, 121, 120, 119, 118], 120: [120] * 5}
