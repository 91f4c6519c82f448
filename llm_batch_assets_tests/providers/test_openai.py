from __future__ import annotations

import time
import traceback
from contextlib import contextmanager

import pytest

from llm_batch_assets.errors import InputError, ProviderError
from llm_batch_assets.providers.factory import open_provider
from llm_batch_assets.types import CreateRequest, ResultRef
from llm_batch_assets_tests.scripted_server import ScriptedServer

KEY = "sk-secret-0123456789"
BATCH = {
    "id": "batch_1",
    "object": "batch",
    "endpoint": "/v1/responses",
    "status": "validating",
    "input_file_id": "file-in",
    "completion_window": "24h",
    "created_at": 1780000000,
    "metadata": {"submission_key": "abc", "deployment": "dep"},
    "request_counts": {"total": 0, "completed": 0, "failed": 0},
}
REQUEST = CreateRequest(
    endpoint="/v1/responses",
    model="gpt-5-mini-2025-08-07",
    input_ref="file-in",
    request_file_digest="0" * 64,
    records=2,
    deployment="dep",
    submission_key="abc",
    job_key="sha256:" + "1" * 64,
    shard_key="d/r1/a1/p00000",
)


def own(status_message="no", kind="invalid_request_error", code=None):
    return {"error": {"message": status_message, "type": kind, "param": None, "code": code}}


@contextmanager
def talking_to(handler, effects=None, **env):
    with ScriptedServer(handler) as server:
        env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{server.url}/v1", **env}
        kw = {"effects": effects} if effects else {}
        provider = open_provider("openai", env=env, deployment="dep", **kw)
        try:
            yield provider, server
        finally:
            provider.close()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "objects" / "request"
    path.parent.mkdir()
    path.write_bytes(b'{"custom_id":"\xe2\x80\xa8"}\n' * 3)
    return path


def test_upload_sends_exactly_the_stored_bytes(path):
    def handler(request, wire):
        wire.reply(200, {"id": "file-in", "object": "file", "bytes": path.stat().st_size})

    with talking_to(handler) as (provider, server):
        uploaded = provider.upload(path, name="abc.jsonl", timeout=5)
    assert (uploaded.ref, uploaded.bytes) == ("file-in", path.stat().st_size)
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/files")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert b'name="purpose"\r\n\r\nbatch\r\n' in request.body
    assert b'filename="abc.jsonl"' in request.body
    assert b"\r\n\r\n" + path.read_bytes() + b"\r\n--" in request.body


@pytest.mark.parametrize("reply", [{"id": "file-in", "bytes": 1}, {"bytes": 57}, {}])
def test_an_upload_that_did_not_arrive_whole_is_no_upload(path, reply):
    with (
        talking_to(lambda r, w: w.reply(200, reply)) as (provider, _),
        pytest.raises(ProviderError) as caught,
    ):
        provider.upload(path, name="x", timeout=5)
    assert caught.value.effect == "unknown"


def test_create_is_one_post_that_carries_our_labels(path):
    with talking_to(lambda r, w: w.reply(200, BATCH)) as (provider, server):
        view = provider.create(REQUEST, path, timeout=5)
    assert (view.batch_id, view.status, view.submission_key) == ("batch_1", "queued", "abc")
    assert b'"batch_1"' in view.raw
    (request,) = server.requests
    assert request.json() == {
        "completion_window": "24h",
        "endpoint": "/v1/responses",
        "input_file_id": "file-in",
        "metadata": {
            "deployment": "dep",
            "submission_key": "abc",
            "job_key": REQUEST.job_key,
            "shard": "d/r1/a1/p00000",
        },
    }
    labels = request.json()["metadata"]
    assert len(labels) <= 16
    assert all(len(k) <= 64 and len(v) <= 512 for k, v in labels.items())


CERTAIN = [
    (429, own("slow", "requests", "rate_limit_exceeded"), "refused_now"),
    (429, own("no money", "insufficient_quota", "insufficient_quota"), "account"),
    (400, own("limit", code="billing_hard_limit_reached"), "account"),
    (401, own(f"Incorrect API key provided: {KEY}"), "account"),
    (402, own(), "account"),
    (403, own(), "account"),
    (400, own(), "refused"),
    (404, own("No such File"), "refused"),
    (413, own(), "refused"),
    (422, own(), "refused"),
]


