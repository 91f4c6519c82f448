"""What people do to a dataset, at each of the four providers: cancel, remove, lose the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets.engine import execute, plan
from llm_batch_assets.engine.cancelling import cancel
from llm_batch_assets.engine.rebuilding import rebuild
from llm_batch_assets.engine.sweeping import sweep
from llm_batch_assets_tests.e2e.conftest import Make
from llm_batch_assets_tests.e2e.providers import ProviderBench, Setting
from llm_batch_assets_tests.engine.bench import DATASET
from llm_batch_assets_tests.engine.lost import restore
from llm_batch_assets_tests.s3_server import S3Server

DAY = 86_400.0


@pytest.fixture
def standing(setting: Setting, tmp_path: Path) -> Iterator[Callable[..., ProviderBench]]:
    """Benches on a simulator whose time stands until ``advance``."""
    with setting.simulator(scale=1.0, batch_seconds=28_800.0, cancel_seconds=600.0) as simulator:

        def make(**options: Any) -> ProviderBench:
            return ProviderBench(setting, simulator, tmp_path / "home", **options)

        yield make


def test_a_cancelled_dataset_closes(standing: Make) -> None:
    b = standing(records=24)
    b.freeze()
    for work in [w for w in plan(b.deps) if w.kind == "submit"][:2]:
        execute(work, b.deps)
    b.sim.advance(DAY / 24)
    outcome = cancel(b.deps, dataset=DATASET, reason="wrong prompt")
    assert (outcome.facts["cancels_taken"], outcome.facts["unsent_shards"]) == (2, 1)
    b.sim.advance(3600)
    b.drive()
    row = b.view.row
    assert row.closed_at is not None
    assert (row.accepted or 0) + (row.cancelled or 0) == 24
    assert (row.cancelled or 0) >= 8
    assert row.published_at is None
    assert len(b.calls("create")) == 2
    assert b.sim.meter()["paid_twice"] == 0


def _objects(b: ProviderBench, request: pytest.FixtureRequest) -> list[str]:
    """What of ours the provider still holds."""
    if b.setting.provider != "bedrock":
        state = b.sim.state()
        held = [str(one.get("id") or one.get("name")) for one in state["files"]]
        if b.setting.provider == "gemini":
            # Its API refuses to delete result files by their long ids; they go after 48 hours.
            held = [name for name in held if not name.startswith("files/batch-")]
        if b.setting.provider in ("anthropic", "gemini"):  # the others keep their batch objects
            held += [one["id"] for one in state["batches"] if not one["foreign"]]
        return held
    server: S3Server = request.getfixturevalue("s3_server")
    bucket = request.getfixturevalue("e2e_bucket")
    prefix = b.setting.env(b.sim, "sk-test")["LLM_BATCH_BEDROCK_S3"].split("/", 3)[3]
    found = server.client().list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    return [one["Key"] for one in found]


def test_after_delivery_nothing_of_ours_is_left(
    bench: Make, setting: Setting, request: pytest.FixtureRequest
) -> None:
    workload = setting.workload(retention={"delete_remote": "after_delivery"})
    b = bench(records=16, workload=workload)
    b.freeze()
    b.drive()
    assert b.view.row.published_at is not None
    assert [s.shard_key for s in b.view.shards if s.remote_deleted_at is None] == []
    assert _objects(b, request) == []
    # A later dataset of the account still proves what it has to prove.
    later = bench(records=8, dataset="later")
    later.freeze()
    later.drive()
    assert later.view.row.accepted == 8


def test_a_lost_ledger_is_rebuilt_and_nothing_is_sent_twice(standing: Make) -> None:
    b = standing(records=16)
    b.freeze()
    b.drive(until="submitted")
    b.sim.advance(3 * DAY / 4)
    new = restore(b, None)
    rebuilt = rebuild(new.deps, reason="the disk died")
    # What carries no label is bound once a look has read its first lines.
    assert len(rebuilt.bound) + len(rebuilt.looked_for) == 2
    assert (rebuilt.revisions, rebuilt.jobs, rebuilt.exit_code) == (1, 1, 0)
    new.drive()
    assert new.view.row.accepted == 16
    assert len(new.calls("create")) == 2
    assert new.sim.meter()["paid_twice"] == 0


def test_a_sweep_over_bound_batches_touches_nothing(standing: Make) -> None:
    b = standing(records=16)
    b.freeze()
    b.drive(until="submitted")
    foreign = b.look_alike()
    swept = sweep(b.deps, cancel=True)
    assert not (swept.adopted or swept.duplicates or swept.unknown)
    assert b.calls("cancel") == []
    b.assert_left_alone(foreign)
