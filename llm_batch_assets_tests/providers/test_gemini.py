from __future__ import annotations

import traceback
from contextlib import contextmanager
from dataclasses import replace

import pytest

from llm_batch_assets.artifacts import open_store
from llm_batch_assets.download import download
from llm_batch_assets.errors import InputError, ProviderError
from llm_batch_assets.providers.factory import open_provider
from llm_batch_assets.types import CreateRequest, ResultRef
from llm_batch_assets_tests.scripted_server import ScriptedServer

KEY = "AIza-secret-0123456789"
SUBMISSION = "a1" * 32
NAME = "batches/abcdefghijklmnopqrstuvwxyz0123456789"


def operation(name=NAME, state="BATCH_STATE_PENDING", done=False, label=f"dep/{SUBMISSION}", **kw):
    return {
        "name": name,
        "done": done,
        "metadata": {
            "name": name,
            "model": "models/gemini-2.5-flash",
            "displayName": label,
            "createTime": "2026-11-30T10:00:00.000000000Z",
            "state": state,
            "inputConfig": {"fileName": "files/in"},
            "batchStats": {"requestCount": "3", "pendingRequestCount": "3"},
        },
        **kw,
    }


REQUEST = CreateRequest(
    endpoint="generateContent",
    model="gemini-2.5-flash",
    input_ref="files/in",
    request_file_digest="0" * 64,
    records=3,
    deployment="dep",
    submission_key=SUBMISSION,
    job_key="sha256:" + "1" * 64,
    shard_key="d/r1/a1/p00000",
)


def own(code=400, status="INVALID_ARGUMENT", message="no"):
    return {"error": {"code": code, "message": message, "status": status}}


@contextmanager
def talking_to(handler, **env):
    with ScriptedServer(handler) as server:
        env = {"GOOGLE_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": server.url, **env}
        provider = open_provider("gemini", env=env, deployment="dep")
        try:
            yield provider, server
        finally:
            provider.close()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "request"
    path.write_bytes(b'{"key":"\xe2\x80\xa8"}\n' * 3)
    return path


def uploads(path, *, counted=None, elsewhere=None):
    def handler(request, wire):
        if request.path == "/upload/v1/files":
            url = elsewhere or f"http://{request.headers['host']}/upload-here"
            wire.reply(200, {}, {"x-goog-upload-url": url, "x-goog-upload-status": "active"})
        else:
            size = path.stat().st_size if counted is None else counted
            body = {"file": {"name": "files/in", "sizeBytes": str(size)}}
            wire.reply(200, body, {"x-goog-upload-status": "final"})

    return handler


def test_upload_sends_exactly_the_stored_bytes_and_no_key_with_them(path):
    with talking_to(uploads(path)) as (provider, server):
        uploaded = provider.upload(path, name="abc.jsonl", timeout=5)
    assert (uploaded.ref, uploaded.bytes) == ("files/in", path.stat().st_size)
    start, data = server.requests
    assert start.json()["file"]["mime_type"] == "application/jsonl"
    assert data.body == path.read_bytes()
    assert "x-goog-api-key" not in data.headers


def test_an_upload_url_elsewhere_is_not_followed(path):
    reached = []
    with (
        ScriptedServer(lambda r, w: (reached.append(r), w.reply(200, b""))) as other,
        talking_to(uploads(path, elsewhere=f"{other.url}/steal")) as (provider, server),
        pytest.raises(ProviderError, match="configured host"),
    ):
        provider.upload(path, name="abc.jsonl", timeout=5)
    assert reached == []
    assert len(server.requests) == 1


