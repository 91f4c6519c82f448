"""When the next attempt of a revision is due."""

from __future__ import annotations

from datetime import timedelta


def backoff(attempt: int, *, initial: timedelta, factor: float, longest: timedelta) -> timedelta:
    """The wait before attempt ``attempt`` (2 is the first retry): initial, doubled or so, bounded.

    An attempt is a day's batch, not a request: the wait is there for what made records fail
    (rate limits, capacity), so it grows with the attempts that a revision has had.
    """
    if attempt < 2:
        return timedelta(0)
    wait = initial.total_seconds() * factor ** min(attempt - 2, 64)
    return timedelta(seconds=min(wait, longest.total_seconds()))
