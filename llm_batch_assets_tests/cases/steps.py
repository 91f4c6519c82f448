"""What is done with a case beyond its files: single looks, other files, a rule of another room."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets.errors import InputError
from llm_batch_assets.reconcile.accounting import account
from llm_batch_assets.reconcile.model import Account, Expected, RawFile, Rules
from llm_batch_assets.reconcile.receipts import whole_by_note
from llm_batch_assets.reconcile.report import report
from llm_batch_assets.wire.openai.status import read_batch
from llm_batch_assets.workload.names import check_dataset_key
from llm_batch_assets_tests.cases.driver import Case, command, differences, reconcile
from llm_batch_assets_tests.reconcile.mangle import answer_row

TEXT = "anything"


def files(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Sets, dispositions, flags and answers are exactly the expected ones."""
    code, got = reconcile(case, capsys)
    assert differences(case.want, got) == []
    assert code == (0 if case.want["closed"] else 3)


def each_look(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Before the last look nothing is concluded: poll on."""
    for at, look in enumerate(case.looks[:-1]):
        status = tmp_path / f"{at}.json"
        status.write_text(json.dumps([look]))
        code, got = reconcile(case, capsys, status)
        assert (code, got["next"]) == (3, ["poll"])
        assert got["in_flight"] and not any(got["sets"].values()) and not got["retry_shard"]
    files(case, capsys, tmp_path)


def counts_warn(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Counts that differ from the rows are a warning, never a class."""
    _, got = reconcile(case, capsys)
    assert got["warn"] == case.want["warn"]
    files(case, capsys, tmp_path)


def unknown_status(case: Case, capsys: Any, tmp_path: Path) -> None:
    """A word that nobody knows means still running, tell a person."""
    _, got = reconcile(case, capsys)
    assert got["next"] == case.want["next"]
    files(case, capsys, tmp_path)


def capacity(case: Case, capsys: Any, tmp_path: Path) -> None:
    """A queue's limit charges nobody, not even at the last attempt."""
    case.meta["attempt"] = case.meta["max_attempts"]
    files(case, capsys, tmp_path)


def used_up(case: Case, capsys: Any, tmp_path: Path) -> None:
    """At the last attempt what was answered is exhausted; the class stays, holds stay holds."""
    files(case, capsys, tmp_path)
    case.meta["attempt"] = case.meta["max_attempts"]
    _, got = reconcile(case, capsys)
    assert got["sets"] == case.want["sets"] and got["hold"] == case.want["hold"]
    assert sorted(got["exhausted"]) == sorted(
        set(case.want["sets"]["retryable"]) - set(case.want["hold"])
    )
    assert got["retry_shard"] == sorted(case.want["sets"]["expired"])


def usage_unknown(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Usage that is not there is null in the evidence, not zero."""
    data = (case.path / "output.jsonl").read_bytes()
    rows = _account(["r-a", "r-b", "r-c"], data).table.to_pylist()
    known = {row["wire_id"]: row["input_tokens"] is not None for row in rows}
    assert known == {name: cost == "known" for name, cost in case.want["cost"].items()}
    files(case, capsys, tmp_path)


def served(case: Case, capsys: Any, tmp_path: Path) -> None:
    """The snapshot answers for its alias and is recorded; another family does not."""
    data = (case.path / "output.jsonl").read_bytes()
    row = _account(["r-a"], data, model="gpt-4o-mini").table.to_pylist()[0]
    assert row["served_model"] == case.want["record"]["served_model"]
    other = _account(["r-a"], data, model="gpt-4o").table.to_pylist()[0]
    assert (other["cls"], other["reason"], other["unqualified"]) == (
        "retryable",
        "served_model",
        True,
    )
    files(case, capsys, tmp_path)


def preflight(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Exactly the listed lines are refused before upload."""
    argv = ["preflight", "--provider", case.provider, "--format", "json"]
    _, got = command([*argv, "--requests", str(case.path / "requests.jsonl")], capsys)
    if "reject" in case.want:
        assert [r["line"] for r in got["reject"]] == [r["line"] for r in case.want["reject"]]
        assert got["accept"] == case.want["accept"]
    else:
        refused = {r["id"] for r in got["reject"]}
        assert refused == set(case.want["need_map"])
        assert got["accept"] == case.want["direct_ok"]


def preflight_metadata(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Metadata over the limits refuses the job, naming each."""
    metadata = tmp_path / "metadata.json"
    metadata.write_text(json.dumps(case.meta["metadata"]))
    argv = ["preflight", "--provider", case.provider, "--format", "json"]
    argv += ["--requests", str(case.path / "requests.jsonl"), "--metadata", str(metadata)]
    _, got = command(argv, capsys)
    assert {(r["key"], r["reason"]) for r in got["reject_job"]} == {
        (r["key"], r["reason"]) for r in case.want["reject_job"]
    }


def short_downloads(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Nothing of a copy that is known to be short is sent again or closed."""
    notes = [
        {"content_length": 369, "received": 300},
        {"status": 206},
        {"status": 204},
        {"content_type": "text/html; charset=utf-8"},
        {"content_encoding": "gzip", "received": 261, "file_bytes": 369},
    ]
    data = _answer("r-a") + _error("r-b", 500)
    for note in notes:
        assert not whole_by_note(note, data), note
    found = report(_account(["r-a", "r-b", "r-c"], data, whole=False))
    assert found["next"] == case.want["each"]["next"]
    assert not found["closed"] and found["retry_shard"] == []
    gzip = _account(["r-a"], b"\x1f\x8b\x08\x00rest of it")
    assert [(a.line, a.reason) for a in gzip.anomalies] == [(0, "not_utf8")]


def own_clock(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Only the provider says expired: a time in the past ends nothing."""
    view = read_batch({"id": "b", "status": "in_progress", "expires_at": 1})
    found = account(Expected(["r-a"]), Rules("openai"), [], [view])
    assert found.in_flight and found.sets()["expired"] == []


def unread_errors(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Error rows are results too: before they are read nothing is concluded."""
    view = read_batch({"id": "b", "status": "cancelled", "error_file_id": "file-e"})
    ids = [f"r-{at}" for at in range(5)]
    before = account(Expected(ids), Rules("openai"), [], [view])
    assert not before.closed and report(before)["retry_shard"] == []
    rows = b"".join(_error(name, 500) for name in ids)
    after = account(
        Expected(ids), Rules("openai"), [RawFile.of("error.jsonl", "errors", rows)], [view]
    )
    assert after.closed and after.sets()["retryable"] == ids


def not_sent_is_missing(case: Case, capsys: Any, tmp_path: Path) -> None:
    """What the manifest has and the job was not given is missing, not absent."""
    data = b"".join(_answer(name) for name in case.script["results"])
    found = _account(case.script["manifest"], data)
    wanted = {k: v for k, v in found.sets().items() if v}
    assert wanted == {k: v for k, v in case.want["sets"].items() if v} and not found.closed


def partition_keys(case: Case, capsys: Any, tmp_path: Path) -> None:
    """A dataset's key is checked by us, because nobody else does."""
    allowed = set()
    for key in case.script["keys"]:
        try:
            allowed.add(check_dataset_key(key))
        except InputError:
            continue
    assert allowed == {"A", "a"}
    with pytest.raises(InputError):
        check_dataset_key("a..b")


def _answer(wire_id: str) -> bytes:
    return answer_row(random.Random(1), wire_id, TEXT, "completed") + b"\n"


def _error(wire_id: str, status: int) -> bytes:
    body = {"error": {"message": "m", "type": "server_error", "param": None, "code": None}}
    response = {"status_code": status, "request_id": "r", "body": body}
    row = {"id": "b", "custom_id": wire_id, "response": response, "error": None}
    return json.dumps(row).encode() + b"\n"


def _account(ids: list[str], data: bytes, *, whole: bool = True, **rules: Any) -> Account:
    raw = RawFile.of("output.jsonl", "results", data, whole=whole)
    return account(Expected(ids), Rules("openai", **rules), [raw])
