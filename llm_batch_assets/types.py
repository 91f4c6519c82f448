"""Frozen shapes that every room shares. No I/O, no provider's SDK, no Dagster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

ProviderName = Literal["openai", "anthropic", "gemini", "bedrock"]

BatchStatus = Literal[
    "queued", "running", "stopping", "done", "failed", "cancelled", "expired", "unknown"
]
"""A provider's status in our words (providers.md 5.3). ``unknown`` means still running."""

TERMINAL_STATUSES: frozenset[str] = frozenset({"done", "failed", "cancelled", "expired"})

RecordClass = Literal[
    "succeeded",
    "retryable",
    "permanent_failure",
    "cancelled",
    "expired",
    "missing",
    "duplicate",
    "in_flight",
]
"""The class of one manifest id in one job; ``unknown`` rows lie outside the manifest."""

TerminalState = Literal["accepted", "permanent_failure", "human_review", "cancelled"]

ResultKind = Literal["results", "errors", "bedrock_manifest"]

Clock = Callable[[], datetime]
"""Returns the current instant as an aware UTC datetime."""


@dataclass(frozen=True, slots=True)
class ResultRef:
    """Where a provider keeps one result file: a file id, URL or object address."""

    kind: ResultKind
    ref: str


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """A provider's own request counts. Hints only: they never decide a class."""

    total: int | None = None
    completed: int | None = None
    failed: int | None = None


@dataclass(frozen=True, slots=True)
class BatchFault:
    """One entry of a batch's own error list; ``line`` is 1-based in the request file."""

    code: str | None
    message: str | None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class BatchView:
    """What one look at a provider batch said, in our words, with the bytes it rests on."""

    batch_id: str
    raw_status: str
    status: BatchStatus
    created_at: datetime | None = None
    ended_at: datetime | None = None
    expires_at: datetime | None = None
    counts: BatchCounts = BatchCounts()
    input_ref: str | None = None
    submission_key: str | None = None
    deployment: str | None = None
    results: tuple[ResultRef, ...] = ()
    faults: tuple[BatchFault, ...] = ()
    results_ready: bool = False
    """Terminal, and every result file that this status promises is named."""
    raw: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """Everything one create call carries. ``labels`` is what the provider keeps for us."""

    endpoint: str
    model: str
    input_ref: str | None
    request_file_digest: str
    records: int
    deployment: str
    submission_key: str
    job_key: str
    shard_key: str
    result_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What is known of one transfer of a result file.

    ``announced_bytes`` is None where the provider announced no length; ``whole`` is True only
    when status, length and encoding together prove that nothing is missing.
    """

    kind: ResultKind
    ref: str
    digest: str
    status: int
    received_bytes: int
    announced_bytes: int | None
    expected_bytes: int | None
    content_type: str | None
    content_encoding: str | None
    whole: bool
    reason: str
    """Which rule decided ``whole``."""


class Effects(Protocol):
    """Named effect boundaries; the default does nothing."""

    def at(self, name: str, when: Literal["before", "after"]) -> None:
        """Called on both sides of each commit, provider call and object write."""


class NoEffects:
    """The hook that costs nothing."""

    def at(self, name: str, when: Literal["before", "after"]) -> None:
        """Do nothing."""


NO_EFFECTS: Effects = NoEffects()
