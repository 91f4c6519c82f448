"""What the ledger knows and Dagster does not is told at the next tick, once."""

# No `from __future__ import annotations`: Dagster reads the context's annotation as it stands.
import logging
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest

from llm_batch_assets.defs import announce, on_published, sensors
from llm_batch_assets.defs.dispatch import ALERT_AFTER
from llm_batch_assets.defs.keys import asset_key
from llm_batch_assets.defs.resources import llm_batch
from llm_batch_assets.defs.sensors import llm_batch_poll, llm_batch_tick
from llm_batch_assets.ledger.announcing import Fact
from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.defs.loop import DATASET, Loop, rows, small_workload

STEPS = ("manifest", "reconciled_records", "retry_shards", "accepted_results")
SHARD_STEPS = ("provider_job", "raw_results")
SHARDS = {f"{DATASET}/r1/a1/p{n:05d}" for n in range(2)}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is at work beside these tests that would tell its fact by itself."""
    monkeypatch.setattr(announce, "TOLD_BY_RUN", 0.0)


@pytest.fixture
def loop(start: Callable[..., Loop]) -> Iterator[Loop]:
    yield start(source=lambda _dataset: rows(20))


def _shown(loop: Loop) -> dict[tuple[str, str], list[str | None]]:
    """(asset, partition) -> the data versions of all its materializations, oldest first."""
    found: dict[tuple[str, str], list[str | None]] = {}
    for step in (*STEPS, *SHARD_STEPS):
        events = loop.instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key("summaries", step)), limit=1000, ascending=True
        )
        for record in events.records:
            event = record.asset_materialization
            assert event is not None
            assert event.partition is not None
            version = (event.tags or {}).get("dagster/data_version")
            found.setdefault((step, event.partition), []).append(version)
    return found


def test_what_the_command_line_did_is_told_once_and_wakes_downstream(
    start: Callable[..., Loop],
) -> None:
    """A dataset whose partition Dagster does not even have, from source to published."""
    woken: list[str] = []

    @dg.asset(
        deps=[["summaries", "accepted_results"]],
        partitions_def=dg.DynamicPartitionsDefinition(name="summaries__dataset"),
        automation_condition=on_published(),
    )
    def topics(context: dg.AssetExecutionContext) -> None:
        woken.append(context.partition_key)

    loop = start(source=lambda _d: rows(20), more=[dg.Definitions(assets=[topics])])
    loop.tick()
    other = "2026-07-29"
    view = loop.by_cli(dataset=other)
    assert loop.tick() == [], "this tick adds the partitions"
    loop.tick()
    shards = {f"{other}/r1/a1/p{n:05d}" for n in range(2)}
    shown = _shown(loop)
    assert set(shown) == {(step, other) for step in STEPS} | {
        (step, shard) for step in SHARD_STEPS for shard in shards
    }
    assert shown["accepted_results", other] == [view.row.candidate_rows_digest]
    assert shown["reconciled_records", other] == [view.row.closure_digest]
    assert {shown["provider_job", s][0] for s in shards} == {s.batch_id for s in view.shards}
    loop.tick()
    assert woken == [other]
    for _ in range(2):
        loop.tick()
    assert _shown(loop) == shown, "told once"
    assert woken == [other]
    assert loop.instance.get_runs_count() == 1, "topics; nothing else had to run"


def test_a_run_says_what_announcing_would_say(loop: Loop) -> None:
    """Each partition's data version is the same, whoever tells it."""
    assert loop.click("manifest").success
    loop.until_published()
    loop.tick()
    by_runs = _shown(loop)
    _forget(loop)
    loop.tick()
    assert _shown(loop) == by_runs, "compared with what is shown, nothing is told again"
    assert all(len(set(versions)) == 1 for key, versions in by_runs.items() if key[0] in STEPS[2:])
    with llm_batch.open(actor="test") as deps, deps.ledger.read() as connection:
        told = connection.exec_driver_sql("SELECT step, partition FROM announced").all()
    assert {(step, partition) for step, partition in told} == set(by_runs)
    loop.instance.wipe_assets([asset_key("summaries", s) for s in (*STEPS, *SHARD_STEPS)])
    _forget(loop)
    loop.tick()
    assert _shown(loop) == {key: [versions[-1]] for key, versions in by_runs.items()}


def _forget(_loop: Loop) -> None:
    with llm_batch.open(actor="test") as deps, deps.ledger.write("test") as connection:
        connection.exec_driver_sql("DELETE FROM announced")


