"""What a click does, row by row of the design's table."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
import pytest

from llm_batch_assets.defs.resources import llm_batch
from llm_batch_assets.ledger import submissions, views
from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.defs.loop import (
    DATASET,
    Loop,
    failure_text,
    rows,
    small_workload,
)

P0 = f"{DATASET}/r1/a1/p00000"
P1 = f"{DATASET}/r1/a1/p00001"


def _creates(simulator: Simulator) -> int:
    return sum(
        entry["method"] == "POST" and entry["path"].endswith("/batches")
        for entry in simulator.log()
    )


def _calls(simulator: Simulator) -> int:
    return len([e for e in simulator.log() if not e["path"].startswith("/_sim")])


@pytest.fixture
def frozen(loop: Loop) -> Loop:
    """A loop whose dataset is frozen, its shard partitions added, nothing sent."""
    assert loop.click("manifest").success
    assert loop.requests()
    return loop


@pytest.fixture
def sent(frozen: Loop, simulator: Simulator) -> Loop:
    """Every shard is sent and the provider's time stands still."""
    simulator.set_scale(0)
    assert frozen.click("provider_job", ends=(P0, f"{DATASET}/r1/a1/p00003")).success
    return frozen


def test_manifest_again_with_the_same_rows_is_a_no_op(frozen: Loop) -> None:
    version = frozen.data_version("manifest")
    assert version
    assert frozen.click("manifest").success
    assert frozen.data_version("manifest") == version
    assert frozen.materializations("manifest") == 2
    view = frozen.view()
    assert view is not None
    assert view.row.revision == 1


def test_manifest_with_other_rows_is_refused_with_counts(frozen: Loop) -> None:
    frozen.source = lambda _dataset: rows(40, start=3)
    result = frozen.click("manifest")
    said = failure_text(result)
    assert "3 added" in said
    assert "What asking 3 records again would cost is unknown." in said
    assert "3 removed" in said
    assert "supersede" in said
    (failed,) = [e for e in result.all_events if e.is_step_failure]
    failure = failed.step_failure_data.user_failure_data
    assert failure is not None
    facts = {name: value.value for name, value in failure.metadata.items()}
    assert facts["price"] == "unknown"
    assert (facts["added"], facts["changed"], facts["removed"]) == (3, 0, 3)
    assert frozen.materializations("manifest") == 1


def test_more_open_datasets_than_the_limit_are_refused(start: Callable[..., Loop]) -> None:
    limits = {"records_per_shard": 10, "open_datasets": 1}
    loop = start(small_workload(limits=limits))
    loop.add_dataset("2026-07-29")
    assert loop.click("manifest").success
    said = failure_text(loop.click("manifest", partition="2026-07-29"))
    assert "limits.open_datasets is 1" in said
    assert loop.view("2026-07-29") is None


def test_manifest_refuses_a_key_that_is_no_dataset_key(loop: Loop) -> None:
    loop.add_dataset("a/b")
    assert "Dataset key 'a/b'" in failure_text(loop.click("manifest", partition="a/b"))


def test_provider_job_sends_once(frozen: Loop, simulator: Simulator) -> None:
    assert frozen.click("provider_job", partition=P0).success
    version = frozen.data_version("provider_job", P0)
    assert version
    assert version.startswith("batch_")
    assert _creates(simulator) == 1
    assert frozen.click("provider_job", partition=P0).success
    assert _creates(simulator) == 1, "already sent: no POST"
    assert frozen.data_version("provider_job", P0) == version


def test_provider_job_on_hold_says_what_releases_it(frozen: Loop, simulator: Simulator) -> None:
    view = frozen.view()
    assert view is not None
    with llm_batch.open(actor="test") as deps:
        submissions.set_hold(deps.ledger, view.shards[0], "billing", "Pay, then `release`.")
    said = failure_text(frozen.click("provider_job", partition=P0))
    assert "hold: billing" in said
    assert "Pay, then `release`." in said
    assert _creates(simulator) == 0


