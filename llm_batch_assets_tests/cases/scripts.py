"""Script cases as steps against the simulator; its log and our ledger are asked what happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from llm_batch_assets.download import download
from llm_batch_assets.engine import execute, plan
from llm_batch_assets.errors import DownloadError
from llm_batch_assets.ledger import views
from llm_batch_assets.types import ResultRef
from llm_batch_assets_tests.cases.driver import Case
from llm_batch_assets_tests.e2e.providers import (
    GEMINI,
    OPENAI,
    ProviderBench,
    Setting,
    Shifted,
    shifted,
)
from llm_batch_assets_tests.engine.bench import CALM
from llm_batch_assets_tests.engine.command import Command
from llm_batch_assets_tests.scripted_server import Request, ScriptedServer, Wire

RECORDS = 4
EVERYONE = set(range(RECORDS))
HOUR = 3600
PATIENT = replace(CALM, post_seconds=2.0)


@contextmanager
def one_shard(
    tmp_path: Path, setting: Setting = OPENAI, *, slow: bool = False, **options: Any
) -> Iterator[ProviderBench]:
    """A frozen dataset of four records in one shard, nothing sent yet."""
    pace = {"scale": 1.0, **options.pop("pace", {})} if slow else {}
    records = options.pop("records", RECORDS)
    with setting.simulator(**pace) as sim:
        b = ProviderBench(
            setting, sim, tmp_path / "home", records=records, **{"settings": PATIENT} | options
        )
        b.freeze()
        yield b


def posts(b: ProviderBench) -> int:
    """Creates that arrived."""
    return len(b.calls("create"))


def moves(b: ProviderBench) -> list[str]:
    """The states that the first shard went through."""
    return [t.to_state for t in views.transitions_of(b.deps.ledger, b.view.shards[0].id)]


def finished(b: ProviderBench, *, creates: int, batches: int = 1) -> None:
    """All accepted in one attempt, each record executed once."""
    assert b.states() == {"accepted": set(range(len(b.rows)))}
    assert b.view.attempt == 1
    assert {row["charged"] for row in b.settled()} == {1}
    b.assert_no_second_batch(creates=creates, batches=batches)


class Intent:
    """Reads the ledger just before the first byte of a create."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.bench: ProviderBench | None = None

    def at(self, name: str, when: Literal["before", "after"]) -> None:
        if (name, when) == ("provider.create", "before") and self.bench is not None:
            self.seen.append(self.bench.view.shards[0].state)


def lost_reply(fault: dict[str, Any]) -> Callable[[Case, Any, Path], None]:
    """The batch exists, its reply does not: adopted after a look, never a second POST."""

    def step(case: Case, capsys: Any, tmp_path: Path) -> None:
        intent = Intent()
        with one_shard(tmp_path, effects=intent) as b:
            intent.bench = b
            b.sim.faults({"route": "create", **fault}, {"kind": "look_alike"})
            b.drive()
            assert posts(b) == case.want["creates_max"]
            assert intent.seen == ["SUBMITTING"]  # the intent was committed before the POST
            retries = {e["headers"].get("x-stainless-retry-count", "0") for e in b.calls("create")}
            assert retries == {"0"}
            (shard,) = b.view.shards
            (mine,) = b.own_batches()
            assert (shard.batch_id, shard.bound_how) == (mine["id"], "found")
            assert b.calls("list")[0]["seq"] > b.calls("create")[0]["seq"]
            b.assert_left_alone(*b.foreign())
            finished(b, creates=1)

    return step


def killed_before_persist(case: Case, capsys: Any, tmp_path: Path) -> None:
    """On restart an intent without a job id means: look first. Not one more POST."""
    with OPENAI.simulator() as sim:
        command = Command(tmp_path, sim, workload=OPENAI.workload(), records=RECORDS)
        died = command.run(env={"LLM_BATCH_CRASH_AT": "provider.create:after:1"})
        assert died.code == -9
        before = [e for e in sim.log() if e["route"] == "create"]
        ended = command.run()
        assert ended.code == 0, ended.err
        after = [e for e in sim.log() if e["route"] == "create"]
        assert len(after) - len(before) == case.want["creates_max"] and len(before) == 1
        assert ended.result["accepted"] == RECORDS
        meter = sim.meter()
        assert (meter["provider_batches"], meter["live_batches"], meter["paid_twice"]) == (1, 0, 0)


