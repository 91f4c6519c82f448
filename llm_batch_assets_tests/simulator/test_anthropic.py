"""The Anthropic part: by raw HTTP, and through the official SDK."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import anthropic
import httpx2
import jsonschema_rs
import pytest
from anthropic.types import Message
from anthropic.types.messages import MessageBatchIndividualResponse
from anthropic.types.shared import ErrorResponse

from llm_batch_assets.simulator import Simulator
from llm_batch_assets.simulator.faults import RECORD_KINDS
from llm_batch_assets_tests.simulator.raw import SCHEMA, read_rows

MODEL = "claude-haiku-4-5"


def params(text: str, **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "max_tokens": 300,
        "messages": [{"role": "user", "content": text}],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        **more,
    }


def requests(count: int, prefix: str = "r", **more: Any) -> list[dict[str, Any]]:
    return [
        {"custom_id": f"{prefix}-{n}", "params": params(f"Thing number {n}", **more)}
        for n in range(count)
    ]


class Raw:
    def __init__(self, sim: Simulator, version: str = "2026-10-21", **headers: str) -> None:
        self.sim = sim
        headers = headers or {"authorization": "Bearer sk-ant"}
        self.http = httpx2.Client(
            base_url=f"{sim.anthropic_url}/v1/messages",
            headers={"anthropic-version": version, **headers},
            timeout=10,
        )

    def create(self, asked: Any) -> httpx2.Response:
        return self.http.post("/batches", json={"requests": asked})

    def batch(self, batch_id: str) -> dict[str, Any]:
        reply = self.http.get(f"/batches/{batch_id}")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def finish(self, asked: Any) -> dict[str, Any]:
        made = self.create(asked)
        assert made.status_code == 200, made.text
        self.sim.advance(90_000)
        return self.batch(made.json()["id"])

    def results(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        reply = self.http.get(batch["results_url"])
        assert reply.status_code == 200, reply.text
        return read_rows(reply.content)


@pytest.fixture
def begin() -> Iterator[Callable[..., Raw]]:
    with ExitStack() as stack:

        def make(*faults: dict[str, Any], version: str = "2026-10-21", **options: Any) -> Raw:
            sim = stack.enter_context(Simulator(**{"seed": 7, "scale": 0, **options}))
            if faults:
                sim.faults(*faults)
            raw = Raw(sim, version)
            stack.callback(raw.http.close)
            return raw

        yield make


def text_of(row: dict[str, Any]) -> str:
    return "".join(one["text"] for one in row["result"]["message"]["content"])


def test_counts_say_nothing_until_the_end(begin: Callable[..., Raw]) -> None:
    raw = begin(batch_seconds=1000)
    made = raw.create(requests(20)).json()
    assert (made["processing_status"], made["results_url"]) == ("in_progress", None)
    for _ in range(3):
        raw.sim.advance(300)
        batch = raw.batch(made["id"])
        assert batch["request_counts"] == {
            "processing": 20, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0,
        }  # fmt: skip
        assert raw.http.get(f"/batches/{made['id']}/results").status_code == 404
    assert raw.sim.meter()["total_executions"] == 17
    raw.sim.advance(300)
    batch = raw.batch(made["id"])
    assert (batch["processing_status"], batch["request_counts"]["succeeded"]) == ("ended", 20)
    assert batch["results_url"].startswith(raw.sim.origin)
    assert set(batch) == {
        "id", "type", "processing_status", "request_counts", "created_at", "expires_at",
        "ended_at", "cancel_initiated_at", "archived_at", "results_url",
    }  # fmt: skip
    rows = raw.results(batch)
    order = [row["custom_id"] for row in rows]
    assert sorted(order) == sorted(f"r-{n}" for n in range(20))
    assert order != [f"r-{n}" for n in range(20)]
    for row in rows:
        message = Message.model_validate(row["result"]["message"])
        assert message.model == "claude-haiku-4-5-20251001"
        assert message.stop_reason == "end_turn"
        jsonschema_rs.validate(SCHEMA, json.loads(text_of(row)))


def test_both_credentials_are_one_account_and_versions_are_required(
    begin: Callable[..., Raw],
) -> None:
    raw = begin()
    batch_id = raw.create(requests(1)).json()["id"]
    url = f"{raw.sim.anthropic_url}/v1/messages/batches/{batch_id}"
    version = {"anthropic-version": "2023-06-01"}
    assert httpx2.get(url, headers={"x-api-key": "sk-ant", **version}).status_code == 200
    assert httpx2.get(url, headers={"x-api-key": "sk-two", **version}).status_code == 404
    other = {"x-api-key": "sk-ant", "anthropic-workspace-id": "wrkspc_1", **version}
    assert httpx2.get(url, headers=other).status_code == 404
    assert httpx2.get(url, headers=version).json()["error"]["type"] == "authentication_error"
    assert httpx2.get(url, headers={"x-api-key": "invalid", **version}).status_code == 401
    for wrong in ({}, {"anthropic-version": "2020-01-01"}):
        reply = httpx2.get(url, headers={"x-api-key": "sk-ant", **wrong})
        assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "request-id" in raw.http.get(f"/batches/{batch_id}").headers


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([], "at least 1 item"),
        ([{"custom_id": "a" * 65, "params": params("x")}], "at most 64 characters"),
        ([{"custom_id": "a b", "params": params("x")}], "match pattern"),
        ([{"custom_id": "", "params": params("x")}], "match pattern"),
        ([{"custom_id": 7, "params": params("x")}], "valid string"),
        ([{"custom_id": "a", "params": []}], "should be an object"),
        (requests(1) * 2, "duplicate"),
    ],
)
def test_refused_creates(begin: Callable[..., Raw], asked: Any, words: str) -> None:
    raw = begin()
    reply = raw.create(asked)
    assert reply.status_code == 400
    error = reply.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert words in error["error"]["message"]
    assert raw.sim.meter()["provider_batches"] == 0


def test_unreadable_and_oversized_bodies(begin: Callable[..., Raw]) -> None:
    raw = begin(max_body_bytes=5000)
    assert raw.http.post("/batches", content=b"{oops").status_code == 400
    assert raw.http.post("/batches", json={}).status_code == 400
    reply = raw.create(requests(50))
    assert (reply.status_code, reply.json()["error"]["type"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("change", "version", "kind"),
    [
        ({"temperature": 0}, "2026-10-21", "invalid_request_error"),
        ({"temperature": 0}, "2023-06-01", None),
        ({"max_tokens": 0}, "2023-06-01", "invalid_request_error"),
        ({"stream": True}, "2023-06-01", "invalid_request_error"),
        ({"model": "gpt-5"}, "2023-06-01", "not_found_error"),
        ({"messages": []}, "2023-06-01", "invalid_request_error"),
    ],
)
def test_parameters_are_judged_late(
    begin: Callable[..., Raw], change: dict[str, Any], version: str, kind: str | None
) -> None:
    raw = begin(version=version)
    batch = raw.finish([{"custom_id": "a", "params": {**params("x"), **change}}])
    (row,) = raw.results(batch)
    if kind is None:
        assert row["result"]["type"] == "succeeded"
        return
    assert batch["request_counts"]["errored"] == 1
    assert row["result"]["error"]["error"]["type"] == kind
    ErrorResponse.model_validate(row["result"]["error"])


def test_cancel_expiry_and_delete(begin: Callable[..., Raw]) -> None:
    raw = begin(batch_seconds=1000)
    batch_id = raw.create(requests(20)).json()["id"]
    raw.sim.advance(525)
    assert raw.http.delete(f"/batches/{batch_id}").status_code == 400
    canceling = raw.http.post(f"/batches/{batch_id}/cancel").json()
    assert (canceling["processing_status"], canceling["results_url"]) == ("canceling", None)
    assert canceling["cancel_initiated_at"] is not None
    raw.sim.advance(601)
    batch = raw.batch(batch_id)
    assert (batch["processing_status"], batch["request_counts"]["canceled"]) == ("ended", 10)
    kinds = Counter(row["result"]["type"] for row in raw.results(batch))
    assert kinds == {"succeeded": 10, "canceled": 10}
    assert raw.http.post(f"/batches/{batch_id}/cancel").status_code == 400
    url = batch["results_url"]
    assert raw.http.delete(f"/batches/{batch_id}").json() == {
        "id": batch_id, "type": "message_batch_deleted"}  # fmt: skip
    assert raw.http.get(f"/batches/{batch_id}").status_code == 404
    assert raw.http.get(url).status_code == 404
    assert raw.sim.state()["batches"] == []

    raw = begin({"kind": "expire", "fraction": 0.5})
    batch = raw.finish(requests(20))
    assert batch["request_counts"] == {
        "processing": 0, "succeeded": 10, "errored": 0, "canceled": 0, "expired": 10}  # fmt: skip


def test_results_are_gone_29_days_after_creation(begin: Callable[..., Raw]) -> None:
    raw = begin(batch_seconds=3600)
    batch_id = raw.create(requests(1)).json()["id"]
    raw.sim.advance(29 * 86_400 - 1)
    batch = raw.batch(batch_id)
    assert batch["archived_at"] is None
    assert raw.http.get(batch["results_url"]).status_code == 200
    raw.sim.advance(1)
    assert raw.batch(batch_id)["archived_at"] is not None
    assert raw.http.get(batch["results_url"]).status_code == 404


def test_pages_go_both_ways(begin: Callable[..., Raw]) -> None:
    raw = begin()
    made = [raw.create(requests(1, f"b{n}")).json()["id"] for n in range(5)][::-1]

    def page(**query: Any) -> tuple[list[str], bool]:
        body = raw.http.get("/batches", params=query).json()
        assert body["first_id"] == (body["data"][0]["id"] if body["data"] else None)
        return [one["id"] for one in body["data"]], body["has_more"]

    assert page(limit=2) == (made[:2], True)
    assert page(limit=2, after_id=made[1]) == (made[2:4], True)
    assert page(limit=2, after_id=made[3]) == (made[4:], False)
    assert page(limit=2, before_id=made[3]) == (made[1:3], True)
    assert page(limit=5, before_id=made[2]) == (made[:2], False)
    for query in ({"limit": 1001}, {"limit": 0}, {"after_id": made[0], "before_id": made[1]}):
        assert raw.http.get("/batches", params=query).status_code == 400


@pytest.mark.parametrize("kind", RECORD_KINDS)
def test_every_record_fault(begin: Callable[..., Raw], kind: str) -> None:
    raw = begin({"kind": kind})
    batch = raw.finish(requests(8))
    reply = raw.http.get(batch["results_url"]).content
    (hit,) = [one for one in raw.sim.executions() if one["fault"]]
    rows = []
    for line in reply.split(b"\n")[:-1]:
        try:
            rows.append(json.loads(line))
        except ValueError:
            assert kind == "unreadable"
    for row in rows:
        MessageBatchIndividualResponse.model_validate(row)
        if row["result"]["type"] == "succeeded":
            Message.model_validate(row["result"]["message"])
        else:
            ErrorResponse.model_validate(row["result"]["error"])
    mine = [row for row in rows if row["custom_id"] == hit["custom_id"]]
    gone = ("missing", "mangled_id", "unreadable")
    assert len(mine) == (0 if kind in gone else 2 if kind.startswith("duplicate") else 1)
    result = mine[0]["result"] if mine else {}
    reasons = {"refusal": "refusal", "content_filter": "refusal", "cut": "max_tokens"}
    if kind in reasons:
        assert result["message"]["stop_reason"] == reasons[kind]
    types = {
        "error_429": "rate_limit_error",
        "error_500": "api_error",
        "error_400": "invalid_request_error",
        "error_quota": "invalid_request_error",
        "response_failed": "overloaded_error",
    }
    if kind in types:
        assert result["error"]["error"]["type"] == types[kind]
    assert raw.sim.meter()["paid_twice"] == 0
    raw.finish([one for one in requests(8) if one["custom_id"] == hit["custom_id"]])
    assert raw.sim.meter()["paid_twice"] == (1 if hit["label"] == "good" else 0)


def test_http_faults_in_its_own_shapes(begin: Callable[..., Raw]) -> None:
    raw = begin(
        {"route": "create", "fault": "drop_after"},
        {"route": "create", "nth": 2, "fault": "status_before", "status": 529},
        {"route": "create", "nth": 3, "fault": "status_before", "retry_after": "3"},
        {"route": "list", "fault": "empty_page"},
    )
    with pytest.raises(httpx2.RemoteProtocolError):
        raw.create(requests(1))
    assert raw.sim.meter()["provider_batches"] == 1
    assert raw.create(requests(1)).json()["error"]["type"] == "overloaded_error"
    limited = raw.create(requests(1))
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "3")
    assert raw.http.get("/batches").json() == {
        "data": [], "has_more": True, "first_id": None, "last_id": None}  # fmt: skip


def test_batch_faults(begin: Callable[..., Raw]) -> None:
    raw = begin(
        {"kind": "fail", "nth": 1},
        {"kind": "late_files", "nth": 2, "looks": 1},
        {"kind": "unknown_row", "nth": 3, "count": 2},
        {"kind": "late_list", "nth": 4, "looks": 1},
        {"kind": "lost_result", "nth": 5},
    )
    assert raw.finish(requests(3, "a"))["request_counts"]["errored"] == 3
    late = raw.finish(requests(3, "b"))
    assert (late["processing_status"], late["results_url"]) == ("ended", None)
    assert raw.batch(late["id"])["results_url"]
    assert len(raw.results(raw.finish(requests(3, "c")))) == 5
    hidden = raw.create(requests(3, "d")).json()["id"]
    assert hidden not in [one["id"] for one in raw.http.get("/batches").json()["data"]]
    assert hidden in [one["id"] for one in raw.http.get("/batches").json()["data"]]
    assert raw.http.get(raw.finish(requests(1, "e"))["results_url"]).status_code == 404


def test_a_look_alike_cannot_be_told_apart_until_it_has_ended(begin: Callable[..., Raw]) -> None:
    raw = begin()
    ours = raw.create(requests(6)).json()
    raw.sim.clone_batch(foreign=True)
    listed = raw.http.get("/batches").json()["data"]
    assert len({json.dumps({**one, "id": ""}) for one in listed}) == 1
    raw.sim.advance(90_000)
    other = raw.batch(next(one["id"] for one in listed if one["id"] != ours["id"]))
    assert all(row["custom_id"].startswith("other-") for row in raw.results(other))
    assert raw.sim.meter()["paid_twice"] == 0
    raw.sim.clone_batch(ours["id"])
    raw.sim.advance(90_000)
    assert raw.sim.meter()["paid_twice"] == 6


def test_prompt_caching_is_counted(begin: Callable[..., Raw]) -> None:
    raw = begin()
    system = [{"type": "text", "text": "rules " * 1000,
               "cache_control": {"type": "ephemeral", "ttl": "1h"}}]  # fmt: skip
    rows = raw.results(raw.finish(requests(30, system=system)))
    usages = [row["result"]["message"]["usage"] for row in rows]
    written = [one["cache_creation"]["ephemeral_1h_input_tokens"] for one in usages]
    read = [one["cache_read_input_tokens"] for one in usages]
    assert 0 < sum(1 for one in read if one) < 30
    assert all(bool(w) != bool(r) for w, r in zip(written, read, strict=True))
    assert all(one["input_tokens"] < 50 for one in usages)
    short = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]
    rows = raw.results(raw.finish(requests(3, "s", system=short)))
    assert not any(row["result"]["message"]["usage"]["cache_read_input_tokens"] for row in rows)


def test_a_forced_tool_answers_with_its_input(begin: Callable[..., Raw]) -> None:
    raw = begin()
    tool = {"name": "save", "input_schema": SCHEMA}
    asked = params("x", tools=[tool], tool_choice={"type": "tool", "name": "save"})
    (row,) = raw.results(raw.finish([{"custom_id": "a", "params": asked}]))
    message = Message.model_validate(row["result"]["message"])
    (block,) = message.content
    assert block.type == "tool_use"
    assert message.stop_reason == "tool_use"
    jsonschema_rs.validate(SCHEMA, block.input)


def test_the_sdk_round_trip(begin: Callable[..., Raw]) -> None:
    raw = begin()
    client = anthropic.Anthropic(api_key="sk-sdk", base_url=raw.sim.anthropic_url, max_retries=0)
    made = client.messages.batches.create(requests=requests(5))  # type: ignore[arg-type]
    assert made.request_counts.processing == 5
    raw.sim.advance(90_000)
    done = client.messages.batches.retrieve(made.id)
    assert done.processing_status == "ended"
    rows = list(client.messages.batches.results(made.id))
    assert {row.custom_id for row in rows} == {f"r-{n}" for n in range(5)}
    assert all(row.result.type == "succeeded" for row in rows)
    assert [one.id for one in client.messages.batches.list(limit=1)] == [made.id]
    assert client.messages.batches.delete(made.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(made.id)
    headers = raw.sim.log()[0]["headers"]
    assert headers["anthropic-version"] == "2026-10-21"
    client.close()


def test_ranges_only_where_switched_on(begin: Callable[..., Raw]) -> None:
    for switch, status in ((False, 200), (True, 206)):
        raw = begin(anthropic_ranges=switch)
        url = raw.finish(requests(4))["results_url"]
        assert raw.http.get(url, headers={"range": "bytes=10-"}).status_code == status


def test_a_result_type_nobody_has_heard_of(begin: Callable[..., Raw]) -> None:
    raw = begin({"kind": "unknown_type"})
    rows = raw.results(raw.finish(requests(4)))
    assert sorted(row["result"]["type"] for row in rows) == ["reticulated"] + ["succeeded"] * 3