def test_an_upload_that_did_not_arrive_whole_is_no_upload(path):
    with (
        talking_to(uploads(path, counted=1)) as (provider, _),
        pytest.raises(ProviderError),
    ):
        provider.upload(path, name="abc.jsonl", timeout=5)


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("generateContent", "/v1/models/gemini-2.5-flash:batchGenerateContent"),
        ("embedContent", "/v1/models/gemini-2.5-flash:asyncBatchEmbedContent"),
    ],
)
def test_create_is_one_post_with_our_label(path, endpoint, target):
    with talking_to(lambda r, w: w.reply(200, operation())) as (provider, server):
        view = provider.create(replace(REQUEST, endpoint=endpoint), path, timeout=5)
    assert (view.batch_id, view.status) == (NAME, "queued")
    assert (view.submission_key, view.deployment) == (SUBMISSION, "dep")
    assert view.counts.total == 3
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", target)
    assert request.headers["x-goog-api-key"] == KEY
    batch = request.json()["batch"]
    assert batch["displayName"] == f"dep/{SUBMISSION}"
    assert list(batch["inputConfig"].values()) == ["files/in"]


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (429, own(429, "RESOURCE_EXHAUSTED"), "refused_now"),
        (401, own(401, "UNAUTHENTICATED"), "account"),
        (403, own(403, "PERMISSION_DENIED", f"key {KEY}"), "account"),
        (400, own(message="API key not valid. Please pass a valid API key."), "account"),
        (400, own(status="FAILED_PRECONDITION", message="enable billing"), "account"),
        (400, own(), "refused"),
        (404, own(404, "NOT_FOUND"), "refused"),
    ],
)
def test_only_the_providers_own_refusal_of_a_create_is_certain(path, status, body, fault):
    with (
        talking_to(lambda r, w: w.reply(status, body)) as (provider, server),
        pytest.raises(ProviderError) as caught,
    ):
        provider.create(REQUEST, path, timeout=5)
    assert (caught.value.effect, caught.value.fault) == ("none", fault)
    assert len(server.requests) == 1
    assert KEY not in "".join(traceback.format_exception(caught.value))


