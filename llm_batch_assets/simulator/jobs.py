"""A batch's life as a function of virtual time, the same for every provider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from llm_batch_assets.simulator.faults import BatchFault, RecordFault

Phase = Literal[
    "validating",
    "running",
    "finalizing",
    "cancelling",
    "completed",
    "failed",
    "expired",
    "cancelled",
]
ENDS: tuple[Phase, ...] = ("completed", "failed", "expired", "cancelled")


@dataclass(frozen=True, slots=True)
class Line:
    """One request line: the client's id, the body's exact bytes and their sha256."""

    id: str
    body: bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one executed line: the rows it left, and whether they are errors."""

    rows: tuple[bytes, ...]
    error: bool
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(slots=True)
class Job:
    """One provider batch.

    Times are virtual unix seconds. ``validating``, ``running`` and ``finalizing`` are durations;
    ``window`` is how long the batch may live. ``extra`` is the provider's own.
    """

    id: str
    provider: str
    account: str
    ordinal: int
    created: float
    lines: Sequence[Line]
    validating: float
    running: float
    finalizing: float
    window: float
    cancelling: float
    foreign: bool = False
    behind: bool = False
    real_created: float = 0.0
    plan: dict[int, RecordFault] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    faults: list[BatchFault] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    executed: int = 0
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    cancel_at: float | None = None
    finished: bool = False
    polls: int = 0
    end_polls: int = 0
    lists: int = 0
    deleted: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def fault(self, kind: str) -> BatchFault | None:
        """The batch's fault of a kind, if it has one."""
        return next((fault for fault in self.faults if fault.kind == kind), None)

    @property
    def stuck(self) -> bool:
        """Whether the batch will stay as it is until somebody cancels it."""
        return self.cancel_at is None and self.fault("stuck") is not None

    def cancel(self, now: float) -> None:
        """Take a cancel. One that comes when every line has run loses the race."""
        if self.fault("stuck"):
            self.validating = self.window = now - self.created + 1.0
        self.cancel_at = now

    @property
    def run_start(self) -> float:
        """When the first line may run."""
        return self.created + self.validating

    @property
    def run_end(self) -> float:
        """When the last line has run, if nothing stops it."""
        return self.run_start + self.running

    @property
    def expires(self) -> float:
        """When the batch is out of time."""
        return self.created + self.window

    @property
    def stop(self) -> float:
        """When execution stops: by itself, at expiry or at a cancel."""
        ends = [self.run_end, self.expires]
        if self.cancel_at is not None:
            ends.append(self.cancel_at)
        return min(ends)

    @property
    def end(self) -> float:
        """When the batch is over."""
        if self.errors:
            return self.run_start
        if self.cancel_at is not None and self.cancel_at <= min(self.run_end, self.expires):
            return self.cancel_at + self.cancelling
        return min(self.run_end + self.finalizing, self.expires)

    def phase(self, now: float) -> Phase:
        """Where the batch is at an instant."""
        if self.stuck:
            return "validating"
        if self.errors:
            return "failed" if now >= self.end else "validating"
        cancel = self.cancel_at is not None and self.cancel_at <= min(self.run_end, self.expires)
        if now >= self.end:
            if cancel:
                return "cancelled"
            return "completed" if self.run_end + self.finalizing <= self.expires else "expired"
        if cancel and self.cancel_at is not None and now >= self.cancel_at:
            return "cancelling"
        if now < self.run_start:
            return "validating"
        return "running" if now < self.run_end else "finalizing"

    def due(self, now: float) -> int:
        """How many lines must have run by an instant."""
        if self.errors or self.stuck:
            return 0
        until = min(now, self.stop)
        if until < self.run_start:
            return 0
        if self.running <= 0 or until >= self.run_end:
            return len(self.lines)
        return int(len(self.lines) * (until - self.run_start) / self.running)
