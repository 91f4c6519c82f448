"""``cancel`` and ``publish`` as a person types them."""

from __future__ import annotations

from collections.abc import Callable

from llm_batch_assets.engine import execute, plan
from llm_batch_assets.ledger.published import published_candidate
from llm_batch_assets_tests.cli.conftest import Make, Said
from llm_batch_assets_tests.engine.bench import DATASET

Call = Callable[..., Said]
DAY = 86_400.0


def test_cancel_collect_and_publish_by_a_word(make: Make, call: Call) -> None:
    bench = make(records=24)
    bench.freeze()
    for work in [w for w in plan(bench.deps) if w.kind == "submit"][:2]:
        execute(work, bench.deps)
    bench.sim.advance(DAY / 6)
    assert call("cancel", DATASET).code == 2  # without a reason
    said = call("cancel", DATASET, "--reason", "wrong prompt", "--format", "json")
    assert (said.code, said.json["facts"]["cancels_taken"]) == (0, 2)
    assert said.json["facts"]["by"] == "ada"
    again = call("cancel", DATASET, "--reason", "still wrong", "--format", "json")
    assert (again.code, again.json["changed"]) == (0, False)
    state = call("status", DATASET, "--format", "json").json["datasets"][0]
    assert (state["state"], state["cancel"]["reason"]) == ("cancelling", "wrong prompt")
    bench.sim.advance(3600)
    assert call("collect", DATASET).code == 0
    bench.drive()
    state = call("status", DATASET, "--format", "json")
    assert state.code == 0
    (dataset,) = state.json["datasets"]
    assert (dataset["state"], dataset["jobs"][0]["state"]) == ("cancelled", "CANCELLED")
    assert dataset["counts"]["accepted"] > 0
    assert dataset["counts"]["accepted"] + dataset["counts"]["cancelled"] == 24
    assert call("publish", DATASET).code == 4
    assert call("publish", DATASET, "--even-cancelled").code == 2
    assert call("publish", DATASET, "--even-below-minimum", "--reason", "x").code == 4
    assert call("publish", DATASET, "--even-cancelled", "--reason", "fine", "--by", "bo").code == 0
    published = published_candidate(bench.deps.ledger, "lab", "notes", DATASET)
    assert published == bench.view.row.candidate_digest
    shown = call("show", DATASET, "--format", "json").json["datasets"][0]
    assert [(d["decision"], d["actor"]) for d in shown["decisions"]] == [
        ("cancel", "ada"),
        ("publish", "bo"),
    ]
    assert bench.sim.meter()["paid_twice"] == 0


def test_collect_needs_no_loop_and_keeps_what_a_lost_reply_left(make: Make, call: Call) -> None:
    bench = make(records=16)
    bench.freeze()
    bench.drive(until="submitted")
    bench.sim.faults({"route": "poll", "fault": "drop_before"})
    bench.sim.advance(DAY)
    first = call("collect", "--format", "json")
    assert first.code == 3  # one look failed: its shard is still running as far as we know
    assert len(first.json["collected"]) == 1
    second = call("collect", "--format", "json")
    assert (second.code, len(second.json["collected"])) == (0, 1)
    assert {s.state for s in bench.view.shards} == {"ACCOUNTED"}
    assert call("collect").out.strip() == "collected=0 running=0 faults=0 near_deadlines=0"
