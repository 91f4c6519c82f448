"""A process with everything imported that forks one ``llm-batch-assets`` process per request.

Importing costs more than a short run does. The forked process is a real one, with its own id,
environment and files: it can be killed and stopped like any other.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = (
    "llm_batch_assets.cli.run",
    "llm_batch_assets.cli.loop",
    "alembic.command",
    "alembic.context",
    "pyarrow.parquet",
    "pyarrow.json",
    "jsonschema_rs",
    "pandas",  # pyarrow looks for it when it makes its first array
)


class Forked:
    """One process, used as a ``subprocess.Popen``; its output is in two files."""

    def __init__(self, zygote: Zygote, pid: int, out: Path, err: Path) -> None:
        self._zygote, self.pid, self.out, self.err = zygote, pid, out, err
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus a signal's number; None while it runs."""
        self._zygote.listen(0.0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """``poll`` when it has ended.

        Raises:
            subprocess.TimeoutExpired: it runs longer.
        """
        until = time.monotonic() + timeout
        while self.returncode is None:
            left = until - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("llm-batch-assets", timeout)
            self._zygote.listen(left)
        return self.returncode

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        """What it said, when it has ended."""
        self.wait(timeout)
        return self.out.read_text(encoding="utf-8"), self.err.read_text(encoding="utf-8")

    def send_signal(self, number: int) -> None:
        """Unless it has ended. Its id is never another's so soon."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """At once."""
        self.send_signal(signal.SIGKILL)


class Zygote:
    """The asking side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("LLM_BATCH_")}
            | {"OPENBLAS_NUM_THREADS": "1"},
        )
        self._unread = b""
        self._files: tuple[Path, Path] | None = None
        self._newest: Forked | None = None
        self._running: dict[int, Forked] = {}

    def close(self) -> None:
        """End it; what still runs is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)

    def start(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        name: str,
        preload: Sequence[str] = (),
        entry: str = "llm_batch_assets.cli",
    ) -> Forked:
        """Fork a process that runs ``entry``'s ``main``, with more modules imported before."""
        assert self._process.stdin is not None
        self._files = (folder / f"{name}.out", folder / f"{name}.err")
        self._newest = None
        request = {
            "arguments": list(arguments),
            "env": dict(env),
            "folder": str(folder),
            "files": [str(file) for file in self._files],
            "preload": [*preload, entry],
            "entry": entry,
        }
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        while self._newest is None:
            self.listen(60.0)
        return self._newest

    def listen(self, seconds: float) -> None:
        """Take what the other side says, if it says anything in this time."""
        assert self._process.stdout is not None
        number = self._process.stdout.fileno()
        if not select.select([number], [], [], seconds)[0]:
            return
        data = os.read(number, 65_536)
        assert data, "the zygote has died"
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, said: dict[str, int]) -> None:
        if "code" in said:
            self._running.pop(said["pid"]).returncode = said["code"]
            return
        # Native pools (jemalloc) survive a fork; a Python thread would not.
        assert said["threads"] == 1, "something started a thread before the fork"
        assert self._files is not None
        self._newest = Forked(self, said["pid"], *self._files)
        self._running[said["pid"]] = self._newest


@cache
def the_zygote() -> Zygote:
    """The one of this session, which the session's end closes."""
    return Zygote()


def _serve() -> None:
    from importlib import import_module

    for module in PRELOADED:
        import_module(module)
    gc.freeze()
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    running: set[int] = set()
    unread = b""
    while True:
        ready = select.select([0, wake], [], [])[0]
        if wake in ready:
            with suppress(BlockingIOError):
                os.read(wake, 4096)
            _reap(running)
        if 0 not in ready:
            continue
        data = os.read(0, 65_536)
        if not data:
            break
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            for module in request["preload"]:
                import_module(module)
            threads = threading.active_count()
            pid = os.fork()
            if pid == 0:
                os.close(wake)
                _become(request)
            running.add(pid)
            _say(pid=pid, threads=threads)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _reap(running: set[int]) -> None:
    for pid in tuple(running):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            running.remove(pid)
            _say(pid=pid, code=os.waitstatus_to_exitcode(status))


def _say(**answer: int) -> None:
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(answer).encode() + b"\n")


def _become(request: dict[str, Any]) -> NoReturn:
    """In the child: another environment, folder and output, then the command's own entry."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["folder"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in enumerate(request["files"], 1):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        try:
            sys.modules[request["entry"]].main(request["arguments"])
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve()
