"""Each fault of a call alone: what is on the wire, what has happened, what the log says."""

from __future__ import annotations

import gzip
import socket
import time
import zlib
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from llm_batch_assets_tests.simulator.raw import Raw, lines


def made(raw: Raw) -> int:
    return int(raw.sim.meter()["provider_batches"])


def create(start: Callable[..., Raw], **fault: Any) -> tuple[Raw, str]:
    raw = start({"route": "create", **fault})
    return raw, raw.upload(lines(3)).json()["id"]


@pytest.mark.parametrize(("fault", "batches"), [("drop_after", 1), ("drop_before", 0)])
def test_a_closed_socket_tells_nothing(start: Callable[..., Raw], fault: str, batches: int) -> None:
    raw, file_id = create(start, fault=fault)
    with pytest.raises(httpx2.RemoteProtocolError, match="without sending"):
        raw.create(file_id)
    assert made(raw) == batches
    entry = raw.sim.log()[-1]
    assert (entry["route"], entry["status"], entry["fault"]) == ("create", 0, fault)
    assert raw.create(file_id).status_code == 200


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_5xx_after_the_effect(start: Callable[..., Raw], status: int) -> None:
    raw, file_id = create(start, fault="status_after", status=status)
    reply = raw.create(file_id)
    assert (reply.status_code, made(raw)) == (status, 1)
    assert reply.headers["content-type"] == ("text/html" if status == 502 else "application/json")


def test_a_refusal_makes_nothing(start: Callable[..., Raw]) -> None:
    raw, file_id = create(start, fault="status_before", status=429, retry_after="20")
    reply = raw.create(file_id)
    assert (reply.status_code, reply.headers["retry-after"], made(raw)) == (429, "20", 0)
    assert reply.json()["error"]["code"] == "rate_limit_exceeded"
    raw, file_id = create(start, fault="status_before", status=400)
    reply = raw.create(file_id)
    assert (reply.status_code, made(raw)) == (400, 0)
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("fault", "batches"), [("delay_after", 1), ("delay_before", 0)])
def test_a_delay_beyond_the_clients_patience(
    start: Callable[..., Raw], fault: str, batches: int
) -> None:
    raw, file_id = create(start, fault=fault, seconds=20)
    body = {"input_file_id": file_id, "endpoint": "/v1/responses", "completion_window": "24h"}
    with pytest.raises(httpx2.ReadTimeout):
        raw.http.post("/batches", json=body, timeout=0.2)
    assert made(raw) == batches


def test_a_late_effect_comes_after_the_client_has_gone(start: Callable[..., Raw]) -> None:
    raw, file_id = create(start, fault="late_effect", seconds=2)
    body = {"input_file_id": file_id, "endpoint": "/v1/responses", "completion_window": "24h"}
    with pytest.raises(httpx2.ReadTimeout):
        raw.http.post("/batches", json=body, timeout=0.1)
    assert made(raw) == 0
    deadline = time.monotonic() + 20
    while made(raw) == 0:
        assert time.monotonic() < deadline
    raw, file_id = create(start, fault="late_effect", seconds=2)
    with pytest.raises(httpx2.ReadTimeout):
        raw.http.post("/batches", json={**body, "input_file_id": file_id}, timeout=0.1)
    raw.http.delete(f"/files/{file_id}")
    while "late_answer" not in raw.sim.log()[1]["notes"]:
        assert time.monotonic() < deadline + 20
    assert (raw.sim.log()[1]["notes"]["late_answer"], made(raw)) == (404, 0)


@pytest.mark.parametrize(("fault", "batches"), [("html_after", 1), ("html_before", 0)])
def test_200_with_html(start: Callable[..., Raw], fault: str, batches: int) -> None:
    raw, file_id = create(start, fault=fault)
    reply = raw.create(file_id)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html")
    assert made(raw) == batches


def test_junk_json(start: Callable[..., Raw]) -> None:
    raw, file_id = create(start, fault="junk_json")
    assert raw.create(file_id).json() == {"ok": True}
    assert made(raw) == 1


def test_an_upload_whose_reply_is_lost_leaves_a_file(start: Callable[..., Raw]) -> None:
    raw = start({"route": "upload", "fault": "drop_after"})
    with pytest.raises(httpx2.RemoteProtocolError):
        raw.upload(lines(1), "named.jsonl")
    assert [one["filename"] for one in raw.sim.state()["files"]] == ["named.jsonl"]


def result(start: Callable[..., Raw], **fault: Any) -> tuple[Raw, str, bytes]:
    """A raw client, the path of a result and its true bytes; the fault meets the next download."""
    raw = start()
    file_id = raw.finish(lines(50))["output_file_id"]
    whole = raw.content(file_id)
    raw.sim.faults({"route": "download", **fault})
    return raw, f"/files/{file_id}/content", whole