@pytest.mark.parametrize(("status", "body", "fault"), CERTAIN)
def test_only_the_providers_own_refusal_of_a_create_is_certain(path, status, body, fault):
    headers = {"x-request-id": "req_9", "retry-after": "3"}
    with (
        talking_to(lambda r, w: w.reply(status, body, headers)) as (provider, server),
        pytest.raises(ProviderError) as caught,
    ):
        provider.create(REQUEST, path, timeout=5)
    error = caught.value
    assert (error.effect, error.fault, error.http_status) == ("none", fault, status)
    assert (error.request_id, error.retry_after) == ("req_9", 3.0)
    assert len(server.requests) == 1
    assert KEY not in "".join(traceback.format_exception(error))


HTML = b"<html>502</html>"
UNCERTAIN = {
    "408": lambda w: w.reply(408, own()),
    "409": lambda w: w.reply(409, own()),
    "500": lambda w: w.reply(500, own(kind="server_error")),
    "503": lambda w: w.reply(503, own(kind="overloaded")),
    "529": lambda w: w.reply(529, own()),
    "502 html": lambda w: w.reply(502, HTML, {"Content-Type": "text/html"}),
    "403 html": lambda w: w.reply(403, HTML, {"Content-Type": "text/html"}),
    "413 html": lambda w: w.reply(413, HTML, {"Content-Type": "text/html"}),
    "400 foreign json": lambda w: w.reply(400, {"message": "Forbidden"}),
    "400 foreign error": lambda w: w.reply(400, {"error": "no"}),
    "400 half an error": lambda w: w.reply(400, {"error": {"message": "no"}}),
    "400 cut": lambda w: w.reply(400, b'{"error": {"mess', length=100),
    "400 empty": lambda w: w.reply(400, b""),
    "429 html": lambda w: w.reply(429, HTML, {"Content-Type": "text/html"}),
    "200 html": lambda w: w.reply(200, HTML, {"Content-Type": "text/html"}),
    "200 error": lambda w: w.reply(200, own()),
    "200 list": lambda w: w.reply(200, [BATCH]),
    "200 no id": lambda w: w.reply(200, {**BATCH, "id": ""}),
    "200 another object": lambda w: w.reply(200, {**BATCH, "object": "file"}),
    "200 cut": lambda w: w.reply(200, b'{"id": "batch_1"', length=400),
    "200 cut, no length": lambda w: w.reply(200, b'{"id": "batch_1"', length=None),
    "200 not utf-8": lambda w: w.reply(200, b'{"id": "batch_\xff"}'),
    "200 deep": lambda w: w.reply(200, b'{"id":' + b"[" * 100_000),
    "204": lambda w: w.reply(204, b"", length=None),
    "302": lambda w: w.reply(302, b"", {"Location": "/v1/batches"}),
    "307 elsewhere": lambda w: w.reply(307, b"", {"Location": "http://127.0.0.2:9/v1/batches"}),
    "dropped": lambda w: w.close(),
    "garbage": lambda w: (w.send(b"SSH-2.0\r\n"), w.close()),
    "hangs": lambda w: w.hang(),
}


@pytest.mark.parametrize("name", UNCERTAIN)
def test_anything_else_leaves_a_create_uncertain_after_one_post(path, name):
    with (
        talking_to(lambda r, w: UNCERTAIN[name](w)) as (provider, server),
        pytest.raises(ProviderError) as caught,
    ):
        provider.create(REQUEST, path, timeout=1.0 if name == "hangs" else 20)
    assert caught.value.effect == "unknown"
    assert caught.value.operation == "create"
    assert len(server.requests) == 1


def dribble(wire, stop_after=30):
    wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n")
    end = time.monotonic() + stop_after
    while time.monotonic() < end and not wire.stopped.wait(0.05):
        wire.send(b" ")


def dribbled_head(wire, stop_after=30):
    wire.send(b"HTTP/1.1 200 OK\r\n")
    end = time.monotonic() + stop_after
    while time.monotonic() < end and not wire.stopped.wait(0.05):
        wire.send(b"X-A: b\r\n")


@pytest.mark.parametrize("slow", [dribble, dribbled_head, lambda wire: wire.hang()])
def test_a_create_that_does_not_end_is_ended_and_its_socket_closed(path, slow):
    closed = []

    def handler(request, wire):
        try:
            slow(wire)
        except OSError:
            closed.append(True)
            raise
        if not wire.stopped.is_set():
            closed.append(True)

    with talking_to(handler) as (provider, server):
        begun = time.monotonic()
        with pytest.raises(ProviderError) as caught:
            provider.create(REQUEST, path, timeout=0.5)
        took = time.monotonic() - begun
        assert 0.45 < took < 1.5
        end = time.monotonic() + 5
        while not closed and time.monotonic() < end:
            time.sleep(0.01)
        assert closed, "the server sees the hang-up while the client still lives"
    assert (caught.value.effect, caught.value.fault) == ("unknown", "transport")
    assert len(server.requests) == 1