def test_provider_job_that_is_not_due_says_until_when(frozen: Loop, simulator: Simulator) -> None:
    view = frozen.view()
    assert view is not None
    with llm_batch.open(actor="test") as deps:
        later = deps.ledger.time() + 3_600_000_000
        submissions.note(deps.ledger, view.shards[0], due_at=later)
    said = failure_text(frozen.click("provider_job", partition=P0))
    assert "due at 20" in said
    assert _creates(simulator) == 0


def test_provider_job_behind_a_gate_names_the_release(
    start: Callable[..., Loop], simulator: Simulator
) -> None:
    """Two datasets are frozen before either is sent; only one may be in progress."""
    limits = {"records_per_shard": 10, "open_datasets": 2}
    loop = start(small_workload(limits=limits))
    loop.add_dataset("2026-07-29")
    assert loop.click("manifest").success
    assert loop.click("manifest", partition="2026-07-29").success
    assert loop.requests()
    with llm_batch.open(actor="test") as deps, deps.ledger.write("test") as connection:
        connection.exec_driver_sql("UPDATE revisions SET open_datasets = 1")
    assert loop.click("provider_job", partition=P0).success
    said = failure_text(loop.click("provider_job", partition="2026-07-29/r1/a1/p00000"))
    assert "limits.open_datasets is 1" in said
    assert "It opens when one of them closes." in said
    assert _creates(simulator) == 1


def test_an_uncertain_create_is_looked_for_not_sent_again(
    frozen: Loop, simulator: Simulator
) -> None:
    simulator.faults({"route": "create", "nth": 1, "fault": "drop_after"})
    result = frozen.click("provider_job", partition=P0)
    assert result.success
    assert frozen.materialized("provider_job") == set(), "nobody knows yet: nothing materialized"
    said = failure_text(frozen.click("provider_job", partition=P0))
    assert "nobody knows yet whether its batch exists" in said
    assert "next look is at 20" in said
    assert _creates(simulator) == 1
    frozen.until(lambda view: view.shards[0].batch_id is not None)
    assert frozen.click("provider_job", partition=P0).success
    assert P0 in frozen.materialized("provider_job")
    assert simulator.meter()["paid_twice"] == 0


def test_raw_results_of_a_running_batch_says_how_far_it_is(
    sent: Loop, simulator: Simulator
) -> None:
    said = failure_text(sent.click("raw_results", partition=P0))
    assert "0/10 done" in said
    assert "The sensor collects it" in said
    assert sent.materialized("raw_results") == set()


def test_raw_results_of_a_shard_that_was_not_sent(frozen: Loop) -> None:
    said = failure_text(frozen.click("raw_results", partition=P0))
    assert "it has no results" in said


def test_raw_results_again_verifies_without_a_call(sent: Loop, simulator: Simulator) -> None:
    simulator.advance(86_000)
    assert sent.click("raw_results", partition=P0).success
    version = sent.data_version("raw_results", P0)
    calls = _calls(simulator)
    assert sent.click("raw_results", partition=P0).success
    assert _calls(simulator) == calls
    assert version
    assert sent.data_version("raw_results", P0) == version


def test_reconciled_records_mid_flight_reports_and_cuts_nothing(
    sent: Loop, simulator: Simulator
) -> None:
    simulator.faults({"kind": "error_429", "count": 3, "total": 3})
    simulator.advance(86_000)
    assert sent.click("raw_results", partition=P0).success
    simulator.set_scale(0)
    result = sent.click("reconciled_records", "retry_shards")
    assert result.success
    view = sent.view()
    assert view is not None
    assert view.attempt == 1, "three shards are in flight: nothing is cut"
    assert view.row.closed_at is None
    assert view.row.open is not None
    assert view.row.open >= 30
    assert view.row.accepted is not None
    assert view.row.accepted <= 10
    assert sent.materialized("reconciled_records") == {DATASET}


def test_accepted_results_of_an_open_revision_says_what_is_open(sent: Loop) -> None:
    said = failure_text(sent.click("accepted_results"))
    assert "is open: none of its 40 records is accounted yet" in said
    sent.click("reconciled_records", "retry_shards")
    said = failure_text(sent.click("accepted_results"))
    assert "40 of 40 records have no terminal state yet" in said
    assert sent.materialized("accepted_results") == set()


