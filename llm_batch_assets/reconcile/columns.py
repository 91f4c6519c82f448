"""Rows on their way into columns: kept as tuples for one block, then as Arrow arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from llm_batch_assets.wire.classes import ACCEPTED, Rule
from llm_batch_assets.wire.lane import Lane
from llm_batch_assets.wire.shapes import Row

_I64, _TEXT = pa.int64(), pa.string()
TOKENS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
)
ROWS = pa.schema(
    [
        ("place", _I64),
        ("code", pa.int32()),
        ("file", pa.int32()),
        ("line", _I64),
        ("offset", _I64),
        ("length", _I64),
        ("answer", pa.large_string()),
        ("answer_digest", _TEXT),
        ("http_status", pa.int32()),
        ("error_type", _TEXT),
        ("error_code", _TEXT),
        ("stop_reason", _TEXT),
        ("served_model", _TEXT),
        ("provider_request_id", _TEXT),
        *((name, _I64) for name in TOKENS),
    ]
)
"""One joined row: ``place`` of its id, ``code`` of its rule, then what evidence says of it."""

Where = tuple[int, int, int, int]
"""File number, line number, offset and length of a row."""


class Columns:
    """The first row of every id, in reading order.

    Attributes:
        general: (place, rule, line, offset, length, row) of rows that await the next ``flush``.
        quick: (place, rule, line, offset, length, text, *captured) of rows of the fast lane.
        rules: every rule that some row has; a row's ``code`` is its place here.
    """

    def __init__(self) -> None:
        self.general: list[tuple[int, Rule, int, int, int, Row]] = []
        self.quick: list[tuple[Any, ...]] = []
        self.rules: dict[Rule, int] = {ACCEPTED: 0}
        self._batches: list[pa.RecordBatch] = []
        self._file = -1
        self._lane: Lane | None = None
        self._where: dict[int, Where] | None = None
        self._seen = [0, 0]

    @property
    def waiting(self) -> int:
        """Rows that await the next ``flush``."""
        return len(self.general) + len(self.quick)

    def start_file(self) -> None:
        """The rows that follow are of the next file."""
        self.flush()
        self._file += 1

    def use(self, lane: Lane | None) -> None:
        """The quick rows that follow are captured by this lane."""
        self.flush()
        self._lane = lane

    def flush(self) -> None:
        """Turn what waits into arrays."""
        if self._where is not None:
            self._note_waiting(self._where)
        self._seen = [0, 0]
        if self.general:
            self._batches.append(self._general_batch())
            self.general.clear()
        if self.quick:
            self._batches.append(self._quick_batch())
            self.quick.clear()

    def table(self) -> pa.Table:
        """Every row so far."""
        self.flush()
        return pa.Table.from_batches(self._batches, ROWS).combine_chunks()

    def where(self, place: int) -> Where:
        """Where the row of an id is; the id has one."""
        if self._where is None:
            self._where = {}
            for batch in self._batches:
                names = ("place", "file", "line", "offset", "length")
                for at, *rest in zip(*(batch[name].to_pylist() for name in names), strict=True):
                    self._where[at] = (rest[0], rest[1], rest[2], rest[3])
        if place not in self._where:
            self._note_waiting(self._where)
        return self._where[place]

    def _note_waiting(self, where: dict[int, Where]) -> None:
        for number, waiting in enumerate((self.general, self.quick)):
            for row in waiting[self._seen[number] :]:
                where[row[0]] = (self._file, row[2], row[3], row[4])
            self._seen[number] = len(waiting)

    def _codes(self, rules: Iterable[Rule]) -> pa.Array:
        known = self.rules
        codes = [known[rule] if rule in known else self._new(rule) for rule in rules]
        return pa.array(codes, pa.int32())

    def _new(self, rule: Rule) -> int:
        return self.rules.setdefault(rule, len(self.rules))

    def _batch(
        self,
        head: Sequence[Sequence[Any]],
        texts: Sequence[str | None],
        rest: dict[str, pa.Array],
    ) -> pa.RecordBatch:
        places, rules, lines, offsets, lengths = head
        accepted = [
            text if rule is ACCEPTED else None for text, rule in zip(texts, rules, strict=True)
        ]
        sha = hashlib.sha256
        digests = [None if t is None else sha(t.encode()).hexdigest() for t in accepted]
        size = len(places)
        found = {
            "place": pa.array(places, _I64),
            "code": self._codes(rules),
            "file": pa.repeat(pa.scalar(self._file, pa.int32()), size),
            "line": pa.array(lines, _I64),
            "offset": pa.array(offsets, _I64),
            "length": pa.array(lengths, _I64),
            "answer": pa.array(accepted, pa.large_string()),
            "answer_digest": pa.array(digests, _TEXT),
            **rest,
        }
        return pa.RecordBatch.from_arrays(
            [found[f.name] if f.name in found else pa.nulls(size, f.type) for f in ROWS],
            schema=ROWS,
        )

    def _general_batch(self) -> pa.RecordBatch:
        *head, rows = zip(*self.general, strict=True)
        cells = dict(zip(Row._fields, zip(*rows, strict=True), strict=True))
        usage = zip(*cells["usage"], strict=True)
        rest = {
            "http_status": pa.array(
                [s if s is None or abs(s) < 2**31 else None for s in cells["http_status"]],
                pa.int32(),
            ),
            "error_type": pa.array(cells["error_type"], _TEXT),
            "error_code": pa.array(cells["error_code"], _TEXT),
            "stop_reason": pa.array(cells["stop_reason"], _TEXT),
            "served_model": pa.array(cells["served_model"], _TEXT),
            "provider_request_id": pa.array(cells["request_id"], _TEXT),
            **{name: pa.array(values, _I64) for name, values in zip(TOKENS, usage, strict=True)},
        }
        return self._batch(head, cells["answer"], rest)

    def _quick_batch(self) -> pa.RecordBatch:
        assert self._lane is not None
        places, rules, lines, offsets, lengths, texts, *captured = zip(*self.quick, strict=True)
        size = len(places)
        rest = {
            "http_status": pa.repeat(pa.scalar(200, pa.int32()), size),
            "stop_reason": pa.repeat(pa.scalar(self._lane.stop, _TEXT), size),
        }
        for name, values in zip(self._lane.names, captured, strict=True):
            if name == "id":
                continue
            text = pa.array(values, pa.binary()).cast(_TEXT)
            rest[name] = text.cast(_I64) if name in TOKENS else text
        return self._batch((places, rules, lines, offsets, lengths), texts, rest)
