"""From due work to runs: which to ask for, as data. Pure: no Dagster instance, no ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from llm_batch_assets.controller import Work
from llm_batch_assets.defs import keys
from llm_batch_assets.defs.partitions import contiguous, covered

RUN_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "submit": (keys.PROVIDER_JOB,),
    "collect": (keys.RAW_RESULTS,),
    "account": (keys.RECONCILED, keys.RETRY_SHARDS),
    "publish": (keys.ACCEPTED, keys.HUMAN_REVIEW),
}
"""Kind of work -> the assets whose run does it. The other kinds are done by the poll sensor."""

SHARD_KINDS: Final = frozenset({"submit", "collect"})
MAX_ASKS: Final = 40
"""Runs of one tick: creating one takes the daemon about 0.3 s."""

FIRST_WAIT: Final = 5_000_000
MAX_WAIT: Final = 600_000_000
ALERT_AFTER: Final = 5

Need = tuple[str, str, str]
"""(kind, workload, partition): what one key of one run is about."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """How often a work item was asked for as a run, and when last (microseconds)."""

    number: int = 0
    asked_at: int = 0

    def ready_at(self) -> int:
        """When it may be asked again: a run that moved nothing is not repeated at once."""
        if self.number == 0:
            return 0
        return self.asked_at + min(FIRST_WAIT << min(self.number - 1, 10), MAX_WAIT)


@dataclass(frozen=True, slots=True)
class Ask:
    """One run to ask for: neighbouring shards of one workload, or one dataset."""

    kind: str
    workload: str
    work: tuple[Work, ...]
    number: int

    @property
    def steps(self) -> tuple[str, ...]:
        """The assets that the run selects."""
        return RUN_KINDS[self.kind]

    @property
    def partitions(self) -> list[str]:
        """The keys that the run covers, in Dagster's order."""
        return [partition_of(item) for item in self.work]

    @property
    def run_key(self) -> str:
        """Work id and dispatch number, so that a repeat on purpose is not taken for the same."""
        name = self.work[0].work_id
        if len(self.work) > 1:
            name += f"..{self.work[-1].work_id}"
        return f"{name}#{self.number}"

    def tags(self, deployment: str) -> dict[str, str]:
        """What a person, and the next tick, reads on the run."""
        first = self.work[0]
        tags = {
            keys.DEPLOYMENT_TAG: deployment,
            keys.WORKLOAD_TAG: self.workload,
            keys.KIND_TAG: self.kind,
        }
        if first.attempt is not None and len({item.attempt for item in self.work}) == 1:
            tags[keys.ATTEMPT_TAG] = str(first.attempt)
        if first.job_key is not None and len({item.job_key for item in self.work}) == 1:
            tags[keys.JOB_KEY_TAG] = first.job_key
        if len(self.work) == 1:
            tags[keys.WORK_TAG] = first.work_id
            if first.shard_key is not None:
                tags[keys.SHARD_TAG] = first.shard_key
        elif self.kind in SHARD_KINDS:
            tags[keys.RANGE_START_TAG] = self.partitions[0]
            tags[keys.RANGE_END_TAG] = self.partitions[-1]
        return tags


def partition_of(work: Work) -> str:
    """The partition key that the work's run has."""
    return work.shard_key if work.shard_key is not None else work.dataset


def need_of(work: Work) -> Need:
    """What the work is about, comparable with what live runs are about."""
    return work.kind, work.workload, partition_of(work)


def needs_of_run(tags: Mapping[str, str], order: Mapping[str, Sequence[str]]) -> set[Need]:
    """What a run that carries our tags is about: each key of its range."""
    kind, workload = tags.get(keys.KIND_TAG), tags.get(keys.WORKLOAD_TAG)
    if kind is None or workload is None:
        return set()
    start, end = tags.get(keys.RANGE_START_TAG), tags.get(keys.RANGE_END_TAG)
    if start is not None and end is not None:
        found = covered(order.get(workload, ()), start, end)
    else:
        found = [tags[keys.PARTITION_TAG]] if keys.PARTITION_TAG in tags else []
    return {(kind, workload, key) for key in found}


def asks(
    work: Iterable[Work],
    *,
    order: Mapping[str, Sequence[str]],
    live: set[Need],
    dispatched: Mapping[str, Dispatch],
    now: int,
    at_most: int = MAX_ASKS,
) -> list[Ask]:
    """The runs to ask for in one tick.

    Args:
        work: everything due, most urgent first.
        order: workload -> its shard keys in Dagster's order; workloads that are not in it are
            another code location's.
        live: what runs that have not ended are about. It has to be read before the ledger that
            ``work`` comes from: a run that ended in between has moved its work already.
        dispatched: work id -> how often it was asked for.
        now: microseconds UTC.
        at_most: runs of one tick; what is left over is still due at the next.
    """
    ready = [
        item
        for item in work
        if item.kind in RUN_KINDS
        and item.workload in order
        and need_of(item) not in live
        and dispatched.get(item.work_id, Dispatch()).ready_at() <= now
    ]
    groups: dict[tuple[str, str], list[Work]] = defaultdict(list)
    for item in ready:
        groups[item.kind, item.workload].append(item)
    found: list[Ask] = []
    for (kind, workload), items in groups.items():
        by_key = {partition_of(item): item for item in items}
        if kind in SHARD_KINDS:
            sizes = {key: item.bytes for key, item in by_key.items()}
            ranges = contiguous(by_key, order[workload], sizes=sizes)
        else:
            ranges = [[key] for key in by_key]
        for group in ranges:
            members = tuple(by_key[key] for key in group)
            numbers = [dispatched.get(item.work_id, Dispatch()).number for item in members]
            found.append(Ask(kind, workload, members, max(numbers) + 1))
    return found[:at_most]
