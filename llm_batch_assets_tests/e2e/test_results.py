"""Every fault of result files, statuses and downloads at each provider, a shard for each.

What is whole is accepted once, what has no usable row is asked once more, and nothing else is.
"""

from __future__ import annotations

from typing import Any

import pytest

from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.e2e.conftest import Make
from llm_batch_assets_tests.e2e.providers import ProviderBench

EACH = 4
"""Records per shard."""

FORMATS: list[dict[str, Any]] = [
    {"kind": "bom"},
    {"kind": "crlf"},
    {"kind": "blank_lines"},
    {"kind": "no_final_newline"},
    {"kind": "extra_fields"},
    {"kind": "unknown_status", "looks": 2},
    {"kind": "late_files", "looks": 2},
    {"kind": "zero_counts"},
    {"kind": "empty_file_id"},
    {"kind": "unknown_row", "count": 2},
    {"kind": "garbage_line", "count": 1},
    {"kind": "unknown_row", "count": 2, "source": "other_batch"},
]
"""Faults that change no record's answer."""

RECORDS = {
    "missing": "again",
    "unreadable": "again",
    "error_429": "again",
    "error_500": "again",
    "cut": "again",
    "duplicate_identical": "accepted",
    "u2028": "accepted",
    "duplicate_conflicting": "human_review",
    "mangled_id": "human_review",
    "error_400": "permanent_failure",
    "refusal": "permanent_failure",
}
"""What one record's fault leads to, each in a shard of its own."""

DOWNLOADS: list[dict[str, Any]] = [
    {"fault": "truncate_length"},
    {"fault": "truncate_close"},
    {"fault": "truncate_line"},
    {"fault": "drop_before"},
    {"fault": "status_before", "status": 500},
    {"fault": "status_before", "status": 429},
    {"fault": "status_before", "status": 404},
    {"fault": "html_before"},
    {"fault": "status_204"},
    {"fault": "status_206"},
]


def _bench(bench: Make, shards: int, **retry: Any) -> ProviderBench:
    setting = bench(records=1).setting
    fields = {"retry": retry} if retry else {}
    return bench(records=EACH * shards, workload=setting.workload(records_per_shard=EACH, **fields))


def test_formats_and_statuses_change_no_answer(bench: Make, sim: Simulator) -> None:
    b = _bench(bench, len(FORMATS))
    b.freeze()
    sim.faults(*({"nth": n, **fault} for n, fault in enumerate(FORMATS, 1)))
    b.drive(seconds=90)

    met = sim.faults()["met"]
    assert set(met) == {fault["kind"] for fault in FORMATS}
    everyone = set(range(EACH * len(FORMATS)))
    assert b.classes(1) == {"succeeded": everyone}
    assert b.states() == {"accepted": everyone}
    assert b.anomalies(1) == {"unknown": 4, "unreadable": 1}
    assert b.view.attempt == 1
    assert set(b.executed().values()) == {1}
    b.assert_no_second_batch(creates=len(FORMATS))


def test_each_fault_of_a_record(bench: Make, sim: Simulator) -> None:
    b = _bench(bench, len(RECORDS))
    b.freeze()
    hit = {kind: min(b.shard(at)) for at, kind in enumerate(RECORDS)}
    sim.faults(*({"kind": k, "ids": b.wire_ids([n])} for k, n in hit.items()))
    b.drive(seconds=90)

    assert sim.meter()["faults"] == dict.fromkeys(RECORDS, 1)
    states = {n: state for state, numbers in b.states().items() for n in numbers}
    again = {n for k, n in hit.items() if RECORDS[k] == "again"}
    for kind, final in RECORDS.items():
        assert states[hit[kind]] == ("accepted" if final == "again" else final), kind
    assert {n for n in states if n not in hit.values()} == {
        n for n, state in states.items() if state == "accepted" and n not in hit.values()
    }
    assert b.view.attempt == 2
    assert set(b.lineage(2)) == again
    b.assert_no_second_batch(creates=len(RECORDS) + 2)


def test_an_unheard_of_result_is_asked_again(bench: Make, sim: Simulator) -> None:
    b = _bench(bench, 1)
    b.freeze()
    sim.faults({"kind": "unknown_type", "count": 1})
    b.drive()
    assert b.states() == {"accepted": set(range(EACH))}
    assert sim.meter()["paid_twice"] == 0
    assert b.view.attempt in (1, 2)