def test_an_upload_into_a_full_pipe_is_ended(tmp_path):
    big = tmp_path / "big"
    with big.open("wb") as out:
        out.truncate(30_000_000)

    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url}
        provider = open_provider("openai", env=env, deployment="dep")
        begun = time.monotonic()
        with pytest.raises(ProviderError) as caught:
            provider.upload(big, name="x", timeout=0.5)
        assert time.monotonic() - begun < 20
        provider.close()
    assert caught.value.fault == "transport"


def test_an_unreachable_address_is_one_sentence(path):
    env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    provider = open_provider("openai", env=env, deployment="dep")
    with pytest.raises(ProviderError) as caught:
        provider.get("batch_1")
    assert caught.value.fault == "transport"
    assert "refused" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"OPENAI_API_KEY": "  "},
        {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "ftp://x"},
        {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "nonsense"},
        {"OPENAI_API_KEY": KEY, "HTTPS_PROXY": "socks5://p:1"},
    ],
)
def test_a_missing_key_or_a_bad_address_is_wrong_use(env, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-process")
    with pytest.raises(InputError) as caught:
        open_provider("openai", env=env, deployment="dep")
    assert KEY not in str(caught.value)


def test_an_unknown_provider_is_wrong_use():
    with pytest.raises(InputError):
        open_provider("acme", env={}, deployment="dep")


def test_only_the_given_environment_counts(monkeypatch, path):
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "of-the-process")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with talking_to(lambda r, w: w.reply(200, BATCH)) as (provider, server):
        provider.create(REQUEST, path, timeout=5)
    headers = server.requests[0].headers
    assert "of-the-process" not in str(headers)
    assert "openai-organization" not in headers
    assert "openai-project" not in headers


def test_organisation_and_project_are_sent(path):
    env = {"OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "proj_1"}
    with talking_to(lambda r, w: w.reply(200, BATCH), **env) as (provider, server):
        provider.create(REQUEST, path, timeout=5)
    headers = server.requests[0].headers
    assert headers["openai-organization"] == "org-1"
    assert headers["openai-project"] == "proj_1"


def test_the_account_is_known_by_key_organisation_and_project_but_not_by_address():
    def account(**env):
        return open_provider("openai", env=env, deployment="d").account()

    base = account(OPENAI_API_KEY=KEY)
    assert account(OPENAI_API_KEY=KEY, OPENAI_BASE_URL="http://127.0.0.1:1/v1") == base
    others = [
        account(OPENAI_API_KEY="other"),
        account(OPENAI_API_KEY=KEY, OPENAI_ORG_ID="o"),
        account(OPENAI_API_KEY=KEY, OPENAI_PROJECT_ID="o"),
    ]
    assert len({base, *others}) == 4
    assert KEY not in base


def listing(pages):
    def handler(request, wire):
        assert request.query["limit"] == "100"
        wire.reply(200, pages[request.query.get("after")])

    return handler


def item(n, **kw):
    return {**BATCH, "id": f"b{n}", **kw}


def page(*items, more):
    return {"object": "list", "data": list(items), "has_more": more}


def test_a_list_is_read_to_its_end_in_pages():
    pages = {None: page(item(1), item(2), more=True), "b2": page(item(2), item(3), more=False)}
    with talking_to(listing(pages)) as (provider, _):
        assert [v.batch_id for v in provider.list_batches()] == ["b1", "b2", "b3"]


def test_an_empty_account_is_an_end():
    with talking_to(listing({None: page(more=False)})) as (provider, _):
        assert list(provider.list_batches()) == []


@pytest.mark.parametrize(
    "pages",
    [
        {None: page(more=True)},
        {None: page(item(1), more=True), "b1": page(more=True)},
        {None: page(item(1), more=True), "b1": page(item(1), more=True)},
        {
            None: page(item(1), more=True),
            "b1": page(item(2), more=True),
            "b2": page(item(1), more=True),
        },
        {None: {"object": "list", "data": []}},
        {None: {"object": "list", "data": [], "has_more": None}},
        {None: {"has_more": False}},
        {None: page({"error": "x"}, more=False)},
        {None: own()},
    ],
)
def test_a_list_that_does_not_prove_its_end_is_no_end(pages):
    with talking_to(listing(pages)) as (provider, _), pytest.raises(ProviderError) as caught:
        list(provider.list_batches())
    assert caught.value.effect == "none"


def test_nulls_in_a_foreign_batch_do_not_break_the_list():
    odd = item(1, metadata=None, request_counts=None, errors=None, output_file_id="")
    with talking_to(listing({None: page(odd, item(2), more=False)})) as (provider, _):
        views = list(provider.list_batches())
    assert [v.submission_key for v in views] == [None, "abc"]


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (404, own("No batch found"), "not_found"),
        (401, own(), "account"),
        (403, own(), "account"),
        (429, own(), "refused_now"),
        (500, own(), "transport"),
        (502, HTML, "transport"),
        (404, HTML, "transport"),
        (200, HTML, "unknown"),
        (200, own(), "unknown"),
        (200, {**BATCH, "id": "batch_2"}, "unknown"),
    ],
)
def test_a_failed_look_says_why_and_changes_nothing(status, body, fault):
    with (
        talking_to(lambda r, w: w.reply(status, body)) as (provider, server),
        pytest.raises(ProviderError) as caught,
    ):
        provider.get("batch_1")
    assert (caught.value.fault, caught.value.effect) == (fault, "none")
    assert len(server.requests) == 1