def test_a_body_cut_below_its_announced_length(start: Callable[..., Raw]) -> None:
    raw, path, whole = result(start, fault="truncate_length", fraction=0.3)
    received = b""
    with (
        pytest.raises(httpx2.RemoteProtocolError, match="complete message"),
        raw.http.stream("GET", path) as reply,
    ):
        assert int(reply.headers["content-length"]) == len(whole)
        for chunk in reply.iter_raw():
            received += chunk
    assert received == whole[: int(len(whole) * 0.3)]
    assert raw.http.get(path).content == whole


def test_a_body_without_a_length_is_cut_silently(start: Callable[..., Raw]) -> None:
    raw, path, whole = result(start, fault="truncate_close", fraction=0.7)
    reply = raw.http.get(path)
    assert (reply.status_code, "content-length" in reply.headers) == (200, False)
    assert reply.content == whole[: int(len(whole) * 0.7)]


def test_a_body_cut_at_the_end_of_a_line(start: Callable[..., Raw]) -> None:
    raw, path, whole = result(start, fault="truncate_line")
    reply = raw.http.get(path)
    assert reply.content.endswith(b"}\n")
    assert 0 < len(reply.content) < len(whole)
    assert whole.startswith(reply.content)


def test_unasked_206_empty_204_and_html(start: Callable[..., Raw]) -> None:
    raw, path, whole = result(start, fault="status_206")
    reply = raw.http.get(path)
    assert (reply.status_code, reply.content) == (206, whole[: len(whole) // 2])
    raw, path, _ = result(start, fault="status_204")
    reply = raw.http.get(path)
    assert (reply.status_code, reply.content) == (204, b"")
    raw, path, _ = result(start, fault="html_before")
    reply = raw.http.get(path)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html")


def test_compressed_bodies(start: Callable[..., Raw]) -> None:
    raw, path, whole = result(start, fault="gzip")
    assert raw.http.get(path).content == whole
    raw, path, whole = result(start, fault="gzip_hidden")
    packed = raw.http.get(path).content
    assert (packed[:2], gzip.decompress(packed)) == (b"\x1f\x8b", whole)
    raw, path, whole = result(start, fault="gzip_cut")
    with raw.http.stream("GET", path) as reply:
        packed = b"".join(reply.iter_raw())
    assert len(packed) == int(reply.headers["content-length"])
    assert 0 < len(zlib.decompressobj(31).decompress(packed)) < len(whole)


def test_polls_that_go_wrong(start: Callable[..., Raw]) -> None:
    raw = start()
    batch_id = raw.submit(lines(1))
    path = f"/batches/{batch_id}"
    raw.sim.faults({"route": "poll", "fault": "status_before", "status": 429, "retry_after": "1"})
    reply = raw.http.get(path)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    raw.sim.faults({"route": "poll", "fault": "status_before", "status": 500}, clear=True)
    assert raw.http.get(path).status_code == 500
    raw.sim.faults({"route": "poll", "fault": "status_before", "status": 404}, clear=True)
    assert raw.http.get(path).json()["error"]["type"] == "invalid_request_error"
    raw.sim.faults({"route": "poll", "fault": "truncate_length"}, clear=True)
    with pytest.raises(httpx2.RemoteProtocolError):
        raw.http.get(path)
    raw.sim.faults({"route": "poll", "fault": "delay_before", "seconds": 20}, clear=True)
    with pytest.raises(httpx2.ReadTimeout):
        raw.http.get(path, timeout=0.1)
    assert raw.batch(batch_id)["id"] == batch_id


def test_an_empty_page_that_claims_there_is_more(start: Callable[..., Raw]) -> None:
    raw = start({"route": "list", "fault": "empty_page"})
    batch_id = raw.submit(lines(1))
    assert raw.http.get("/batches").json() == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": True,
    }  # fmt: skip
    assert raw.http.get("/batches").json()["data"][0]["id"] == batch_id


def test_nth_counts_from_when_the_fault_was_asked_for(start: Callable[..., Raw]) -> None:
    raw = start()
    batch_id = raw.submit(lines(1))
    raw.batch(batch_id)
    raw.sim.faults({"route": "poll", "fault": "status_before", "status": 503, "nth": 2, "times": 2})
    seen = [raw.http.get(f"/batches/{batch_id}").status_code for _ in range(4)]
    assert seen == [200, 503, 503, 200]


def test_an_open_delay_does_not_keep_the_server_from_stopping(start: Callable[..., Raw]) -> None:
    raw = start({"route": "poll", "fault": "delay_before", "seconds": 60})
    host, port = raw.sim.origin.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(b"GET /v1/batches/b HTTP/1.1\r\nhost: x\r\n\r\n")
        while not raw.sim.log():
            pass
        begun = time.monotonic()
        raw.sim.stop()
        assert time.monotonic() - begun < 5