def two_live_jobs(case: Case, capsys: Any, tmp_path: Path) -> None:
    """The oldest is adopted, the other cancelled and booked; its rows are never merged."""
    with one_shard(tmp_path, slow=True, pace={"batch_seconds": HOUR}) as b:
        b.sim.faults({"route": "create", "fault": "drop_after"})
        b.drive(stop=lambda: posts(b) == 1 and b.view.shards[0].state == "UNCERTAIN")
        second = b.sim.clone_batch()["id"]
        first = next(one["id"] for one in b.own_batches() if one["id"] != second)
        b.drive(stop=lambda: b.calls("cancel") != [])
        b.sim.advance(HOUR)
        b.drive()
        assert b.view.shards[0].batch_id == first
        assert [e["path"].split("/")[-2] for e in b.calls("cancel")] == [second]
        assert b.duplicates() == {second}
        assert {row["provider_batch_id"] for row in b.evidence()} == {first}
        assert b.states() == {"accepted": EVERYONE}
        assert posts(b) == 1


def empty_page(case: Case, capsys: Any, tmp_path: Path) -> None:
    """A page without data that says there is more is no end: absence is not proven."""
    with one_shard(tmp_path) as b:
        b.sim.faults(
            {"route": "create", "fault": "drop_after"},
            {"route": "list", "fault": "empty_page", "times": 3},
        )
        b.drive(stop=lambda: len(b.looks()) == 3)
        assert b.looks() == [False] * 3
        assert (b.view.shards[0].state, posts(b)) == ("UNCERTAIN", 1)
        b.drive()
        finished(b, creates=1)


def poll_transients(case: Case, capsys: Any, tmp_path: Path) -> None:
    """A failed look is not a failed job: no transition, no cancel, nothing charged."""
    replies = case.script["steps"][0]["replies"]
    faults = [
        {"fault": "status_before", "status": 429, "retry_after": "7"},
        {"fault": "status_before", "status": 500},
        {"fault": "drop_after"},
        {"fault": "truncate_length"},
    ]
    assert len(faults) == len(replies) - 1
    with one_shard(tmp_path, slow=True, pace={"batch_seconds": HOUR}) as b:
        b.drive(until="submitted")
        before = moves(b)
        b.sim.faults(*({"route": "poll", "nth": n, **f} for n, f in enumerate(faults, 1)))
        b.drive(stop=lambda: len(b.calls("poll")) >= len(faults) and b.view.shards[0].polled_at)
        assert b.sim.faults()["met"] == {f"poll:{f['fault']}": n for f, n in _count(faults)}
        assert len(moves(b)) - len(before) <= case.want["state_changes"]
        b.drive(stop=lambda: b.view.shards[0].state == "RUNNING" or len(b.calls("poll")) > 8)
        b.sim.advance(HOUR)
        b.drive()
        assert b.calls("cancel") == []
        finished(b, creates=1)


