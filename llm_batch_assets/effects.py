"""Effect boundaries for tests of crashes: end, stop or note down this process at a named one.

Off unless the environment asks for it; the package's own boundaries then call ``NoEffects``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from llm_batch_assets.errors import InputError
from llm_batch_assets.types import NO_EFFECTS, Effects

When = Literal["before", "after"]

CRASH_VARIABLE = "LLM_BATCH_CRASH_AT"
LOG_VARIABLE = "LLM_BATCH_EFFECTS_LOG"
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class SignalAt:
    """Sends this process a signal at the nth passing of one boundary, and nothing else."""

    def __init__(self, name: str, when: str, nth: int, number: signal.Signals) -> None:
        self._point = (name, when)
        self._left = nth
        self._number = number
        self._lock = threading.Lock()

    def at(self, name: str, when: When) -> None:
        """Count a passing; at the nth the process ends (or stops) before this returns."""
        if (name, when) != self._point:
            return
        with self._lock:
            self._left -= 1
            due = self._left == 0
        if due:
            os.kill(os.getpid(), self._number)


class Recorder:
    """Appends every boundary to a file: the monotonic second, the name and the side."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="ascii", buffering=1)
        self._lock = threading.Lock()

    def at(self, name: str, when: When) -> None:
        """Write one line."""
        with self._lock:
            self._file.write(f"{time.monotonic():.9f}\t{name}\t{when}\n")


def effects_from_env(env: Mapping[str, str]) -> Effects:
    """What the environment asks for; mostly nothing.

    ``LLM_BATCH_CRASH_AT=<name>:<before|after>:<nth>[:stop]`` kills (or stops) this process there;
    ``LLM_BATCH_EFFECTS_LOG=<file>`` writes the boundaries down.

    Raises:
        InputError: the variable is set and not readable.
    """
    if text := env.get(CRASH_VARIABLE):
        parts = text.split(":")
        name, when, nth, end = (*parts, "kill")[:4] if len(parts) in (3, 4) else ("", "", "", "")
        if when not in ("before", "after") or not nth.isdigit() or end not in _SIGNALS:
            raise InputError(
                f"{CRASH_VARIABLE}: write <name>:<before|after>:<nth>[:stop], not {text!r}."
            )
        return SignalAt(name, when, int(nth), _SIGNALS[end])
    if path := env.get(LOG_VARIABLE):
        return Recorder(Path(path))
    return NO_EFFECTS
