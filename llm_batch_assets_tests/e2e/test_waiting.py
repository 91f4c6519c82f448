"""What time does to a submission: uploads that expire before they are named in a create."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from llm_batch_assets.engine import execute, plan
from llm_batch_assets.engine.status import status, table
from llm_batch_assets.retention import INPUT_LIFE, UPLOAD_MARGIN, upload_expired
from llm_batch_assets_tests.e2e.providers import (
    GEMINI,
    OPENAI,
    ProviderBench,
    Setting,
    Shifted,
    shifted,
)

HOUR = 3600
S = 1_000_000


@pytest.mark.parametrize(
    ("setting", "life"), [(GEMINI, 48), (OPENAI, 30 * 24)], ids=["gemini", "openai"]
)
def test_an_upload_is_made_again_before_it_has_expired(
    setting: Setting, life: int, tmp_path: Path
) -> None:
    """A create that was refused for two days must not name a file that is gone."""
    with setting.simulator(scale=1.0, batch_seconds=HOUR) as sim:
        b = ProviderBench(setting, sim, tmp_path / "home", records=8)
        b.freeze()
        sim.faults({"route": "create", "fault": "status_before", "status": 429})
        (submit,) = plan(b.deps)
        execute(submit, b.deps)
        (shard,) = b.view.shards
        assert shard.state == "UPLOADED"

        clock = Shifted()
        deps = shifted(b, clock)
        sim.advance(life * HOUR + 60)
        clock.ahead = timedelta(hours=life, seconds=60)
        (submit,) = plan(deps)
        execute(submit, deps)
        (again,) = b.view.shards
        assert (again.state, again.epoch) == ("SUBMITTED", 0)
        assert again.input_ref != shard.input_ref
        assert len(b.calls("upload")) == 2
        assert [call["status"] for call in b.calls("create")] == [429, 200]


@pytest.mark.parametrize("provider", sorted(INPUT_LIFE))
def test_the_edge_of_an_upload(provider: str) -> None:
    life = INPUT_LIFE[provider]
    if life is None:
        assert not upload_expired(provider, 0, 10**18)
        return
    edge = int((life - UPLOAD_MARGIN).total_seconds()) * S
    assert not upload_expired(provider, 17, 17 + edge - 1)
    assert upload_expired(provider, 17, 17 + edge)
    assert not upload_expired(provider, None, 10**18)


def test_a_gemini_batch_that_will_be_lost_is_told_of_at_36_hours(tmp_path: Path) -> None:
    with GEMINI.simulator(scale=1.0, batch_seconds=HOUR) as sim:
        b = ProviderBench(GEMINI, sim, tmp_path / "home", records=8)
        b.freeze()
        sim.faults({"kind": "stuck"})
        b.drive(until="submitted")
        clock = Shifted()
        deps = shifted(b, clock)
        created = b.view.shards[0].provider_created_at
        assert created is not None
        now = deps.ledger.time()
        for seconds, told in ((36 * HOUR - 60, False), (36 * HOUR + 1, True)):
            clock.ahead = timedelta(seconds=seconds, microseconds=created - now)
            found = status(deps)
            assert bool(found.losing) is told, seconds
            assert any("loses everything" in line for line in table(found)) is told
        assert found.losing[0]["batch_id"] == b.view.shards[0].batch_id
        assert found.exit_code == 3


def test_what_expired_whole_goes_again_in_smaller_shards(tmp_path: Path) -> None:
    """Gemini gives nothing of a job of 48 hours: half as many records next time, and again."""
    with GEMINI.simulator(scale=1.0, batch_seconds=HOUR) as sim:
        b = ProviderBench(GEMINI, sim, tmp_path / "home", records=24)  # three shards of eight
        b.freeze()
        sim.faults({"kind": "expire", "fraction": 0.5}, {"kind": "expire", "nth": 4, "times": 2})
        lost = b.shard(0)
        b.drive(until="submitted")
        sim.advance(2 * HOUR)
        b.drive(stop=lambda: len([s for s in b.view.shards if s.state == "ACCOUNTED"]) == 2)
        sim.advance(47 * HOUR)
        b.drive(stop=lambda: len(b.calls("create")) >= 5)
        assert [s.records for s in b.view.shards if s.attempt == 2] == [4, 4]
        assert b.lineage(2).keys() == lost
        sim.advance(49 * HOUR)
        b.drive(stop=lambda: len(b.calls("create")) >= 9)
        assert [s.records for s in b.view.shards if s.attempt == 3] == [2, 2, 2, 2]
        sim.advance(2 * HOUR)
        b.drive()
        assert b.states() == {"accepted": set(range(24))}
        b.assert_no_second_batch(creates=9)
