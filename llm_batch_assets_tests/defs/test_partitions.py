"""Partition spaces: which keys are refused and how ranges are cut."""

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_batch_assets.defs.partitions import (
    ShardKey,
    contiguous,
    covered,
    dataset_partitions,
    parse_shard_key,
    shard_partitions,
)
from llm_batch_assets.errors import InputError


def test_the_default_is_dynamic_and_named_after_the_workload() -> None:
    found = dataset_partitions("summaries", None)
    assert isinstance(found, dg.DynamicPartitionsDefinition)
    assert found.name == "summaries__dataset"
    assert shard_partitions("summaries", "d-1").name == "summaries__d-1__shards"


@pytest.mark.parametrize(
    "given_def",
    [
        dg.DailyPartitionsDefinition("2026-01-01"),
        dg.HourlyPartitionsDefinition("2026-01-01-00:00"),
        dg.StaticPartitionsDefinition(["2026-07-28", "cpython-3.11.7"]),
        dg.DynamicPartitionsDefinition(name="any"),
    ],
)
def test_partitions_with_safe_keys_are_taken_as_they_are(given_def) -> None:
    assert dataset_partitions("w", given_def) is given_def


@pytest.mark.parametrize(
    ("given_def", "reason"),
    [
        (
            dg.MultiPartitionsDefinition(
                {
                    "a": dg.StaticPartitionsDefinition(["1"]),
                    "b": dg.StaticPartitionsDefinition(["2"]),
                }
            ),
            "MultiPartitionsDefinition",
        ),
        (dg.StaticPartitionsDefinition(["fine", "a/b"]), "a/b"),
        (dg.StaticPartitionsDefinition(["-leads"]), "-leads"),
        (dg.DailyPartitionsDefinition("2026/01/01", fmt="%Y/%m/%d"), "2026/01/01"),
    ],
)
def test_others_are_refused_when_defined_with_the_reason(given_def, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        dataset_partitions("w", given_def)


def test_shard_keys_are_taken_apart_and_everything_else_is_none() -> None:
    assert parse_shard_key("2026-07-28/r1/a2/p00017") == ShardKey("2026-07-28", 1, 2, 17)
    for wrong in (
        "",
        "2026-07-28",
        "2026-07-28/r0/a1/p00000",
        "2026-07-28/r1/a1/p1",
        "2026-07-28/r1/a1/p00000\n",
        "../r1/a1/p00000",
        "a..b/r1/a1/p00000",
        "2026-07-28/r1/a1/p\u0660\u0660\u0660\u0660\u0660",
    ):
        assert parse_shard_key(wrong) is None, wrong


def test_neighbours_by_insertion_not_by_name() -> None:
    order = ["d2/1", "d1/1", "d2/2", "d2/3", "d1/2"]
    assert contiguous(["d2/1", "d2/2", "d2/3"], order) == [["d2/1"], ["d2/2", "d2/3"]]
    assert contiguous(["d1/2", "d1/1"], order) == [["d1/1"], ["d1/2"]]
    assert contiguous(["absent"], order) == []
    assert contiguous(order, order, at_most=2) == [order[:2], order[2:4], order[4:]]


def test_a_range_stops_before_it_grows_too_large() -> None:
    order = ["a", "b", "c", "d"]
    sizes = {"a": 6, "b": 4, "c": 4, "d": 30}
    assert contiguous(order, order, sizes=sizes, max_bytes=10) == [["a", "b"], ["c"], ["d"]]


@given(
    order=st.lists(st.integers(0, 60).map(str), unique=True, max_size=40),
    picks=st.sets(st.integers(0, 60).map(str)),
    at_most=st.integers(1, 7),
)
def test_the_ranges_cover_exactly_what_was_wanted(order, picks, at_most) -> None:
    """What Dagster runs for the two ends of a group is the group, and the groups are the wish."""
    groups = contiguous(picks, order, at_most=at_most)
    for group in groups:
        assert 1 <= len(group) <= at_most
        assert covered(order, group[0], group[-1]) == group
    flat = [key for group in groups for key in group]
    assert flat == [key for key in order if key in picks]


def test_a_range_with_an_unknown_end_covers_nothing() -> None:
    assert covered(["a", "b"], "a", "z") == []
    assert covered(["a", "b"], "b", "a") == []