def test_cancel():
    stopping = {**BATCH, "status": "cancelling"}
    with talking_to(lambda r, w: w.reply(200, stopping)) as (provider, server):
        assert provider.cancel("batch_1").status == "stopping"
    assert server.requests[0].path == "/v1/batches/batch_1/cancel"


@pytest.mark.parametrize("status", [400, 409])
@pytest.mark.parametrize("now", ["completed", "cancelling", "in_progress"])
def test_cancel_of_what_is_over_looks_again(status, now):
    def handler(request, wire):
        if request.method == "POST":
            wire.reply(status, own("Cannot cancel a batch with status X"))
        else:
            wire.reply(200, {**BATCH, "status": now})

    with talking_to(handler) as (provider, _):
        if now == "completed":
            assert provider.cancel("batch_1") is None
        elif now == "cancelling":
            assert provider.cancel("batch_1").status == "stopping"
        else:
            with pytest.raises(ProviderError):
                provider.cancel("batch_1")


def test_deleting_what_is_not_there_is_fine():
    with talking_to(lambda r, w: w.reply(404, own())) as (provider, server):
        provider.delete_input("file-in")
        provider.delete_remote("batch_1", ("file-a", "file-b"))
    assert [r.path for r in server.requests] == [
        "/v1/files/file-in",
        "/v1/files/file-a",
        "/v1/files/file-b",
    ]
    assert {r.method for r in server.requests} == {"DELETE"}


def test_deleting_that_fails_says_so():
    with (
        talking_to(lambda r, w: w.reply(500, own())) as (provider, _),
        pytest.raises(ProviderError),
    ):
        provider.delete_input("file-in")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_to_another_host_is_not_followed(path, status):
    reached = []
    with ScriptedServer(lambda r, w: (reached.append(r), w.reply(200, b"stolen"))) as other:

        def handler(request, wire):
            if request.path.endswith("/content"):
                wire.reply(status, b"", {"Location": f"{other.url}/x"})
            else:
                wire.reply(200, {"id": "file-1", "bytes": 6})

        with (
            talking_to(handler) as (provider, _),
            pytest.raises(ProviderError),
            provider.open_result(ResultRef("results", "file-1")),
        ):
            pass
    assert reached == []


def test_effects_surround_every_call_also_one_that_fails(path):
    seen = []

    class Record:
        def at(self, name, when):
            seen.append((name, when))

    def handler(request, wire):
        if request.method == "GET":
            wire.reply(500, own())
        else:
            wire.reply(200, BATCH)

    with talking_to(handler, effects=Record()) as (provider, _):
        provider.create(REQUEST, path, timeout=5)
        with pytest.raises(ProviderError):
            provider.get("batch_1")
    assert seen == [
        ("provider.create", "before"),
        ("provider.create", "after"),
        ("provider.get", "before"),
        ("provider.get", "after"),
    ]


def test_ids_are_escaped_in_addresses():
    with (
        talking_to(lambda r, w: w.reply(404, own())) as (provider, server),
        pytest.raises(ProviderError),
    ):
        provider.get("a/../b?c#d")
    assert server.requests[0].target == "/v1/batches/a%2F..%2Fb%3Fc%23d"
