"""An HTTP transport with a hard wall-clock limit, bound to one host.

The SDKs' own timeouts are per read: a server that sends one byte a minute outlives them all. Here
every socket operation gets what is left of the call's limit, and the connection is closed when
nothing is left. The transport refuses every address but the configured one, so that neither a
redirect nor a URL inside a reply can carry a credential elsewhere.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import httpcore2
import httpx2

from llm_batch_assets.errors import InputError

_KEEPALIVE_SECONDS = 2.0
"""Shorter than any server's own, so that a POST does not meet a connection that just closed."""

_ERRORS: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
    (httpcore2.ConnectTimeout, httpx2.ConnectTimeout),
    (httpcore2.ReadTimeout, httpx2.ReadTimeout),
    (httpcore2.WriteTimeout, httpx2.WriteTimeout),
    (httpcore2.PoolTimeout, httpx2.PoolTimeout),
    (httpcore2.ConnectError, httpx2.ConnectError),
    (httpcore2.ReadError, httpx2.ReadError),
    (httpcore2.WriteError, httpx2.WriteError),
    (httpcore2.ProxyError, httpx2.ProxyError),
    (httpcore2.UnsupportedProtocol, httpx2.UnsupportedProtocol),
    (httpcore2.RemoteProtocolError, httpx2.RemoteProtocolError),
    (httpcore2.LocalProtocolError, httpx2.LocalProtocolError),
)


class ForeignHost(httpx2.RequestError):
    """An address that is not the configured host: never opened."""


