"""The command ``run``: results, exit codes, bad input, and being killed in the middle."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.engine.bench import make_rows, make_workload
from llm_batch_assets_tests.engine.command import Command

KEYS = {
    "closed",
    "records",
    "accepted",
    "human_review",
    "permanent_failure",
    "cancelled",
    "attempts",
    "provider_batches",
    "paid_twice",
}


def test_closed_and_published(tmp_path: Path, sim: Simulator) -> None:
    ended = Command(tmp_path, sim).run_from_a_shell()
    assert ended.code == 0, ended.err
    assert ended.err == ""
    assert ended.result.keys() >= KEYS
    assert {key: ended.result[key] for key in sorted(KEYS)} == {
        "accepted": 24,
        "attempts": 1,
        "cancelled": 0,
        "closed": True,
        "human_review": 0,
        "paid_twice": 0,
        "permanent_failure": 0,
        "provider_batches": 3,
        "records": 24,
    }


def test_until_submitted_then_closed(tmp_path: Path, sim: Simulator) -> None:
    command = Command(tmp_path, sim)
    ended = command.run("--until", "submitted")
    assert ended.code == 3
    assert (ended.result["closed"], ended.result["open"]) == (False, 24)
    routes = [entry["route"] for entry in sim.log()]
    assert routes.count("create") == 3
    assert "download" not in routes

    again = command.run("--until", "submitted")
    assert again.code == 3
    assert command.run().code == 0
    assert [entry["route"] for entry in sim.log()].count("create") == 3


def test_a_finished_dataset_makes_no_call(tmp_path: Path, sim: Simulator) -> None:
    command = Command(tmp_path, sim)
    first = command.run()
    calls = len(sim.log())
    second = command.run()
    assert second.code == 0
    assert second.result == first.result
    assert len(sim.log()) == calls


def test_closed_below_the_minimum_is_withheld(tmp_path: Path, sim: Simulator) -> None:
    sim.faults({"kind": "refusal", "count": 2, "total": 4, "executions": -1})
    ended = Command(tmp_path, sim).run()
    assert ended.code == 4
    assert (ended.result["closed"], ended.result["published"]) == (True, False)
    assert ended.result["permanent_failure"] == 4
    assert "0.95" in ended.result["withheld"] or "95" in ended.result["withheld"]


def test_an_account_on_hold_leaves_it_open_and_says_what_releases_it(
    tmp_path: Path, sim: Simulator
) -> None:
    sim.faults({"route": "create", "fault": "status_before", "status": 401})
    workload = make_workload(retry={"hold_deadline": "72h"})
    ended = Command(tmp_path, sim, workload=workload).run()
    assert ended.code == 3
    (held,) = ended.result["waiting"]
    assert held["target"] == "d1/r1/a1/p00000"
    assert "release d1/r1/a1/p00000" in held["release"]
    assert held["until"] > "2026"


def test_records_that_wait_for_a_person_are_named_at_once(tmp_path: Path, sim: Simulator) -> None:
    """Their deadline is three days away: the command says what is held and does not wait for it."""
    sim.faults({"kind": "error_quota", "count": 1, "total": 2})
    workload = make_workload(retry={"hold_deadline": "72h"})
    command = Command(tmp_path, sim, workload=workload)
    ended = command.run(seconds=60)
    assert ended.code == 3
    assert (ended.result["closed"], ended.result["open"]) == (False, 2)
    held = ended.result["waiting"]
    assert sum(int(one["why"].split()[0]) for one in held) == 2
    assert all("insufficient" in one["why"] or "billing" in one["why"] for one in held)
    assert all(f"release {one['target']}" in one["release"] for one in held)
    text = command.run("--format", "text", seconds=60)
    assert text.code == 3
    assert f"waiting: {held[0]['target']}: {held[0]['why']} | mend the" in text.out


Change = Callable[[Command], None]


def _rows(change: Callable[[list[dict[str, Any]]], object]) -> Change:
    def apply(command: Command) -> None:
        rows: list[dict[str, Any]] = [*make_rows(24)]
        change(rows)
        command.write_rows(rows)

    return apply


def _yaml(old: str, new: str) -> Change:
    def apply(command: Command) -> None:
        text = command.workload_file.read_text(encoding="utf-8")
        assert old in text
        command.workload_file.write_text(text.replace(old, new), encoding="utf-8")

    return apply


def _env(**values: str) -> Change:
    return lambda command: command.env.update(values)


BAD: dict[str, tuple[Change, str]] = {
    "empty": (_rows(list.clear), "no"),
    "duplicate-keys": (_rows(lambda rows: rows.append(rows[7])), "r007"),
    "null-key": (_rows(lambda rows: rows[3].update(name=None)), "name"),
    "no-key-column": (_rows(lambda rows: [row.pop("name") for row in rows]), "name"),
    "template-column": (_yaml("{{ text }}", "{{ body }}"), "body"),
    "template-syntax": (_yaml("{{ text }}", "{{ text "), "prompt.user"),
    "no-schema": (_yaml("type: object", "type: thing"), "schema"),
    "unknown-field": (_yaml("tenant_id:", "tenant:"), "tenant"),
    "floating-model": (_yaml("gpt-5-mini-2025-08-07", "gpt-5-mini"), "model"),
    "no-json": (
        lambda command: command.input_file.write_text('{"name": "r1"\n', encoding="utf-8"),
        "input.jsonl",
    ),
    "no-file": (lambda command: command.input_file.unlink(), "input.jsonl"),
    "no-workload": (lambda command: command.workload_file.unlink(), "workload.yaml"),
    "too-many-bad-records": (
        _rows(lambda rows: [row.update(text="\x00") for row in rows[:3]]),
        "control",
    ),
    "no-api-key": (lambda command: command.env.pop("OPENAI_API_KEY"), "OPENAI_API_KEY"),
    "no-url": (_env(OPENAI_BASE_URL="not a url"), "is not an HTTP address"),
    "bad-dataset-duration": (_env(LLM_BATCH_POST_DEADLINE="soon"), "LLM_BATCH_POST_DEADLINE"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_and_sends_nothing(
    name: str, tmp_path: Path, sim: Simulator
) -> None:
    change, word = BAD[name]
    command = Command(tmp_path, sim)
    change(command)
    ended = command.run()
    assert ended.code == 2, ended.err
    assert ended.out == ""
    assert word in ended.err
    assert "Traceback" not in ended.err
    assert len(ended.err.strip().splitlines()) == 1, ended.err
    assert sim.log() == []

    # Nothing half-written: the mended input runs as if it had never been wrong.
    if name not in {"no-api-key", "no-url", "bad-dataset-duration"}:
        fresh = Command(tmp_path, sim)
        assert fresh.run("--until", "submitted").code == 3
        assert len(sim.state()["batches"]) == 3


def test_an_unreachable_provider_is_one_sentence(tmp_path: Path) -> None:
    ended = Command(tmp_path, "http://127.0.0.1:9/v1").run("--until", "submitted", seconds=40)
    assert ended.code == 2, (ended.out, ended.err)
    assert "Traceback" not in ended.err
    assert len(ended.err.strip().splitlines()) == 1


def test_a_bad_record_is_kept_back_and_never_sent(tmp_path: Path, sim: Simulator) -> None:
    rows: list[dict[str, Any]] = [*make_rows(120)]
    rows[17]["text"] = "a\x00b"
    command = Command(tmp_path, sim, workload=make_workload(records_per_shard=60))
    command.write_rows(rows)
    ended = command.run()
    assert ended.code == 0, ended.err
    assert (ended.result["accepted"], ended.result["permanent_failure"]) == (119, 1)
    assert sim.meter()["total_executions"] == 119


def test_other_rows_under_a_frozen_dataset_are_refused_with_counts(
    tmp_path: Path, sim: Simulator
) -> None:
    command = Command(tmp_path, sim)
    assert command.run().code == 0
    calls = len(sim.log())
    rows = make_rows(26)
    del rows[2]
    rows[5]["text"] = "changed"
    command.write_rows([*rows])
    ended = command.run()
    assert ended.code == 2
    for words in ("2 added", "1 changed", "1 removed", "supersede"):
        assert words in ended.err
    assert len(sim.log()) == calls


@pytest.mark.parametrize("calls", [0, 1, 2, 5, 9, 14, 18])
def test_killed_and_started_again_it_continues(calls: int, tmp_path: Path, sim: Simulator) -> None:
    """SIGKILL when the simulator has seen so many calls."""
    sim.faults({"kind": "error_500", "count": 1, "total": 2})
    command = Command(tmp_path, sim)
    process = command.start()
    deadline = time.monotonic() + 30
    while len(sim.log()) < calls or not (tmp_path / "home" / "ledger.db").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    ended = command.run()
    assert ended.code == 0, ended.err
    assert (ended.result["closed"], ended.result["accepted"]) == (True, 24)
    assert ended.result["attempts"] == 2
    assert sim.meter()["paid_twice"] == 0
    assert sim.meter()["live_batches"] == 0
    assert sim.meter()["provider_batches"] == 4


def test_killed_again_and_again(tmp_path: Path, sim: Simulator) -> None:
    """A little later each time, until one run comes through."""
    command = Command(tmp_path, sim)
    for number in range(6):
        process = command.start()
        time.sleep(0.1 + 0.1 * number)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    ended = command.run()
    assert ended.code == 0, ended.err
    assert ended.result["accepted"] == 24
    assert sim.meter()["paid_twice"] == 0
    assert sim.meter()["provider_batches"] == 3


@pytest.mark.parametrize("faults", ["none", "default"])
def test_three_at_once_on_one_dataset(faults: str, tmp_path: Path, sim: Simulator) -> None:
    """From the very first moment: one freezes, one sends each shard, all of them end well."""
    sim.faults(profile=faults)
    workload = make_workload(publish={"min_accepted": 0.5})
    command = Command(tmp_path, sim, workload=workload, records=40)
    processes = [command.start() for _ in range(3)]
    ended = [(process.communicate(timeout=90), process.returncode) for process in processes]

    assert [code for _, code in ended] == [0, 0, 0], ended
    results = [json.loads(out.strip().splitlines()[-1]) for (out, _), _ in ended]
    assert results[0] == results[1] == results[2]
    assert results[0]["closed"]
    assert sim.meter()["paid_twice"] == 0
    assert sim.meter()["live_batches"] == 0
    keys = [(one["metadata"] or {})["submission_key"] for one in sim.state()["batches"]]
    assert len(keys) == len(set(keys))
