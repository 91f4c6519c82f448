"""Bedrock runs no job of fewer than 100 records: what is left to ask waits for company, or people.

The minimum is an account's quota, so that these tests write a small one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets.errors import DatasetError
from llm_batch_assets.manifest import load_manifest
from llm_batch_assets_tests.e2e.providers import ProviderBench, Setting, bedrock
from llm_batch_assets_tests.s3_server import S3Server

MINIMUM = 4


@pytest.fixture
def amazon(s3_server: S3Server, e2e_bucket: str) -> Iterator[Setting]:
    yield bedrock(s3_server, e2e_bucket, minimum=MINIMUM)


def _bench(setting: Setting, sim: Any, home: Path, **retry: Any) -> ProviderBench:
    workload = setting.workload(records_per_shard=8, retry=retry)
    return ProviderBench(setting, sim, home, records=16, workload=workload)


def test_too_few_go_to_a_person_and_nothing_is_sent(amazon: Setting, tmp_path: Path) -> None:
    with amazon.simulator() as sim:
        b = _bench(amazon, sim, tmp_path / "home")
        b.freeze()
        hit = {min(b.shard(0)), min(b.shard(1))}
        sim.faults({"kind": "error_500", "ids": b.wire_ids(hit)})
        b.drive()
        assert b.states() == {"accepted": set(range(16)) - hit, "human_review": hit}
        assert b.reasons() == dict.fromkeys(hit, "below_minimum")
        assert b.view.attempt == 1
        b.assert_no_second_batch(creates=2)


def test_enough_go_again(amazon: Setting, tmp_path: Path) -> None:
    with amazon.simulator() as sim:
        b = _bench(amazon, sim, tmp_path / "home")
        b.freeze()
        hit = {*sorted(b.shard(0))[:2], *sorted(b.shard(1))[:2]}
        sim.faults({"kind": "error_500", "ids": b.wire_ids(hit)})
        b.drive()
        assert b.states() == {"accepted": set(range(16))}
        assert b.lineage(2).keys() == hit
        b.assert_no_second_batch(creates=3)


def test_too_few_wait_for_what_is_still_in_flight(amazon: Setting, tmp_path: Path) -> None:
    """An attempt that could be cut early is not: with the rest of the dataset it may be enough."""
    with amazon.simulator() as sim:
        b = _bench(amazon, sim, tmp_path / "home", cut_after="0.3s")
        b.freeze()
        hit = sorted(b.shard(1))[:2]
        stuck = b.shard(0)
        sim.faults({"kind": "stuck"}, {"kind": "error_500", "ids": b.wire_ids(hit)})
        b.drive(stop=lambda: "open" in b.states())
        assert b.reasons() == dict.fromkeys(stuck, "in_flight") | dict.fromkeys(
            hit, "below_minimum"
        )
        assert (b.view.attempt, len(b.calls("create"))) == (1, 2)

        held = next(one for one in b.own_batches() if one["phase"] == "validating")
        b.deps.provider("bedrock").cancel(held["id"])
        b.drive()
        assert b.states() == {"accepted": set(range(16))}
        assert b.lineage(2).keys() == stuck | set(hit)
        b.assert_no_second_batch(creates=4)


def test_a_dataset_below_the_minimum_is_refused(amazon: Setting, tmp_path: Path) -> None:
    with amazon.simulator() as sim:
        b = ProviderBench(amazon, sim, tmp_path / "home", records=MINIMUM - 1)
        with pytest.raises(DatasetError, match="fewer than 4 records"):
            b.freeze()
        assert sim.log() == []


def test_the_quota_is_frozen_with_the_dataset(amazon: Setting, tmp_path: Path) -> None:
    with amazon.simulator() as sim:
        b = _bench(amazon, sim, tmp_path / "home")
        b.freeze()
        manifest = load_manifest(b.deps.store, b.view.jobs[0].manifest_digest)
        assert (manifest.batch_minimum, manifest.limits.records_minimum) == (MINIMUM, MINIMUM)
