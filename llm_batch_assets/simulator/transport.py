"""Answers below HTTP: closed sockets, cut bodies and bodies without a length."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

TRANSPORT = "llm_batch_simulator.transport"


class OpenTransportProtocol(H11Protocol):
    """uvicorn's protocol that hands the connection's transport to the application."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wrap the application so that its scope carries the transport."""
        super().connection_made(transport)
        inner: ASGIApp = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope[TRANSPORT] = transport
            await inner(scope, receive, send)

        self.app = app


@dataclass(slots=True)
class Reply:
    """A whole answer, before anything happens to it on its way."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


async def send_reply(reply: Reply, send: Send) -> None:
    """Answer properly, with a Content-Length."""
    headers = {"content-type": reply.content_type, **reply.headers}
    if reply.status != HTTPStatus.NO_CONTENT:
        headers["content-length"] = str(len(reply.body))
    await send(
        {
            "type": "http.response.start",
            "status": reply.status,
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": reply.body})


async def until_gone(receive: Receive) -> None:
    """Return when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def drop(scope: Scope, receive: Receive) -> None:
    """Close the socket before the status line."""
    transport: Any = scope[TRANSPORT]
    transport.close()
    await until_gone(receive)


async def send_raw(
    scope: Scope, receive: Receive, status: int, headers: Mapping[str, str], body: bytes
) -> None:
    """Write exactly these bytes, then close: lengths may lie or be absent."""
    phrase = HTTPStatus(status).phrase
    head = f"HTTP/1.1 {status} {phrase}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    transport: Any = scope[TRANSPORT]
    transport.write(head.encode("latin-1") + b"connection: close\r\n\r\n" + body)
    transport.close()
    await until_gone(receive)
