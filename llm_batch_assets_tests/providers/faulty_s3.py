"""A real S3 server behind a proxy that breaks downloads as the simulator's fault menu says."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from llm_batch_assets_tests.scripted_server import Request, ScriptedServer, Wire

_DROPPED = ("date", "connection", "content-length", "transfer-encoding", "server", "keep-alive")


class FaultyS3:
    """Forwards everything; the host header stays, so that signatures hold."""

    def __init__(self, endpoint: str) -> None:
        self._upstream = urlsplit(endpoint).netloc
        self._server = ScriptedServer(self._forward)
        self._faults: list[dict[str, Any]] = []

    @contextmanager
    def running(self) -> Iterator[FaultyS3]:
        with self._server:
            yield self

    @property
    def url(self) -> str:
        return self._server.url

    def fault(self, fault: dict[str, Any]) -> None:
        self._faults += [fault] * fault.get("times", 1)

    def downloads(self) -> list[Request]:
        return [r for r in self._server.requests if _is_download(r)]

    def _forward(self, request: Request, wire: Wire) -> None:
        fault = self._faults.pop(0) if self._faults and _is_download(request) else None
        if fault is not None and self._broken_off(fault, wire):
            return
        connection = http.client.HTTPConnection(self._upstream, timeout=30)
        try:
            connection.putrequest(
                request.method, request.target, skip_host=True, skip_accept_encoding=True
            )
            for name, value in request.headers.items():
                if name not in ("expect", "transfer-encoding", "content-length"):
                    connection.putheader(name, value)
            connection.putheader("content-length", str(len(request.body)))
            connection.endheaders(request.body)
            reply = connection.getresponse()
            body = reply.read()
            headers = {k: v for k, v in reply.getheaders() if k.lower() not in _DROPPED}
            if request.method == "HEAD":
                wire.reply(reply.status, b"", headers)
            elif fault is None:
                wire.reply(reply.status, body, headers)
            else:
                self._short(fault["fault"], reply.status, body, headers, wire)
        finally:
            connection.close()

    def _broken_off(self, fault: dict[str, Any], wire: Wire) -> bool:
        kind = fault["fault"]
        if kind == "drop_before":
            wire.close()
        elif kind == "html_before":
            wire.reply(200, b"<html></html>", {"Content-Type": "text/html"})
        elif kind == "status_before":
            code = {404: b"NoSuchKey", 429: b"SlowDown"}.get(fault["status"], b"InternalError")
            wire.reply(fault["status"], b"<Error><Code>" + code + b"</Code></Error>")
        elif kind == "status_204":
            wire.reply(204, b"", length=None)
        else:
            return False
        return True

    def _short(
        self, kind: str, status: int, body: bytes, headers: dict[str, str], wire: Wire
    ) -> None:
        half = body[: len(body) // 2]
        if kind == "truncate_length":
            wire.reply(status, half, headers, length=len(body))
        elif kind == "truncate_close":
            wire.reply(status, half, headers, length=None)
        elif kind == "truncate_line":
            wire.reply(status, body[: half.rfind(b"\n") + 1], headers, length=None)
        elif kind == "status_206":
            wire.reply(206, half, headers)
        else:
            raise ValueError(kind)


def _is_download(request: Request) -> bool:
    return request.method == "GET" and urlsplit(request.target).path.endswith(".out")