def test_a_crash_between_event_and_note_tells_nothing_twice(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was emitted is compared with; what was not is emitted. Nothing is missing."""
    loop.by_cli()
    loop.tick()
    _forget(loop)
    loop.instance.wipe_assets([asset_key("summaries", s) for s in (*STEPS, *SHARD_STEPS)])

    def dies(*_args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(announce, "record_told", dies)
        with pytest.raises(KeyboardInterrupt):
            loop.evaluate(llm_batch_tick)
    assert set(_shown(loop)) == {("accepted_results", DATASET)}, "the process ended after one asset"
    loop.tick()
    shown = _shown(loop)
    assert len(shown) == len(STEPS) + len(SHARD_STEPS) * len(SHARDS)
    assert all(len(versions) == 1 for versions in shown.values())


def test_another_dagster_instance_is_told_everything(
    loop: Loop, start: Callable[..., Loop]
) -> None:
    loop.by_cli()
    loop.tick()
    loop.tick()
    with dg.DagsterInstance.ephemeral() as instance:
        fresh = Loop(instance, small_workload(), lambda _d: rows(20))
        fresh.tick()
        fresh.tick()
        assert _shown(fresh) == _shown(loop)


def test_what_a_live_run_is_about_is_left_to_it(loop: Loop) -> None:
    loop.by_cli(lambda view: all(shard.batch_id for shard in view.shards))
    loop.requests()
    with llm_batch.open(actor="test") as deps:
        facts = announce.due_facts(deps, loop.instance, ["summaries"])
        live = {("submit", "summaries", shard) for shard in SHARDS}
        shown = {fact.step for fact in facts}

        def tell(facts: list[Fact], live: set[tuple[str, str, str]]) -> int:
            return announce.announce(
                facts, deps, loop.instance, exists=lambda _f: True, live=live, log=_LOG
            ).emitted

        assert shown == {"provider_job"}, "the manifest was told at the tick before"
        assert tell(facts, live) == 0
        assert tell(facts, set()) == 2


_LOG = dg.get_dagster_logger()


def test_what_cannot_be_told_stops_neither_the_others_nor_the_work(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault that nobody expected: said at each tick, an error once it lasts, told when mended."""
    loop.by_cli(lambda view: all(shard.batch_id for shard in view.shards))
    loop.requests()  # adds the partitions
    real = announce.event

    def breaks(key: dg.AssetKey, fact: Fact, outcome: Any) -> dg.AssetMaterialization:
        if fact.partition.endswith("p00000"):
            raise ZeroDivisionError("nobody thought of this")
        return real(key, fact, outcome)

    monkeypatch.setattr(announce, "event", breaks)
    bad = f"{DATASET}/r1/a1/p00000"
    said = loop.evaluate(llm_batch_tick).skip_message or ""
    assert "1 could not be announced" in said, said
    assert {p for step, p in _shown(loop) if step == "provider_job"} == SHARDS - {bad}

    log = logging.getLogger("test_announce")
    with caplog.at_level(logging.WARNING), llm_batch.open(actor="test") as deps:
        for _ in range(ALERT_AFTER + 3):
            told = announce.tell(
                deps, loop.instance, ["summaries"], exists=lambda _f: True, live=set(), log=log
            )
            assert told == announce.Told(0, 1)
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1, "once, not at every tick"
    assert bad in errors[0] and "ZeroDivisionError: nobody thought of this" in errors[0]

    monkeypatch.setattr(announce, "event", real)
    loop.evaluate(llm_batch_tick)
    assert {p for step, p in _shown(loop) if step == "provider_job"} == SHARDS


def test_work_is_dispatched_though_nothing_can_be_told(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_args: object) -> list[Fact]:
        raise RuntimeError("the instance's storage is away")

    monkeypatch.setattr(announce, "due_facts", breaks)
    assert loop.click("manifest").success
    loop.until_published()
    assert loop.data_version("accepted_results") is not None


def test_a_fact_that_has_just_been_made_is_left_to_its_run(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.by_cli(lambda view: all(shard.batch_id for shard in view.shards))
    monkeypatch.setattr(announce, "TOLD_BY_RUN", 60.0)
    loop.evaluate(llm_batch_tick)
    loop.evaluate(llm_batch_tick)
    assert _shown(loop) == {}


def test_a_dataset_that_the_team_does_not_have_stops_nothing(start: Callable[..., Loop]) -> None:
    """Frozen by the CLI under a key of no day: the tick goes on for all others."""
    days = dg.StaticPartitionsDefinition(["2026-07-28", "2026-07-29"])
    loop = start(source=lambda _d: rows(10), partitions_def=days)
    loop.by_cli(dataset="a-word")
    loop.by_cli(lambda view: view.row.closed_at is not None, dataset="2026-07-28")
    for _ in range(3):
        loop.tick()
    assert loop.materialized("accepted_results") == {"2026-07-28"}
    assert loop.materialized("provider_job") == {
        "2026-07-28/r1/a1/p00000",
        "a-word/r1/a1/p00000",
    }


def test_results_of_a_workload_that_left_the_code_are_collected(
    start: Callable[..., Loop], simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No asset can be run for it: the poll sensor collects, late and a few at a time."""
    gone = start(small_workload("gone"), source=lambda _d: rows(30))
    gone.by_cli(
        lambda view: {s.state for s in view.shards} == {"RESULTS_AVAILABLE"}, but=["collect"]
    )
    here = start(small_workload("here"), source=lambda _d: rows(10))

    def states() -> list[str]:
        view = gone.view()
        assert view is not None
        return sorted(shard.state for shard in view.shards)

    here.evaluate(llm_batch_poll)
    assert states() == ["RESULTS_AVAILABLE"] * 3, "another location may have the workload"
    monkeypatch.setattr(sensors, "ORPHAN_SECONDS", 0.0)
    here.evaluate(llm_batch_poll)
    assert states() == ["ACCOUNTED"] * 2 + ["RESULTS_AVAILABLE"], "two a tick"
    here.evaluate(llm_batch_poll)
    assert states() == ["ACCOUNTED"] * 3
    assert here.requests() == []
    assert simulator.meter()["paid_twice"] == 0