def test_accepted_results_again_is_a_no_op(loop: Loop) -> None:
    assert loop.click("manifest").success
    view = loop.until_published()
    version = loop.data_version("accepted_results")
    assert loop.click("accepted_results").success
    assert loop.data_version("accepted_results") == version
    again = loop.view()
    assert again is not None
    assert again.row.published_version == view.row.published_version == 1


def test_accounting_again_writes_nothing(loop: Loop) -> None:
    assert loop.click("manifest").success
    before = loop.until_published()
    with llm_batch.open(actor="test") as deps:
        objects = set(deps.store.digests())
    assert loop.click("reconciled_records", "retry_shards").success
    assert loop.publish_job().success
    with llm_batch.open(actor="test") as deps:
        assert set(deps.store.digests()) == objects
        after = views.view_by_id(deps.ledger, before.row.id)
    assert after == before


@pytest.mark.parametrize("step", ["manifest", "accepted_results", "human_review"])
def test_range_runs_on_dataset_assets_are_refused(loop: Loop, step: str) -> None:
    loop.add_dataset("2026-07-29")
    said = failure_text(loop.click(step, ends=(DATASET, "2026-07-29")))
    assert "covers 2 datasets" in said
    assert "one dataset per run" in said
    assert loop.view() is None


def test_a_key_that_the_ledger_lacks_fails_alone(frozen: Loop, simulator: Simulator) -> None:
    """Added by hand between real ones: the real ones of the range are done all the same."""
    name = "summaries__d-test__shards"
    frozen.instance.add_dynamic_partitions(name, ["by-hand"])
    first, *_, last = frozen.instance.get_dynamic_partitions(name)
    assert last == "by-hand"
    said = failure_text(frozen.click("provider_job", ends=(first, last)))
    assert "The ledger has no shard 'by-hand'" in said
    assert len(frozen.materialized("provider_job")) == 4
    assert _creates(simulator) == 4


def test_several_bad_keys_of_a_range_leave_the_run_green(
    frozen: Loop, simulator: Simulator
) -> None:
    """A failed range run shows every key without an event as Failed, also those done before."""
    view = frozen.view()
    assert view is not None
    with llm_batch.open(actor="test") as deps:
        for shard in view.shards[:2]:
            submissions.set_hold(deps.ledger, shard, "quota", "Raise it.")
    result = frozen.click("provider_job", ends=(P0, f"{DATASET}/r1/a1/p00003"))
    assert result.success
    assert frozen.materialized("provider_job") == {
        f"{DATASET}/r1/a1/p00002",
        f"{DATASET}/r1/a1/p00003",
    }
    keys = [P0, P1]
    statuses = frozen.instance.get_status_by_partition(
        dg.AssetKey(["summaries", "provider_job"]),
        keys,
        dg.DynamicPartitionsDefinition(name="summaries__d-test__shards"),
    )
    assert statuses is not None
    assert not [key for key in keys if statuses.get(key)]


def test_human_review_names_records_and_reasons(
    start: Callable[..., Loop], simulator: Simulator
) -> None:
    simulator.faults({"kind": "duplicate_conflicting", "count": 1, "total": 2})
    loop = start(small_workload(publish={"min_accepted": 0.5}))
    assert loop.click("manifest").success
    loop.until_published()
    assert loop.materialized("human_review") == {DATASET}
    record = loop.instance.fetch_materializations(
        dg.AssetRecordsFilter(dg.AssetKey(["summaries", "human_review"])), limit=1
    ).records[0]
    event = record.asset_materialization
    assert event is not None
    view = loop.view()
    assert view is not None
    assert view.row.human_review == 2
    assert event.metadata["dagster/row_count"].value == 2
    table = event.metadata["first_records"]
    assert isinstance(table, dg.TableMetadataValue)
    assert {row.data["reason"] for row in table.records} == {"conflicting_duplicate"}
    assert all(str(row.data["business_key"]).startswith("k00") for row in table.records)
