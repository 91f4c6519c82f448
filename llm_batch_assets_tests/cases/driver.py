"""Runs one copied case and compares it with its ``expected.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_batch_assets.cli.main import group

FOLDER = Path(__file__).parent
DIALECT = {
    "azure_openai": "openai",
    "vllm": "openai",
    "gemini_inline": "gemini",
    "vertex": "gemini",
}
LISTS = (
    "unqualified",
    "hold",
    "exhausted",
    "in_flight",
    "duplicate_identical",
    "retry_shard",
    "retry_shard_if_refetch_same",
)


class Case:
    """One folder: what it is, what it expects, its files."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = FOLDER / name
        self.meta: dict[str, Any] = json.loads((self.path / "case.json").read_text())
        self.want: dict[str, Any] = json.loads((self.path / "expected.json").read_text())
        self.kind: str = self.meta["kind"]

    @property
    def provider(self) -> str:
        """The reader that the case's dialect takes."""
        return DIALECT.get(self.meta["provider"], self.meta["provider"])

    @property
    def script(self) -> dict[str, Any]:
        """The history of a script or dagster case."""
        found: dict[str, Any] = json.loads((self.path / "script.json").read_text())
        return found

    @property
    def looks(self) -> list[dict[str, Any]]:
        """Job objects, oldest first."""
        found: list[dict[str, Any]] = json.loads((self.path / "status.json").read_text())
        return found


def names() -> list[str]:
    """Every case in this repository."""
    return sorted(path.parent.name for path in FOLDER.glob("*/case.json"))


def command(argv: list[str], capsys: Any) -> tuple[int, dict[str, Any]]:
    """Run the command line in this process: (exit code, its JSON)."""
    capsys.readouterr()
    code = group.main(args=argv, standalone_mode=False)
    return code, json.loads(capsys.readouterr().out)


def reconcile(case: Case, capsys: Any, status: Path | None = None) -> tuple[int, dict[str, Any]]:
    """``llm-batch-assets reconcile`` over the case's files, optionally with fewer looks."""
    path, meta = case.path, case.meta
    argv = ["reconcile", "--provider", case.provider, "--format", "json"]
    argv += ["--expected", str(path / "manifest_ids.txt")]
    argv += ["--status", str(status or path / "status.json")]
    argv += ["--attempt", str(meta.get("attempt", 1))]
    argv += ["--max-attempts", str(meta.get("max_attempts", 3))]
    if status is None:
        for option, pattern in (("--results", "output*.jsonl"), ("--errors", "error*.jsonl")):
            for file in sorted(path.glob(pattern)):
                argv += [option, str(file)]
    for option, name in (
        ("--bedrock-manifest", "manifest.json.out"),
        ("--inputs-per-record", "inputs_per_record.json"),
        ("--download-receipt", "download.json"),
    ):
        if (path / name).exists():
            argv += [option, str(path / name)]
    if meta.get("schema"):
        argv += ["--schema", str(path / meta["schema"])]
    if meta.get("tool_output"):
        argv += ["--answer", "tool"]
    if meta.get("requested_model"):
        argv += ["--model", meta["requested_model"]]
    return command(argv, capsys)


def differences(want: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """Where the sets, dispositions, rejected lines, answers or flags differ."""
    found = []
    for name, ids in want["sets"].items():
        if sorted(got["sets"][name]) != sorted(ids):
            found.append(f"{name}: {ids} != {got['sets'][name]}")
    for name in LISTS:
        if name in want and sorted(want[name] or []) != sorted(got[name] or []):
            found.append(f"{name}: {want[name]} != {got[name]}")
    for name in ("closed", "done", "partition_ok"):
        if want.get(name) is not None and want[name] != got[name]:
            found.append(f"{name}: {want[name]} != {got[name]}")
    if lines(want) != lines(got):
        found.append(f"rejected_lines: {lines(want)} != {lines(got)}")
    for wire_id, answer in (want.get("answers") or {}).items():
        if got["answers"].get(wire_id) != answer:
            found.append(f"answer {wire_id}: {answer} != {got['answers'].get(wire_id)}")
    return found


def lines(facts: dict[str, Any]) -> list[tuple[str, int]]:
    """(file, line) of rejected lines."""
    return sorted(
        (row["file"].rsplit("/", 1)[-1], row["line"]) for row in facts["rejected_lines"] or []
    )