class Deadline:
    """The wall-clock limit of the call that the current thread is making."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives monotonic seconds."""
        self._clock = clock
        self._local = threading.local()

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Bound everything that this thread sends and receives inside the block."""
        outer = getattr(self._local, "end", None)
        end = self._clock() + seconds
        self._local.end = end if outer is None else min(end, outer)
        try:
            yield
        finally:
            self._local.end = outer

    def left(self, timeout: float | None) -> float | None:
        """Seconds that one operation may take: its own timeout or what is left of the limit.

        Raises:
            TimeoutError: when nothing is left.
        """
        end: float | None = getattr(self._local, "end", None)
        if end is None:
            return timeout
        rest = end - self._clock()
        if rest <= 0:
            raise TimeoutError("The call's wall-clock limit has passed.")
        return rest if timeout is None else min(timeout, rest)


class _Stream(httpcore2.NetworkStream):
    """A socket whose every operation obeys the deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _mapped(httpcore2.ReadTimeout, httpcore2.ReadError):
            self._sock.settimeout(self._deadline.left(timeout))
            return self._sock.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        view = memoryview(buffer)
        with _mapped(httpcore2.WriteTimeout, httpcore2.WriteError):
            while view:
                self._sock.settimeout(self._deadline.left(timeout))
                view = view[self._sock.send(view) :]

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        try:
            with _mapped(httpcore2.ConnectTimeout, httpcore2.ConnectError):
                self._sock.settimeout(self._deadline.left(timeout))
                wrapped = ssl_context.wrap_socket(self._sock, server_hostname=server_hostname)
        except BaseException:
            self.close()
            raise
        return _Stream(wrapped, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object" and isinstance(self._sock, ssl.SSLSocket):
            return self._sock
        if info == "socket":
            return self._sock
        if info == "is_readable":
            return _readable(self._sock)
        return None


class _Backend(httpcore2.NetworkBackend):
    """Opens sockets under the deadline, name resolution included."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        with _mapped(httpcore2.ConnectTimeout, httpcore2.ConnectError):
            failure: OSError | None = None
            for family, kind, protocol, _, address in self._resolve(host, port, timeout):
                sock = socket.socket(family, kind, protocol)
                try:
                    sock.settimeout(self._deadline.left(timeout))
                    sock.connect(address)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return _Stream(sock, self._deadline)
                except OSError as error:
                    sock.close()
                    failure = error
                except BaseException:
                    sock.close()
                    raise
            raise failure or OSError(f"{host} has no address")

    def _resolve(self, host: str, port: int, timeout: float | None) -> list[Any]:
        """``getaddrinfo`` knows no timeout: a thread that comes too late changes nothing."""
        found: list[Any] = []
        failed: list[OSError] = []

        def look() -> None:
            try:
                found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except OSError as error:
                failed.append(error)

        thread = threading.Thread(target=look, name="resolve", daemon=True)
        thread.start()
        thread.join(self._deadline.left(timeout))
        if failed:
            raise failed[0]
        if thread.is_alive():
            raise TimeoutError(f"The name {host} was not resolved in time.")
        return found


class BoundTransport(httpx2.BaseTransport):
    """Sends to one origin only, directly or through the proxy that the environment names."""

    def __init__(self, base_url: str, env: Mapping[str, str], deadline: Deadline) -> None:
        """Prepare a pool; nothing is connected yet.

        Raises:
            InputError: when ``base_url`` or the proxy is not an HTTP address.
        """
        self._origin = origin(base_url)
        backend = _Backend(deadline)
        context = httpx2.create_ssl_context() if self._origin[0] == "https" else None
        proxy = proxy_for(base_url, env)
        if proxy is None:
            self._pool: httpcore2.ConnectionPool = httpcore2.ConnectionPool(
                ssl_context=context,
                keepalive_expiry=_KEEPALIVE_SECONDS,
                max_connections=None,
                network_backend=backend,
            )
        else:
            parts = urlsplit(proxy)
            auth = (unquote(parts.username or ""), unquote(parts.password or ""))
            self._pool = httpcore2.HTTPProxy(
                f"http://{parts.hostname}:{parts.port or 80}",
                proxy_auth=auth if parts.username else None,
                ssl_context=context,
                keepalive_expiry=_KEEPALIVE_SECONDS,
                max_connections=None,
                network_backend=backend,
            )

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request."""
        url = request.url
        if origin(str(url)) != self._origin:
            raise ForeignHost(
                f"The address {url.scheme}://{url.netloc.decode('ascii', 'replace')[:200]} is not "
                "the configured host: it was not opened.",
                request=request,
            )
        if not isinstance(request.stream, httpx2.SyncByteStream):
            raise TypeError("This transport sends synchronous bodies only.")
        core = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _for_httpx():
            reply = self._pool.handle_request(core)
        return httpx2.Response(
            status_code=reply.status,
            headers=reply.headers,
            stream=_ReplyStream(reply.stream),
            extensions=reply.extensions,
        )

    def close(self) -> None:
        """Close all sockets."""
        self._pool.close()


class _ReplyStream(httpx2.SyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        with _for_httpx():
            yield from self._stream

    def close(self) -> None:
        if hasattr(self._stream, "close"):
            self._stream.close()


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of an HTTP address.

    Raises:
        InputError: for anything else.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InputError(f"{url[:200]!r} is not an HTTP address.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url[:200]!r} is not an HTTP address: write https://host/path.")
    return parts.scheme, parts.hostname.lower(), port or (443 if parts.scheme == "https" else 80)


def proxy_for(url: str, env: Mapping[str, str]) -> str | None:
    """The HTTP proxy that the environment names for an address; never one for loopback.

    Raises:
        InputError: for a proxy that is not ``http://``.
    """
    scheme, host, port = origin(url)
    if _loopback(host):
        return None
    lower = {name.lower(): value for name, value in env.items() if value}
    proxy = lower.get(f"{scheme}_proxy") or lower.get("all_proxy")
    if not proxy or _bypassed(host, port, lower.get("no_proxy", "")):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme != "http" or not urlsplit(proxy).hostname:
        raise InputError(f"{scheme.upper()}_PROXY must be an http:// address.")
    return proxy


def _bypassed(host: str, port: int, no_proxy: str) -> bool:
    """Whether ``NO_PROXY`` names the host: ``*``, a name, its domain, or either with a port."""
    for entry in (part.strip().lower().lstrip(".") for part in no_proxy.split(",")):
        if entry == "*":
            return True
        name, _, wanted = entry.partition(":")
        named = bool(name) and (host == name or host.endswith(f".{name}"))
        if named and wanted in ("", str(port)):
            return True
    return False


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _readable(sock: socket.socket) -> bool:
    """Whether an idle connection has something to read, which means that it was closed."""
    import select

    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


@contextmanager
def _mapped(timeout: type[Exception], failure: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise timeout(str(error)) from error
    except OSError as error:
        raise failure(str(error)) from error


@contextmanager
def _for_httpx() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        for ours, theirs in _ERRORS:
            if isinstance(error, ours):
                raise theirs(str(error)) from error
        raise
