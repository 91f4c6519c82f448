"""Read result files row by row into columns: parse, join by exact id, class, judge."""

from __future__ import annotations

from typing import Any

import orjson

from llm_batch_assets.errors import InputError
from llm_batch_assets.reconcile.columns import Columns
from llm_batch_assets.reconcile.lines import blocks, unreadable_file
from llm_batch_assets.reconcile.model import Anomaly, AnomalyKind, Answer, Expected, RawFile, Rules
from llm_batch_assets.reconcile.quality import QUALITY, Judge
from llm_batch_assets.wire.classes import ACCEPTED
from llm_batch_assets.wire.lane import Lane, learn
from llm_batch_assets.wire.readers import Wire
from llm_batch_assets.wire.shapes import Asked
from llm_batch_assets.wire.strict import Fault
from llm_batch_assets.wire.strict import line as strict_line

_FLUSH = 3000
"""So many rows become arrays at once: few enough to stay in the processor's cache."""

_TEMPLATES = 24
"""So many rows may become templates per file: files with more shapes take the general way."""


class Collector:
    """What was read so far: the first row of every id in ``columns``, the rest as anomalies."""

    def __init__(self, expected: Expected, rules: Rules, wire: Wire) -> None:
        """Prepare the join.

        Raises:
            InputError: when an expected id repeats.
        """
        self.expected, self.rules, self.wire = expected, rules, wire
        self.count = len(expected.wire_ids)
        # Ids leave this map with their first row: what is not in it repeats, or is foreign.
        self._waiting = dict(zip(expected.wire_ids, range(self.count), strict=True))
        if len(self._waiting) != self.count:
            raise InputError("An expected id is listed twice.", remedy="Ids must be unique.")
        self._index: dict[str, int] | None = None
        self.columns = Columns()
        self.gated: set[int] = set()
        self.reasons: dict[int, str] = {}
        self.files: list[RawFile] = []
        self.conflicts: set[int] = set()
        self.identical: set[int] = set()
        self.anomalies: list[Anomaly] = []
        self.rows_seen = 0
        self._asked = Asked(rules.answer, rules.endpoint, rules.schema is not None)
        self._judge = Judge(rules)
        self._values: list[tuple[int, str, Any]] = []
        self._lane: Lane | None = None
        self._learned = 0

    def read(self, raw: RawFile) -> None:
        """Read one file. Total and linear: any bytes give rows and anomalies."""
        self.files.append(raw)
        self.columns.start_file()
        self._learned, self._lane = 0, None
        if unreadable_file(raw.data):
            self._mark("unreadable", "not_utf8", 0, 0, len(raw.data))
            return
        number = 1
        for offset, block in blocks(raw):
            number = self._block(block, offset, number)
            if self.columns.waiting > _FLUSH:
                self.columns.flush()

    def _block(self, block: bytes, offset: int, number: int) -> int:
        """Read whole lines; gives the number of the line after them."""
        at, end = 0, len(block)
        find, size = block.find, len(block)
        while at < end:
            if self._lane is not None:
                at, number = self._fast(block, offset, at, number)
                if at >= end:
                    break
            stop = find(b"\n", at)
            stop = size if stop < 0 else stop
            self._line(block[at:stop].rstrip(b"\r"), number, offset + at)
            at = stop + 1
            number += 1
        return number

    def _fast(self, block: bytes, offset: int, at: int, number: int) -> tuple[int, int]:
        """Read lines while they match the lane; gives where it stopped."""
        assert self._lane is not None
        lane = self._lane
        before, after, mark, literal = lane.before, lane.after, lane.mark, lane.literal
        skip, begins = len(literal), block.startswith
        id_at, model_at = lane.names.index("id"), lane.names.index("served_model")
        find, loads, size = block.find, orjson.loads, len(block)
        pop, join = self._waiting.pop, self.columns.quick.append
        judge, fits, keep = self._judge.judge, self._judge.fits, self.rules.gate is not None
        quickly, valid = self._judge.quickly, self._judge.valid
        longest = self._judge.quick_length
        first = number
        while True:
            head = before(block, at)
            if head is None:
                break
            start = head.end()
            line_end = find(b"\n", start)
            end = size if line_end < 0 else line_end
            stop = find(mark, start, end)
            if stop < 0 or not begins(literal, stop):
                break
            tail = after(block, stop + skip)
            if tail is None or tail.end() != end:
                break
            try:
                text = loads(block[start - 1 : stop + 1])
            except ValueError:
                break
            if not text:
                break
            cells = head.groups() + tail.groups()
            wire_id = cells[id_at].decode("ascii")
            place = pop(wire_id, -1)
            if place < 0:
                self._again(wire_id, block[at:end], number, offset + at)
            else:
                value = quickly(text) if quickly and len(text) <= longest else None
                if value is not None and valid(value):
                    rule = ACCEPTED
                else:
                    rule, value = judge(wire_id, text, False)
                if rule is ACCEPTED:
                    if not fits[cells[model_at]]:
                        rule = QUALITY["served_model"]
                    elif keep:
                        self._values.append((place, text, value))
                join((place, rule, number, offset + at, end - at, text) + cells)  # noqa: RUF005
            number += 1
            at = end + 1
            if at >= size:
                break
        self.rows_seen += number - first
        return at, number

    def _line(self, line: bytes, number: int, start: int) -> None:
        """Read one line the general way."""
        if not line.strip(b" \t\r"):
            return
        size = len(line)
        if size > self.rules.max_line_bytes:
            self._mark("unreadable", "line_too_long", number, start, size)
            return
        try:
            parsed = strict_line(line)
        except Fault as fault:
            self._mark("unreadable", fault.reason, number, start, size)
            return
        if type(parsed) is not dict:
            self._mark("unreadable", "not_object", number, start, size)
            return
        wire_id = self.wire.row_id(parsed)
        if type(wire_id) is not str or not wire_id:
            self._mark("unreadable", "no_id", number, start, size)
            return
        self.rows_seen += 1
        place = self._waiting.pop(wire_id, -1)
        if place < 0:
            self._again(wire_id, line, number, start)
            return
        row = self.wire.read(parsed, line, self._asked)
        rule = row.rule
        # Only what was judged succeeds, whatever a reader says.
        if rule is ACCEPTED or rule.cls == "succeeded":
            rule, value = self._judge.judge(wire_id, row.answer or "", row.embedding)
            if rule is ACCEPTED:
                if not self._judge.fits[row.served_model]:
                    rule = QUALITY["served_model"]
                elif self.rules.gate is not None:
                    self._values.append((place, row.answer or "", value))
            if self.wire.shape_of is not None and self._learned < _TEMPLATES:
                self._learn(parsed, line)
        self.columns.general.append((place, rule, number, start, size, row))

    def _learn(self, parsed: dict[str, Any], line: bytes) -> None:
        assert self.wire.shape_of is not None
        shape = self.wire.shape_of(parsed, self._asked)
        if shape is None:
            return
        self._learned += 1
        lane = learn(line, shape, self._lane)
        if lane is not None:
            self._lane = lane
            self.columns.use(lane)

    def gate(self) -> None:
        """Let the workload's gate judge what passed so far, in the order of the expected ids."""
        waiting = sorted(
            (one for one in self._values if one[0] not in self.conflicts), key=lambda one: one[0]
        )
        ids, names = self.expected.wire_ids, self.expected.record_ids
        for first in range(0, len(waiting), self.rules.gate_batch):
            some = waiting[first : first + self.rules.gate_batch]
            answers = [
                Answer(ids[place], ids[place] if names is None else str(names[place]), text, value)
                for place, text, value in some
            ]
            for (place, *_), reason in zip(some, self._judge.gate(answers), strict=True):
                if reason is not None:
                    self.gated.add(place)
                    self.reasons[place] = f"gate: {reason}"[:200]
        self._values.clear()

    def _again(self, wire_id: str, line: bytes, number: int, start: int) -> None:
        """An id that is not waiting for its row: a repeat, or none of ours.

        Identical bytes collapse, anything else is a conflict; a foreign id is an anomaly.
        """
        if self._index is None:
            self._index = dict(zip(self.expected.wire_ids, range(self.count), strict=True))
        place = self._index.get(wire_id)
        here = (number, start, len(line))
        if place is None:
            tag, dash, name = wire_id.partition("-")
            own = self.expected.tag
            ours = own is not None and dash and tag != own and f"{own}-{name}" in self._index
            self._mark("unknown", "other_shard" if ours else "unknown_id", *here, wire_id)
            return
        file_number, first_number, began, length = self.columns.where(place)
        origin = self.files[file_number]
        if bytes(origin.data[began : began + length]) == line:
            self.identical.add(place)
            self._mark("duplicate_identical", "same_bytes", *here, wire_id)
            return
        if place not in self.conflicts:
            self.conflicts.add(place)
            first = (first_number, began, length)
            self._mark("duplicate", "conflicting_rows", *first, wire_id, origin)
        self._mark("duplicate", "conflicting_rows", *here, wire_id)

    def _mark(
        self,
        kind: AnomalyKind,
        reason: str,
        number: int,
        start: int,
        length: int,
        wire_id: str | None = None,
        raw: RawFile | None = None,
    ) -> None:
        raw = raw or self.files[-1]
        if wire_id is not None:
            wire_id = wire_id.encode("utf-8", "backslashreplace").decode("utf-8")
        self.anomalies.append(
            Anomaly(raw.digest, raw.name, number, start, length, kind, reason, wire_id)
        )
