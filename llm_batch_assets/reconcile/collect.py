"""Read result files row by row into columns: parse, join by exact id, class, judge."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Any

import orjson

from llm_batch_assets.errors import InputError
from llm_batch_assets.reconcile.lines import blocks, unreadable_file
from llm_batch_assets.reconcile.model import Anomaly, AnomalyKind, Answer, Expected, RawFile, Rules
from llm_batch_assets.reconcile.quality import QUALITY, Judge
from llm_batch_assets.wire.classes import ACCEPTED, Rule
from llm_batch_assets.wire.readers import Wire
from llm_batch_assets.wire.shapes import Asked, Row
from llm_batch_assets.wire.strict import Fault, line_slowly


class Collector:
    """What was read so far.

    Rows are numbered in reading order, lines too, over all files; ``row_of`` joins an expected id
    to its first row. ``joined`` has one entry per row: (line, place of the id, rule, row).
    """

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
        self._row_of: dict[int, int] = {}
        self.joined: list[tuple[int, int, Rule, Row]] = []
        self.reasons: dict[int, str] = {}
        self.starts, self.lengths = array("q"), array("q")
        self.files: list[RawFile] = []
        self.first_lines: list[int] = []
        self.conflicts: set[int] = set()
        self.identical: set[int] = set()
        self.anomalies: list[Anomaly] = []
        self.rows_seen = 0
        self._asked = Asked(rules.answer, rules.endpoint, rules.schema is not None)
        self._judge = Judge(rules)
        self._values: list[tuple[int, int, Any]] = []

    def read(self, raw: RawFile) -> None:
        """Read one file. Total and linear: any bytes give rows and anomalies."""
        self.files.append(raw)
        first = len(self.starts)
        self.first_lines.append(first)
        if unreadable_file(raw.data):
            self._note(raw, 0, 0, len(raw.data), "unreadable", "not_utf8", None)
            return
        loads, dumps, slowly = orjson.loads, orjson.dumps, line_slowly
        row_id, read, quick = self.wire.row_id, self.wire.read, self.wire.quick or _never
        pop, asked, join = self._waiting.pop, self._asked, self.joined.append
        judge, fits = self._judge.judge, self._judge.model
        keep, longest = self.rules.gate is not None, self.rules.max_line_bytes
        at_line = first - 1
        seen = 0
        for block in blocks(raw):
            self.starts.frombytes(block.starts.tobytes())
            self.lengths.frombytes(block.lengths.tobytes())
            for line, colons in zip(block.lines, block.colons, strict=True):
                at_line += 1
                try:
                    parsed = loads(line)
                    # See ``strict.line``: equal colons prove that no key was repeated.
                    if dumps(parsed).count(b":") != colons:
                        parsed = slowly(line)
                except (ValueError, TypeError):
                    if not line.strip(b" \t\r"):
                        continue
                    try:
                        parsed = slowly(line)
                    except Fault as fault:
                        self._reject(at_line, fault.reason)
                        continue
                if type(parsed) is not dict:
                    self._reject(at_line, "not_object")
                    continue
                wire_id = row_id(parsed)
                if type(wire_id) is not str or not wire_id:
                    self._reject(at_line, "no_id")
                    continue
                if len(line) > longest:
                    self._reject(at_line, "line_too_long")
                    continue
                seen += 1
                place = pop(wire_id, -1)
                if place < 0:
                    self._again(wire_id, at_line, line)
                    continue
                row = quick(parsed, asked) or read(parsed, line, asked)
                rule = row[0]
                if rule is ACCEPTED:
                    fault_rule, value = judge(wire_id, row.answer or "", row.embedding)
                    if fault_rule is not None:
                        rule = fault_rule
                    elif not fits(row.served_model):
                        rule = QUALITY["served_model"]
                    elif keep:
                        self._values.append((place, len(self.joined), value))
                join((at_line, place, rule, row))
        self.rows_seen += seen

    def gate(self) -> None:
        """Let the workload's gate judge what passed so far, in the order of the expected ids."""
        waiting = sorted(
            (one for one in self._values if one[0] not in self.conflicts), key=lambda one: one[0]
        )
        ids, names = self.expected.wire_ids, self.expected.record_ids
        for first in range(0, len(waiting), self.rules.gate_batch):
            some = waiting[first : first + self.rules.gate_batch]
            answers = [
                Answer(
                    ids[place],
                    ids[place] if names is None else str(names[place]),
                    self.joined[row][3].answer or "",
                    value,
                )
                for place, row, value in some
            ]
            for (place, row, _), reason in zip(some, self._judge.gate(answers), strict=True):
                if reason is not None:
                    line, _, _, seen = self.joined[row]
                    self.joined[row] = (line, place, QUALITY["gate"], seen)
                    self.reasons[place] = f"gate: {reason}"[:200]
        self._values.clear()

    def _again(self, wire_id: str, at_line: int, line: bytes) -> None:
        """An id that is not waiting for its row: a repeat, or none of ours.

        Identical bytes collapse, anything else is a conflict; a foreign id is an anomaly.
        """
        if self._index is None:
            self._index = dict(zip(self.expected.wire_ids, range(self.count), strict=True))
        place = self._index.get(wire_id)
        if place is None:
            tag, dash, name = wire_id.partition("-")
            own = self.expected.tag
            ours = own is not None and dash and tag != own and f"{own}-{name}" in self._index
            self._mark(at_line, "unknown", "other_shard" if ours else "unknown_id", wire_id)
            return
        first = self._first_line(place)
        origin = self._file_of(first)
        began = self.starts[first]
        if bytes(origin.data[began : began + self.lengths[first]]) == line:
            self.identical.add(place)
            self._mark(at_line, "duplicate_identical", "same_bytes", wire_id)
            return
        if place not in self.conflicts:
            self.conflicts.add(place)
            self._mark(first, "duplicate", "conflicting_rows", wire_id)
        self._mark(at_line, "duplicate", "conflicting_rows", wire_id)

    def _first_line(self, place: int) -> int:
        known = self._row_of
        for at in range(len(known), len(self.joined)):
            known[self.joined[at][1]] = self.joined[at][0]
        return known[place]

    def _file_of(self, at_line: int) -> RawFile:
        return self.files[bisect_right(self.first_lines, at_line) - 1]

    def _reject(self, at_line: int, reason: str) -> None:
        self._mark(at_line, "unreadable", reason, None)

    def _mark(self, at_line: int, kind: AnomalyKind, reason: str, wire_id: str | None) -> None:
        file_number = bisect_right(self.first_lines, at_line) - 1
        self._note(
            self.files[file_number],
            at_line - self.first_lines[file_number] + 1,
            self.starts[at_line],
            self.lengths[at_line],
            kind,
            reason,
            wire_id,
        )

    def _note(
        self,
        raw: RawFile,
        number: int,
        start: int,
        length: int,
        kind: AnomalyKind,
        reason: str,
        wire_id: str | None,
    ) -> None:
        if wire_id is not None:
            wire_id = wire_id.encode("utf-8", "backslashreplace").decode("utf-8")
        self.anomalies.append(
            Anomaly(raw.digest, raw.name, number, start, length, kind, reason, wire_id)
        )


def _never(parsed: Any, asked: Asked) -> None:
    """For providers without a fast lane."""