def test_broken_downloads_are_made_whole(bench: Make, sim: Simulator) -> None:
    b = _bench(bench, len(DOWNLOADS))
    b.freeze()
    if b.setting.s3 is not None:
        for fault in DOWNLOADS:
            b.fault_downloads(fault)
    else:
        # Each fault meets a download of its own: a broken one is asked for again at once.
        for n, fault in enumerate(DOWNLOADS):
            b.fault_downloads({"nth": 2 * n + 1, **fault})
    b.drive(seconds=90)

    everyone = set(range(EACH * len(DOWNLOADS)))
    assert b.classes(1) == {"succeeded": everyone}
    assert b.states() == {"accepted": everyone}
    assert b.view.attempt == 1
    b.assert_no_second_batch(creates=len(DOWNLOADS))


def test_results_that_are_gone_are_never_paid_for_again(bench: Make, sim: Simulator) -> None:
    """404 for ever: paid and lost; a person decides, nothing is sent on our own account."""
    b = _bench(bench, 2, hold_deadline="1s")
    b.freeze()
    sim.faults({"kind": "lost_result"})
    first = b.shard(0)
    b.drive(seconds=60)

    assert b.states() == {"accepted": set(range(2 * EACH)) - first, "human_review": first}
    assert b.reasons() == dict.fromkeys(first, "results_gone")
    assert {s.state for s in b.view.shards if s.ordinal == 0} == {"RESULTS_GONE"}
    b.assert_no_second_batch(creates=2)


def test_sixteen_megabytes_in_one_line(bench: Make, sim: Simulator) -> None:
    b = _bench(bench, 1)
    b.freeze()
    sim.faults({"kind": "long_line", "count": 1})
    b.drive(seconds=60)
    assert sim.faults()["met"] == {"long_line": 1}
    assert b.states() == {"accepted": set(range(EACH))}
    b.assert_no_second_batch(creates=1)


def test_polls_that_fail_change_nothing(bench: Make, sim: Simulator) -> None:
    faults = [
        {"fault": "status_before", "status": 429, "retry_after": "0.1"},
        {"fault": "status_before", "status": 500},
        {"fault": "status_before", "status": 404},
        {"fault": "drop_before"},
        {"fault": "html_before"},
        {"fault": "junk_json"},
        {"fault": "truncate_length"},
        {"fault": "truncate_close"},
    ]
    b = _bench(bench, len(faults))
    b.freeze()
    sim.faults(*({"route": "poll", "nth": n, **fault} for n, fault in enumerate(faults, 1)))
    b.drive(seconds=90)
    assert sum(sim.faults()["met"].values()) == len(faults)
    assert b.states() == {"accepted": set(range(EACH * len(faults)))}
    assert b.view.attempt == 1
    b.assert_no_second_batch(creates=len(faults))


@pytest.mark.parametrize("kind", ["expire", "provider_cancel"])
def test_a_batch_that_ends_early_keeps_what_it_has(kind: str, bench: Make, sim: Simulator) -> None:
    """What has a row is kept; only what was not reached goes again."""
    b = _bench(bench, 2)
    b.freeze()
    sim.faults({"kind": kind, "fraction": 0.5})
    b.drive(stop=lambda: any(s.state == "ACCOUNTED" for s in b.view.shards))
    sim.advance(49 * 3600)  # Gemini's window is the longest
    b.drive(seconds=90)
    assert b.states() == {"accepted": set(range(2 * EACH))}
    assert b.view.attempt == 2
    assert sim.meter()["paid_twice"] == 0
    kept = b.classes(1)["succeeded"]
    assert set(b.lineage(2)).isdisjoint(kept)
    if b.setting.provider != "gemini":  # whose expired and cancelled jobs give nothing
        assert len(kept) == EACH + EACH // 2


def test_a_batch_that_fails_as_a_whole_executes_nothing(bench: Make, sim: Simulator) -> None:
    """A queue that is full passes: the same shard in the next epoch, nobody is charged."""
    if bench(records=1).setting.provider == "anthropic":
        return  # there is no failed batch
    codes = {"openai": "token_limit_exceeded", "gemini": "8", "bedrock": "Too many concurrent jobs"}
    b = _bench(bench, 2)
    b.freeze()
    sim.faults({"kind": "fail", "code": codes[b.setting.provider]})
    b.drive(seconds=60)
    assert b.states() == {"accepted": set(range(2 * EACH))}
    b.assert_no_second_batch(creates=3)
    assert set(b.executed().values()) == {1}
