"""Batches: life, refusals, answers and accounts, by raw HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from llm_batch_assets_tests.simulator.raw import (
    MODEL,
    SCHEMA,
    Raw,
    answer_text,
    chat_body,
    ids,
    line,
    lines,
    read_rows,
    responses_body,
)


def test_a_batch_lives_as_the_clock_says(start: Callable[..., Raw]) -> None:
    raw = start(batch_seconds=1000)
    made = raw.create(raw.upload(lines(100)).json()["id"], metadata={"job_key": "k"}).json()
    assert (made["status"], made["output_file_id"], made["metadata"]) == (
        "validating", None, {"job_key": "k"})  # fmt: skip
    assert made["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert made["expires_at"] - made["created_at"] == 86_400
    seen = []
    for _ in range(6):
        raw.sim.advance(190)
        batch = raw.batch(made["id"])
        seen.append((batch["status"], batch["request_counts"]["completed"]))
    assert seen == [
        ("in_progress", 11), ("in_progress", 35), ("in_progress", 58), ("in_progress", 82),
        ("finalizing", 100), ("completed", 100),
    ]  # fmt: skip
    assert batch["request_counts"] == {"total": 100, "completed": 100, "failed": 0}
    assert batch["created_at"] <= batch["in_progress_at"] <= batch["finalizing_at"]
    assert batch["completed_at"] - batch["created_at"] in (999, 1000)
    output, errors = raw.rows_of(batch)
    assert errors == []
    assert batch["error_file_id"] is None
    assert sorted(ids(output)) == sorted(f"r-{n}" for n in range(100))
    assert ids(output) != [f"r-{n}" for n in range(100)]
    assert batch["usage"]["output_tokens"] == sum(
        row["response"]["body"]["usage"]["output_tokens"] for row in output
    )


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"endpoint": "/v1/nothing"}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"input_file_id": None}, 400, "input_file_id"),
        ({"input_file_id": "file-none"}, 404, "input_file_id"),
        ({"metadata": {f"k{n}": "v" for n in range(17)}}, 400, "metadata"),
        ({"metadata": {"k" * 65: "v"}}, 400, "metadata"),
        ({"metadata": {"k": "v" * 513}}, 400, "metadata.k"),
        ({"metadata": {"k": 1}}, 400, "metadata.k"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400,
         "output_expires_after"),
    ],
)  # fmt: skip
def test_refused_creates(raw: Raw, change: dict[str, Any], status: int, param: str) -> None:
    file_id = raw.upload(lines(1)).json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/responses", "completion_window": "24h"}
    reply = raw.http.post("/batches", json={**body, **change})
    assert reply.status_code == status
    assert reply.json()["error"]["param"] == param
    assert raw.sim.meter()["provider_batches"] == 0


def test_metadata_at_its_limits_is_taken(raw: Raw) -> None:
    metadata = {f"{n:02d}" + "k" * 62: "v" * 512 for n in range(16)}
    made = raw.create(raw.upload(lines(1)).json()["id"], metadata=metadata)
    assert made.json()["metadata"] == metadata


def test_a_late_create_finds_no_file_that_was_deleted_before(start: Callable[..., Raw]) -> None:
    for options, status in (({}, 404), ({"missing_file_status": 400}, 400)):
        raw = start(**options)
        file_id = raw.upload(lines(1)).json()["id"]
        raw.http.delete(f"/files/{file_id}")
        assert raw.create(file_id).status_code == status
        assert raw.sim.meter()["provider_batches"] == 0


def test_a_file_with_another_purpose_is_refused(raw: Raw) -> None:
    file_id = raw.upload(lines(1), purpose="user_data").json()["id"]
    assert raw.create(file_id).status_code == 400


def test_no_key_or_a_bad_key_is_401_in_json(start: Callable[..., Raw]) -> None:
    raw = start(keys=("sk-known",))
    for header in ("Bearer sk-test", "Bearer", "Basic abc"):
        for path in ("/batches", "/files", "/batches/batch_x"):
            reply = raw.http.get(path, headers={"authorization": header})
            assert reply.status_code == 401
            assert reply.json()["error"]["code"] == "invalid_api_key"
    assert (
        raw.http.get("/batches", headers={"authorization": "Bearer sk-known"}).json()["data"] == []
    )


def test_accounts_do_not_see_each_other(raw: Raw) -> None:
    file_id = raw.upload(lines(1)).json()["id"]
    batch_id = raw.create(file_id).json()["id"]
    for other in (
        Raw(raw.sim, "sk-other"),
        Raw(raw.sim, **{"openai-project": "p"}),
        Raw(raw.sim, **{"openai-organization": "o"}),
    ):
        with other.http:
            assert other.http.get(f"/batches/{batch_id}").status_code == 404
            assert other.http.post(f"/batches/{batch_id}/cancel").status_code == 404
            assert other.http.get(f"/files/{file_id}").status_code == 404
            assert other.http.get("/batches").json()["data"] == []
            assert other.create(file_id).status_code == 404


def test_list_pages_newest_first(raw: Raw) -> None:
    made = [raw.submit(lines(1, f"b{n}")) for n in range(5)]
    first = raw.http.get("/batches", params={"limit": 2}).json()
    assert [one["id"] for one in first["data"]] == [made[4], made[3]]
    assert (first["has_more"], first["last_id"]) == (True, made[3])
    rest = raw.http.get("/batches", params={"limit": 3, "after": made[3]}).json()
    assert [one["id"] for one in rest["data"]] == made[2::-1]
    assert rest["has_more"] is False
    for limit in ("101", "0", "x"):
        assert raw.http.get("/batches", params={"limit": limit}).status_code == 400
    assert raw.http.get("/batches", params={"after": "batch_none"}).status_code == 400


BAD_FILES: list[tuple[str, bytes, str, int | None]] = [
    ("not json", lines(1) + b"{oops\n", "invalid_json_line", 2),
    ("twice", lines(1) * 2, "duplicate_custom_id", 2),
    (
        "url",
        (line("a", chat_body("x"), "/v1/chat/completions") + "\n").encode(),
        "url_mismatch",
        1,
    ),
    (
        "models",
        lines(1) + line("b", {"model": "gpt-4o-2024-08-06", "input": "x"}).encode(),
        "model_mismatch",
        2,
    ),
    ("empty", b"", "empty_file", None),
    ("blank", b"\n\n", "empty_file", None),
    ("no body", b'{"custom_id":"a","method":"POST","url":"/v1/responses"}\n',
     "missing_required_parameter", 1),
    ("no model", line("a", {"input": "x"}).encode(), "missing_required_parameter", 1),
    ("method", line("a", responses_body("x"), method="GET").encode(), "invalid_method", 1),
    ("stream", line("a", responses_body("x", stream=True)).encode(), "invalid_request", 1),
    ("model", line("a", {"model": "llama-7b", "input": "x"}).encode(), "model_not_found", 1),
    ("id", b'{"custom_id":7,"method":"POST","url":"/v1/responses","body":{"model":"gpt-4o"}}\n',
     "invalid_custom_id", 1),
    ("surrogate", b'{"custom_id":"\\ud83d","method":"POST","url":"/v1/responses","body":{}}\n',
     "invalid_json_line", 1),
]  # fmt: skip


@pytest.mark.parametrize(("data", "code", "number"), [one[1:] for one in BAD_FILES],
                         ids=[one[0] for one in BAD_FILES])  # fmt: skip
def test_a_bad_file_fails_after_create(
    raw: Raw, data: bytes, code: str, number: int | None
) -> None:
    made = raw.create(raw.upload(data).json()["id"])
    assert (made.status_code, made.json()["status"]) == (200, "validating")
    assert made.json()["errors"] is None
    raw.sim.advance(90_000)
    batch = raw.batch(made.json()["id"])
    assert batch["status"] == "failed"
    assert batch["failed_at"] is not None
    assert (batch["errors"]["data"][0]["code"], batch["errors"]["data"][0]["line"]) == (
        code,
        number,
    )
    assert batch["output_file_id"] is None
    assert raw.sim.meter()["total_executions"] == 0


def test_too_many_tasks_and_too_many_inputs(raw: Raw) -> None:
    body = '{"model":"gpt-4o-mini-2024-07-18","input":"x"}'
    head = '"method":"POST","url":"/v1/responses","body":' + body
    many = "\n".join(f'{{"custom_id":"{n}",{head}}}' for n in range(50_001)).encode()
    assert raw.finish(many)["errors"]["data"][0]["code"] == "too_many_tasks"
    wide = line("a", {"model": "text-embedding-3-small", "input": ["x"] * 50_001},
                "/v1/embeddings").encode()  # fmt: skip
    batch = raw.finish(wide, "/v1/embeddings")
    assert batch["errors"]["data"][0]["code"] == "too_many_tasks"


def test_cancel_keeps_what_has_run(start: Callable[..., Raw]) -> None:
    raw = start(batch_seconds=1000, cancel_seconds=600)
    batch_id = raw.submit(lines(100))
    raw.sim.advance(500)
    assert raw.http.post(f"/batches/{batch_id}/cancel").json()["status"] == "cancelling"
    raw.sim.advance(599)
    assert raw.batch(batch_id)["status"] == "cancelling"
    raw.sim.advance(2)
    batch = raw.batch(batch_id)
    assert batch["status"] == "cancelled"
    assert batch["request_counts"] == {"total": 100, "completed": 50, "failed": 0}
    output, errors = raw.rows_of(batch)
    assert len(output) == 50
    assert {row["error"]["code"] for row in errors} == {"batch_cancelled"}
    assert all(row["response"] is None for row in errors)
    assert {*ids(output), *ids(errors)} == {f"r-{n}" for n in range(100)}
    assert raw.sim.meter()["executions"]["good"] == 50


@pytest.mark.parametrize("status", [400, 409])
def test_cancel_of_what_is_over_is_an_error(start: Callable[..., Raw], status: int) -> None:
    raw = start(cancel_ended_status=status)
    batch = raw.finish(lines(1))
    assert raw.http.post(f"/batches/{batch['id']}/cancel").status_code == status
    assert raw.batch(batch["id"])["status"] == "completed"


def test_cancel_that_lost_the_race_completes(start: Callable[..., Raw]) -> None:
    raw = start(batch_seconds=1000)
    batch_id = raw.submit(lines(4))
    raw.sim.advance(950)
    raw.http.post(f"/batches/{batch_id}/cancel")
    raw.sim.advance(50)
    assert raw.batch(batch_id)["status"] == "completed"


def test_a_batch_slower_than_its_window_expires(start: Callable[..., Raw]) -> None:
    raw = start(batch_seconds=200_000)
    batch_id = raw.submit(lines(80))
    raw.sim.advance(86_399)
    assert raw.batch(batch_id)["status"] == "in_progress"
    raw.sim.advance(1)
    batch = raw.batch(batch_id)
    assert batch["status"] == "expired"
    output, errors = raw.rows_of(batch)
    assert 0 < len(output) < 80
    assert {row["error"]["code"] for row in errors} == {"batch_expired"}
    assert len(output) + len(errors) == 80
    assert batch["request_counts"]["failed"] == 0


def test_when_everything_failed_there_is_no_output_file(raw: Raw) -> None:
    batch = raw.finish(line("a", {"model": MODEL}).encode())
    assert (batch["status"], batch["output_file_id"]) == ("completed", None)
    assert batch["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
    (row,) = read_rows(raw.content(batch["error_file_id"]))
    assert row["error"] is None
    assert row["response"]["status_code"] == 400
    assert row["response"]["body"]["error"]["param"] == "input"


def test_output_files_go_when_their_time_is_over(raw: Raw) -> None:
    batch = raw.finish(
        lines(1), output_expires_after={"anchor": "created_at", "seconds": 90_000 + 3600}
    )
    raw.sim.advance(3600)
    assert raw.http.get(f"/files/{batch['output_file_id']}/content").status_code == 200
    raw.sim.advance(90_000)
    assert raw.http.get(f"/files/{batch['output_file_id']}/content").status_code == 404


def test_answers_satisfy_the_schema_and_depend_on_text_seed_and_execution(
    start: Callable[..., Raw],
) -> None:
    data = "\n".join(
        [line("a", responses_body("Coral reefs of the north")),
         line("b", responses_body("Steam engines and their makers"))]
    ).encode()  # fmt: skip

    def texts(raw: Raw) -> dict[str, str]:
        output, _ = raw.rows_of(raw.finish(data))
        return {row["custom_id"]: answer_text(row) for row in output}

    one, same, other = start(seed=1), start(seed=1), start(seed=2)
    first = texts(one)
    assert texts(same) == first
    assert texts(other) != first
    assert texts(one) != first, "the second execution answers in other words"
    assert first["a"] != first["b"]
    assert "north" in first["a"].lower() or "coral" in first["a"].lower()
    for text in first.values():
        jsonschema_rs.validate(SCHEMA, json.loads(text))


def test_a_tight_token_limit_cuts(raw: Raw) -> None:
    rows = [
        line("r", responses_body("A long text about many things", max_output_tokens=16)),
    ]
    output, _ = raw.rows_of(raw.finish("\n".join(rows).encode()))
    body = output[0]["response"]["body"]
    assert (body["status"], body["incomplete_details"]) == (
        "incomplete", {"reason": "max_output_tokens"})  # fmt: skip
    assert body["usage"]["output_tokens"] == 16
    assert raw.sim.meter()["executions"]["cut"] == 1


def test_a_schema_that_strict_mode_forbids_is_a_record_error(raw: Raw) -> None:
    loose = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "name": "x", "strict": True, "schema": loose}
    body = {"model": MODEL, "input": "x", "text": {"format": form}}
    _, errors = raw.rows_of(raw.finish(line("a", body).encode()))
    assert errors[0]["response"]["body"]["error"]["code"] == "invalid_json_schema"


def test_the_served_model_is_a_dated_snapshot(raw: Raw) -> None:
    rows = {}
    for model in ("gpt-5-mini", "gpt-5-mini-2025-08-07"):
        output, _ = raw.rows_of(raw.finish(line("a", {"model": model, "input": "x"}).encode()))
        rows[model] = output[0]["response"]["body"]["model"]
    assert set(rows.values()) == {"gpt-5-mini-2025-08-07"}


def test_a_forced_tool_answers_with_its_input(raw: Raw) -> None:
    tool = {"type": "function", "name": "save", "parameters": SCHEMA}
    flat = {"model": MODEL, "input": "x", "tools": [tool],
            "tool_choice": {"type": "function", "name": "save"}}  # fmt: skip
    output, _ = raw.rows_of(raw.finish(line("a", flat).encode()))
    call = output[0]["response"]["body"]["output"][0]
    assert (call["type"], call["name"]) == ("function_call", "save")
    jsonschema_rs.validate(SCHEMA, json.loads(call["arguments"]))
    nested = {"type": "function", "function": {"name": "save", "parameters": SCHEMA}}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "tools": [nested],
            "tool_choice": "required"}  # fmt: skip
    output, _ = raw.rows_of(
        raw.finish(line("b", chat, "/v1/chat/completions").encode(), "/v1/chat/completions")
    )
    message = output[0]["response"]["body"]["choices"][0]["message"]
    jsonschema_rs.validate(SCHEMA, json.loads(message["tool_calls"][0]["function"]["arguments"]))
