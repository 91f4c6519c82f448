from __future__ import annotations

import json
import traceback
from contextlib import contextmanager

import pytest

from llm_batch_assets.artifacts import open_store
from llm_batch_assets.download import download
from llm_batch_assets.errors import InputError, ProviderError
from llm_batch_assets.providers.factory import open_provider
from llm_batch_assets.types import CreateRequest, ResultRef
from llm_batch_assets_tests.scripted_server import ScriptedServer

KEY = "sk-ant-secret-0123456789"
BATCH = {
    "id": "msgbatch_1",
    "type": "message_batch",
    "processing_status": "in_progress",
    "request_counts": {"processing": 2, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0},
    "created_at": "2026-11-30T10:00:00.000000Z",
    "expires_at": "2026-12-01T10:00:00.000000Z",
    "ended_at": None,
    "cancel_initiated_at": None,
    "archived_at": None,
    "results_url": None,
}
REQUEST = CreateRequest(
    endpoint="/v1/messages",
    model="claude-haiku-4-5-20251001",
    input_ref=None,
    request_file_digest="0" * 64,
    records=2,
    deployment="dep",
    submission_key="abc",
    job_key="sha256:" + "1" * 64,
    shard_key="d/r1/a1/p00000",
)


def own(kind="invalid_request_error", message="no"):
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


@contextmanager
def talking_to(handler, **env):
    with ScriptedServer(handler) as server:
        env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.url, **env}
        provider = open_provider("anthropic", env=env, deployment="dep")
        try:
            yield provider, server
        finally:
            provider.close()


LINES = (
    b'{"custom_id":"a","params":{"max_tokens":5,"x":"\xe2\x80\xa8"}}\n',
    b'{"custom_id":"b","params":{"n":1.50}}\n',
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "request"
    path.write_bytes(b"".join(LINES))
    return path


def test_create_is_one_post_of_the_stored_bytes(path):
    with talking_to(lambda r, w: w.reply(200, BATCH)) as (provider, server):
        assert provider.upload(path, name="x", timeout=1).ref is None
        view = provider.create(REQUEST, path, timeout=5)
    assert (view.batch_id, view.status, view.counts.total) == ("msgbatch_1", "running", 2)
    assert view.submission_key is None
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/messages/batches")
    inner = b",".join(line[:-1] for line in LINES)
    assert request.body == b'{"requests":[' + inner + b"]}"
    assert request.headers["content-length"] == str(len(request.body))
    assert request.headers["content-type"] == "application/json"
    assert request.headers["anthropic-version"] == "2026-10-21"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert "idempotency-key" not in request.headers


def test_a_large_body_streams_in_blocks_and_arrives_unchanged(tmp_path):
    path = tmp_path / "request"
    path.write_bytes(b"".join(b'{"custom_id":"%d","params":{}}\n' % n for n in range(30_000)))
    with talking_to(lambda r, w: w.reply(200, BATCH)) as (provider, server):
        provider.create(REQUEST, path, timeout=20)
    sent = json.loads(server.requests[0].body)["requests"]
    assert [r["custom_id"] for r in sent] == [str(n) for n in range(30_000)]


def test_a_cut_request_file_is_not_sent(tmp_path):
    path = tmp_path / "request"
    with talking_to(lambda r, w: w.reply(200, BATCH)) as (provider, server):
        for content in (b"", LINES[0] + LINES[1][:-5]):
            path.write_bytes(content)
            with pytest.raises(InputError):
                provider.create(REQUEST, path, timeout=5)
    assert server.requests == []


def test_the_version_and_a_token_come_from_the_environment(path, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "of-the-process")
    env = {
        "ANTHROPIC_API_KEY": "",
        "ANTHROPIC_AUTH_TOKEN": "tok",
        "ANTHROPIC_VERSION": "2023-06-01",
    }
    with talking_to(lambda r, w: w.reply(200, BATCH), **env) as (provider, server):
        provider.create(REQUEST, path, timeout=5)
    headers = server.requests[0].headers
    assert headers["authorization"] == "Bearer tok"
    assert headers["anthropic-version"] == "2023-06-01"
    assert "of-the-process" not in str(headers)


def test_a_missing_key_is_wrong_use():
    with pytest.raises(InputError, match="ANTHROPIC_API_KEY"):
        open_provider("anthropic", env={}, deployment="d")


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (429, own("rate_limit_error"), "refused_now"),
        (401, own("authentication_error", f"bad {KEY}"), "account"),
        (403, own("permission_error"), "account"),
        (402, own("billing_error"), "account"),
        (400, own(message="Your credit balance is too low to access the API."), "account"),
        (400, own(), "refused"),
        (404, own("not_found_error"), "refused"),
        (413, own("request_too_large"), "refused"),
    ],
)
def test_only_the_providers_own_refusal_of_a_create_is_certain(path, status, body, fault):
    headers = {"request-id": "req_9"}
    with (
        talking_to(lambda r, w: w.reply(status, body, headers)) as (provider, server),
        pytest.raises(ProviderError) as caught,
    ):
        provider.create(REQUEST, path, timeout=5)
    error = caught.value
    assert (error.effect, error.fault, error.request_id) == ("none", fault, "req_9")
    assert len(server.requests) == 1
    assert KEY not in "".join(traceback.format_exception(error))