UNCERTAIN = {
    "409": lambda w: w.reply(409, own(409, "ABORTED")),
    "408": lambda w: w.reply(408, own()),
    "500": lambda w: w.reply(500, own(500, "INTERNAL")),
    "503": lambda w: w.reply(503, own(503, "UNAVAILABLE")),
    "400 foreign": lambda w: w.reply(400, {"error": "x"}),
    "403 html": lambda w: w.reply(403, b"<html>", {"Content-Type": "text/html"}),
    "200 html": lambda w: w.reply(200, b"<html>", {"Content-Type": "text/html"}),
    "200 error": lambda w: w.reply(200, own()),
    "200 empty": lambda w: w.reply(200, {}),
    "200 no batch": lambda w: w.reply(200, {"name": "operations/1", "metadata": {}}),
    "201": lambda w: w.reply(201, b""),
    "200 cut": lambda w: w.reply(200, b'{"name": "batches/', length=400),
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


def test_a_list_is_read_to_its_end_also_over_an_empty_page():
    pages = {
        None: {"operations": [operation("batches/1")], "nextPageToken": "t1"},
        "t1": {"nextPageToken": "t2"},
        "t2": {"operations": [operation("batches/2", label="other")]},
    }

    def handler(request, wire):
        assert request.path == "/v1/batches"
        wire.reply(200, pages[request.query.get("pageToken")])

    with talking_to(handler) as (provider, _):
        views = list(provider.list_batches())
    assert [v.batch_id for v in views] == ["batches/1", "batches/2"]
    assert [v.submission_key for v in views] == [SUBMISSION, None]


def test_an_empty_account_is_an_end():
    with talking_to(lambda r, w: w.reply(200, {})) as (provider, _):
        assert list(provider.list_batches()) == []


@pytest.mark.parametrize(
    "answer",
    [
        {"nextPageToken": "same"},
        {"operations": [operation()], "nextPageToken": "same"},
        {"operations": {}},
        {"batches": []},
        own(),
    ],
)
def test_a_list_that_does_not_prove_its_end_is_no_end(answer):
    with (
        talking_to(lambda r, w: w.reply(200, answer)) as (provider, _),
        pytest.raises(ProviderError),
    ):
        list(provider.list_batches())


def test_counts_and_the_reason_of_a_failure_survive_the_sdk():
    failed = operation(state="BATCH_STATE_FAILED", done=True, error={"code": 8, "message": "full"})
    with talking_to(lambda r, w: w.reply(200, failed)) as (provider, _):
        view = provider.get(NAME)
    assert view.status == "failed"
    assert view.faults[0].message == "full"
    assert view.counts.total == 3


def test_a_failed_look_says_why():
    with talking_to(lambda r, w: w.reply(404, own(404, "NOT_FOUND"))) as (provider, _):
        with pytest.raises(ProviderError) as caught:
            provider.get(NAME)
        assert caught.value.fault == "not_found"
        with pytest.raises(ProviderError):
            provider.get("not-a-name")


def test_a_result_file_is_downloaded_by_name(tmp_path):
    data = b'{"key":"a","response":{}}\n'
    with talking_to(lambda r, w: w.reply(200, data)) as (provider, server):
        ref = ResultRef("results", "files/batch-" + "x" * 50)
        store = open_store(str(tmp_path / "s"))
        receipt = download(provider, ref, store)
    assert store.get(receipt.digest) == data
    (request,) = server.requests
    assert request.target == f"/v1/{ref.ref}:download?alt=media"
    assert request.headers["x-goog-api-key"] == KEY


def test_rows_that_the_operation_carries_are_a_result_file(tmp_path):
    rows = [{"metadata": {"key": "a"}, "response": {"x": 1}}, {"metadata": {"key": "b"}}]
    done = operation(
        state="BATCH_STATE_SUCCEEDED",
        done=True,
        response={"inlinedResponses": {"inlinedResponses": rows}},
    )
    with talking_to(lambda r, w: w.reply(200, done)) as (provider, _):
        view = provider.get(NAME)
        assert view.results == (ResultRef("results", f"inline:{NAME}"),)
        store = open_store(str(tmp_path / "s"))
        receipt = download(provider, view.results[0], store)
    assert store.get(receipt.digest).count(b"\n") == 2


def test_cancel_looks_afterwards_since_its_reply_is_empty():
    states = {"state": "BATCH_STATE_RUNNING"}

    def handler(request, wire):
        wire.reply(200, {} if request.method == "POST" else operation(**states))

    with talking_to(handler) as (provider, server):
        assert provider.cancel(NAME).status == "running"
        states["state"] = "BATCH_STATE_CANCELLED"
        assert provider.cancel(NAME) is None
    assert server.requests[0].path == f"/v1/{NAME}:cancel"


def test_deleting_tolerates_what_is_gone_and_what_cannot_be_deleted():
    def handler(request, wire):
        if request.path == "/v1/files/gone":
            message = "You do not have permission to access the File gone or it may not exist."
            wire.reply(403, own(403, "PERMISSION_DENIED", message))
        elif len(request.path) > 50 and "files" in request.path:
            wire.reply(400, own())
        else:
            wire.reply(404, own(404, "NOT_FOUND"))

    with talking_to(handler) as (provider, server):
        provider.delete_input("files/gone")
        provider.delete_remote(NAME, ("files/batch-" + "x" * 50, f"inline:{NAME}"))
    assert [r.method for r in server.requests] == ["DELETE"] * 3


def test_only_the_given_environment_counts(path, monkeypatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "of-the-process")
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "of-the-process")
    monkeypatch.setenv("GOOGLE_GENAI_API_VERSION", "v9")
    with pytest.raises(InputError):
        open_provider("gemini", env={}, deployment="d")
    env = {"GOOGLE_API_KEY": "", "GEMINI_API_KEY": "k2", "GOOGLE_GENAI_API_VERSION": "beta"}
    with talking_to(lambda r, w: w.reply(200, operation()), **env) as (provider, server):
        provider.create(REQUEST, path, timeout=5)
    assert server.requests[0].path.startswith("/v1beta/models/")
    assert server.requests[0].headers["x-goog-api-key"] == "k2"
