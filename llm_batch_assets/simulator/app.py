"""The ASGI application: log, route, fault, answer."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, unquote

import orjson
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from llm_batch_assets.simulator.dice import short_id
from llm_batch_assets.simulator.faults import HttpFault
from llm_batch_assets.simulator.reqlog import Entry
from llm_batch_assets.simulator.transport import Reply, drop, send_raw, send_reply, until_gone
from llm_batch_assets.simulator.world import World

_REQUEST_ID = {
    "openai": "x-request-id",
    "anthropic": "request-id",
    "bedrock": "x-amzn-requestid",
}


@dataclass(slots=True)
class Call:
    """One request as a handler sees it. ``path`` holds the unquoted parts of the route."""

    world: World
    scope: Scope
    method: str
    headers: dict[str, str]
    query: dict[str, str]
    path: dict[str, str]
    body: bytes
    origin: str
    entry: Entry

    def request(self) -> Request:
        """The request for starlette's form parser, with the body that was read."""
        body = self.body

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        return Request(self.scope, receive)


Handler = Callable[[Call], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path of a provider; ``name`` is the route's name on the fault menu."""

    provider: str
    name: str
    method: str
    pattern: re.Pattern[str]
    handler: Handler


class Refusal(Exception):
    """A handler's way out with an answer."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"{reply.status}")
        self.reply = reply


def json_reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
    """A JSON answer."""
    return Reply(status, orjson.dumps(value), headers or {})


def route(provider: str, name: str, method: str, pattern: str, handler: Handler) -> Route:
    """A route; ``{name}`` in the pattern is one raw path segment."""
    made = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+?)", pattern)
    return Route(provider, name, method, re.compile(f"^{made}$"), handler)


class Application:
    """Dispatches to the providers' parts and applies the faults of the menu on the way."""

    def __init__(self, world: World, routes: Sequence[Route], faulty: FaultyBody) -> None:
        self._world = world
        self._routes = routes
        self._faulty = faulty

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        body = await _read(receive)
        raw_path = scope.get("raw_path", scope["path"].encode()).decode("latin-1").split("?")[0]
        query = scope.get("query_string", b"").decode("latin-1")
        found, parts = self._find(scope["method"], raw_path)
        if found is not None and found.provider == "_sim":
            await self._admin(scope, send, body, found, parts, query)
            return
        world = self._world
        entry = world.log.arrive(
            scope["method"],
            raw_path,
            query,
            scope["headers"],
            body,
            at=world.clock.real(),
            virtual_at=world.clock.now(),
        )
        if found is None:
            entry.status = 404
            await send_reply(json_reply({"error": {"message": f"no route {raw_path}"}}, 404), send)
            return
        entry.provider, entry.route = found.provider, found.name
        call = self._call(scope, body, parts, query, entry)
        fault = world.book.for_call(found.provider, found.name)
        entry.fault = fault.fault if fault else None
        await self._answer(call, found, fault, scope, receive, send)

    def _find(self, method: str, raw_path: str) -> tuple[Route | None, dict[str, str]]:
        for one in self._routes:
            match = one.pattern.match(raw_path)
            if match and one.method == method:
                return one, {key: unquote(part) for key, part in match.groupdict().items()}
        return None, {}

    def _call(
        self, scope: Scope, body: bytes, parts: dict[str, str], query: str, entry: Entry
    ) -> Call:
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        host, port = scope["server"][:2]
        return Call(
            world=self._world,
            scope=scope,
            method=scope["method"],
            headers=headers,
            query=dict(parse_qsl(query, keep_blank_values=True)),
            path=parts,
            body=body,
            origin=f"http://{headers.get('host', f'{host}:{port}')}",
            entry=entry,
        )

    async def _admin(
        self, scope: Scope, send: Send, body: bytes, found: Route, parts: dict[str, str], query: str
    ) -> None:
        entry = Entry(0, scope["method"], scope["path"], query, None, None, {}, "", len(body), 0, 0)
        reply = await self._run(self._call(scope, body, parts, query, entry), found)
        await send_reply(reply, send)

    @staticmethod
    async def _run(call: Call, found: Route) -> Reply:
        try:
            reply = await found.handler(call)
        except Refusal as refusal:
            reply = refusal.reply
        name = _REQUEST_ID.get(found.provider)
        if name is not None:
            reply.headers.setdefault(name, short_id("req_", call.entry.seq, found.name))
        return reply

    async def _answer(
        self,
        call: Call,
        found: Route,
        fault: HttpFault | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        kind = fault.fault if fault else ""
        if fault and kind == "late_effect":
            await asyncio.sleep(fault.seconds if fault.seconds is not None else 3.0)
            call.entry.notes["late_answer"] = (await self._run(call, found)).status
            call.entry.status = 0
            await drop(scope, receive)
            return
        if fault and kind.endswith("_before"):
            reply = self._faulty.refusal(found.provider, fault)
        elif fault and kind == "status_204":
            reply = Reply(204, b"")
        else:
            reply = await self._run(call, found)
        if fault is None or kind == "status_before":
            call.entry.status = reply.status
            await send_reply(reply, send)
            return
        await self._mistreat(call, found, fault, reply, scope, receive, send)

    async def _mistreat(
        self,
        call: Call,
        found: Route,
        fault: HttpFault,
        reply: Reply,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        kind, entry = fault.fault, call.entry
        entry.notes["effect"] = reply.status if not kind.endswith("_before") else None
        entry.status = 0
        cut = reply.body[: int(len(reply.body) * fault.fraction)]
        if kind.startswith("drop_"):
            await drop(scope, receive)
        elif kind.startswith("delay_"):
            seconds = fault.seconds if fault.seconds is not None else 30.0
            try:
                await asyncio.wait_for(until_gone(receive), seconds)
            except TimeoutError:
                await drop(scope, receive)
        elif kind.startswith("truncate_"):
            entry.status = reply.status
            headers = {"content-type": reply.content_type, **reply.headers}
            if kind == "truncate_length":
                headers["content-length"] = str(len(reply.body))
            if kind == "truncate_line":
                cut = cut[: cut.rfind(b"\n") + 1]
            await send_raw(scope, receive, reply.status, headers, cut)
        elif kind.startswith("gzip"):
            entry.status = reply.status
            packed = gzip.compress(reply.body, mtime=0)
            if kind == "gzip_cut":
                packed = packed[: int(len(packed) * fault.fraction)]
            headers = {} if kind == "gzip_hidden" else {"content-encoding": "gzip"}
            await send_reply(Reply(reply.status, packed, headers, reply.content_type), send)
        elif kind == "status_206":
            entry.status = 206
            await send_reply(Reply(206, cut, reply.headers, reply.content_type), send)
        else:
            if kind == "status_after":
                reply = self._faulty.refusal(found.provider, fault)
            elif kind.startswith("html_"):
                page = b"<html><body>temporarily unavailable</body></html>"
                reply = Reply(200, page, content_type="text/html")
            elif kind == "empty_page":
                reply = self._faulty.empty_page(found.provider, reply)
            elif kind == "junk_json":
                reply = json_reply({"ok": True})
            entry.status = reply.status
            await send_reply(reply, send)


class FaultyBody:
    """Provider-shaped bodies for answers that no handler has made."""

    def __init__(self) -> None:
        self.errors: dict[str, Callable[[HttpFault], Reply]] = {}
        self.pages: dict[str, Callable[[Reply], Reply]] = {}

    def refusal(self, provider: str, fault: HttpFault) -> Reply:
        """The provider's own error, or a gateway's page for 502 and 504."""
        return self.errors[provider](fault)

    def empty_page(self, provider: str, reply: Reply) -> Reply:
        """The page without its data that claims there is more."""
        return self.pages[provider](reply)


async def _read(receive: Receive) -> bytes:
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    return b"".join(chunks)


def credential(secret: str, *rest: str) -> str:
    """An account's name: a digest of what identifies it, never the credential itself."""
    return sha256("\x1f".join((secret, *rest)).encode()).hexdigest()[:16]
