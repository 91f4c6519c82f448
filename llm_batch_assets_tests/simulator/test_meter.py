"""What the meter calls paid twice, on batches made over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from llm_batch_assets.simulator.meter import Execution, Label, Meter
from llm_batch_assets_tests.simulator.raw import Raw, line, lines, responses_body


def paid(raw: Raw) -> int:
    return int(raw.sim.meter()["paid_twice"])


def test_one_run_pays_once(raw: Raw) -> None:
    raw.finish(lines(10))
    meter = raw.sim.meter()
    assert (meter["paid_twice"], meter["provider_batches"]) == (0, 1)
    assert meter["executions"] == {"good": 10, "failed": 0, "cut": 0, "refused": 0, "withheld": 0}
    assert meter["tokens"]["output"] > 0


def test_a_batch_made_behind_our_back_is_paid_twice(raw: Raw) -> None:
    raw.finish(lines(10))
    made = raw.sim.clone_batch()
    assert paid(raw) == 0, "not before it has run"
    raw.sim.advance(90_000)
    assert paid(raw) == 10
    assert raw.sim.meter()["provider_batches"] == 2
    assert raw.batch(made["id"])["status"] == "completed"


def test_a_clone_costs_only_what_it_executes(start: Callable[..., Raw]) -> None:
    raw = start(batch_seconds=1000)
    raw.submit(lines(10))
    clone = raw.sim.clone_batch()["id"]
    raw.sim.advance(500)
    raw.http.post(f"/batches/{clone}/cancel")
    raw.sim.advance(5000)
    assert 0 < paid(raw) <= 5
    assert paid(raw) == raw.sim.meter()["total_executions"] - 10


def test_the_same_body_under_a_new_id_is_paid_twice(raw: Raw) -> None:
    body = responses_body("the same question")
    raw.finish(line("a", body).encode())
    raw.finish(line("b", body).encode())
    assert paid(raw) == 1
    raw.finish(line("c", body).encode())
    assert paid(raw) == 2


def test_two_lines_of_one_body_in_the_first_batch_are_two_questions(raw: Raw) -> None:
    body = responses_body("the same question")
    raw.finish("\n".join([line("a", body), line("b", body)]).encode())
    assert paid(raw) == 0
    raw.finish(line("c", body).encode())
    assert paid(raw) == 1


def test_the_same_id_in_another_batch_is_paid_twice_even_with_another_body(raw: Raw) -> None:
    raw.finish(line("a", responses_body("one")).encode())
    raw.finish(line("a", responses_body("two")).encode())
    assert paid(raw) == 1


def test_asking_again_for_what_was_not_had_is_not_paid_twice(start: Callable[..., Raw]) -> None:
    kinds = ("missing", "error_429", "cut", "refusal", "mangled_id", "duplicate_conflicting")
    raw = start(*({"kind": kind, "ids": [f"r-{n}"]} for n, kind in enumerate(kinds)))
    data = lines(len(kinds))
    raw.finish(data)
    raw.finish(data)
    assert raw.sim.meter()["total_executions"] == 2 * len(kinds)
    assert paid(raw) == 0
    raw.finish(data)
    assert paid(raw) == len(kinds)


def test_a_look_alike_of_somebody_else_costs_us_nothing(raw: Raw) -> None:
    batch_id = raw.submit(lines(10), metadata={"job_key": "ours"})
    other = raw.sim.clone_batch(batch_id, foreign=True)["id"]
    raw.sim.advance(90_000)
    meter = raw.sim.meter()
    assert (meter["paid_twice"], meter["provider_batches"], meter["foreign_batches"]) == (0, 1, 1)
    ours, theirs = raw.batch(batch_id), raw.batch(other)
    same = ("endpoint", "model", "request_counts", "completion_window", "status")
    assert [ours[name] for name in same] == [theirs[name] for name in same]
    assert theirs["metadata"] != ours["metadata"]
    assert theirs["input_file_id"] != ours["input_file_id"]
    mine, strange = raw.rows_of(ours)[0], raw.rows_of(theirs)[0]
    assert not {row["custom_id"] for row in mine} & {row["custom_id"] for row in strange}


def book(meter: Meter, batch: str, *runs: tuple[str, str, Label]) -> None:
    meter.book_batch(batch, [(name, body) for name, body, _ in runs], foreign=False)
    for name, body, label in runs:
        nth = meter.times(body) + 1
        meter.record(Execution(batch, "openai", name, body, nth, label, None, 1, 1, 0, False))


def test_nothing_is_counted_by_both_rules() -> None:
    meter = Meter()
    book(meter, "1", ("a", "x", "good"), ("b", "x", "failed"))
    book(meter, "2", ("a", "x", "good"), ("b", "x", "good"))
    assert meter.paid_twice() == 1
    meter = Meter()
    book(meter, "1", ("a", "x", "good"), ("b", "x", "failed"))
    book(meter, "2", ("b", "x", "good"), ("a", "x", "good"))
    assert meter.paid_twice() == 1


def test_a_paid_attempt_after_a_good_one_counts_whatever_its_row() -> None:
    meter = Meter()
    book(meter, "1", ("a", "x", "good"))
    book(meter, "2", ("a", "x", "cut"))
    assert meter.paid_twice() == 1
    book(meter, "3", ("a", "x", "failed"))
    assert meter.paid_twice() == 1


def test_an_expired_first_batch_still_says_how_many_lines_ask() -> None:
    meter = Meter()
    meter.book_batch("1", [("a", "x"), ("b", "x")], foreign=False)
    book(meter, "2", ("a2", "x", "good"))
    book(meter, "3", ("b2", "x", "good"))
    assert meter.paid_twice() == 0
    book(meter, "4", ("b3", "x", "good"))
    assert meter.paid_twice() == 1
