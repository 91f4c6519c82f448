"""The two partition spaces of a workload, and ranges within Dagster's own order of keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import dagster as dg

from llm_batch_assets.errors import InputError
from llm_batch_assets.workload import check_dataset_key

MAX_RANGE_KEYS = 20
MAX_RANGE_BYTES = 2_000_000_000
"""In a failed range run every key without an event of that run shows Failed: keep them short."""

NO_PARTITION_EDGE = dg.SpecificPartitionsPartitionMapping([])
"""An edge between the two spaces that claims nothing about partitions: the ledger knows.

A PartitionMapping of our own would be dropped before it reaches UI and daemon, and read there as
identity (dagster-io/dagster#28790).
"""


def dataset_partitions(
    workload: str, given: dg.PartitionsDefinition | None
) -> dg.PartitionsDefinition:
    """The team's dataset partitions, or dynamic ones named after the workload.

    Raises:
        InputError: when its keys cannot be dataset keys; the reason is named.
    """
    if given is None:
        return dg.DynamicPartitionsDefinition(name=f"{workload}__dataset")
    if isinstance(given, dg.MultiPartitionsDefinition):
        raise InputError(
            f"{workload}: partitions_def is a MultiPartitionsDefinition, whose keys hold '|'. "
            "Use one dimension: dynamic, static or time partitions."
        )
    for key in _sample_keys(given):
        try:
            check_dataset_key(key)
        except InputError as error:
            raise InputError(f"{workload}: partitions_def cannot be used. {error}") from None
    return given


def _sample_keys(given: dg.PartitionsDefinition) -> Sequence[str]:
    if isinstance(given, dg.DynamicPartitionsDefinition):
        return ()  # not known yet: `manifest` checks each key before anything is written
    if isinstance(given, dg.TimeWindowPartitionsDefinition):
        # Every key has the same format, and there may be none before the first window ends.
        return (given.start.strftime(given.fmt),)
    return given.get_partition_keys()


def shard_partitions(workload: str, deployment: str) -> dg.DynamicPartitionsDefinition:
    """The flat space of shards; two deployments on one Dagster instance never share it."""
    return dg.DynamicPartitionsDefinition(name=f"{workload}__{deployment}__shards")


_SHARD_KEY = re.compile(
    r"(?P<dataset>[0-9A-Za-z][0-9A-Za-z:._-]{0,99})/r(?P<revision>[1-9]\d*)"
    r"/a(?P<attempt>[1-9]\d*)/p(?P<ordinal>\d{5})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ShardKey:
    """A shard partition key, taken apart."""

    dataset: str
    revision: int
    attempt: int
    ordinal: int


def parse_shard_key(key: str) -> ShardKey | None:
    """The parts of ``<dataset>/r1/a1/p00000``, or None. Dagster itself accepts any text."""
    match = _SHARD_KEY.fullmatch(key)
    if match is None or ".." in key:
        return None
    return ShardKey(
        match["dataset"], int(match["revision"]), int(match["attempt"]), int(match["ordinal"])
    )


def contiguous(
    wanted: Iterable[str],
    order: Sequence[str],
    *,
    at_most: int = MAX_RANGE_KEYS,
    sizes: dict[str, int] | None = None,
    max_bytes: int = MAX_RANGE_BYTES,
) -> list[list[str]]:
    """Cut ``wanted`` into runs of neighbours in Dagster's own order of keys.

    A range tag covers every key between its ends in *insertion* order, other datasets' keys that
    were added in between included, so neighbours by name are not enough.

    Args:
        wanted: keys to cover; those absent from ``order`` are left out.
        order: all keys as ``instance.get_dynamic_partitions`` gives them.
        at_most: keys of one range.
        sizes: bytes per key, where known.
        max_bytes: bytes of one range; one key alone may be larger.
    """
    chosen = set(wanted)
    groups: list[list[str]] = []
    room, previous_wanted, total = 0, False, 0
    for key in order:
        if key not in chosen:
            previous_wanted = False
            continue
        size = (sizes or {}).get(key, 0)
        if previous_wanted and room > 0 and total + size <= max_bytes:
            groups[-1].append(key)
            room, total = room - 1, total + size
        else:
            groups.append([key])
            room, total = at_most - 1, size
        previous_wanted = True
    return groups


def covered(order: Sequence[str], start: str, end: str) -> list[str]:
    """The keys that a range tag from ``start`` to ``end`` covers; none when an end is unknown."""
    positions = {key: index for index, key in enumerate(order)}
    if start not in positions or end not in positions:
        return []
    return list(order[positions[start] : positions[end] + 1])
