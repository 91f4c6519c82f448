"""Files: what the API takes, keeps, gives back and refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llm_batch_assets_tests.simulator.raw import Raw, lines


def test_a_file_is_stored_listed_fetched_and_deleted(raw: Raw) -> None:
    first = raw.upload(lines(2)).json()
    second = raw.upload(lines(3), "b.jsonl").json()
    assert (first["object"], first["purpose"], first["status"]) == ("file", "batch", "processed")
    assert first["bytes"] == len(lines(2))
    assert first["expires_at"] - first["created_at"] == 30 * 86_400
    assert raw.http.get(f"/files/{first['id']}").json() == first
    assert raw.content(first["id"]) == lines(2)
    listed = raw.http.get("/files", params={"purpose": "batch"}).json()
    assert [one["id"] for one in listed["data"]] == [second["id"], first["id"]]
    page = raw.http.get("/files", params={"limit": 1, "order": "asc"}).json()
    assert (page["has_more"], page["data"][0]["id"]) == (True, first["id"])
    rest = raw.http.get("/files", params={"after": page["last_id"], "order": "asc"}).json()
    assert [one["id"] for one in rest["data"]] == [second["id"]]
    gone = raw.http.delete(f"/files/{first['id']}").json()
    assert gone == {"id": first["id"], "object": "file", "deleted": True}
    assert raw.http.get(f"/files/{first['id']}").status_code == 404
    assert raw.http.get(f"/files/{first['id']}/content").status_code == 404
    assert [one["id"] for one in raw.sim.state()["files"]] == [second["id"]]


@pytest.mark.parametrize(
    ("form", "name", "words"),
    [
        ({}, "in.jsonl", "'purpose' is a required"),
        ({"purpose": "fun"}, "in.jsonl", "is not one of"),
        ({"purpose": "batch"}, "in.txt", "Must be .jsonl"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at",
             "expires_after[seconds]": "60"},
            "in.jsonl", "between 3600",
        ),
        (
            {"purpose": "batch", "expires_after[anchor]": "now", "expires_after[seconds]": "3600"},
            "in.jsonl", "anchor",
        ),
    ],
)  # fmt: skip
def test_refused_uploads(raw: Raw, form: dict[str, str], name: str, words: str) -> None:
    reply = raw.http.post("/files", data=form, files={"file": (name, b"{}\n")})
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
    assert raw.sim.state()["files"] == []


def test_an_upload_without_a_file_or_a_form_is_refused(raw: Raw) -> None:
    assert raw.http.post("/files", files={"purpose": (None, "batch")}).status_code == 400
    assert raw.http.post("/files", json={"purpose": "batch"}).status_code == 400


def test_an_upload_over_the_limit_is_refused(start: Callable[..., Raw]) -> None:
    raw = start(max_input_bytes=100)
    assert raw.upload(lines(1)).status_code == 400


def test_a_file_expires_when_its_time_is_over(raw: Raw) -> None:
    form = {
        "purpose": "batch",
        "expires_after[anchor]": "created_at",
        "expires_after[seconds]": "3600",
    }
    made = raw.http.post("/files", data=form, files={"file": ("in.jsonl", lines(1))}).json()
    raw.sim.advance(3599)
    assert raw.http.get(f"/files/{made['id']}").status_code == 200
    raw.sim.advance(1)
    assert raw.http.get(f"/files/{made['id']}").status_code == 404


def test_ranges(raw: Raw) -> None:
    data = lines(5)
    url = f"/files/{raw.upload(data).json()['id']}/content"
    whole = raw.http.get(url)
    etag = whole.headers["etag"]
    assert whole.headers["accept-ranges"] == "bytes"
    part = raw.http.get(url, headers={"range": "bytes=10-", "if-range": etag})
    assert (part.status_code, part.content) == (206, data[10:])
    assert part.headers["content-range"] == f"bytes 10-{len(data) - 1}/{len(data)}"
    assert raw.http.get(url, headers={"range": "bytes=3-6"}).content == data[3:7]
    stale = raw.http.get(url, headers={"range": "bytes=10-", "if-range": '"other"'})
    assert (stale.status_code, stale.content) == (200, data)
    assert raw.http.get(url, headers={"range": f"bytes={len(data)}-"}).status_code == 416


def test_ranges_can_be_switched_off(start: Callable[..., Raw]) -> None:
    raw = start(ranges=False)
    url = f"/files/{raw.upload(lines(2)).json()['id']}/content"
    reply = raw.http.get(url, headers={"range": "bytes=10-"})
    assert (reply.status_code, reply.content) == (200, lines(2))
    assert "etag" not in reply.headers
