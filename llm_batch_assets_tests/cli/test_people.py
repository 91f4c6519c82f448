"""hold, release, abandon, adopt, sweep and supersede as a person types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from llm_batch_assets.engine import execute, plan
from llm_batch_assets_tests.cli.conftest import Make, Said
from llm_batch_assets_tests.engine.bench import DATASET, SCHEMA, Bench, make_rows
from llm_batch_assets_tests.engine.lost import restore

Call = Callable[..., Said]
DAY = 86_400.0


def _write(folder: Path, rows: list[dict[str, str]], prompt: str = "v1") -> tuple[str, str]:
    """The bench's workload and rows as files."""
    workload = {
        "name": "notes",
        "tenant_id": "lab",
        "provider": "openai",
        "model": "gpt-5-mini-2025-08-07",
        "business_key": "name",
        "prompt": {"version": prompt, "system": "Summarise.", "user": "{{ name }}: {{ text }}"},
        "generation": {"max_output_tokens": 200},
        "output": {"version": "v1", "schema": SCHEMA},
        "limits": {"records_per_shard": 8},
    }
    (folder / "workload.yaml").write_text(json.dumps(workload))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "workload.yaml"), str(folder / "rows.jsonl")


def _reasoned(*args: str) -> tuple[str, ...]:
    return (*args, "--reason", "because", "--format", "json")


def test_hold_and_release(make: Make, call: Call) -> None:
    one = make(records=16)
    one.freeze()
    shard = one.view.shards[0].shard_key
    assert call("hold", DATASET).code == 2
    assert call(*_reasoned("hold", DATASET)).json["state"] == "held"
    assert call(*_reasoned("hold", shard)).code == 0
    said = call("status", "--format", "json")
    assert said.json["datasets"][0]["why"] == "on hold: because"
    assert [w for w in plan(one.deps) if w.kind == "submit"] == []
    released = call(*_reasoned("release", DATASET))
    assert (released.code, released.json["facts"]["submissions"]) == (0, 1)
    assert len([w for w in plan(one.deps) if w.kind == "submit"]) == 2
    assert call(*_reasoned("release", "nothing")).code == 2


def test_abandon(make: Make, call: Call) -> None:
    one = make(records=16)
    one.freeze()
    said = call(*_reasoned("abandon", one.view.shards[1].shard_key))
    assert said.code == 0
    assert [w.shard_key for w in plan(one.deps)] == [one.view.shards[0].shard_key]
    shown = call("show", one.view.shards[1].shard_key, "--format", "json").json["submissions"][0]
    assert [(d["decision"], d["actor"], d["reason"]) for d in shown["decisions"]] == [
        ("abandon", "ada", "because")
    ]


def test_adopt_one_and_sweep(make: Make, call: Call) -> None:
    one = make(records=16)
    one.freeze()
    one.sim.faults({"route": "create", "fault": "drop_after", "times": 2})
    for work in [w for w in plan(one.deps) if w.kind == "submit"]:
        execute(work, one.deps)
    first = one.view.shards[0]
    by_key = {b["metadata"]["submission_key"]: b["id"] for b in one.own_batches()}
    batch = by_key[first.submission_key]
    assert call("adopt", first.shard_key, "--reason", "x").code == 2
    adopted = call(*_reasoned("adopt", first.shard_key, "--batch", batch))
    assert (adopted.code, adopted.json["state"]) == (0, "SUBMITTED")
    # The other one is still SUBMITTING or UNCERTAIN: the sweep binds it.
    swept = call("sweep", "--format", "json")
    assert (swept.code, len(swept.json["adopted"]), swept.json["bound"]) == (0, 1, 2)
    assert call("sweep").out.startswith("bound=2 adopted=0 duplicates=0")
    one.sim.clone_batch()
    assert call("sweep").code == 3


def test_adopt_all(make: Make, call: Call) -> None:
    one = make(records=16)
    one.freeze()
    one.drive(until="submitted")
    new = restore(one, None)
    said = call(*_reasoned("adopt", "--all"))
    assert (said.code, len(said.json["bound"])) == (0, 2)
    assert {s.state for s in new.view.shards} == {"SUBMITTED"}
    assert len(one.calls("create")) == 2


def _create_count(bench: Bench) -> int:
    return len(bench.calls("create"))


def test_supersede_then_run(make: Make, call: Call, tmp_path: Path) -> None:
    one = make(records=8)
    one.sim.set_scale(86_400.0)
    workload, rows = _write(tmp_path, make_rows(8))
    run = ("run", workload, "--input", rows, "--dataset", DATASET, "--format", "json")
    assert call(*run).code == 0
    _write(tmp_path, make_rows(11))
    refused = call(*run)
    assert refused.code not in (0, 3)
    assert "supersede" in refused.err
    said = call(*_reasoned("supersede", workload, DATASET, "--input", rows))
    assert (said.code, said.json["facts"]["records"], said.json["facts"]["carried"]) == (0, 3, 8)
    done = call(*run)
    assert done.code == 0
    result = json.loads(done.out.splitlines()[-1])
    assert (result["revision"], result["records"], result["accepted"]) == (2, 11, 11)
    assert result["paid_twice"] == 0
    assert _create_count(one) == 2
    again = call(*_reasoned("supersede", workload, DATASET, "--input", rows))
    assert (again.code, again.json["changed"]) == (0, False)
    both = call(
        *_reasoned("supersede", workload, DATASET, "--input", rows, "--cancel"), "--pay-again"
    )
    assert both.code == 2


def test_supersede_waits_for_what_is_at_the_provider(
    make: Make, call: Call, tmp_path: Path
) -> None:
    one = make(records=8)
    workload, rows = _write(tmp_path, make_rows(8))
    run = ("run", workload, "--input", rows, "--dataset", DATASET)
    assert call(*run, "--until", "submitted").code == 3
    one.sim.set_scale(86_400.0)  # its eight hours pass while the command waits
    _write(tmp_path, make_rows(9))
    said = call(*_reasoned("supersede", workload, DATASET, "--input", rows))
    assert (said.code, said.json["facts"]["carried"]) == (0, 8)
    assert "paid for twice" in said.err
    assert call(*run).code == 0
    assert one.sim.meter()["paid_twice"] == 0
