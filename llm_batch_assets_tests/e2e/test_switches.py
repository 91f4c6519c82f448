"""What the providers' documentation leaves open, both ways (providers.md, section 8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets_tests.e2e.providers import ANTHROPIC, GEMINI, ProviderBench, bedrock
from llm_batch_assets_tests.engine.bench import PATIENT
from llm_batch_assets_tests.s3_server import S3Server

EVERYONE = set(range(8))


@pytest.mark.parametrize(
    "options",
    [
        {"bedrock_nulls": True},
        {"bedrock_token_mismatch_conflict": True},
        {"bedrock_expired_rows": True},
        {"page_size": 1},
    ],
    ids=lambda o: next(iter(o)),
)
def test_bedrock(
    options: dict[str, Any], s3_server: S3Server, e2e_bucket: str, tmp_path: Path
) -> None:
    setting = bedrock(s3_server, e2e_bucket)
    with setting.simulator(**options) as sim:
        b = ProviderBench(setting, sim, tmp_path / "home", records=8, settings=PATIENT)
        b.freeze()
        sim.faults({"kind": "expire", "fraction": 0.5}, {"route": "create", "fault": "drop_after"})
        b.drive()
        assert b.states() == {"accepted": EVERYONE}
        assert b.view.attempt == 2
        b.assert_no_second_batch(creates=2)


@pytest.mark.parametrize("at_create", [True, False])
def test_a_minimum_that_nobody_knew_of(
    at_create: bool, s3_server: S3Server, e2e_bucket: str, tmp_path: Path
) -> None:
    """The account's quota is higher than the workload says: no record is wrong, and none goes
    round in circles."""
    setting = bedrock(s3_server, e2e_bucket)
    options = {"bedrock_minimum": 100, "bedrock_minimum_at_create": at_create}
    with setting.simulator(**options) as sim:
        b = ProviderBench(setting, sim, tmp_path / "home", records=8)
        b.freeze()
        b.drive()
        assert b.states() == {"human_review": EVERYONE}
        assert b.reasons() == dict.fromkeys(EVERYONE, "reshape")
        assert {row["charged"] for row in b.settled()} == {0}
        assert len(b.calls("create")) == 1
        assert sim.meter()["total_executions"] == 0


def test_gemini_answers_inline_though_a_file_was_asked(tmp_path: Path) -> None:
    with GEMINI.simulator() as sim:
        b = ProviderBench(GEMINI, sim, tmp_path / "home", records=8)
        b.freeze()
        sim.faults({"kind": "inline_output"})
        b.drive()
        assert b.states() == {"accepted": EVERYONE}
        b.assert_no_second_batch(creates=1)


def test_gemini_answers_without_their_keys_belong_to_nobody(tmp_path: Path) -> None:
    with GEMINI.simulator() as sim:
        b = ProviderBench(GEMINI, sim, tmp_path / "home", records=8)
        b.freeze()
        sim.faults({"kind": "inline_output"}, {"kind": "no_metadata"})
        b.drive()
        # Paid, and nobody can say whose: never guessed by position, never sent again unasked.
        assert b.states() == {"human_review": EVERYONE}
        assert b.reasons() == dict.fromkeys(EVERYONE, "mangled_ids")
        assert sim.meter()["paid_twice"] == 0
        assert len(b.calls("create")) == 1


def test_anthropic_pages_of_one(tmp_path: Path) -> None:
    with ANTHROPIC.simulator(page_size=1, anthropic_ranges=True) as sim:
        b = ProviderBench(ANTHROPIC, sim, tmp_path / "home", records=8, settings=PATIENT)
        b.freeze()
        sim.faults(
            {"route": "create", "fault": "drop_after"},
            {"route": "download", "nth": 2, "fault": "truncate_length"},
            {"kind": "look_alike"},
        )
        b.drive()
        assert b.states() == {"accepted": EVERYONE}
        b.assert_left_alone(*b.foreign())
        b.assert_no_second_batch(creates=1)
