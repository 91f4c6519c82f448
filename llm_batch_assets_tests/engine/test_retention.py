"""Result deadlines, collecting before them, and removing the provider's copies: at every edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest

from llm_batch_assets.deps import Deps
from llm_batch_assets.engine import execute, plan
from llm_batch_assets.engine.cleaning import clean
from llm_batch_assets.engine.collecting import collect
from llm_batch_assets.engine.gathering import collect_all
from llm_batch_assets.engine.status import status
from llm_batch_assets.errors import GateClosed, NotReady
from llm_batch_assets.ledger import Ledger
from llm_batch_assets.ledger.database import utc_from_micros, utc_now
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.retention import RESULT_LIFE, result_deadline
from llm_batch_assets.settings import open_home
from llm_batch_assets_tests.engine.bench import DATASET, QUICK, Bench, environment, make_workload

Make = Callable[..., Bench]
S = 1_000_000
DAY = 86_400


class Clock:
    """The machine's clock until the test stops it at an instant."""

    def __init__(self) -> None:
        self.at: datetime | None = None

    def __call__(self) -> datetime:
        return self.at or utc_now()

    def move_to(self, micros: int) -> None:
        self.at = utc_from_micros(micros)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def with_clock(bench: Bench, clock: Clock) -> Deps:
    home = open_home(environment(bench.sim, bench.home))
    ledger = Ledger(home.ledger_url, deployment=home.deployment, clock=clock)
    return replace(bench.deps, ledger=ledger)


@pytest.mark.parametrize(
    "provider, seconds",
    [("openai", 30 * DAY), ("anthropic", 29 * DAY), ("gemini", 2 * DAY), ("bedrock", None)],
)
def test_deadlines_count_from_the_creation(provider: str, seconds: int | None) -> None:
    assert provider in RESULT_LIFE
    expected = None if seconds is None else 17 * S + seconds * S
    assert result_deadline(provider, 17 * S) == expected
    assert result_deadline(provider, None) is None


@pytest.mark.parametrize("before, near", [(3 * DAY + 1, False), (3 * DAY - 1, True), (-1, True)])
def test_status_warns_three_days_before_results_go(
    make_slow: Make, clock: Clock, before: int, near: bool
) -> None:
    bench = make_slow(records=8)
    bench.freeze()
    bench.drive(until="submitted")
    (shard,) = bench.view.shards
    assert shard.provider_created_at is not None
    assert shard.result_deadline == shard.provider_created_at + 30 * DAY * S
    deps = with_clock(bench, clock)
    clock.move_to(shard.result_deadline - before * S)
    deadlines = status(deps).deadlines
    assert bool(deadlines) is near
    if near:
        assert deadlines[0]["shard_key"] == shard.shard_key
        assert deadlines[0]["passed"] is (before < 0)


def _lost(make_slow: Make, clock: Clock) -> tuple[Bench, Deps, SubmissionRow]:
    """A shard whose batch has ended and whose results answer 404."""
    bench = make_slow(records=8)
    bench.sim.faults({"kind": "lost_result"})
    bench.freeze()
    bench.drive(until="submitted")
    bench.sim.advance(DAY)
    (shard,) = bench.view.shards
    return bench, with_clock(bench, clock), shard


@pytest.mark.parametrize("past, state", [(-1, "RESULTS_AVAILABLE"), (0, "RESULTS_GONE")])
def test_lost_results_may_come_back_until_their_time_is_over(
    make_slow: Make, clock: Clock, past: int, state: str
) -> None:
    bench, deps, shard = _lost(make_slow, clock)
    assert shard.result_deadline is not None
    clock.move_to(shard.result_deadline + past * S)
    gathered = collect_all(deps)
    assert bench.view.shards[0].state == state
    assert bool(gathered.faults) is (past < 0)
    assert len(gathered.deadlines) == (past < 0)
    # Paid and lost, or not yet: nothing is sent again without a person.
    assert [work.kind for work in plan(deps) if work.kind == "submit"] == []
    assert len(bench.calls("create")) == 1


def test_who_comes_to_collect_what_another_worker_found_gone_is_told_so(
    make_slow: Make, clock: Clock
) -> None:
    bench, deps, shard = _lost(make_slow, clock)
    assert shard.result_deadline is not None
    clock.move_to(shard.result_deadline + S)
    collect_all(deps)
    read_before = replace(shard, state="RESULTS_AVAILABLE")
    with pytest.raises(NotReady, match="its results are gone"):
        collect(read_before, deps)
    assert bench.view.shards[0].state == "RESULTS_GONE"


