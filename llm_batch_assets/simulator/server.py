"""The simulator as a server: in a thread for tests, in the foreground for the command."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any
from urllib.request import Request, urlopen

import orjson
import uvicorn

from llm_batch_assets.simulator.admin import Admin
from llm_batch_assets.simulator.anthropic import part as anthropic_part
from llm_batch_assets.simulator.app import Application, FaultyBody
from llm_batch_assets.simulator.bedrock import part as bedrock_part
from llm_batch_assets.simulator.clock import VirtualClock
from llm_batch_assets.simulator.faults import FaultBook
from llm_batch_assets.simulator.gemini import part as gemini_part
from llm_batch_assets.simulator.openai import part as openai_part
from llm_batch_assets.simulator.options import Options
from llm_batch_assets.simulator.profiles import PROFILES
from llm_batch_assets.simulator.transport import OpenTransportProtocol
from llm_batch_assets.simulator.world import World

Faults = str | Sequence[Mapping[str, Any]]


def build_world(seed: int, faults: Faults, scale: float, options: Options) -> World:
    """A fresh world.

    Raises:
        ValueError: An unknown profile or fault.
    """
    if isinstance(faults, str):
        if faults not in PROFILES:
            raise ValueError(f"unknown profile {faults!r}: one of {', '.join(PROFILES)}")
        faults = PROFILES[faults]
    book = FaultBook()
    book.add(faults)
    return World(
        seed=seed,
        clock=VirtualClock(time.time(), scale, time.monotonic),
        options=options,
        book=book,
    )


def build_app(world: World) -> Application:
    """The application that serves a world."""
    faulty = FaultyBody()
    routes = Admin(world).routes()
    for part in (openai_part, anthropic_part, gemini_part, bedrock_part):
        routes += part.install(world, faulty)
    return Application(world, routes, faulty)


def listen(port: int) -> socket.socket:
    """A listening socket on loopback; port 0 takes a free one."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    made.listen(256)
    return made


def build_server(app: Application) -> uvicorn.Server:
    """uvicorn, quiet, with connections that outlive a client's pauses."""
    config = uvicorn.Config(
        app,
        http=OpenTransportProtocol,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_keep_alive=600,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


async def serve(server: uvicorn.Server, sock: socket.socket) -> None:
    """Serve in the foreground until SIGINT or SIGTERM, then end without an error."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: setattr(server, "should_exit", True))
    # uvicorn's own ``serve`` would raise the signal again after its shutdown.
    await server._serve([sock])


class Simulator:
    """The simulator in a thread of this process.

    Args:
        seed: Everything random follows from it.
        faults: A profile's name or a list of faults.
        scale: Virtual seconds per real second: 7200 lets 24 hours pass in 12 seconds.
        port: 0 takes a free port.
        options: Fields of ``Options``: ``batch_seconds``, ``ranges``, ``keys``, …
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        faults: Faults = "none",
        scale: float = 7200.0,
        port: int = 0,
        **options: Any,
    ) -> None:
        known = {one.name for one in fields(Options)}
        unknown = set(options) - known
        if unknown:
            raise ValueError(f"unknown option {', '.join(sorted(unknown))}: {sorted(known)}")
        self._world = build_world(seed, faults, scale, Options(**options))
        self._port = port
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None
        self.origin = ""

    def start(self) -> Simulator:
        """Listen and serve; returns when calls are answered."""
        sock = listen(self._port)
        self.origin = f"http://127.0.0.1:{sock.getsockname()[1]}"
        server = self._server = build_server(build_app(self._world))
        self._thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[sock])),
            name="simulator",
            daemon=True,
        )
        self._thread.start()
        while not server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the simulator did not start")
            self._thread.join(0.005)
        return self

    def stop(self) -> None:
        """Stop serving; open calls are closed after a second."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(10)
            self._thread = None

    def __enter__(self) -> Simulator:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        """What goes into ``OPENAI_BASE_URL``."""
        return f"{self.origin}/v1"

    @property
    def anthropic_url(self) -> str:
        """What goes into ``ANTHROPIC_BASE_URL``."""
        return f"{self.origin}/anthropic"

    @property
    def gemini_url(self) -> str:
        """What goes into ``GOOGLE_GEMINI_BASE_URL``."""
        return f"{self.origin}/gemini"

    @property
    def bedrock_url(self) -> str:
        """What goes into ``AWS_ENDPOINT_URL_BEDROCK``."""
        return f"{self.origin}/bedrock"

    def meter(self) -> dict[str, Any]:
        """Executions by label, ``paid_twice``, ``provider_batches``."""
        return self._get("meter")

    def executions(self, batch: str | None = None) -> list[dict[str, Any]]:
        """Each execution: batch, custom_id, body, nth, label, fault, tokens."""
        return self._get("executions" + (f"?batch={batch}" if batch else ""))

    def log(self, since: int = 0) -> list[dict[str, Any]]:
        """Requests in order of arrival."""
        return self._get(f"log?since={since}")

    def state(self) -> dict[str, Any]:
        """Batches and files."""
        return self._get("state")

    def faults(
        self,
        *faults: Mapping[str, Any],
        profile: str | None = None,
        clear: bool = False,
        **more: Any,
    ) -> dict[str, Any]:
        """Add faults; ``clear`` takes those in force away first."""
        body: dict[str, Any] = {"faults": list(faults), "clear": clear, **more}
        if profile is not None:
            body["profile"] = profile
        return self._post("faults", body)

    def advance(self, seconds: float) -> None:
        """Let virtual time pass at once."""
        self._post("clock", {"advance": seconds})

    def set_scale(self, scale: float) -> None:
        """Let virtual time run at another pace."""
        self._post("clock", {"scale": scale})

    def clone_batch(self, source: str = "latest", **more: Any) -> dict[str, Any]:
        """Make a batch behind everybody's back; see ``Admin.batches``."""
        return self._post("batches", {"clone": source, **more})

    def _get(self, name: str) -> Any:
        with urlopen(f"{self.origin}/_sim/{name}", timeout=60) as reply:  # noqa: S310 - loopback
            return orjson.loads(reply.read())

    def _post(self, name: str, body: Mapping[str, Any]) -> Any:
        request = Request(  # noqa: S310 - loopback
            f"{self.origin}/_sim/{name}",
            data=orjson.dumps(body),
            headers={"content-type": "application/json"},
        )
        with urlopen(request, timeout=60) as reply:  # noqa: S310 - loopback
            return orjson.loads(reply.read())
