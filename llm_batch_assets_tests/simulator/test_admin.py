"""Admin routes, the clock, profiles and the command."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import httpx2
import pytest

from llm_batch_assets.simulator import Simulator
from llm_batch_assets.simulator.clock import VirtualClock
from llm_batch_assets.simulator.faults import BATCH_KINDS, HTTP_KINDS, RECORD_KINDS, FaultBook
from llm_batch_assets.simulator.options import read_option
from llm_batch_assets.simulator.profiles import PROFILES
from llm_batch_assets_tests.simulator.raw import Raw, ids, lines


def test_the_clock_never_goes_back() -> None:
    real = [100.0]
    clock = VirtualClock(1000.0, 10.0, lambda: real[0])
    real[0] += 2
    assert clock.now() == 1020
    clock.set_scale(0)
    real[0] += 50
    assert clock.now() == 1020
    clock.advance(80)
    assert clock.now() == 1100
    for wrong in (lambda: clock.advance(-1), lambda: clock.set_scale(-1)):
        with pytest.raises(ValueError, match=r"back|0 or more"):
            wrong()


def test_health_clock_and_log(raw: Raw) -> None:
    sim = raw.sim
    admin = httpx2.Client(base_url=f"{sim.origin}/_sim")
    assert admin.get("/health").json()["ok"] is True
    before = admin.get("/clock").json()["now"]
    assert admin.post("/clock", json={"advance": 3600}).json()["now"] == before + 3600
    assert admin.post("/clock", json={"advance": -1}).status_code == 400
    raw.upload(lines(2))
    raw.http.get("/nothing")
    first, second = sim.log()
    assert (first["seq"], first["method"], first["path"], first["route"], first["status"]) == (
        1, "POST", "/v1/files", "upload", 200)  # fmt: skip
    assert first["headers"]["authorization"].startswith("sha256:")
    assert first["notes"]["filename"] == "in.jsonl"
    assert (second["route"], second["status"]) == (None, 404)
    assert [one["seq"] for one in sim.log(since=1)] == [2]
    assert "sk-test" not in json.dumps(sim.log())
    menu = admin.get("/menu").json()
    assert (menu["records"], menu["batches"], menu["http"]) == (
        RECORD_KINDS, BATCH_KINDS, HTTP_KINDS)  # fmt: skip
    admin.close()


def test_state_shows_what_is_alive(raw: Raw) -> None:
    batch_id = raw.submit(lines(3), metadata={"submission_key": "s"})
    raw.sim.advance(90_000)
    state = raw.sim.state()
    (batch,) = state["batches"]
    assert (batch["id"], batch["phase"], batch["metadata"], batch["lines"]) == (
        batch_id, "completed", {"submission_key": "s"}, 3)  # fmt: skip
    assert {one["purpose"] for one in state["files"]} == {"batch", "batch_output"}
    assert {one["account"] for one in state["files"]} == {batch["account"]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "nonsense"},
        {"route": "nowhere", "fault": "drop_after"},
        {"route": "create", "fault": "nonsense"},
        {"kind": "missing", "looks": 3},
    ],
)
def test_a_fault_that_is_not_on_the_menu_is_refused(raw: Raw, wrong: dict[str, object]) -> None:
    reply = httpx2.post(f"{raw.sim.origin}/_sim/faults", json={"faults": [wrong]})
    assert reply.status_code == 400
    book = httpx2.get(f"{raw.sim.origin}/_sim/faults").json()
    assert not (book["records"] or book["batches"] or book["http"])


def test_options_are_read_from_text() -> None:
    assert read_option("ranges", "false") is False
    assert read_option("batch_seconds", "10") == 10.0
    assert read_option("keys", "a,b") == ("a", "b")
    assert read_option("s3_endpoint", "http://127.0.0.1:1") == "http://127.0.0.1:1"
    assert read_option("enqueued_tokens", "5") == 5


def test_unknown_options_profiles_and_clones_are_refused(raw: Raw) -> None:
    with pytest.raises(ValueError, match="unknown option"):
        Simulator(nonsense=1)
    with pytest.raises(ValueError, match="unknown profile"):
        Simulator(faults="nonsense")
    url = f"{raw.sim.origin}/_sim"
    assert httpx2.post(f"{url}/faults", json={"profile": "x"}).status_code == 400
    assert httpx2.post(f"{url}/faults", json={"nonsense": 1}).status_code == 400
    assert httpx2.post(f"{url}/faults", content=b"[]").status_code == 400
    assert httpx2.post(f"{url}/batches", json={}).status_code == 400


def test_profiles_stand_on_the_menu_and_hostile_has_all_of_it() -> None:
    for faults in PROFILES.values():
        FaultBook().add(faults)
    kinds = {one.get("kind") for one in PROFILES["hostile"]}
    apart = {"error_quota", "other_model", "provider_cancel", "ordered", "lost_result",
             "zero_counts", "stuck", "inline_output", "no_metadata", "long_line"}  # fmt: skip
    assert (set(RECORD_KINDS) | set(BATCH_KINDS)) - kinds == apart
    calls = {one.get("fault") for one in PROFILES["hostile"]}
    assert set(HTTP_KINDS) - calls == {
        "drop_before", "delay_before", "late_effect", "junk_json", "gzip", "gzip_hidden",
    }  # fmt: skip


def retry(raw: Raw, data: bytes, tries: int) -> tuple[int, set[str]]:
    """A simple client: ask again for whatever gave no 2xx row; attempts and what stays open."""
    open_ids = {json.loads(one)["custom_id"] for one in data.split(b"\n") if one}
    for attempt in range(1, tries + 1):
        wanted = [one for one in data.split(b"\n") if one]
        wanted = [one for one in wanted if json.loads(one)["custom_id"] in open_ids]
        with suppress(httpx2.TransportError):
            raw.submit(b"\n".join(wanted))
        raw.sim.advance(90_000)
        batch = raw.http.get("/batches").json()["data"][0]
        path = f"/files/{batch['output_file_id']}/content"
        try:
            reply = raw.http.get(path)
        except httpx2.TransportError:
            reply = raw.http.get(path)
        rows = [json.loads(one) for one in reply.content.split(b"\n") if one]
        open_ids -= {
            row["custom_id"] for row in rows if row["response"]["body"]["status"] == "completed"
        }
        if not open_ids:
            return attempt, open_ids
    return tries, open_ids


def test_the_default_profile_closes_in_two_attempts_but_for_what_is_for_ever(
    start: Callable[..., Raw],
) -> None:
    raw = start(faults="default")
    raw.sim.faults(shuffle=True)
    attempts, left = retry(raw, lines(200), 2)
    for_ever = {one["custom_id"] for one in raw.sim.executions() if one["fault"] == "error_400"}
    assert (attempts, left) == (2, for_ever)
    assert raw.sim.meter()["paid_twice"] == 0


def test_state_survives_its_clients(start: Callable[..., Raw]) -> None:
    raw = start()
    batch_id = raw.submit(lines(2))
    raw.http.close()
    again = Raw(raw.sim)
    raw.sim.advance(90_000)
    assert sorted(ids(again.rows_of(again.batch(batch_id))[0])) == ["r-0", "r-1"]
    again.http.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_told_to_stop(number: signal.Signals) -> None:
    command = [sys.executable, "-c", "from llm_batch_assets.cli import main; main()", "simulate",
               "--seed", "3", "--faults", '[{"kind": "missing"}]']  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        addresses = json.loads(process.stdout.readline())
        with urlopen(f"{addresses['admin']}/health") as reply:
            assert json.load(reply)["seed"] == 3
        with urlopen(f"{addresses['admin']}/faults") as reply:
            assert json.load(reply)["records"][0]["kind"] == "missing"
        process.send_signal(number)
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        ("--faults", "nonsense"),
        ("--faults", "[1]"),
        ("--faults", "[{}]"),
        ("--option", "nonsense=1"),
        ("--option", "ranges=maybe"),
    ],
)
def test_the_command_refuses_what_it_does_not_know(wrong: tuple[str, str]) -> None:
    command = [sys.executable, "-c", "from llm_batch_assets.cli import main; main()", "simulate",
               *wrong]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_importing_the_package_loads_no_server() -> None:
    code = "import llm_batch_assets.simulator, sys; print('uvicorn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_it_imports_nothing_of_ours() -> None:
    code = (
        "import sys, llm_batch_assets.simulator.server\n"
        "ours = {m for m in sys.modules if m.startswith('llm_batch_assets.')}\n"
        "print(sorted(m for m in ours if not m.startswith('llm_batch_assets.simulator')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_readme_says_what_is_true() -> None:
    import llm_batch_assets.simulator as package

    text = (Path(str(package.__file__)).parent / "README.md").read_text()
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL))
    FaultBook().add(json.loads(blocks["json"]))
    exec(compile(blocks["python"], "README.md", "exec"), {})
    with Simulator(scale=0) as sim:
        for method, name in re.findall(r"`(GET|POST) /_sim/(\w+)", text):
            reply = httpx2.request(method, f"{sim.origin}/_sim/{name}", json={})
            assert reply.status_code == (400 if name == "batches" else 200), name