def _published(make: Make, policy: str, **options: object) -> Bench:
    workload = make_workload(retention={"delete_remote": policy})
    bench = make(records=16, workload=workload, **options)
    bench.freeze()
    bench.drive(until="submitted")
    bench.sim.advance(DAY)
    bench.drive()
    assert bench.view.row.published_at is not None
    return bench


def _files(bench: Bench) -> list[str]:
    return sorted(one["id"] for one in bench.sim.state()["files"])


def test_after_delivery_the_provider_holds_no_object_of_ours(make_slow: Make) -> None:
    bench = _published(make_slow, "after_delivery")
    assert _files(bench) == []
    assert all(shard.remote_deleted_at is not None for shard in bench.view.shards)
    assert plan(bench.deps) == []


def test_keep_keeps(make_slow: Make) -> None:
    bench = _published(make_slow, "keep")
    assert len(_files(bench)) == 4  # two request files, two result files
    assert plan(bench.deps) == []


def test_the_wait_of_after_ends_to_the_second(make_slow: Make, clock: Clock) -> None:
    bench = _published(make_slow, "after 7d")
    published = bench.view.row.published_at
    assert published is not None
    deps = with_clock(bench, clock)
    clock.move_to(published + (7 * DAY - 1) * S)
    assert plan(deps) == []
    clock.move_to(published + (7 * DAY + 1) * S)
    work = plan(deps)
    assert [item.kind for item in work] == ["clean", "clean"]
    for item in work:
        assert execute(item, deps).changed
    assert _files(bench) == []
    assert plan(deps) == []


def test_only_ids_of_our_ledger_are_removed(make_slow: Make) -> None:
    other = make_slow(records=8, dataset="other")
    other.freeze()
    other.drive(until="submitted")
    foreign = other.sim.clone_batch(foreign=True)
    theirs = _files(other)
    bench = _published(make_slow, "after_delivery")
    left = _files(bench)
    assert set(theirs) <= set(left)
    kept = {one["id"] for one in bench.sim.state()["batches"]}
    assert foreign["id"] in kept
    deleted = {entry["path"].rsplit("/", 1)[-1] for entry in bench.calls("file_delete")}
    assert not deleted & set(theirs)


def test_nothing_is_removed_while_the_account_is_uncertain(make_slow: Make) -> None:
    workload = make_workload(retention={"delete_remote": "after_delivery"})
    bench = make_slow(records=8, workload=workload)
    bench.freeze()
    bench.drive(until="submitted")
    other = make_slow(records=8, dataset="other", settings=QUICK)
    other.freeze()
    other.sim.faults({"route": "create", "fault": "drop_after"})
    (create,) = [w for w in plan(other.deps) if w.kind == "submit"]
    execute(create, other.deps)
    assert other.view.shards[0].state == "UNCERTAIN"
    bench.sim.advance(DAY)
    bench.drive()
    assert bench.view.row.published_at is not None
    assert not [work for work in plan(bench.deps) if work.kind == "clean"]
    with pytest.raises(GateClosed, match="uncertain"):
        clean(bench.view.shards[0], bench.deps)
    assert bench.calls("file_delete") == []
    other.drive()  # a look finds its batch, and it closes
    assert bench.view.shards[0].remote_deleted_at is None
    (shard,) = bench.view.shards
    assert clean(shard, bench.deps).facts["batches"] == 1
    assert bench.view.shards[0].remote_deleted_at is not None


def test_a_removal_that_fails_is_tried_again_and_changes_nothing_else(make_slow: Make) -> None:
    workload = make_workload(retention={"delete_remote": "after 1s"})
    bench = make_slow(records=8, workload=workload)
    bench.freeze()
    bench.drive(until="submitted")
    bench.sim.advance(DAY)
    bench.drive()
    bench.sim.faults({"route": "file_delete", "fault": "drop_before"})
    (shard,) = bench.view.shards
    with pytest.raises(Exception, match="delete"):
        clean(shard, bench.deps)
    (shard,) = bench.view.shards
    assert shard.remote_deleted_at is None
    assert shard.due_at > bench.deps.ledger.time()
    assert clean(shard, bench.deps).changed
    assert not clean(shard, bench.deps).changed
    assert _files(bench) == []


def test_a_shard_that_is_not_in_evidence_keeps_its_copies(make_slow: Make) -> None:
    bench = make_slow(records=8)
    bench.freeze()
    bench.drive(until="submitted")
    with pytest.raises(NotReady):
        clean(bench.view.shards[0], bench.deps)
    assert bench.dataset == DATASET
