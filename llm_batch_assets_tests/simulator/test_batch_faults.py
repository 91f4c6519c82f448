"""Each fault of a batch alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from llm_batch_assets_tests.simulator.raw import Raw, ids, lines

COUNT = 20
ALL = [f"r-{n}" for n in range(COUNT)]


def test_expire_keeps_what_has_run(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "expire", "fraction": 0.6})
    batch_id = raw.submit(lines(COUNT))
    raw.sim.advance(86_399)
    assert raw.batch(batch_id)["status"] == "in_progress"
    raw.sim.advance(1)
    batch = raw.batch(batch_id)
    assert (batch["status"], batch["expired_at"] - batch["created_at"]) == ("expired", 86_400)
    output, errors = raw.rows_of(batch)
    assert (len(output), len(errors)) == (12, 8)
    assert {row["error"]["code"] for row in errors} == {"batch_expired"}
    assert raw.sim.meter()["executions"]["good"] == 12
    assert raw.finish(lines(COUNT, "other"))["status"] == "completed"


def test_provider_cancel(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "provider_cancel", "fraction": 0.5})
    batch = raw.finish(lines(COUNT))
    assert batch["status"] == "cancelled"
    output, errors = raw.rows_of(batch)
    assert (len(output), {row["error"]["code"] for row in errors}) == (10, {"batch_cancelled"})


@pytest.mark.parametrize("code", ["token_limit_exceeded", "billing_hard_limit_reached"])
def test_fail_executes_nothing(start: Callable[..., Raw], code: str) -> None:
    raw = start({"kind": "fail", "code": code})
    batch = raw.finish(lines(COUNT))
    (entry,) = batch["errors"]["data"]
    assert (batch["status"], entry["code"], entry["line"]) == ("failed", code, None)
    assert raw.sim.meter()["total_executions"] == 0
    assert raw.finish(lines(COUNT))["status"] == "completed"
    assert raw.sim.meter()["paid_twice"] == 0


@pytest.mark.parametrize("source", ["stranger", "other_batch"])
def test_unknown_rows(start: Callable[..., Raw], source: str) -> None:
    raw = start({"kind": "unknown_row", "nth": 2, "count": 3, "source": source})
    raw.finish(lines(COUNT, "first"))
    output, _ = raw.rows_of(raw.finish(lines(COUNT)))
    foreign = set(ids(output)) - set(ALL)
    assert (len(output), len(foreign)) == (COUNT + 3, 3)
    assert all(name.startswith("first-") for name in foreign) == (source == "other_batch")


def output_of(start: Callable[..., Raw], *kinds: str) -> bytes:
    raw = start(*({"kind": kind} for kind in kinds))
    return raw.content(raw.finish(lines(COUNT))["output_file_id"])


def names(data: bytes) -> list[str]:
    found = []
    for raw in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if raw.strip():
            found.append(json.loads(raw)["custom_id"])
    return found


def test_file_formats(start: Callable[..., Raw]) -> None:
    plain = output_of(start)
    assert plain.endswith(b"}\n")
    assert b"\n\n" not in plain
    bom = output_of(start, "bom")
    assert bom.startswith(b"\xef\xbb\xbf{")
    crlf = output_of(start, "crlf")
    assert crlf.count(b"\r\n") == COUNT
    blank = output_of(start, "blank_lines")
    assert len([one for one in blank.split(b"\n")[:-1] if not one.strip()]) == 3
    bare = output_of(start, "no_final_newline")
    assert bare.endswith(b"}")
    for data in (plain, bom, crlf, blank, bare, output_of(start, "bom", "crlf", "blank_lines")):
        assert sorted(names(data)) == sorted(ALL)
        assert names(data) != ALL
    assert names(output_of(start, "ordered")) == ALL


def test_garbage_line(start: Callable[..., Raw]) -> None:
    rows = output_of(start, "garbage_line").split(b"\n")[:-1]
    good = [row for row in rows if row.endswith(b"}")]
    assert (len(rows), sorted(json.loads(row)["custom_id"] for row in good)) == (
        COUNT + 1, sorted(ALL))  # fmt: skip


def test_empty_file_id(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "empty_file_id"})
    batch_id = raw.submit(lines(2))
    assert raw.batch(batch_id)["error_file_id"] is None
    raw.sim.advance(90_000)
    assert raw.batch(batch_id)["error_file_id"] == ""


def test_late_files(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "late_files", "looks": 2})
    batch = raw.finish(lines(2))
    for _ in range(2):
        assert (batch["status"], batch["output_file_id"]) == ("completed", None)
        assert batch["request_counts"]["completed"] == 2
        batch = raw.batch(batch["id"])
    assert batch["output_file_id"]


def listed(raw: Raw) -> list[Any]:
    return [one["id"] for one in raw.http.get("/batches").json()["data"]]


def test_late_list_by_looks_and_by_seconds(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "late_list", "looks": 2})
    batch_id = raw.submit(lines(1))
    assert [listed(raw) for _ in range(3)] == [[], [], [batch_id]]
    assert raw.batch(batch_id)["id"] == batch_id
    raw = start({"kind": "late_list", "seconds": 1.5})
    batch_id = raw.submit(lines(1))
    assert listed(raw) == []
    looks = 0
    while not listed(raw):
        looks += 1
    assert looks > 1
    assert listed(raw) == [batch_id]


def test_lost_result(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "lost_result"})
    batch = raw.finish(lines(2))
    assert raw.http.get(f"/files/{batch['output_file_id']}/content").status_code == 404


def test_unknown_status(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "unknown_status", "looks": 2})
    batch_id = raw.submit(lines(2))
    raw.sim.advance(90_000)
    assert [raw.batch(batch_id)["status"] for _ in range(3)] == [
        "reticulating", "reticulating", "completed"]  # fmt: skip


def test_zero_counts_and_stuck(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "zero_counts"}, {"kind": "stuck", "nth": 2})
    batch = raw.finish(lines(2))
    assert (batch["status"], batch["request_counts"]["total"]) == ("completed", 0)
    batch = raw.finish(lines(2, "s"))
    assert batch["status"] == "validating"
    raw.http.post(f"/batches/{batch['id']}/cancel")
    raw.sim.advance(700)
    assert raw.batch(batch["id"])["status"] == "cancelled"


def test_nth_and_times_count_batches(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "fail", "nth": 2, "times": 2})
    assert [raw.finish(lines(1, f"b{n}"))["status"] for n in range(4)] == [
        "completed", "failed", "failed", "completed"]  # fmt: skip


def test_shuffling_can_be_switched_off(raw: Raw) -> None:
    raw.sim.faults(shuffle=False)
    output, _ = raw.rows_of(raw.finish(lines(COUNT)))
    assert ids(output) == ALL


def test_unheard_of_endings(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "unknown_type", "count": 2})
    output, _ = raw.rows_of(raw.finish(lines(COUNT)))
    odd = [row for row in output if row["response"]["body"]["status"] == "reticulated"]
    assert len(odd) == 2
    assert raw.sim.meter()["executions"]["failed"] == 2
    raw.finish(lines(COUNT))
    assert raw.sim.meter()["paid_twice"] == COUNT - 2


def test_extra_fields(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "extra_fields"})
    output, _ = raw.rows_of(raw.finish(lines(COUNT)))
    assert all((row["vendor_note"], row["trace"]) == ({"a": [None]}, None) for row in output)
    assert sorted(ids(output)) == sorted(ALL)


def test_long_line(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "long_line"})
    data = raw.content(raw.finish(lines(3))["output_file_id"])
    rows = data.split(b"\n")[:-1]
    assert [len(row) > 16_000_000 for row in rows].count(True) == 1
    assert {json.loads(row)["custom_id"] for row in rows} == {"r-0", "r-1", "r-2"}


def test_an_account_has_only_so_many_enqueued_tokens(start: Callable[..., Raw]) -> None:
    raw = start(enqueued_tokens=len(lines(COUNT)) // 4)
    first = raw.submit(lines(COUNT))
    second = raw.submit(lines(COUNT, "s"))
    raw.sim.advance(90_000)
    assert raw.batch(first)["status"] == "completed"
    batch = raw.batch(second)
    assert (batch["status"], batch["errors"]["data"][0]["code"]) == (
        "failed", "token_limit_exceeded")  # fmt: skip
    assert raw.finish(lines(COUNT, "s"))["status"] == "completed"


def test_a_look_alike_comes_just_after_ours(start: Callable[..., Raw]) -> None:
    raw = start({"kind": "look_alike"})
    ours = raw.submit(lines(COUNT), metadata={"job_key": "ours"})
    theirs, mine = raw.http.get("/batches").json()["data"]
    assert mine["id"] == ours
    assert (theirs["model"], theirs["endpoint"]) == (mine["model"], mine["endpoint"])
    assert theirs["metadata"] != mine["metadata"]
    raw.sim.advance(90_000)
    meter = raw.sim.meter()
    assert (meter["paid_twice"], meter["foreign_batches"], meter["provider_batches"]) == (0, 1, 1)
