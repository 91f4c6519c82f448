"""All evidence of a revision's attempts in one order, by record index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.errors import LLMBatchError
from llm_batch_assets.reconcile.disposal import CLASSES, Ints, Mask

_NARROW = pa.dictionary(pa.int32(), pa.string())
EVIDENCE_COLUMNS = pa.schema(
    [
        ("record_id", pa.string()),
        ("cls", _NARROW),
        ("reason", _NARROW),
        ("rule", _NARROW),
        ("unqualified", pa.bool_()),
        ("hold", _NARROW),
        ("charged", pa.bool_()),
        ("file", _NARROW),
        ("line", pa.int64()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("served_model", _NARROW),
    ]
)
"""What settlement reads of an evidence table; texts that repeat are codes while it works."""


@dataclass(frozen=True, slots=True)
class Accounted:
    """A shard whose evidence is written."""

    shard: int
    closure_digest: str
    table: pa.Table = field(repr=False)
    confirmed: bool = False
    foreign: bool = False
    """Some of its rows are no record's."""
    person_cancel: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """A job: its frozen records and those of its shards that are accounted."""

    job_key: str
    manifest_digest: str
    records: pa.Table = field(repr=False)
    shards: tuple[Accounted, ...] = ()


class Book:
    """All evidence rows in order, each with its record's index; and each record's last send."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.attempts = attempts
        records = attempts[0].records
        self.ids = one(records["record_id"])
        self.count = len(self.ids)
        if pc.count_distinct(self.ids).as_py() != self.count:
            raise LLMBatchError("A record id repeats in the manifest.")
        self.shards: list[tuple[int, Accounted]] = []
        self.sent_attempt = np.zeros(self.count, np.int64)
        self.sent_shard = np.full(self.count, -1, np.int64)
        rows: list[Ints] = []
        slots: list[Ints] = []
        for number, attempt in enumerate(attempts):
            index = self._index(attempt, number)
            shard = np.asarray(one(attempt.records["shard"]), np.int64)
            self.sent_attempt[index] = number
            self.sent_shard[index] = shard
            for accounted in sorted(attempt.shards, key=lambda s: s.shard):
                mine = np.flatnonzero(shard == accounted.shard)
                expected = attempt.records["record_id"].take(mine)
                found = accounted.table["record_id"]
                same = len(found) == len(mine) and pc.all(pc.equal(found, expected), min_count=0)
                if not same or not same.as_py():
                    raise LLMBatchError(
                        f"The evidence {accounted.closure_digest} does not cover exactly the "
                        f"records of shard {accounted.shard} of {attempt.job_key}."
                    )
                rows.append(index[mine])
                slots.append(np.full(len(mine), len(self.shards), np.int64))
                self.shards.append((number, accounted))
        self.record = np.concatenate([np.zeros(0, np.int64), *rows])
        self.slot = np.concatenate([np.zeros(0, np.int64), *slots])
        tables = [s.table.select(EVIDENCE_COLUMNS.names) for _, s in self.shards]
        self.evidence = pa.concat_tables(
            [EVIDENCE_COLUMNS.empty_table(), *(t.cast(EVIDENCE_COLUMNS) for t in tables)]
        )
        classes = self.text("cls")
        self.cls = np.asarray(pc.index_in(classes, pa.array(CLASSES)).fill_null(-1), np.int64)
        if (self.cls < 0).any():
            raise LLMBatchError("Evidence holds a class that settlement does not know.")
        everything = np.arange(len(self.record))
        # Later assignments win: the newest row, and (backwards) the first accepted one.
        self.last = np.full(self.count, -1, np.int64)
        self.last[self.record] = everything
        accepted = everything[self.cls == CLASSES.index("succeeded")][::-1]
        self.first = np.full(self.count, -1, np.int64)
        self.first[self.record[accepted]] = accepted

    def _index(self, attempt: Attempt, number: int) -> Ints:
        if number == 0:
            return np.arange(self.count)
        found = pc.index_in(one(attempt.records["record_id"]), self.ids)
        if found.null_count:
            raise LLMBatchError(
                f"{found.null_count} records of {attempt.job_key} are not in attempt 1."
            )
        index = np.asarray(found, np.int64)
        if len(np.unique(index)) != len(index):
            raise LLMBatchError(f"A record id repeats in {attempt.job_key}.")
        return index

    def text(self, column: str, taken: pa.Array | None = None) -> pa.Array:
        """A column of texts, of every row or of some."""
        codes = one(self.evidence[column])
        return (codes if taken is None else codes.take(taken)).cast(pa.string())

    def per_record(self, values: Any, fill: Any) -> Any:
        """A per-row array seen from each record's newest row."""
        if not len(self.record):
            return np.full(self.count, fill)
        return np.where(self.last >= 0, values[np.maximum(self.last, 0)], fill)

    def total(self, flags: Mask) -> Ints:
        """How many of a record's rows have a flag."""
        return np.bincount(self.record[flags], minlength=self.count).astype(np.int64)

    def sent_in(self, shards: frozenset[tuple[int, int]]) -> Mask:
        """Whether a record was last sent in one of these shards."""
        found = np.zeros(self.count, bool)
        for attempt, shard in shards:
            found |= (self.sent_attempt == attempt - 1) & (self.sent_shard == shard)
        return found


def one(column: Any) -> pa.Array:
    """A column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def flags(column: Any) -> Mask:
    """A boolean column; null is false."""
    return np.asarray(one(column).fill_null(False), bool)
