"""The simulator's time: starts at the real time and runs ``scale`` times as fast."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime


class VirtualClock:
    """Virtual unix seconds. Never goes back: a change of scale keeps the instant reached."""

    def __init__(self, start: float, scale: float, monotonic: Callable[[], float]) -> None:
        self._base = start
        self._scale = scale
        self._monotonic = monotonic
        self._since = monotonic()

    @property
    def scale(self) -> float:
        """Virtual seconds that pass in one real second."""
        return self._scale

    def now(self) -> float:
        """The current virtual instant in unix seconds."""
        return self._base + (self._monotonic() - self._since) * self._scale

    def real(self) -> float:
        """Real monotonic seconds, for faults that are about a client's own patience."""
        return self._monotonic()

    def advance(self, seconds: float) -> None:
        """Jump forward by ``seconds`` virtual seconds."""
        if seconds < 0:
            raise ValueError("the virtual clock cannot go back")
        self._base += seconds

    def set_scale(self, scale: float) -> None:
        """Run at another pace from now on; 0 stands still."""
        if scale < 0:
            raise ValueError("scale must be 0 or more")
        self._base = self.now()
        self._since = self._monotonic()
        self._scale = scale


def rfc3339(instant: float) -> str:
    """A unix instant as RFC 3339 text with microseconds and ``Z``."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
