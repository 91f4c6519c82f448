"""Read result files row by row into columns: parse, join by exact id, class, judge."""

from __future__ import annotations

from array import array
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
    """What was read so far. Rows are numbered in reading order; ``row_of`` joins ids to rows."""

    def __init__(self, expected: Expected, rules: Rules, wire: Wire) -> None:
        """Prepare the join.

        Raises:
            InputError: when an expected id repeats.
        """
        self.index = {wire_id: at for at, wire_id in enumerate(expected.wire_ids)}
        if len(self.index) != len(expected.wire_ids):
            raise InputError("An expected id is listed twice.", remedy="Ids must be unique.")
        self.expected, self.rules, self.wire = expected, rules, wire
        self.row_of = array("q", [-1]) * len(self.index)
        self.rows: list[Row] = []
        self.rules_of: list[Rule] = []
        self.reasons: dict[int, str] = {}
        self.place: tuple[array[int], ...] = tuple(array("q") for _ in range(4))
        self.files: list[RawFile] = []
        self.conflicts: set[int] = set()
        self.identical: set[int] = set()
        self.anomalies: list[Anomaly] = []
        self.rows_seen = 0
        self._asked = Asked(rules.answer, rules.endpoint, rules.schema is not None)
        self._judge = Judge(rules)
        self._values: list[tuple[int, Any]] = []

    def read(self, raw: RawFile) -> None:
        """Read one file. Total and linear: any bytes give rows and anomalies."""
        file_number = len(self.files)
        self.files.append(raw)
        if unreadable_file(raw.data):
            self._reject(raw, 0, 0, len(raw.data), "not_utf8")
            return
        loads, dumps = orjson.loads, orjson.dumps
        row_id, read = self.wire.row_id, self.wire.read
        index, row_of, asked = self.index, self.row_of, self._asked
        rows, rules_of, judge = self.rows, self.rules_of, self._judge.judge
        model_fits, values, keep = self._judge.model, self._values, self.rules.gate is not None
        file_at, line_at, start_at, length_at = self.place
        longest = self.rules.max_line_bytes
        for block in blocks(raw):
            number = block.number - 1
            for place, line in enumerate(block.lines):
                number += 1
                try:
                    parsed = loads(line)
                    # See ``strict.line``: equal colons prove that no key was repeated.
                    if dumps(parsed).count(b":") != block.colons[place] or place in block.odd:
                        parsed = line_slowly(line)
                except (ValueError, TypeError):
                    if not line.strip(b" \t\r"):
                        continue
                    try:
                        parsed = line_slowly(line)
                    except Fault as fault:
                        self._reject(raw, number, block.starts[place], len(line), fault.reason)
                        continue
                start = block.starts[place]
                if len(line) > longest:
                    self._reject(raw, number, start, len(line), "line_too_long")
                    continue
                if type(parsed) is not dict:
                    self._reject(raw, number, start, len(line), "not_object")
                    continue
                wire_id = row_id(parsed)
                if type(wire_id) is not str or not wire_id:
                    self._reject(raw, number, start, len(line), "no_id")
                    continue
                self.rows_seen += 1
                at = index.get(wire_id)
                if at is None:
                    self._unknown(raw, number, start, len(line), wire_id)
                    continue
                if row_of[at] >= 0:
                    self._again(at, raw, number, start, line, wire_id)
                    continue
                row = read(parsed, line, asked)
                rule = row.rule
                if rule is ACCEPTED:
                    fault_rule, value = judge(wire_id, row.answer or "", row.embedding)
                    if fault_rule is not None:
                        rule = fault_rule
                    elif not model_fits(row.served_model):
                        rule = QUALITY["served_model"]
                    elif keep:
                        values.append((at, value))
                row_of[at] = len(rows)
                rows.append(row)
                rules_of.append(rule)
                file_at.append(file_number)
                line_at.append(number)
                start_at.append(start)
                length_at.append(len(line))

    def gate(self) -> None:
        """Let the workload's gate judge what passed so far, in the order of the expected ids."""
        waiting = sorted(
            (pair for pair in self._values if pair[0] not in self.conflicts),
            key=lambda pair: pair[0],
        )
        ids, names = self.expected.wire_ids, self.expected.record_ids
        for first in range(0, len(waiting), self.rules.gate_batch):
            some = waiting[first : first + self.rules.gate_batch]
            answers = [
                Answer(
                    ids[at],
                    ids[at] if names is None else str(names[at]),
                    self.rows[self.row_of[at]].answer or "",
                    value,
                )
                for at, value in some
            ]
            for (at, _), reason in zip(some, self._judge.gate(answers), strict=True):
                if reason is not None:
                    self.rules_of[self.row_of[at]] = QUALITY["gate"]
                    self.reasons[self.row_of[at]] = f"gate: {reason}"[:200]
        self._values.clear()

    def _again(
        self, at: int, raw: RawFile, number: int, start: int, line: bytes, wire_id: str
    ) -> None:
        """A second row for one id: identical bytes collapse, anything else is a conflict."""
        first = self.row_of[at]
        file_at, line_at, start_at, length_at = self.place
        origin = self.files[file_at[first]]
        began, length = start_at[first], length_at[first]
        if bytes(origin.data[began : began + length]) == line:
            self.identical.add(at)
            self._note(raw, number, start, len(line), "duplicate_identical", "same_bytes", wire_id)
            return
        if at not in self.conflicts:
            self.conflicts.add(at)
            self._note(
                origin, line_at[first], began, length, "duplicate", "conflicting_rows", wire_id
            )
        self._note(raw, number, start, len(line), "duplicate", "conflicting_rows", wire_id)

    def _unknown(self, raw: RawFile, number: int, start: int, length: int, wire_id: str) -> None:
        tag, dash, name = wire_id.partition("-")
        own = self.expected.tag
        known = own is not None and dash == "-" and tag != own and f"{own}-{name}" in self.index
        reason = "other_shard" if known else "unknown_id"
        self._note(raw, number, start, length, "unknown", reason, wire_id)

    def _reject(self, raw: RawFile, number: int, start: int, length: int, reason: str) -> None:
        self._note(raw, number, start, length, "unreadable", reason, None)

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
