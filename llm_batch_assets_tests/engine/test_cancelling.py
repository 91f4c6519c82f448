"""A person's cancel, end to end: nothing more is sent, what is paid is accepted, the set closes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from llm_batch_assets.engine import execute, plan, publishing
from llm_batch_assets.engine.cancelling import cancel
from llm_batch_assets.errors import GateClosed, InputError
from llm_batch_assets.ledger.people import decisions_of
from llm_batch_assets.ledger.published import published_candidate
from llm_batch_assets_tests.engine.bench import CALM, DATASET, QUICK, Bench, make_workload

Make = Callable[..., Bench]


def _some_sent(bench: Bench, shards: int = 2) -> None:
    """Send the first shards and leave the others."""
    bench.freeze()
    for work in [w for w in plan(bench.deps) if w.kind == "submit"][:shards]:
        execute(work, bench.deps)


def _published(bench: Bench) -> str | None:
    return published_candidate(bench.deps.ledger, "lab", "notes", DATASET)


def test_a_cancelled_dataset_closes_and_sends_nothing_more(make_slow: Make) -> None:
    bench = make_slow(records=24)
    _some_sent(bench)
    outcome = cancel(bench.deps, dataset=DATASET, reason="wrong prompt")
    assert outcome.changed
    assert outcome.facts["cancels_taken"] == 2
    assert outcome.facts["unsent_shards"] == 1
    bench.sim.advance(3600)
    bench.drive()
    row = bench.view.row
    assert row.closed_at is not None
    assert (row.cancelled, row.accepted, row.open) == (24, 0, 0)
    assert len(bench.calls("create")) == 2
    assert bench.sim.meter()["paid_twice"] == 0
    assert {shard["reason"] for shard in bench.settled()} == {"person_cancel"}


def test_rows_that_ran_before_the_cancel_are_accepted_and_wait_for_a_word(make_slow: Make) -> None:
    bench = make_slow(records=16)
    _some_sent(bench)
    bench.sim.advance(86_400 / 6)  # half of the lines have run
    cancel(bench.deps, dataset=DATASET, reason="too slow")
    bench.sim.advance(3600)
    bench.drive()
    row = bench.view.row
    assert row.closed_at is not None
    assert row.accepted and row.cancelled
    assert row.accepted + row.cancelled == 16
    assert _published(bench) is None
    with pytest.raises(GateClosed, match="too slow"):
        publishing.publish(row.id, bench.deps)
    publishing.publish(row.id, bench.deps, word="the first half is enough")
    assert _published(bench) == row.candidate_digest
    said = decisions_of(bench.deps.ledger, [row.target])
    assert [(d["decision"], d["reason"]) for d in said] == [
        ("cancel", "too slow"),
        ("publish", "the first half is enough"),
    ]
    assert said[0]["facts"]["live_batches"] == 2


def test_a_lost_reply_to_a_cancel_is_asked_again(
    make_slow: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm_batch_assets.engine import cancelling

    monkeypatch.setattr(cancelling, "CANCEL_BACKOFF", (0.05, 0.1))
    bench = make_slow(records=8)
    _some_sent(bench)
    bench.sim.faults({"route": "cancel", "fault": "drop_after", "nth": 1, "times": 2})
    outcome = cancel(bench.deps, dataset=DATASET, reason="enough")
    assert outcome.facts["cancels_taken"] == 0
    bench.drive(stop=lambda: bench.view.shards[0].cancel_sent_at is not None)
    assert len(bench.calls("cancel")) >= 3
    bench.sim.advance(3600)
    bench.drive()
    assert bench.view.row.closed_at is not None


def test_an_uncertain_submission_is_found_and_its_batch_cancelled(make_slow: Make) -> None:
    bench = make_slow(records=8, settings=QUICK)
    bench.freeze()
    bench.sim.faults({"route": "create", "fault": "drop_after"})
    (work,) = plan(bench.deps)
    execute(work, bench.deps)
    assert bench.view.shards[0].state == "UNCERTAIN"
    cancel(bench.deps, dataset=DATASET, reason="stop")
    bench.drive(stop=lambda: bench.view.shards[0].cancel_sent_at is not None)
    bench.sim.advance(3600)
    bench.drive()
    assert bench.view.row.closed_at is not None
    assert len(bench.calls("create")) == 1
    assert bench.own_batches()[0]["phase"] == "cancelled"


def test_a_cancel_that_loses_the_race_keeps_every_answer(bench: Make) -> None:
    one = bench(settings=CALM, records=8)
    one.freeze()
    one.drive(until="submitted")
    one.sim.advance(86_400)
    cancel(one.deps, dataset=DATASET, reason="late")
    one.drive()
    row = one.view.row
    assert (row.accepted, row.cancelled) == (8, 0)
    assert _published(one) is None
    # What it cost so far is said as soon as it is in evidence.
    paid = cancel(one.deps, dataset=DATASET, reason="how far?").facts["tokens"]
    metered = one.sim.meter()["tokens"]
    assert paid["output_tokens"] == metered["output"] > 0
    assert paid["input_tokens"] in (metered["input"], metered["input"] - metered["cached_input"])


def test_cancelling_twice_and_after_publication(bench: Make) -> None:
    one = bench(settings=CALM, records=8)
    one.freeze()
    with pytest.raises(InputError, match="reason"):
        cancel(one.deps, dataset=DATASET, reason="  ")
    assert cancel(one.deps, dataset=DATASET, reason="a").changed
    assert not cancel(one.deps, dataset=DATASET, reason="b").changed
    assert one.view.row.cancel_reason == "a"
    with pytest.raises(InputError, match="no dataset"):
        cancel(one.deps, dataset="d9", reason="x")


def test_a_published_dataset_is_not_cancelled(bench: Make) -> None:
    one = bench(settings=CALM, records=8)
    one.freeze()
    one.drive()
    with pytest.raises(GateClosed, match="supersede"):
        cancel(one.deps, dataset=DATASET, reason="regret")


def test_a_word_opens_the_minimum_for_one_closure(bench: Make) -> None:
    one = bench(settings=CALM, records=8, workload=make_workload(retry={"max_attempts": 1}))
    one.sim.faults({"kind": "error_400", "count": 4})
    one.freeze()
    one.drive()
    row = one.view.row
    assert row.withheld_reason is not None
    assert "0.95" in row.withheld_reason
    publishing.publish(row.id, one.deps, word="half is fine")
    assert _published(one) == row.candidate_digest
    assert json.dumps(decisions_of(one.deps.ledger, [row.target])[0]["facts"])
