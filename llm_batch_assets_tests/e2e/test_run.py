"""``llm-batch-assets run`` as a process of its own, at each provider, on good and bad days."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.e2e.providers import (
    NAMES,
    PLAIN,
    ProviderBench,
    Setting,
    bedrock,
)
from llm_batch_assets_tests.engine.bench import PATIENT
from llm_batch_assets_tests.engine.command import Command
from llm_batch_assets_tests.providers.faulty_s3 import FaultyS3

ENDPOINTS = ("Converse", "InvokeModel")
BROKEN: list[dict[str, Any]] = [
    {"fault": "truncate_length"},
    {"fault": "truncate_close"},
    {"fault": "status_204"},
    {"fault": "truncate_line"},
    {"fault": "status_before", "status": 500},
]


def _command(
    folder: Path, setting: Setting, sim: Simulator, *, records: int, per_shard: int, **fields: Any
) -> Command:
    workload = setting.workload(records_per_shard=per_shard, **fields)
    return Command(folder, sim, workload=workload, records=records, env=setting.env(sim, "sk-test"))


@pytest.fixture
def amazon(request: pytest.FixtureRequest) -> Iterator[Setting]:
    """Bedrock as it is: no job of fewer than 100 records."""
    server = request.getfixturevalue("s3_server")
    with FaultyS3(server.endpoint).running() as proxy:
        yield bedrock(server, request.getfixturevalue("e2e_bucket"), proxy, minimum=100)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_bedrock_on_a_good_day(endpoint: str, amazon: Setting, tmp_path: Path) -> None:
    with amazon.simulator() as sim:
        command = _command(tmp_path, amazon, sim, records=250, per_shard=120, endpoint=endpoint)
        ended = command.run()
        assert ended.code == 0, ended.err
        result = ended.result
        assert (result["closed"], result["published"], result["accepted"]) == (True, True, 250)
        assert (result["provider_batches"], result["paid_twice"]) == (2, 0)
        # 120 + 120 + 10 would leave a job that never runs.
        assert sorted(b["lines"] for b in sim.state()["batches"]) == [125, 125]
        assert {b["body"]["modelInvocationType"] for b in sim.state()["batches"]} == {endpoint}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_bedrock_on_a_bad_day(endpoint: str, amazon: Setting, tmp_path: Path) -> None:
    """What is left for a second attempt is below the minimum: a person gets it, nothing loops."""
    with amazon.simulator(faults="default") as sim:
        for fault in BROKEN[:2]:
            amazon.s3.fault(fault)  # type: ignore[union-attr]
        command = _command(tmp_path, amazon, sim, records=400, per_shard=100, endpoint=endpoint)
        ended = command.run()
        assert ended.code == 0, ended.err
        result = ended.result
        meter = sim.meter()
        left = sum(
            n for kind, n in meter["faults"].items()
            if kind in ("missing", "error_429", "error_500", "cut")
        )  # fmt: skip
        assert (result["closed"], result["published"], result["attempts"]) == (True, True, 1)
        assert (result["human_review"], result["permanent_failure"]) == (left, 2)
        assert result["accepted"] == 400 - left - 2
        assert (meter["provider_batches"], meter["live_batches"], meter["paid_twice"]) == (4, 0, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["anthropic", *(pytest.param(name, marks=pytest.mark.soak) for name in ("gemini", "bedrock"))],
)
def test_a_hostile_day(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Everything at once: closed, each record in one state, nothing paid twice.

    OpenAI's are in ``engine/test_hostile.py``.
    """
    _hostile(name, None, 1, request, tmp_path)


@pytest.mark.long
def test_a_hostile_day_of_invoke_model(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    _hostile("bedrock", "InvokeModel", 2, request, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3, 13))
@pytest.mark.parametrize("name", NAMES)
def test_many_hostile_days(
    name: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    _hostile(name, "InvokeModel" if seed % 2 else None, seed, request, tmp_path)


def _hostile(
    name: str, endpoint: str | None, seed: int, request: pytest.FixtureRequest, folder: Path
) -> None:
    if name == "bedrock":
        server = request.getfixturevalue("s3_server")
        with FaultyS3(server.endpoint).running() as proxy:
            for fault in BROKEN:
                proxy.fault(fault)
            setting = bedrock(server, request.getfixturevalue("e2e_bucket"), proxy)
            _hostile_day(setting, endpoint, seed, folder)
    else:
        _hostile_day(PLAIN[name], None, seed, folder)


def _hostile_day(setting: Setting, endpoint: str | None, seed: int, folder: Path) -> None:
    more = {"endpoint": endpoint} if endpoint else {}
    workload = setting.workload(records_per_shard=12, retry={"max_attempts": 4}, **more)
    with setting.simulator(seed=seed, faults="hostile") as sim:
        b = ProviderBench(
            setting, sim, folder / "home", records=60, workload=workload, settings=PATIENT
        )
        b.freeze()
        b.drive(seconds=100)

        states = b.states()
        assert b.view.row.closed_at is not None
        assert states.keys() <= {"accepted", "permanent_failure", "human_review", "cancelled"}
        assert sorted(n for numbers in states.values() for n in numbers) == list(range(60))
        people = {b.reasons()[n] for n in states.get("human_review", ())}
        assert people <= {"conflicting_duplicate", "mangled_ids", "unqualified_twice"}
        meter = sim.meter()
        assert (meter["paid_twice"], meter["live_batches"]) == (0, 0)
        assert {key: ids for key, ids in b.batches_of().items() if len(ids) > 1} == {}
        b.assert_left_alone(*b.foreign())


@pytest.mark.parametrize("name", NAMES)
def test_killed_in_the_middle_and_started_again(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Two replies lost, the process killed between them: one live batch per shard."""
    if name == "bedrock":
        setting = bedrock(
            request.getfixturevalue("s3_server"), request.getfixturevalue("e2e_bucket")
        )
    else:
        setting = PLAIN[name]
    with setting.simulator() as sim:
        sim.faults({"route": "create", "fault": "drop_after", "times": 2}, {"kind": "look_alike"})
        command = _command(tmp_path, setting, sim, records=16, per_shard=8)
        process = command.start()
        until = time.monotonic() + 60
        while not [e for e in sim.log() if e["route"] == "create"]:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        ended = command.run()
        assert ended.code == 0, ended.err
        assert (ended.result["closed"], ended.result["accepted"]) == (True, 16)
        meter = sim.meter()
        assert (meter["provider_batches"], meter["live_batches"], meter["paid_twice"]) == (2, 0, 0)
        assert len([e for e in sim.log() if e["route"] == "create"]) == 2
