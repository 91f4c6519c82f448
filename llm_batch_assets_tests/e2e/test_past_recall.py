"""Results that can never be fetched any more: nothing waits for ever, nothing is resent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets.engine import execute, plan
from llm_batch_assets.engine.status import status, table
from llm_batch_assets.polling import poll
from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.e2e.providers import PLAIN, ProviderBench, Setting, Shifted, shifted
from llm_batch_assets_tests.engine.bench import CALM, QUICK

DAY = 86_400.0


@pytest.fixture
def setting() -> Setting:
    """Anthropic: its batches carry no label, and its results go 29 days after creation."""
    return PLAIN["anthropic"]


@pytest.fixture
def sim(setting: Setting) -> Iterator[Simulator]:
    with setting.simulator(scale=1.0, batch_seconds=28_800.0) as simulator:
        yield simulator


def _bench(setting: Setting, sim: Simulator, home: Path, **options: Any) -> ProviderBench:
    retry = {"hold_deadline": "72h"}
    return ProviderBench(setting, sim, home, workload=setting.workload(retry=retry), **options)


def test_a_candidate_that_nobody_can_read_any_more_is_gone_by_itself(
    setting: Setting, sim: Simulator, tmp_path: Path
) -> None:
    b = _bench(setting, sim, tmp_path / "home", records=8, settings=QUICK)
    b.freeze()
    sim.faults({"route": "create", "fault": "drop_after"})
    b.drive(stop=lambda: b.view.shards[0].state == "PROVISIONAL")
    sim.faults({"route": "download", "fault": "status_before", "status": 404, "times": 999})
    sim.advance(2 * DAY)

    clock = Shifted()
    later = shifted(b, clock)
    clock.ahead = timedelta(days=2)
    for _ in range(25):
        poll(b.view.shards[0], later)
    (held,) = b.view.shards
    assert (held.state, held.poll_faults >= 20) == ("PROVISIONAL", True)
    assert "do not tell whose" in (held.hold or "")
    seen = "\n".join(table(status(later)))
    assert "do not tell whose" in seen and "abandon" in seen
    assert [w.kind for w in plan(later)] == [], "it is asked again with backoff only"

    sim.advance(28 * DAY)
    clock.ahead = timedelta(days=30)
    for work in plan(later):
        execute(work, later)
    (gone,) = b.view.shards
    assert (gone.state, gone.hold) == ("RESULTS_GONE", None)
    for work in plan(later):
        execute(work, later)
    # Its dataset's close_by is over as well: nobody is waited for any longer.
    assert b.states() == {"human_review": set(range(8))}
    assert set(b.reasons().values()) == {"results_gone"}
    assert b.view.row.closed_at is not None
    assert len(b.calls("create")) == 1


@pytest.mark.parametrize("state", ["SUBMITTED", "RUNNING"])
def test_a_batch_that_answers_nothing_any_more_is_not_asked_for_ever(
    state: str, setting: Setting, sim: Simulator, tmp_path: Path
) -> None:
    b = _bench(setting, sim, tmp_path / "home", records=8, settings=CALM)
    b.freeze()
    b.drive(until="submitted")
    if state == "RUNNING":
        sim.advance(DAY / 24)
        poll(b.view.shards[0], b.deps)
    assert b.view.shards[0].state == state
    sim.faults({"route": "poll", "fault": "status_before", "status": 404, "times": 999})
    clock = Shifted()
    later = shifted(b, clock)
    clock.ahead = timedelta(days=28)
    for _ in range(8):
        poll(b.view.shards[0], later)
    assert b.view.shards[0].state == state
    assert "404" in "\n".join(table(status(later)))
    clock.ahead = timedelta(days=30)
    poll(b.view.shards[0], later)
    assert b.view.shards[0].state == "RESULTS_GONE"


def test_a_result_file_that_stays_empty_is_no_reason_to_pay_again(
    setting: Setting, sim: Simulator, tmp_path: Path
) -> None:
    """Eight answers by its own counts, and not a byte of them: then a person decides."""
    b = _bench(setting, sim, tmp_path / "home", records=8, settings=CALM)
    b.freeze()
    sim.faults({"kind": "missing", "count": 8})
    b.drive(until="submitted")
    sim.advance(DAY)
    b.drive(stop=lambda: b.view.shards[0].tries > 7)
    assert b.view.shards[0].state == "RESULTS_AVAILABLE"
    waits = "\n".join(table(status(b.deps)))
    assert "it is empty" in waits and "| until 2" in waits
    clock = Shifted()
    later = shifted(b, clock)
    clock.ahead = timedelta(days=30)
    for _ in range(2):
        for work in plan(later):
            execute(work, later)
    assert b.view.shards[0].state == "RESULTS_GONE"
    assert set(b.reasons().values()) == {"results_gone"}
    assert len(b.calls("create")) == 1
