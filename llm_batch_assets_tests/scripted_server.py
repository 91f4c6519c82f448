"""A real TCP server whose every reply is written byte by byte by the test."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {k: v[0] for k, v in parse_qs(urlsplit(self.target).query).items()}

    def json(self):
        return json.loads(self.body)


class Wire:
    """One connection, after one request was read."""

    def __init__(self, sock: socket.socket, stopped: threading.Event) -> None:
        self.sock = sock
        self.stopped = stopped
        self.open = True

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def reply(
        self,
        status: int = 200,
        body: bytes | object = b"",
        headers: Mapping[str, str] | None = None,
        *,
        length: int | str | None = "right",
    ) -> None:
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers = {"Content-Type": "application/json", **(headers or {})}
        lines = [f"HTTP/1.1 {status} X"]
        if length == "right":
            length = len(body)
        if length is None or length != len(body):
            lines.append("Connection: close")
        if length is not None:
            lines.append(f"Content-Length: {length}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        if length is None or length != len(body):
            self.close()

    def close(self) -> None:
        self.open = False

    def hang(self) -> None:
        """Say nothing until the client hangs up or the test ends."""
        self.sock.settimeout(0.02)
        while not self.stopped.is_set():
            try:
                if not self.sock.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self.close()


Handler = Callable[[Request, Wire], None]


@dataclass
class ScriptedServer:
    handler: Handler
    requests: list[Request] = field(default_factory=list)

    def __enter__(self) -> ScriptedServer:
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(5)
        for thread in self._threads:
            thread.join(5)

    def count(self, method: str, path: str) -> int:
        return sum(r.method == method and r.path == path for r in self.requests)

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            sock.settimeout(0.05)
            buffer = b""
            while not self._stopped.is_set():
                head_end = buffer.find(b"\r\n\r\n")
                if head_end < 0:
                    buffer = self._more(sock, buffer)
                    if buffer is None:
                        return
                    continue
                lines = buffer[:head_end].decode("latin-1").split("\r\n")
                method, target, _ = lines[0].split(" ", 2)
                headers = {
                    name.strip().lower(): value.strip()
                    for name, value in (line.split(":", 1) for line in lines[1:])
                }
                body = buffer[head_end + 4 :]
                if headers.get("expect", "").lower() == "100-continue":
                    sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                if "chunked" in headers.get("transfer-encoding", ""):
                    while not body.endswith(b"0\r\n\r\n"):
                        body = self._more(sock, body)
                        if body is None:
                            return
                    body, buffer = _dechunk(body), b""
                else:
                    size = int(headers.get("content-length", 0))
                    while len(body) < size:
                        body = self._more(sock, body)
                        if body is None:
                            return
                    body, buffer = body[:size], body[size:]
                request = Request(method, target, headers, body)
                self.requests.append(request)
                wire = Wire(sock, self._stopped)
                sock.settimeout(10)
                try:
                    self.handler(request, wire)
                except OSError:
                    return
                if not wire.open:
                    return
                sock.settimeout(0.05)

    def _more(self, sock: socket.socket, buffer: bytes) -> bytes | None:
        while not self._stopped.is_set():
            try:
                data = sock.recv(1 << 20)
            except TimeoutError:
                continue
            except OSError:
                return None
            return buffer + data if data else None
        return None


def _dechunk(data: bytes) -> bytes:
    out = b""
    while data:
        line, _, data = data.partition(b"\r\n")
        size = int(line, 16)
        out, data = out + data[:size], data[size + 2 :]
        if size == 0:
            break
    return out
