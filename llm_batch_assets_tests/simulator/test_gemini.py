"""The Gemini part: by raw HTTP, and through the official SDK."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from google import genai
from google.genai import errors, types

from llm_batch_assets.simulator import Simulator
from llm_batch_assets.simulator.faults import RECORD_KINDS
from llm_batch_assets_tests.simulator.raw import SCHEMA, read_rows

MODEL = "gemini-2.5-flash"


def request(text: str, **more: Any) -> dict[str, Any]:
    schema = {
        "type": "OBJECT",
        "required": ["summary", "topic"],
        "properties": {"summary": {"type": "STRING"}, "topic": {"type": "STRING"}},
    }
    config = {"responseMimeType": "application/json", "responseSchema": schema}
    contents = [{"role": "user", "parts": [{"text": text}]}]
    return {"contents": contents, "generationConfig": config, **more}


def lines(count: int, prefix: str = "r") -> bytes:
    made = [{"key": f"{prefix}-{n}", "request": request(f"Thing number {n}")} for n in range(count)]
    return ("\n".join(map(json.dumps, made)) + "\n").encode()


class Raw:
    def __init__(self, sim: Simulator, version: str = "v1", key: str = "g-key") -> None:
        self.sim = sim
        self.version = version
        self.http = httpx2.Client(
            base_url=f"{sim.gemini_url}/{version}", headers={"x-goog-api-key": key}, timeout=10
        )

    def start(self, data: bytes, **headers: str) -> httpx2.Response:
        return self.http.post(
            f"{self.sim.gemini_url}/upload/{self.version}/files",
            json={"file": {"display_name": "in.jsonl", "mime_type": "application/jsonl"}},
            headers={
                "x-goog-upload-protocol": "resumable",
                "x-goog-upload-command": "start",
                "x-goog-upload-header-content-length": str(len(data)),
                **headers,
            },
        )

    def upload(self, data: bytes) -> str:
        url = self.start(data).headers["x-goog-upload-url"]
        assert url.startswith(self.sim.origin)
        half = len(data) // 2
        first = httpx2.post(url, content=data[:half], headers={
            "x-goog-upload-command": "upload", "x-goog-upload-offset": "0"})  # fmt: skip
        assert first.headers["x-goog-upload-status"] == "active"
        last = httpx2.post(url, content=data[half:], headers={
            "x-goog-upload-command": "upload, finalize",
            "x-goog-upload-offset": str(half)})  # fmt: skip
        assert last.headers["x-goog-upload-status"] == "final"
        return str(last.json()["file"]["name"])

    def create(self, source: dict[str, Any], kind: str = "batchGenerateContent", name: str = "job",
               model: str = MODEL) -> httpx2.Response:  # fmt: skip
        body = {"batch": {"displayName": name, "inputConfig": source}}
        return self.http.post(f"/models/{model}:{kind}", json=body)

    def submit(self, data: bytes, kind: str = "batchGenerateContent", name: str = "job") -> str:
        made = self.create({"fileName": self.upload(data)}, kind, name)
        assert made.status_code == 200, made.text
        return str(made.json()["name"])

    def get(self, name: str) -> dict[str, Any]:
        reply = self.http.get(f"/{name}")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def finish(self, data: bytes, kind: str = "batchGenerateContent") -> dict[str, Any]:
        name = self.submit(data, kind)
        self.sim.advance(100_000)
        return self.get(name)

    def content(self, operation: dict[str, Any]) -> bytes:
        name = operation["metadata"]["output"]["responsesFile"]
        reply = self.http.get(f"/{name}:download", params={"alt": "media"})
        assert reply.status_code == 200, reply.text
        return reply.content

    def rows(self, operation: dict[str, Any]) -> list[dict[str, Any]]:
        return read_rows(self.content(operation))


@pytest.fixture
def begin() -> Iterator[Callable[..., Raw]]:
    with ExitStack() as stack:

        def make(*faults: dict[str, Any], version: str = "v1", **options: Any) -> Raw:
            sim = stack.enter_context(Simulator(**{"seed": 7, "scale": 0, **options}))
            if faults:
                sim.faults(*faults)
            raw = Raw(sim, version)
            stack.callback(raw.http.close)
            return raw

        yield make


def text_of(row: dict[str, Any]) -> str:
    return str(row["response"]["candidates"][0]["content"]["parts"][0]["text"])


@pytest.mark.parametrize("version", ["v1", "v1beta"])
def test_an_operation_from_start_to_end(begin: Callable[..., Raw], version: str) -> None:
    raw = begin(version=version, batch_seconds=1000)
    name = raw.submit(lines(20), name="k1")
    seen = []
    for _ in range(4):
        operation = raw.get(name)
        seen.append((operation["metadata"]["state"], operation["metadata"]["batchStats"],
                     operation.get("done", False)))  # fmt: skip
        raw.sim.advance(350)
    assert seen == [
        ("BATCH_STATE_PENDING", {"requestCount": "20", "pendingRequestCount": "20"}, False),
        ("BATCH_STATE_RUNNING",
         {"requestCount": "20", "successfulRequestCount": "4", "pendingRequestCount": "16"}, False),
        ("BATCH_STATE_RUNNING",
         {"requestCount": "20", "successfulRequestCount": "14", "pendingRequestCount": "6"}, False),
        ("BATCH_STATE_SUCCEEDED",
         {"requestCount": "20", "successfulRequestCount": "20"}, True),
    ]  # fmt: skip
    operation = raw.get(name)
    assert operation["metadata"]["displayName"] == "k1"
    assert (
        operation["metadata"]["output"]["responsesFile"] == operation["response"]["responsesFile"]
    )
    rows = raw.rows(operation)
    order = [row["key"] for row in rows]
    assert sorted(order) == sorted(f"r-{n}" for n in range(20))
    assert order != [f"r-{n}" for n in range(20)]
    for row in rows:
        jsonschema_rs.validate(SCHEMA, json.loads(text_of(row)))
        assert row["response"]["modelVersion"] == MODEL
        usage = row["response"]["usageMetadata"]
        assert usage["totalTokenCount"] == (
            usage["promptTokenCount"] + usage["candidatesTokenCount"] + usage["thoughtsTokenCount"]
        )
    download = f"{raw.sim.gemini_url}/download/{version}/{operation['response']['responsesFile']}"
    whole = httpx2.get(f"{download}:download?alt=media&key=g-key")
    assert (whole.status_code, whole.content) == (200, raw.content(operation))


def test_keys_and_unknown_things(begin: Callable[..., Raw]) -> None:
    raw = begin()
    name = raw.submit(lines(1))
    url = f"{raw.sim.gemini_url}/v1"
    assert httpx2.get(f"{url}/{name}").status_code == 403
    assert httpx2.get(f"{url}/{name}?key=g-key").status_code == 200
    assert httpx2.get(f"{url}/{name}?key=other").status_code == 404
    assert httpx2.get(f"{url}/batches?key=other").json() == {}
    wrong = httpx2.get(f"{url}/{name}?key=invalid")
    assert (wrong.status_code, wrong.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert raw.create({"fileName": "files/none"}).json()["error"]["status"] == "NOT_FOUND"
    assert raw.create({}).status_code == 400
    assert raw.create({"fileName": "files/x"}, model="gpt-5").status_code == 404
    assert raw.http.post(f"/models/{MODEL}:batchGenerateContent", content=b"{").status_code == 400
    assert raw.sim.meter()["provider_batches"] == 1


def test_resumable_upload_rules(begin: Callable[..., Raw]) -> None:
    raw = begin()
    data = lines(3)
    assert raw.start(data, **{"x-goog-upload-protocol": "raw"}).status_code == 400
    assert raw.start(data, **{"x-goog-upload-header-content-length": "x"}).status_code == 400
    url = raw.start(data).headers["x-goog-upload-url"]
    command = {"x-goog-upload-command": "upload, finalize", "x-goog-upload-offset": "5"}
    assert httpx2.post(url, content=data, headers=command).status_code == 400
    short = {**command, "x-goog-upload-offset": "0"}
    assert httpx2.post(url, content=data[:9], headers=short).status_code == 400
    query = httpx2.post(url, headers={"x-goog-upload-command": "query"})
    assert query.headers["x-goog-upload-size-received"] == "9"
    rest = {**command, "x-goog-upload-offset": "9"}
    made = httpx2.post(url, content=data[9:], headers=rest).json()["file"]
    assert (made["sizeBytes"], made["displayName"]) == (str(len(data)), "in.jsonl")
    assert httpx2.post(url, content=data, headers=rest).status_code == 404
    assert raw.get(made["name"]) == made
    assert [one["name"] for one in raw.http.get("/files").json()["files"]] == [made["name"]]
    reply = raw.http.get(f"/{made['name']}:download", params={"alt": "media"})
    assert reply.status_code == 400, "an uploaded file cannot be downloaded"
    raw.sim.advance(48 * 3600 - 1)
    assert raw.http.get(f"/{made['name']}").status_code == 200
    raw.sim.advance(1)
    assert raw.http.get(f"/{made['name']}").status_code == 404
    second = raw.upload(data)
    assert raw.http.delete(f"/{second}").json() == {}
    assert raw.http.delete(f"/{second}").status_code == 404


def test_result_files_have_ids_that_get_refuses(begin: Callable[..., Raw]) -> None:
    raw = begin()
    name = raw.finish(lines(2))["response"]["responsesFile"]
    assert len(name.removeprefix("files/")) > 40
    assert raw.http.get(f"/{name}").status_code == 400
    assert raw.http.delete(f"/{name}").status_code == 400
    raw.sim.advance(48 * 3600)
    assert raw.http.get(f"/{name}:download", params={"alt": "media"}).status_code == 404


def test_inline_requests_answer_inline_but_not_in_a_list(begin: Callable[..., Raw]) -> None:
    raw = begin()
    asked = [{"request": request(f"T{n}"), "metadata": {"key": f"r-{n}"}} for n in range(4)]
    name = raw.create({"requests": {"requests": asked}}).json()["name"]
    raw.sim.advance(100_000)
    operation = raw.get(name)
    items = operation["metadata"]["output"]["inlinedResponses"]["inlinedResponses"]
    assert items == operation["response"]["inlinedResponses"]["inlinedResponses"]
    assert {one["metadata"]["key"] for one in items} == {f"r-{n}" for n in range(4)}
    (listed,) = raw.http.get("/batches").json()["operations"]
    assert "output" not in listed["metadata"]
    assert listed["done"] is True


def test_snake_case_is_taken_and_flat_config_is_not(begin: Callable[..., Raw]) -> None:
    raw = begin()
    snake = {
        "contents": [{"parts": [{"text": "x"}]}],
        "system_instruction": {"parts": [{"text": "rules"}]},
        "generation_config": {"response_mime_type": "application/json",
                              "response_json_schema": SCHEMA, "max_output_tokens": 500},
    }  # fmt: skip
    flat = {"contents": [{"parts": [{"text": "x"}]}], "config": {"temperature": 0}}
    data = "\n".join(
        json.dumps({"key": key, "request": one}) for key, one in (("a", snake), ("b", flat))
    ).encode()
    body = {"batch": {"display_name": "s", "input_config": {"file_name": raw.upload(data)}}}
    name = raw.http.post(f"/models/{MODEL}:batchGenerateContent", json=body).json()["name"]
    raw.sim.advance(100_000)
    rows = {row["key"]: row for row in raw.rows(raw.get(name))}
    jsonschema_rs.validate(SCHEMA, json.loads(text_of(rows["a"])))
    assert rows["b"]["error"]["code"] == 3


def test_embeddings(begin: Callable[..., Raw]) -> None:
    raw = begin()
    asked = [
        {"key": f"e-{n}", "request": {"content": {"parts": [{"text": f"T{n}"}]},
                                      "output_dimensionality": 4}}
        for n in range(3)
    ]  # fmt: skip
    data = "\n".join(map(json.dumps, asked)).encode()
    body = {"batch": {"inputConfig": {"file_name": raw.upload(data)}}}
    path = "/models/gemini-embedding-001:asyncBatchEmbedContent"
    name = raw.http.post(path, json=body).json()["name"]
    raw.sim.advance(100_000)
    rows = raw.rows(raw.get(name))
    assert {len(row["response"]["embedding"]["values"]) for row in rows} == {4}
    assert all(isinstance(row["response"]["tokenCount"], str) for row in rows)


def test_a_bad_file_fails_the_operation(begin: Callable[..., Raw]) -> None:
    raw = begin()
    operation = raw.finish(lines(1) + b"{oops\n")
    assert operation["metadata"]["state"] == "BATCH_STATE_FAILED"
    assert (operation["done"], operation["error"]["code"]) == (True, 3)
    assert "response" not in operation
    assert raw.sim.meter()["total_executions"] == 0


def test_expiry_after_48_hours_loses_everything(begin: Callable[..., Raw]) -> None:
    raw = begin({"kind": "expire", "fraction": 0.5})
    name = raw.submit(lines(10))
    raw.sim.advance(48 * 3600 - 1)
    assert raw.get(name)["metadata"]["state"] == "BATCH_STATE_RUNNING"
    raw.sim.advance(1)
    operation = raw.get(name)
    assert operation["metadata"]["state"] == "BATCH_STATE_EXPIRED"
    assert "output" not in operation["metadata"]
    assert raw.sim.meter()["executions"]["withheld"] == 5
    raw.finish(lines(10))
    assert raw.sim.meter()["paid_twice"] == 0, "what was lost may be asked again"


def test_cancel_answers_at_once_and_changes_the_state_later(begin: Callable[..., Raw]) -> None:
    for switch in (False, True):
        raw = begin(batch_seconds=1000, gemini_cancel_output=switch)
        name = raw.submit(lines(10))
        raw.sim.advance(550)
        assert raw.http.post(f"/{name}:cancel").json() == {}
        assert raw.get(name)["metadata"]["state"] == "BATCH_STATE_RUNNING"
        raw.sim.advance(600)
        operation = raw.get(name)
        assert operation["metadata"]["state"] == "BATCH_STATE_CANCELLED"
        assert operation["error"]["code"] == 1
        assert ("output" in operation["metadata"]) == switch
        assert raw.http.post(f"/{name}:cancel").json()["error"]["status"] == "FAILED_PRECONDITION"
        assert raw.http.delete(f"/{name}").json() == {}
        assert raw.http.get(f"/{name}").status_code == 404


def test_list_pages_to_the_end_and_names_are_not_unique(begin: Callable[..., Raw]) -> None:
    raw = begin()
    made = [raw.submit(lines(1, f"b{n}"), name="same") for n in range(5)][::-1]
    found: list[str] = []
    token = ""
    for _ in range(3):
        page = raw.http.get("/batches", params={"pageSize": 2, "pageToken": token}).json()
        found += [one["name"] for one in page["operations"]]
        token = page.get("nextPageToken", "")
    assert (found, token) == (made, "")
    assert raw.http.get("/batches", params={"pageToken": "nonsense"}).status_code == 400


@pytest.mark.parametrize("kind", RECORD_KINDS)
def test_every_record_fault(begin: Callable[..., Raw], kind: str) -> None:
    raw = begin({"kind": kind})
    operation = raw.finish(lines(8))
    (hit,) = [one for one in raw.sim.executions() if one["fault"]]
    rows = []
    for line in raw.content(operation).split(b"\n")[:-1]:
        try:
            rows.append(json.loads(line))
        except ValueError:
            assert kind == "unreadable"
    for row in rows:
        if "response" in row:
            types.GenerateContentResponse.model_validate(row["response"])
        else:
            types.JobError.model_validate(row["error"])
    mine = [row for row in rows if row["key"] == hit["custom_id"]]
    gone = ("missing", "mangled_id", "unreadable")
    assert len(mine) == (0 if kind in gone else 2 if kind.startswith("duplicate") else 1)
    codes = {"error_429": 8, "error_500": 13, "error_400": 3, "error_quota": 7,
             "response_failed": 14}  # fmt: skip
    if kind in codes:
        assert mine[0]["error"]["code"] == codes[kind]
    reasons = {"refusal": "SAFETY", "cut": "MAX_TOKENS"}
    if kind in reasons:
        assert mine[0]["response"]["candidates"][0]["finishReason"] == reasons[kind]
    if kind == "content_filter":
        assert mine[0]["response"]["promptFeedback"]["blockReason"] == "PROHIBITED_CONTENT"
        assert "candidates" not in mine[0]["response"]
    assert raw.sim.meter()["paid_twice"] == 0
    wanted = [one for one in lines(8).split(b"\n") if f'"{hit["custom_id"]}"'.encode() in one]
    raw.finish(wanted[0])
    assert raw.sim.meter()["paid_twice"] == (1 if hit["label"] == "good" else 0)


def test_faults_of_batches_and_calls(begin: Callable[..., Raw]) -> None:
    raw = begin(
        {"kind": "inline_output", "nth": 1},
        {"kind": "inline_output", "nth": 2},
        {"kind": "no_metadata", "nth": 2},
        {"kind": "late_files", "nth": 3, "looks": 1},
        {"kind": "fail", "nth": 4},
        {"kind": "unknown_status", "nth": 5, "looks": 1},
    )
    items = raw.finish(lines(3))["response"]["inlinedResponses"]["inlinedResponses"]
    assert all("key" in one["metadata"] for one in items)
    items = raw.finish(lines(3, "b"))["response"]["inlinedResponses"]["inlinedResponses"]
    assert not any("metadata" in one for one in items)
    late = raw.finish(lines(3, "c"))
    assert late["metadata"]["state"] == "BATCH_STATE_SUCCEEDED"
    assert "output" not in late["metadata"]
    assert raw.get(late["name"])["metadata"]["output"]
    assert raw.finish(lines(3, "d"))["error"]["code"] == 8
    strange = raw.finish(lines(3, "e"))
    assert (strange["metadata"]["state"], "done" in strange) == ("BATCH_STATE_RETICULATING", False)
    raw.sim.faults(
        {"route": "create", "fault": "drop_after"},
        {"route": "create", "nth": 2, "fault": "status_before"},
        {"route": "list", "fault": "empty_page"},
        {"route": "upload_data", "nth": 5, "fault": "drop_after"},
    )
    file = raw.upload(lines(2, "f"))
    with pytest.raises(httpx2.RemoteProtocolError):
        raw.create({"fileName": file})
    assert raw.create({"fileName": file}).json()["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert raw.sim.meter()["provider_batches"] == 6
    assert raw.http.get("/batches").json() == {"nextPageToken": "page-0"}
    raw.upload(lines(1))
    files = len(raw.sim.state()["files"])
    with pytest.raises(httpx2.RemoteProtocolError):
        raw.upload(lines(1))
    assert len(raw.sim.state()["files"]) == files


def test_a_look_alike_has_the_same_display_name(begin: Callable[..., Raw]) -> None:
    raw = begin()
    raw.submit(lines(4), name="same")
    raw.sim.clone_batch(foreign=True)
    raw.sim.advance(100_000)
    first, second = raw.http.get("/batches").json()["operations"]
    assert first["metadata"]["displayName"] == second["metadata"]["displayName"] == "same"
    assert first["metadata"]["inputConfig"] != second["metadata"]["inputConfig"]
    assert raw.sim.meter()["paid_twice"] == 0


def test_a_forced_function_answers_with_its_arguments(begin: Callable[..., Raw]) -> None:
    raw = begin()
    asked = {
        "contents": [{"parts": [{"text": "x"}]}],
        "tools": [{"functionDeclarations": [{"name": "save", "parametersJsonSchema": SCHEMA}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY",
                                                 "allowedFunctionNames": ["save"]}},
    }  # fmt: skip
    (row,) = raw.rows(raw.finish(json.dumps({"key": "a", "request": asked}).encode()))
    call = row["response"]["candidates"][0]["content"]["parts"][0]["functionCall"]
    assert call["name"] == "save"
    jsonschema_rs.validate(SCHEMA, call["args"])


@pytest.mark.parametrize("version", ["v1", "v1beta"])
def test_the_sdk_round_trip(begin: Callable[..., Raw], tmp_path: Path, version: str) -> None:
    raw = begin()
    client = genai.Client(
        api_key="g-sdk",
        http_options=types.HttpOptions(
            base_url=raw.sim.gemini_url, api_version=version, timeout=10_000
        ),
    )
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines(6))
    stored = client.files.upload(
        file=str(path),
        config=types.UploadFileConfig(display_name="s", mime_type="application/jsonl"),
    )
    assert stored.name is not None
    made = client.batches.create(
        model=MODEL, src=stored.name, config=types.CreateBatchJobConfig(display_name="k")
    )
    assert made.name is not None
    assert made.state == types.JobState.JOB_STATE_PENDING
    raw.sim.advance(100_000)
    done = client.batches.get(name=made.name)
    assert (done.state, done.display_name) == (types.JobState.JOB_STATE_SUCCEEDED, "k")
    assert done.dest is not None
    assert done.dest.file_name is not None
    rows = read_rows(client.files.download(file=done.dest.file_name))
    assert {row["key"] for row in rows} == {f"r-{n}" for n in range(6)}
    assert [one.name for one in client.batches.list()] == [made.name]
    client.files.delete(name=stored.name)
    with pytest.raises(errors.ClientError):
        client.files.get(name=stored.name)
    client.batches.delete(name=made.name)
    with pytest.raises(errors.ClientError):
        client.batches.get(name=made.name)
    assert "g-sdk" not in json.dumps(raw.sim.log())
    client.close()


def test_quota_at_create_and_endings_nobody_has_heard_of(begin: Callable[..., Raw]) -> None:
    raw = begin({"kind": "unknown_type"}, enqueued_tokens=len(lines(3)) // 4)
    first = raw.submit(lines(3))
    refused = raw.create({"fileName": raw.upload(lines(3, "s"))})
    assert (refused.status_code, refused.json()["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
    raw.sim.advance(100_000)
    reasons = [row["response"]["candidates"][0]["finishReason"] for row in raw.rows(raw.get(first))]
    assert sorted(reasons) == ["RETICULATED", "STOP", "STOP"]
