"""Every reported failure as a row: case -> steps -> assertions. No case lacks a row.

A case of another room (Dagster's) names the test that proves it there.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets_tests.cases import prices, scripts, steps
from llm_batch_assets_tests.cases.driver import Case, names

Step = Callable[[Case, Any, Path], None]
ROOT = Path(__file__).parents[2]
TESTS = "llm_batch_assets_tests"


@dataclass(frozen=True)
class Row:
    """What is done with a case: here (``step``), or by another room's test."""

    step: Step | None = None
    proven_by: str = ""


def there(path: str) -> Row:
    """Proven by ``<file>::<test>`` under the tests."""
    return Row(proven_by=path)


def both(*some: Step) -> Step:
    """One step after the other: the rule over its files, then a whole run of it."""

    def step(case: Case, capsys: Any, tmp_path: Path) -> None:
        for number, one in enumerate(some):
            folder = tmp_path / str(number)
            folder.mkdir()
            one(case, capsys, folder)

    return step


STEPS: dict[str, Row] = {
    "017-failed-token-limit": Row(steps.capacity),
    "021-counts-zero-on-completed": Row(steps.counts_warn),
    "023-hundred-percent-not-terminal": Row(steps.each_look),
    "026-unknown-status-value": Row(steps.unknown_status),
    "028-cancel-lost-the-race": Row(steps.each_look),
    "065-alias-vs-snapshot": Row(steps.served),
    "067-usage-null-or-absent": Row(steps.usage_unknown),
    "086-error-code-matrix": Row(steps.used_up),
    "087-anthropic-error-matrix": Row(steps.used_up),
    "090-anthropic-ended-no-results-url": Row(steps.each_look),
    "122-gemini-succeeded-no-file-yet": Row(steps.each_look),
    "140-create-read-timeout": Row(scripts.lost_reply({"fault": "delay_after", "seconds": 30})),
    "141-create-500-after-accept": Row(
        scripts.lost_reply({"fault": "status_after", "status": 500})
    ),
    "143-crash-before-persist": Row(scripts.killed_before_persist),
    "144-two-jobs-one-intent": Row(scripts.two_live_jobs),
    "145-list-empty-page-has-more": Row(scripts.empty_page),
    "147-poll-transients": Row(scripts.poll_transients),
    "148-404-wrong-credential": Row(scripts.wrong_credential),
    "150-create-429-enqueued": Row(scripts.enqueued_limit),
    "155-download-faults": Row(both(steps.short_downloads, scripts.short_downloads)),
    "158-late-first-attempt": Row(scripts.believed_dead),
    "159-exceed-poll-deadline": Row(both(steps.own_clock, scripts.own_deadline)),
    "160-clock-skew": Row(both(steps.own_clock, scripts.skewed_clock)),
    "161-fetch-fails-on-cancelled-job": Row(both(steps.unread_errors, scripts.unread_errors)),
    "163-succeeded-but-unreadable": Row(scripts.unreadable_success),
    "164-manifest-shrinks": Row(both(steps.not_sent_is_missing, scripts.upload_fails)),
    "165-preflight-openai": Row(steps.preflight),
    "166-preflight-anthropic-ids": Row(steps.preflight),
    "168-preflight-metadata": Row(steps.preflight_metadata),
    "170-same-run-key-one-tick": there(
        "defs/test_fire.py::test_the_same_run_request_twice_is_one_batch_a_shard"
    ),
    "171-run-key-for-ever": there(
        "defs/test_fire.py::test_a_run_key_that_was_used_up_does_not_end_the_work"
    ),
    "173-partition-keys": Row(steps.partition_keys),
    "174-check-passes-on-other-partition": there(
        "defs/test_fire.py::test_a_check_that_passed_for_another_dataset_opens_nothing"
    ),
    "175-backfill-race-target": there(
        "defs/test_fire.py::test_a_check_that_passed_for_another_dataset_opens_nothing"
    ),
    "177-late-run": there(
        "defs/test_fire.py::test_a_run_declared_dead_that_starts_late_sends_nothing"
    ),
    "178-retry-reruns-all-steps": there(
        "defs/test_fire.py::test_a_retry_of_all_steps_sends_nothing_again"
    ),
    "180-slot-leak": there("defs/test_fire.py::test_a_cancelled_run_gives_its_slot_back"),
    "181-single-run-backfill-marks-all": there(
        "defs/test_clicks.py::test_several_bad_keys_of_a_range_leave_the_run_green"
    ),
    "183-non-blocking-check": there(
        "defs/test_checks.py::test_an_open_revision_warns_and_the_guard_refuses"
    ),
    "185-price-table": Row(prices.price_table),
}
"""Cases that need more than their files. Every other ``file`` case has the step ``files``."""

FILES = """
001 002 004 005 006 007 008 009 010 011 012 013 015 016 018 019 024 025 030 031 034 035 036 039 040
042 044 044b 045 047 047b 048 050 051 052 054 055 057 069 070 072 073 075 076 078 079 081 092 093
094 094b 096 100 102 103 104 107 109 115 116 118 120 124 125 126
"""


def row_of(name: str) -> Row | None:
    """The row of a case."""
    if name in STEPS:
        return STEPS[name]
    return Row(steps.files) if name.split("-")[0] in FILES.split() else None


def test_no_case_lacks_a_row_and_no_row_lacks_a_case() -> None:
    assert [name for name in names() if row_of(name) is None] == []
    assert sorted(STEPS.keys() - set(names())) == []
    assert sorted(set(FILES.split()) - {name.split("-")[0] for name in names()}) == []
    assert len(names()) == 105


def test_every_kind_is_driven_as_its_kind() -> None:
    """File, preflight and script cases run here; nothing of theirs is left to another room."""
    for name in names():
        row, kind = row_of(name), Case(name).kind
        assert row is not None
        if kind in ("file", "preflight", "script"):
            assert row.step is not None, name
        else:
            assert kind == "dagster" and (row.step or row.proven_by), name


@pytest.mark.parametrize("name", names())
def test_case(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    row, case = row_of(name), Case(name)
    assert row is not None
    if row.step is not None:
        row.step(case, capsys, tmp_path)
    else:
        file, test = row.proven_by.split("::")
        tree = ast.parse((ROOT / TESTS / file).read_text("utf-8"))
        assert test in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