def _count(faults: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    names = [fault["fault"] for fault in faults]
    return [(fault, names.count(fault["fault"])) for fault in faults]


def wrong_credential(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Another key answers 404 for ever: the job is only looked at with the key that made it."""
    assert case.provider == "gemini"
    with one_shard(tmp_path, GEMINI, slow=True, pace={"batch_seconds": HOUR}) as b:
        b.drive(until="submitted")
        b.sim.advance(2 * HOUR)
        other = b.worker("two", key="key-1", settings=PATIENT)
        polls = len(b.calls("poll"))
        until = time.monotonic() + 1.0
        b.drive(other, stop=lambda: time.monotonic() > until)
        assert len(b.calls("poll")) == polls  # not even asked: it could only say 404
        assert b.view.shards[0].state in {"SUBMITTED", "RUNNING"}
        assert "another credential" in (b.view.shards[0].last_error or "")
        assert posts(b) == 1
        b.drive()
        finished(b, creates=1)


def enqueued_limit(case: Case, capsys: Any, tmp_path: Path) -> None:
    """A certain refusal for now: the same submission later, no attempt charged."""
    code = case.script["steps"][0]["reply"]["json"]["error"]["code"]
    with one_shard(tmp_path) as b:
        b.sim.faults({"route": "create", "fault": "status_before", "status": 429, "code": code})
        b.drive(stop=lambda: posts(b) == 1)
        (shard,) = b.view.shards
        assert shard.state == "UPLOADED" and shard.due_at > shard.state_at
        assert b.own_batches() == []
        b.drive()
        (shard,) = b.view.shards
        assert (shard.epoch, shard.bound_how) == (0, "answer")
        assert len(b.own_batches()) == case.want["creates_max"]
        finished(b, creates=2)


SHORT: dict[str, dict[str, Any]] = {
    "content-length short": {"fault": "truncate_length"},
    "close-delimited, cut": {"fault": "truncate_close"},
    "gzip stream cut, length right": {"fault": "gzip_cut"},
    "206 Partial Content": {"fault": "status_206"},
    "204 / 0 bytes": {"fault": "status_204"},
    "200 text/html": {"fault": "html_before"},
    "gzip without header": {"fault": "gzip_hidden"},
}
CHUNKED = "chunked without last chunk"


def short_downloads(case: Case, capsys: Any, tmp_path: Path) -> None:
    """A short or altered copy closes nothing and sends nothing again: it is fetched again."""
    names = [variant["name"] for variant in case.script["variants"]]
    assert set(names) == {*SHORT, CHUNKED}
    for at, name in enumerate(names):
        if name == CHUNKED:
            _chunked_without_end(tmp_path)
            continue
        with one_shard(tmp_path / str(at)) as b:
            b.sim.faults({"route": "download", **SHORT[name]})
            b.drive()
            assert sum(b.sim.faults()["met"].values()) == 1, name
            assert len(b.calls("download")) >= 2, name
            finished(b, creates=1)


def _chunked_without_end(tmp_path: Path) -> None:
    line = b'{"custom_id":"r-a"}\n'

    def cut(request: Request, wire: Wire) -> None:
        if request.path.endswith("/content"):
            wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            wire.send(b"%x\r\n%b\r\n" % (len(line), line))
            wire.close()
        else:
            wire.reply(200, {"id": "file-1", "object": "file", "bytes": 3 * len(line)})

    from llm_batch_assets.artifacts import open_store
    from llm_batch_assets.providers.factory import open_provider

    store = open_store(str(tmp_path / "chunked"))
    with ScriptedServer(cut) as server:
        env = {"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": f"{server.url}/v1"}
        provider = open_provider("openai", env=env, deployment="d")
        with pytest.raises(DownloadError):
            download(provider, ResultRef("results", "file-1"), store, sleep=lambda _: None)
        provider.close()
        assert server.count("GET", "/v1/files/file-1/content") > 1
    assert list(store.digests()) == []


def believed_dead(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Thirty hours in progress by our clock: nothing of it is sent again, and it is accepted."""
    hours = 30
    assert f"for {hours} h" in case.script["attempts"][0]["state_seen"]
    with one_shard(tmp_path, slow=True, pace={"batch_seconds": 20 * HOUR}) as b:
        clock = Shifted()
        deps = shifted(b, clock)
        b.drive(until="submitted")
        b.sim.advance(10 * HOUR)
        clock.ahead = timedelta(hours=hours)
        b.drive(deps, stop=lambda: b.view.shards[0].state == "RUNNING")
        assert {work.kind for work in plan(deps)} <= {"poll"}
        assert (b.view.attempt, posts(b)) == (1, 1)
        b.sim.advance(11 * HOUR)
        b.drive(deps)
        finished(b, creates=1)


def own_deadline(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Our own patience ends nothing: the job stays in the ledger and is looked at until it ends."""
    deadline, ends = (
        step.get("poll_deadline_h") or step.get("at_h") for step in case.script["steps"]
    )
    with one_shard(tmp_path, slow=True, pace={"batch_seconds": 20 * HOUR}) as b:
        clock = Shifted()
        deps = shifted(b, clock)
        b.drive(until="submitted")
        clock.ahead = timedelta(hours=deadline, minutes=1)
        b.drive(deps, stop=lambda: len(b.calls("poll")) >= 3)
        assert b.view.shards[0].state in {"SUBMITTED", "RUNNING"}
        assert b.settled() == [] and b.view.row.closed_at is None
        assert [w for w in plan(deps) if w.kind != "poll"] == []
        clock.ahead = timedelta(hours=ends)
        b.sim.advance(20 * HOUR)
        b.drive(deps)
        finished(b, creates=1)


def skewed_clock(case: Case, capsys: Any, tmp_path: Path) -> None:
    """By our clock, two hours fast, the batch has expired: only the provider's word counts."""
    with one_shard(tmp_path, slow=True, pace={"batch_seconds": 23.9 * HOUR}) as b:
        clock = Shifted()
        deps = shifted(b, clock)
        b.drive(until="submitted")
        b.sim.advance(22.5 * HOUR)
        clock.ahead = timedelta(hours=22.5 + 2)
        b.drive(deps, stop=lambda: b.view.shards[0].state == "RUNNING")
        assert b.view.shards[0].raw_status in {case.script["status"], "finalizing"}
        assert "expired" not in str(moves(b)).lower() and posts(b) == 1
        b.sim.advance(1.45 * HOUR)
        b.drive(deps)
        finished(b, creates=1)


def unread_errors(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Error rows are results too: a fetch that fails leaves the settlement open."""
    failed = case.script["counts"]["failed"]
    with one_shard(tmp_path, records=failed + 1) as b:
        ids = b.wire_ids(range(failed + 1))
        b.sim.faults(
            {"kind": "error_500", "ids": ids},
            {"kind": "provider_cancel", "fraction": (failed + 0.5) / (failed + 1)},
            {"route": "download", "fault": "drop_before"},
        )
        b.drive(stop=lambda: b.view.shards[0].state == "ACCOUNTED")
        assert b.view.shards[0].raw_status == case.script["status"]
        first = b.own_batches()[0]["id"]
        ran = {b.number(one["custom_id"]) for one in b.sim.executions(first)}
        assert len(ran) == failed
        # Each by its own row, none "cancelled" because the job was.
        everyone = set(range(failed + 1))
        assert b.classes(1) == {"retryable": ran, "cancelled": everyone - ran}
        assert len(b.calls("download")) == 2
        b.drive()
        assert b.states() == {"accepted": everyone}
        assert {n for n, (_, why) in b.lineage(2).items() if why == "retryable"} == ran
        b.assert_no_second_batch(creates=2)


def unreadable_success(case: Case, capsys: Any, tmp_path: Path) -> None:
    """The work is paid, only the read fails, for as long as it likes: bounded, and held open."""
    assert case.provider == "gemini"
    repeat = case.script["steps"][1]["repeat"]
    with one_shard(tmp_path, GEMINI) as b:
        b.drive(until="submitted")
        b.sim.faults({"route": "poll", "fault": "status_before", "status": 503, "times": repeat})
        until = time.monotonic() + 3.0
        b.drive(stop=lambda: time.monotonic() > until)
        assert b.view.shards[0].state in {"SUBMITTED", "RUNNING"}
        assert "503" in (b.view.shards[0].last_error or "")
        assert len(b.calls("poll")) < 12  # each failed look doubles the wait
        assert (posts(b), b.settled()) == (1, [])
        b.sim.faults(clear=True)
        b.drive(seconds=60)
        finished(b, creates=1)


def upload_fails(case: Case, capsys: Any, tmp_path: Path) -> None:
    """The manifest is fixed before any upload: what was never sent stays open, not absent."""
    names = case.script["manifest"]
    with one_shard(tmp_path, records=len(names)) as b:
        b.sim.faults({"route": "upload", "fault": "status_before", "status": 500})
        (send,) = plan(b.deps)
        with pytest.raises(Exception, match="upload"):
            execute(send, b.deps)
        assert (b.view.row.records, b.view.shards[0].records) == (len(names), len(names))
        assert b.view.row.closed_at is None and posts(b) == 0
        b.drive()
        finished(b, creates=1)
        assert [row["lines"] for row in b.own_batches()] == [len(names)]
