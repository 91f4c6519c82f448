"""A process with everything imported that forks one ``llm-batch-assets`` process per request.

Importing costs more than a short run does. The forked process is a real one, with its own id,
environment and files: it can be killed and stopped like any other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

PRELOADED = (
    "llm_batch_assets.cli.run",
    "llm_batch_assets.cli.loop",
    "alembic.command",
    "alembic.context",
    "pyarrow.parquet",
    "pyarrow.json",
    "jsonschema_rs",
)


class Zygote:
    """The asking side; one process is running at a time."""

    def __init__(self, *preload: str) -> None:
        self._preload = preload
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Zygote:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *PRELOADED, *self._preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("LLM_BATCH_")}
            | {"OPENBLAS_NUM_THREADS": "1"},
        )
        assert self._answer() == {"ready": 1}, "something started a thread before the first fork"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            # A run of a test that was given up: the group is the zygote's own.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def start(
        self, arguments: Sequence[str], env: Mapping[str, str], folder: Path, name: str
    ) -> int:
        """Fork a process that runs the command; gives its id. Its output goes into two files."""
        assert self._process is not None and self._process.stdin is not None
        request = {
            "arguments": list(arguments),
            "env": dict(env),
            "folder": str(folder),
            "out": str(folder / f"{name}.out"),
            "err": str(folder / f"{name}.err"),
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._answer()["pid"])

    def wait(self) -> int:
        """How the process that was started ended: its exit code, or minus a signal's number."""
        return int(self._answer()["code"])

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the zygote has died"
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer


def _serve(modules: Sequence[str]) -> None:
    from importlib import import_module

    for module in modules:
        import_module(module)
    # Native pools (jemalloc) survive a fork; a Python thread would not.
    _say(ready=threading.active_count())
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(request)
        _say(pid=pid)
        _, status = os.waitpid(pid, 0)
        _say(code=os.waitstatus_to_exitcode(status))


def _say(**answer: int) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _become(request: dict[str, Any]) -> None:
    """In the child: another environment, folder and output, then the command's own entry."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["folder"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        from llm_batch_assets.cli import main

        try:
            main(request["arguments"])
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
    _serve(sys.argv[1:])
