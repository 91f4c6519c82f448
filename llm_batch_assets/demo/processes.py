"""Start a handful of servers, watch them, and leave none behind.

Each service gets a session of its own, so that a Ctrl-C in the terminal reaches only the
supervisor and stopping reaches everything the service started in turn (Dagster's runs). A guard
process stops the groups when the supervisor itself is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from llm_batch_assets.errors import LLMBatchError

T = TypeVar("T")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ServiceEndedError(LLMBatchError):
    """A process that should be serving has ended; the message ends with the tail of its log."""


class NotUpError(LLMBatchError):
    """A condition did not come true in time."""


@dataclass(frozen=True, slots=True)
class Service:
    """One process to run: its arguments, the whole environment, and where its output goes."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path


@dataclass(frozen=True, slots=True)
class _Running:
    service: Service
    process: subprocess.Popen[bytes]


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Supervisor:
    """Owns services from ``start`` until the ``with`` block ends, however it ends."""

    def __init__(self, *, grace: float = 8.0) -> None:
        self._grace = grace
        self._running: list[_Running] = []
        self._guard: subprocess.Popen[bytes] | None = None
        self._handlers: dict[signal.Signals, object] = {}

    def __enter__(self) -> Supervisor:
        """Take the stop signals: each becomes a KeyboardInterrupt of the main thread.

        A caught signal is reset to its default in the services, where an ignored one (a shell
        that started us with ``&``) would stay ignored: Dagster could then not be stopped.
        """
        for number in STOP_SIGNALS:
            self._handlers[number] = signal.signal(number, _interrupt)
        self._guard = subprocess.Popen(
            [sys.executable, "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop everything, then give the signals back."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        try:
            self.stop()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)  # type: ignore[arg-type]

    def start(self, service: Service) -> int:
        """Start one service and return its process id, which is also its group's."""
        service.log.parent.mkdir(parents=True, exist_ok=True)
        with service.log.open("ab") as log:
            process = subprocess.Popen(
                list(service.argv),
                env=dict(service.env),
                cwd=service.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(_Running(service, process))
        if self._guard and self._guard.stdin:
            self._guard.stdin.write(f"{process.pid}\n".encode())
            self._guard.stdin.flush()
        return process.pid

    def check(self) -> None:
        """Raise ``ServiceEndedError`` when a service has ended by itself."""
        for one in self._running:
            if (code := one.process.poll()) is not None:
                raise ServiceEndedError(
                    f"{one.service.name} ended with code {code}; the end of {one.service.log}:\n"
                    + _tail(one.service.log)
                )

    def wait_for(
        self, what: str, probe: Callable[[], T | None], *, timeout: float, every: float = 0.2
    ) -> T:
        """Return the first non-None answer of ``probe``, watching the services meanwhile."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            self.check()
            if (answer := probe()) is not None:
                return answer
            time.sleep(every)
        logs = ", ".join(str(one.service.log) for one in self._running)
        raise NotUpError(f"{what}: not within {timeout:.0f} s. Logs: {logs}.")

    def stop(self) -> None:
        """Ask every group to end, then make it end."""
        for one in self._running:
            _signal_group(one.process.pid, signal.SIGTERM)
        end = time.monotonic() + self._grace
        for one in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.0, end - time.monotonic()))
        for one in self._running:
            # Whatever the service started and left: it is in the service's group.
            _signal_group(one.process.pid, signal.SIGKILL)
            one.process.wait()
        self._running.clear()
        if self._guard and self._guard.stdin:
            self._guard.stdin.write(b"done\n")
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None


def connects(port: int) -> bool | None:
    """True when somebody listens on the loopback port, else None."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
        return True
    return None


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _tail(path: Path, lines: int = 25) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


_GUARD = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups = []
for line in sys.stdin:
    if line == "done\\n":
        sys.exit()
    groups.append(int(line))
for number in (signal.SIGTERM, signal.SIGKILL):
    for group in groups:
        try:
            os.killpg(group, number)
        except OSError:
            pass
    time.sleep(3)
"""
