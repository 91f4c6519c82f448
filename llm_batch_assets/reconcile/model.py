"""The shapes of accounting: rules and expected ids in, one class per id out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.types import BatchView, ResultKind
from llm_batch_assets.wire.readers import wire_of
from llm_batch_assets.wire.shapes import AnswerKind

RULES_VERSION = "2"
"""Version of the classification and of the quality rules. A change of any verdict raises it."""

AnomalyKind = Literal["unreadable", "unknown", "duplicate", "duplicate_identical"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer that passed stop reason, strict JSON and schema; a gate judges it.

    ``value`` is the parsed JSON (exact integers), or the text itself where the answer is text.
    """

    wire_id: str
    record_id: str
    text: str
    value: Any


Gate = Callable[[list[Answer]], Sequence[str | None]]
"""The workload's own predicate: for each answer None, or the reason why it is not acceptable."""


@dataclass(frozen=True)
class Rules:
    """What accounting judges by: all of it from the frozen manifest, nothing from today's code.

    Attributes:
        answer: ``auto`` for loose files: JSON where there is a schema, else any non-empty text.
        schema: JSON Schema (Draft 2020-12) of the answer, or None.
        model: the model that was asked for; None compares nothing.
        attempt: number of this attempt, from 1.
        gate: the workload's predicate, called with up to ``gate_batch`` answers at a time.
        inputs_per_record: embedding inputs per wire id, one number for all, or None.
        dimensions: length of every embedding vector, or None.
        max_answer_bytes: longest accepted answer; embeddings have eight times as much.
        max_line_bytes: longest line that is read: above any provider's largest record.
    """

    provider: str
    endpoint: str | None = None
    answer: AnswerKind = "auto"
    schema: Mapping[str, Any] | bool | None = None
    model: str | None = None
    attempt: int = 1
    max_attempts: int = 3
    gate: Gate | None = None
    gate_batch: int = 1024
    inputs_per_record: Mapping[str, int] | int | None = None
    dimensions: int | None = None
    max_answer_bytes: int = 16 * 2**20
    max_line_bytes: int = 256 * 2**20
    version: str = RULES_VERSION


@dataclass(frozen=True)
class Expected:
    """The ids of one shard, in the order of the lines of its request file.

    ``record_ids`` and ``business_keys`` default to the wire ids (loose files have no others).
    """

    wire_ids: Sequence[str]
    tag: str | None = None
    record_ids: Sequence[str] | pa.Array | None = None
    business_keys: Sequence[str] | pa.Array | None = None
    shard: int = 0
    epoch: int = 0
    submission_key: str | None = None


@dataclass(frozen=True)
class RawFile:
    """One result file as it was received. ``whole`` is what its receipt proves."""

    name: str
    kind: ResultKind
    digest: str
    data: bytes | mmap | memoryview = field(repr=False)
    whole: bool = True

    @classmethod
    def of(cls, name: str, kind: ResultKind, data: bytes, *, whole: bool = True) -> RawFile:
        """A raw file from bytes at hand; computes the digest."""
        return cls(name, kind, hashlib.sha256(data).hexdigest(), data, whole)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A row that is no record's answer. ``line`` is 1-based; 0 is the whole file."""

    file: str
    name: str
    line: int
    offset: int
    length: int
    kind: AnomalyKind
    reason: str
    id: str | None = None


@dataclass(frozen=True)
class Account:
    """What became of every expected id of one shard.

    Attributes:
        table: evidence, one row per expected id in their order (``tables.EVIDENCE_SCHEMA``).
        answers: exact text of each accepted answer, null elsewhere; same order.
        anomalies: rows that are no record's answer, sorted by file and line.
        identical: places of ids whose repeated rows were the same bytes.
        view: the look that decided; None for loose files.
        rows: lines that named some id.
    """

    table: pa.Table = field(repr=False)
    answers: pa.Array = field(repr=False)
    anomalies: Sequence[Anomaly]
    identical: Sequence[int]
    raws: tuple[RawFile, ...] = field(repr=False)
    view: BatchView | None = field(repr=False)
    in_flight: bool
    rows: int
    rules: Rules

    @property
    def whole(self) -> bool:
        """Whether every file is whole, and every file that the batch names was read."""
        return all(raw.whole for raw in self.raws) and not self.unread

    @property
    def unread(self) -> tuple[str, ...]:
        """Kinds of files that the batch names and nobody read."""
        if self.view is None or self.in_flight:
            return ()
        if self.view.status in wire_of(self.rules.provider).unpromised:
            return ()
        have = {raw.kind for raw in self.raws}
        return tuple(sorted({ref.kind for ref in self.view.results} - have - {"bedrock_manifest"}))

    @property
    def closed(self) -> bool:
        """Nothing missing, unknown, duplicate, unreadable or in flight, all files whole.

        The job is *accounted* then; it does not mean that a dataset may be published.
        """
        return (
            self.whole
            and not self.in_flight
            and all(a.kind == "duplicate_identical" for a in self.anomalies)
            and not pc.any(pc.is_in(self.table["cls"], pa.array(_OPEN))).as_py()
        )

    def sets(self) -> dict[str, list[str]]:
        """The eight sets by wire id; ``unknown`` lies outside the expected ids."""
        found: dict[str, list[str]] = {name: [] for name in SETS}
        for wire_id, cls in zip(
            self.table["wire_id"].to_pylist(), self.table["cls"].to_pylist(), strict=True
        ):
            if cls in found:
                found[cls].append(wire_id)
        found["unknown"] = sorted({a.id for a in self.anomalies if a.kind == "unknown" and a.id})
        return found


SETS = (
    "succeeded",
    "retryable",
    "permanent_failure",
    "cancelled",
    "expired",
    "missing",
    "unknown",
    "duplicate",
)
_OPEN = ("missing", "duplicate", "in_flight")
