"""``status`` and ``show``: what is open and why, and why a record is where it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llm_batch_assets.engine import execute, plan
from llm_batch_assets_tests.cli.conftest import Make, Said
from llm_batch_assets_tests.engine.bench import DATASET, Bench, name_of

Call = Callable[..., Said]
DAY = 86_400.0


def _submit_all(bench: Bench) -> None:
    for work in [w for w in plan(bench.deps) if w.kind == "submit"]:
        execute(work, bench.deps)


def test_nothing_open_exits_0(make: Make, call: Call) -> None:
    make()
    said = call("status")
    assert (said.code, said.out) == (0, "Nothing is open.\n")
    assert call("status", "d7").code == 2


def test_running_shards_are_open_with_progress_and_deadline(make: Make, call: Call) -> None:
    bench = make(records=16)
    bench.freeze()
    _submit_all(bench)
    bench.sim.advance(DAY / 6)
    assert call("collect").code == 3
    said = call("status", "--format", "json")
    assert said.code == 3
    (dataset,) = said.json["datasets"]
    assert (dataset["state"], dataset["open"]) == ("open", True)
    assert dataset["jobs"][0]["state"] == "RUNNING"
    shards = dataset["shards"]
    assert [s["state"] for s in shards] == ["RUNNING", "RUNNING"]
    assert all(s["done"] and s["result_deadline"] for s in shards)
    assert said.json["deadlines"] == []


def test_an_uncertain_submission_says_why_what_releases_it_and_when(make: Make, call: Call) -> None:
    bench = make(records=8)
    bench.freeze()
    bench.sim.faults({"route": "create", "fault": "drop_after"})
    _submit_all(bench)
    said = call("status", DATASET, "--format", "json")
    (shard,) = said.json["datasets"][0]["shards"]
    assert shard["state"] == "UNCERTAIN"
    assert "create" in shard["why"]
    assert "list" in shard["release"]
    assert shard["until"]
    assert said.json["datasets"][0]["jobs"][0]["state"] == "SUBMITTING"
    text = call("status")
    assert "UNCERTAIN" in text.out
    assert "until 2" in text.out


def test_an_account_fault_is_a_hold_with_its_release(make: Make, call: Call) -> None:
    bench = make(records=8, key="invalid-key")
    bench.freeze()
    bench.drive(stop=lambda: bench.view.shards[0].hold is not None)
    said = call("status", "--format", "json")
    (shard,) = said.json["datasets"][0]["shards"]
    assert shard["hold"].startswith("account")
    assert f"release {shard['shard']}" in shard["release"]


def test_a_published_dataset_is_done(make: Make, call: Call) -> None:
    bench = make(records=8)
    bench.freeze()
    _submit_all(bench)
    bench.sim.advance(DAY)
    bench.drive()
    assert call("status").code == 0
    said = call("status", DATASET, "--format", "json")
    assert said.code == 0
    (dataset,) = said.json["datasets"]
    assert (dataset["state"], dataset["jobs"][0]["state"]) == ("published", "COMPLETED")


def test_show_gives_each_attempt_of_a_record_with_file_line_and_rule(
    make: Make, call: Call
) -> None:
    bench = make(records=8)
    bench.freeze()
    bench.sim.faults(
        {"kind": "error_500", "ids": bench.wire_ids([3]), "executions": 1},
    )
    _submit_all(bench)
    bench.sim.advance(DAY)
    bench.drive(stop=lambda: len(bench.view.jobs) == 2 and bench.view.shards[-1].batch_id)
    bench.sim.advance(DAY)
    bench.drive()
    by_key = call("show", name_of(3), "--format", "json")
    assert by_key.code == 0
    (record,) = by_key.json["records"]
    first, second = record["attempts"]
    assert first["evidence"]["cls"] == "retryable"
    assert first["evidence"]["rule"]
    assert first["evidence"]["line"] >= 1
    assert len(first["evidence"]["file"]) == 64
    assert second["retry_reason"] == "retryable"
    assert second["evidence"]["cls"] == "succeeded"
    assert record["settled"]["state"] == "accepted"
    for name in (record["record_id"], bench.wire_ids([3])[0]):
        assert call("show", name, "--format", "json").json["records"] == by_key.json["records"]


def test_show_a_shard_by_any_of_its_names(make: Make, call: Call) -> None:
    bench = make(records=8)
    bench.freeze()
    _submit_all(bench)
    bench.sim.advance(DAY)
    bench.drive()
    (shard,) = bench.view.shards
    seen = [call("show", n, "--format", "json").json["submissions"] for n in (
        shard.shard_key, shard.submission_key, shard.batch_id
    )]  # fmt: skip
    assert seen[0] == seen[1] == seen[2]
    (epoch,) = seen[0]
    assert [t["to"] for t in epoch["transitions"]][:3] == ["CREATED", "VALIDATED", "UPLOADED"]
    assert epoch["transitions"][-1]["to"] == "ACCOUNTED"
    assert epoch["evidence"]["counts"]["succeeded"] == 8
    assert epoch["raw_files"][0]["bytes"] > 0
    text = call("show", DATASET)
    assert text.code == 0
    assert "publications" in text.out
    assert call("show", "nobody").code == 2


def test_ledger_upgrade_says_from_where_to_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setenv("LLM_BATCH_HOME", str(tmp_path / "fresh"))
    first = call("ledger", "upgrade", "--format", "json")
    assert (first.code, first.json["before"]) == (0, None)
    again = call("ledger", "upgrade", "--format", "json")
    assert again.json["before"] == again.json["now"] == first.json["now"]
    assert "empty" not in call("ledger", "upgrade").out
