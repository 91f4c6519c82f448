"""A workload's own gate that has left the code, or fails: fetched, held, and judged later."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import pytest

from llm_batch_assets.engine import execute, people, plan
from llm_batch_assets.engine.collecting import collect
from llm_batch_assets.engine.status import status, table
from llm_batch_assets.errors import GateFault
from llm_batch_assets.reconcile.model import Answer
from llm_batch_assets_tests.engine.bench import CALM, DATASET, Bench, make_workload

Make = Callable[..., Bench]
GATE = "the_teams_gates:no_threes"


def no_threes(answers: list[Answer]) -> Sequence[str | None]:
    """The team's rule."""
    return [None] * len(answers)


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module that the team may change under us."""
    module = ModuleType("the_teams_gates")
    module.no_threes = no_threes  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "the_teams_gates", module)
    yield module


def _fails(answers: list[Answer]) -> Sequence[str | None]:
    raise ZeroDivisionError("a bug")


def _sent(bench: Make, hold_deadline: str) -> Bench:
    gate = {"version": "g1", "function": GATE}
    workload = make_workload(retry={"hold_deadline": hold_deadline}, gate=gate)
    one = bench(settings=CALM, records=16, workload=workload)
    one.freeze()
    one.drive(until="submitted")
    return one


@pytest.mark.parametrize("lost", [True, False])
def test_what_no_gate_can_judge_is_fetched_once_and_held(
    bench: Make, code: ModuleType, lost: bool
) -> None:
    one = _sent(bench, "72h")
    if lost:
        del code.no_threes
    else:
        code.no_threes = _fails
    waits = one.drive()
    assert {s.state for s in one.view.shards} == {"COLLECTED"}
    assert {w["target"] for w in waits} == {s.shard_key for s in one.view.shards}
    for held in waits:
        assert (GATE if lost else "ZeroDivisionError") in held["why"]
        assert f"release {held['target']}" in held["release"] and held["until"]
    assert plan(one.deps) == [], "judging again before somebody acts would fail in the same way"
    seen = "\n".join(table(status(one.deps)))
    assert "hold" in waits[0]["why"] and f"release {waits[0]['target']}" in seen
    downloads = len(one.calls("download"))
    with pytest.raises(GateFault, match="no_threes" if lost else "a bug"):
        collect(one.view.shards[0], one.deps)
    assert len(one.calls("download")) == downloads, "it is in the store"

    code.no_threes = no_threes
    people.release(one.deps, DATASET, "the gate is back")
    one.drive()
    assert (one.view.row.accepted, one.view.row.published_at is not None) == (16, True)
    assert len(one.calls("download")) == downloads
    assert one.sim.meter()["paid_twice"] == 0


def test_nobody_brings_the_gate_back(bench: Make, code: ModuleType) -> None:
    one = _sent(bench, "1.5s")
    del code.no_threes
    one.drive()
    row = one.view.row
    assert row.closed_at is not None
    assert row.human_review == 16
    assert set(one.reasons().values()) == {"held_too_long"}
    assert [w.kind for w in plan(one.deps)] == []
    assert status(one.deps, dataset=DATASET).datasets[0]["counts"]["human_review"] == 16


def test_one_click_says_one_sentence(bench: Make, code: ModuleType) -> None:
    one = _sent(bench, "72h")
    del code.no_threes
    one.drive()
    people.release(one.deps, DATASET, "is it back?")
    work = plan(one.deps)[0]
    assert work.kind == "collect"
    with pytest.raises(GateFault) as refused:
        execute(work, one.deps)
    assert one.view.shards[0].hold is not None, "held again"
    text = str(refused.value)
    assert GATE in text and DATASET in text
    assert "\n" not in text and "Traceback" not in text
