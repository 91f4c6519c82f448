"""What one execution says: enough for an event, a progress line or an exit code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one piece of work.

    Attributes:
        target: shard key or dataset.
        state: the submission's state, or open, closed, published, withheld for a dataset.
        changed: whether this execution wrote anything; a replay writes nothing.
        message: one sentence for people.
        facts: plain values for an event's metadata.
        data_version: names the fact, so that a repeat wakes nobody; None without one.
    """

    kind: str
    target: str
    state: str
    changed: bool
    message: str
    facts: dict[str, Any] = field(default_factory=dict)
    data_version: str | None = None