UNCERTAIN = {
    "409": lambda w: w.reply(409, own("conflict_error")),
    "408": lambda w: w.reply(408, own("timeout_error")),
    "500": lambda w: w.reply(500, own("api_error")),
    "504": lambda w: w.reply(504, own("timeout_error")),
    "529": lambda w: w.reply(529, own("overloaded_error")),
    "openai's words": lambda w: w.reply(400, {"error": {"type": "x", "message": "y"}}),
    "413 html": lambda w: w.reply(413, b"<html>", {"Content-Type": "text/html"}),
    "200 html": lambda w: w.reply(200, b"<html>", {"Content-Type": "text/html"}),
    "200 error": lambda w: w.reply(200, own()),
    "200 another object": lambda w: w.reply(200, {**BATCH, "type": "message"}),
    "200 cut": lambda w: w.reply(200, b'{"id": "msg', length=400),
    "dropped": lambda w: w.close(),
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
    assert len(server.requests) == 1


def page(*ids, more):
    data = [{**BATCH, "id": i} for i in ids]
    return {
        "data": data,
        "has_more": more,
        "first_id": ids[:1],
        "last_id": ids[-1] if ids else None,
    }


def test_a_list_is_read_to_its_end():
    pages = {None: page("b1", "b2", more=True), "b2": page("b3", more=False)}

    def handler(request, wire):
        assert request.query["limit"] == "1000"
        wire.reply(200, pages[request.query.get("after_id")])

    with talking_to(handler) as (provider, _):
        assert [v.batch_id for v in provider.list_batches()] == ["b1", "b2", "b3"]


@pytest.mark.parametrize(
    "answer", [page(more=True), {**page("b1", more=True), "last_id": None}, {"data": []}, own()]
)
def test_a_list_that_does_not_prove_its_end_is_no_end(answer):
    with (
        talking_to(lambda r, w: w.reply(200, answer)) as (provider, _),
        pytest.raises(ProviderError),
    ):
        list(provider.list_batches())


def test_results_come_from_the_configured_host_as_raw_bytes(tmp_path):
    data = b'{"custom_id":"a","result":{"type":"weird"}}\n\n\r\n{"custom_id":"b"}'
    with talking_to(lambda r, w: w.reply(200, data)) as (provider, server):
        ref = ResultRef("results", f"{server.url}/v1/messages/batches/msgbatch_1/results")
        store = open_store(str(tmp_path / "s"))
        receipt = download(provider, ref, store)
    assert store.get(receipt.digest) == data
    assert receipt.expected_bytes is None
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.requests[0].headers["accept-encoding"] == "identity"


def test_a_results_url_on_another_host_is_never_opened():
    reached = []
    with (
        ScriptedServer(lambda r, w: (reached.append(r), w.reply(200, b"{}"))) as other,
        talking_to(lambda r, w: w.reply(500, own())) as (provider, server),
    ):
        for url in (f"{other.url}/results", f"http://localhost:{server.port}/results"):
            with (
                pytest.raises(ProviderError) as caught,
                provider.open_result(ResultRef("results", url)),
            ):
                pass
            assert "configured host" in str(caught.value)
        assert server.requests == []
    assert reached == []


def test_cancel_and_delete():
    ended = {**BATCH, "processing_status": "ended", "results_url": "http://x/y"}

    def handler(request, wire):
        if request.method == "DELETE":
            wire.reply(404, own("not_found_error"))
        elif request.method == "POST":
            wire.reply(400, own(message="cannot cancel"))
        else:
            wire.reply(200, ended)

    with talking_to(handler) as (provider, server):
        assert provider.cancel("msgbatch_1") is None
        provider.delete_remote("msgbatch_1", ())
        provider.delete_input("x")
    assert [r.method for r in server.requests] == ["POST", "GET", "DELETE"]
    stopping = {**BATCH, "processing_status": "canceling"}
    with talking_to(lambda r, w: w.reply(200, stopping)) as (provider, _):
        assert provider.cancel("msgbatch_1").status == "stopping"
