from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import httpx2
import pytest

from llm_batch_assets.errors import InputError
from llm_batch_assets.providers.transport import (
    BoundTransport,
    Deadline,
    ForeignHost,
    origin,
    proxy_for,
)
from llm_batch_assets_tests.scripted_server import ScriptedServer


@contextmanager
def bound(base_url, env=None):
    deadline = Deadline()
    transport = BoundTransport(base_url, env or {}, deadline)
    with httpx2.Client(transport=transport, timeout=30) as client:
        yield client, deadline


def ends_in_time(client, deadline, url, seconds=0.4):
    begun = time.monotonic()
    with pytest.raises(httpx2.TimeoutException), deadline.limit(seconds):
        client.get(url)
    assert seconds * 0.9 < time.monotonic() - begun < seconds + 10


def test_a_silent_server_is_given_up_in_time():
    with (
        ScriptedServer(lambda r, w: w.hang()) as server,
        bound(server.url) as (client, deadline),
    ):
        ends_in_time(client, deadline, server.url)


def test_a_tls_handshake_that_never_ends_is_given_up_in_time():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        bound(f"https://127.0.0.1:{listener.getsockname()[1]}") as (client, deadline),
    ):
        ends_in_time(client, deadline, f"https://127.0.0.1:{listener.getsockname()[1]}/")


def test_a_name_that_is_never_resolved_is_given_up_in_time(monkeypatch):
    release = threading.Event()

    def getaddrinfo(*a, **k):
        release.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    try:
        with bound("http://provider.example") as (client, deadline):
            ends_in_time(client, deadline, "http://provider.example/")
    finally:
        release.set()


def test_a_body_that_dribbles_is_given_up_in_time():
    def handler(request, wire):
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not wire.stopped.wait(0.05):
            wire.send(b"x")

    with ScriptedServer(handler) as server, bound(server.url) as (client, deadline):
        ends_in_time(client, deadline, server.url)


def test_a_limit_that_has_passed_opens_nothing():
    with (
        ScriptedServer(lambda r, w: w.reply(200)) as server,
        bound(server.url) as (client, deadline),
        pytest.raises(httpx2.TimeoutException),
        deadline.limit(0),
    ):
        client.get(server.url)
    assert server.requests == []


def test_limits_nest_and_end_with_their_block():
    now = [0.0]
    deadline = Deadline(lambda: now[0])
    assert deadline.left(None) is None
    assert deadline.left(7.0) == 7.0
    with deadline.limit(10):
        with deadline.limit(60):
            assert deadline.left(None) == 10
        with deadline.limit(3):
            assert deadline.left(7.0) == 3
        now[0] = 8
        assert deadline.left(7.0) == 2
        now[0] = 10
        with pytest.raises(TimeoutError):
            deadline.left(None)
    assert deadline.left(None) is None


def test_a_limit_is_one_threads_own():
    deadline = Deadline()
    seen = []
    with deadline.limit(5):
        thread = threading.Thread(target=lambda: seen.append(deadline.left(None)))
        thread.start()
        thread.join()
    assert seen == [None]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/",
        "https://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://127.0.0.1.evil.example:{port}/",
        "http://127.0.0.1:{port}@evil.example/",
    ],
)
def test_another_address_is_never_opened(url):
    with (
        ScriptedServer(lambda r, w: w.reply(200)) as server,
        bound(server.url) as (client, _),
        pytest.raises((ForeignHost, httpx2.InvalidURL)),
    ):
        client.get(url.format(port=server.port))
    assert server.requests == []


def test_connections_are_used_again_and_closed_ones_are_not():
    ports = []

    def handler(request, wire):
        ports.append(wire.sock.getpeername()[1])
        wire.reply(200, b"ok")

    with ScriptedServer(handler) as server, bound(server.url) as (client, _):
        for _ in range(3):
            assert client.get(server.url).text == "ok"
    assert len(set(ports)) == 1


def test_the_proxy_of_the_environment_is_used():
    def handler(request, wire):
        wire.reply(200, b"through the proxy")

    with ScriptedServer(handler) as proxy:
        env = {"HTTP_PROXY": f"http://user:p%40ss@127.0.0.1:{proxy.port}"}
        with bound("http://provider.example:8080/v1", env) as (client, _):
            assert client.get("http://provider.example:8080/v1/x").text == "through the proxy"
    (request,) = proxy.requests
    assert request.target == "http://provider.example:8080/v1/x"
    assert request.headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"


P = "http://proxy:3128"


@pytest.mark.parametrize(
    ("url", "env", "proxy"),
    [
        ("https://api.openai.com/v1", {}, None),
        ("https://api.openai.com/v1", {"HTTPS_PROXY": P}, P),
        ("https://api.openai.com/v1", {"https_proxy": "proxy:3128"}, P),
        ("https://api.openai.com/v1", {"HTTP_PROXY": P}, None),
        ("https://api.openai.com/v1", {"ALL_PROXY": P}, P),
        ("https://api.openai.com/v1", {"HTTPS_PROXY": P, "NO_PROXY": "x, .openai.com"}, None),
        ("https://api.openai.com/v1", {"HTTPS_PROXY": P, "no_proxy": "*"}, None),
        ("https://api.openai.com/v1", {"HTTPS_PROXY": P, "NO_PROXY": "openai.com:443"}, None),
        ("https://api.openai.com/v1", {"HTTPS_PROXY": P, "NO_PROXY": "openai.com:80"}, P),
        ("https://api.openai.com/v1", {"HTTPS_PROXY": P, "NO_PROXY": "ai.com,"}, P),
        ("http://127.0.0.1:9/v1", {"HTTP_PROXY": P}, None),
        ("http://localhost:9/v1", {"HTTP_PROXY": P}, None),
        ("http://[::1]:9/v1", {"HTTP_PROXY": P}, None),
    ],
)
def test_which_proxy(url, env, proxy):
    assert proxy_for(url, env) == proxy


@pytest.mark.parametrize("proxy", ["socks5://p:1", "https://p:1", "http://"])
def test_a_proxy_that_is_not_http_is_wrong_use(proxy):
    with pytest.raises(InputError, match="HTTPS_PROXY"):
        proxy_for("https://api.openai.com", {"HTTPS_PROXY": proxy})


def test_origins():
    assert origin("HTTPS://API.openai.com/v1") == ("https", "api.openai.com", 443)
    assert origin("http://h:8080") == ("http", "h", 8080)
    for bad in ("", "h", "ftp://h", "http://", "http://h:port", "http://h:99999"):
        with pytest.raises(InputError):
            origin(bad)
