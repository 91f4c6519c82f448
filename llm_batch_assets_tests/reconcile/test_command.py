"""``llm-batch-assets reconcile`` over loose files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets.cli.main import main
from llm_batch_assets.reconcile.receipts import whole_by_note
from llm_batch_assets_tests.wire import rowmaker as make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ids.txt").write_bytes("\ufeffa\r\nb\r\n\r\nc c\n".encode())
    rows = make.openai("a", make.chat()) + make.openai("c c", make.chat("\x1b[31m[red]x[/red]"))
    (tmp_path / "out.jsonl").write_bytes(rows + b"upstream error\n")
    (tmp_path / "err.jsonl").write_bytes(make.openai("b", {"error": {"code": "x\x1b[2J"}}, 500))
    return tmp_path


def run(*argv: str, capsys: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["reconcile", *argv])
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


def args(folder: Path, *more: str) -> list[str]:
    base = ["--provider", "openai", "--expected", str(folder / "ids.txt")]
    base += ["--results", str(folder / "out.jsonl"), "--errors", str(folder / "err.jsonl")]
    return [*base, *more]


def test_json(folder: Path, capsys: Any) -> None:
    code, out, _ = run(*args(folder, "--format", "json"), capsys=capsys)
    facts = json.loads(out)
    assert code == 3
    assert facts["sets"]["succeeded"] == ["a", "c c"] and facts["sets"]["retryable"] == ["b"]
    assert facts["answers"]["a"] == "fine"
    assert [(r["line"], r["reason"]) for r in facts["rejected_lines"]] == [(3, "unparseable")]
    why = facts["reasons"]["b"]
    assert (why["rule"], why["line"], why["offset"]) == ("http.500", 1, 0)
    assert why["file"].endswith("err.jsonl")


def test_a_human_gets_a_table_without_control_characters(folder: Path, capsys: Any) -> None:
    code, out, _ = run(*args(folder), capsys=capsys)
    assert code == 3 and "retryable" in out and "http.500" in out and "open;" in out
    assert "\x1b" not in out
    (folder / "ids.txt").write_text("a\x00\x1b[2J\u202e\n", "utf-8")
    _, out, _ = run(*args(folder), capsys=capsys)
    assert "a\\x00\\x1b[2J\\u202e" in out and out.replace("\n", "").isprintable()


def test_closed_is_exit_code_0(folder: Path, capsys: Any) -> None:
    (folder / "out.jsonl").write_bytes(
        make.openai("a", make.chat()) + make.openai("c c", make.chat())
    )
    code, out, _ = run(*args(folder), capsys=capsys)
    assert code == 0 and "closed;" in out


def test_without_a_status_loose_files_are_over(folder: Path, capsys: Any) -> None:
    code, out, _ = run(
        *("--provider", "openai", "--expected", str(folder / "ids.txt"), "--format", "json"),
        capsys=capsys,
    )
    assert code == 3 and json.loads(out)["sets"]["missing"] == ["a", "b", "c c"]


DONE = {"id": "b", "status": "completed", "output_file_id": "o", "error_file_id": "e"}
LOST: dict[str, Any] = {"error": {"message": "No batch found", "code": None}}


@pytest.mark.parametrize("looks", [[DONE, LOST], [LOST, DONE, LOST, LOST], [LOST], [{}]])
def test_a_look_that_found_no_job_changes_nothing(
    folder: Path, capsys: Any, looks: list[Any]
) -> None:
    """Field reports B08 and B51."""
    (folder / "s.json").write_text(json.dumps(looks))
    _, out, _ = run(
        *args(folder, "--status", str(folder / "s.json"), "--format", "json"), capsys=capsys
    )
    facts = json.loads(out)
    assert facts["sets"]["succeeded"] == ["a", "c c"] and facts["in_flight"] == []


def test_a_job_that_no_look_found_is_a_persons_affair(folder: Path, capsys: Any) -> None:
    """Field report B09: nothing of it is sent again."""
    (folder / "s.json").write_text(json.dumps([LOST, LOST]))
    base = ("--provider", "openai", "--expected", str(folder / "ids.txt"), "--format", "json")
    code, out, _ = run(*base, "--status", str(folder / "s.json"), capsys=capsys)
    facts = json.loads(out)
    assert code == 3 and facts["sets"]["missing"] == ["a", "b", "c c"]
    assert (facts["retry_shard"], facts["retry_shard_if_refetch_same"]) == ([], None)
    assert facts["next"] == ["hold:operator"]
    (folder / "s.json").write_text(json.dumps([DONE | {"status": "in_progress"}, LOST]))
    _, out, _ = run(*base, "--status", str(folder / "s.json"), capsys=capsys)
    assert json.loads(out)["in_flight"] == ["a", "b", "c c"]


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("--status", "not json"),
        ("--status", "[]"),
        ("--status", "[1]"),
        ("--status", "7"),
        ("--schema", "[]"),
        ("--schema", '{"type": "strin"}'),
        ("--schema", "{"),
        ("--inputs-per-record", "[]"),
        ("--inputs-per-record", '{"a": "3"}'),
        ("--inputs-per-record", '{"a": 0}'),
        ("--inputs-per-record", '{"a": true}'),
        ("--download-receipt", "x"),
    ],
)
def test_unreadable_input_is_exit_code_2_in_one_sentence(
    folder: Path, capsys: Any, option: str, content: str
) -> None:
    (folder / "odd.json").write_text(content)
    code, out, err = run(*args(folder, option, str(folder / "odd.json")), capsys=capsys)
    assert (code, out) == (2, "") and "Traceback" not in err and len(err.splitlines()) == 1


def test_counted_inputs_are_embeddings(folder: Path, capsys: Any) -> None:
    (folder / "n.json").write_text('{"a": 2, "c c": 1}')
    rows = [{"index": 1, "embedding": [0.5, 2]}, {"index": 0, "embedding": [0.25, 1]}]
    both = make.openai("a", {"data": rows}) + make.openai("c c", make.chat("[[1]]"))
    (folder / "out.jsonl").write_bytes(both)
    more = ("--inputs-per-record", str(folder / "n.json"), "--format", "json")
    facts = json.loads(run(*args(folder, *more), capsys=capsys)[1])
    assert facts["answers"] == {"a": [[0.25, 1], [0.5, 2]]}
    assert facts["unqualified"] == ["c c"]


def test_wrong_use_is_exit_code_2(folder: Path, capsys: Any) -> None:
    for argv in (
        ["--provider", "nobody", "--expected", str(folder / "ids.txt")],
        ["--provider", "openai"],
        args(folder, "--results", str(folder / "absent.jsonl")),
        args(folder, "--attempt", "0"),
    ):
        assert run(*argv, capsys=capsys)[0] == 2
    (folder / "ids.txt").write_text("a\na\n")
    assert run(*args(folder), capsys=capsys)[0] == 2
    (folder / "ids.txt").write_bytes(b"\xff\xfe")
    assert run(*args(folder), capsys=capsys)[0] == 2


def test_it_loads_no_sdk_and_no_dagster(folder: Path) -> None:
    code = (
        "import sys\nfrom llm_batch_assets.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "bad = {'dagster', 'openai', 'anthropic', 'boto3', 'google.genai'} & set(sys.modules)\n"
        "sys.exit(repr(bad) if bad else 0)\n"
    )
    argv = [sys.executable, "-c", code, "reconcile", *args(folder, "--format", "json")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_any_id_can_be_shown_in_any_encoding(folder: Path, encoding: str) -> None:
    (folder / "ids.txt").write_text("\u00e9\n\U0001f600\n", "utf-8")
    argv = [sys.executable, "-m", "llm_batch_assets.cli", "reconcile", *args(folder)]
    env = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(argv, capture_output=True, timeout=60, check=False, env=env)
    assert (done.returncode, b"Traceback" in done.stderr) == (3, False), done.stderr
    assert b"\\U0001f600" in done.stdout


@pytest.mark.parametrize(
    ("note", "whole"),
    [
        (None, True),
        ({}, True),
        ({"status": 200}, True),
        ({"content_length": 5, "received": 5, "file_bytes": 5}, True),
        ({"content_length": None, "file_bytes": None}, True),
        ({"status": 206}, False),
        ({"status": 204}, False),
        ({"status": 403}, False),
        ({"content_length": 6}, False),
        ({"content_length": 6, "received": 5}, False),
        ({"received": 4}, False),
        ({"file_bytes": 9}, False),
        ({"content_type": "Text/HTML; charset=utf-8"}, False),
        ({"content_type": "application/jsonl"}, True),
        ({"content_encoding": "gzip", "content_length": 3, "file_bytes": 5}, True),
        ({"content_encoding": "identity", "content_length": 6}, False),
        ({"content_encoding": "", "content_length": 6}, False),
        ({"status": None}, True),
        ({"status": "200"}, True),
        ({"status": "206"}, False),
        ({"content_length": "5", "file_bytes": "5"}, True),
        ({"content_length": "6"}, False),
        ({"complete": False}, False),
        ({"truncated": True}, False),
        ({"complete": True, "truncated": False, "error": None}, True),
        ({"error": "connection reset"}, False),
        ({"sha256": hashlib.sha256(b"12345").hexdigest().upper()}, True),
        ({"sha256": "0" * 64}, False),
    ],
)
def test_what_a_note_on_a_download_proves(note: Any, whole: bool) -> None:
    assert whole_by_note(note, b"12345") == whole
