"""Hostile bytes for every provider's reader: nothing crashes, the identity holds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from llm_batch_assets.reconcile.accounting import account
from llm_batch_assets.reconcile.model import Expected, RawFile, Rules
from llm_batch_assets.reconcile.report import report
from llm_batch_assets.wire.readers import wire_of
from llm_batch_assets_tests.reconcile.mangle import SCHEMA
from llm_batch_assets_tests.wire import rowmaker as make

PROVIDERS = ("openai", "anthropic", "gemini", "bedrock")
CASES = Path(__file__).parents[1] / "cases"
DIALECT = {
    "azure_openai": "openai",
    "vllm": "openai",
    "gemini_inline": "gemini",
    "vertex": "gemini",
}
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 200, 2**31, 2**63, 10**30, 1.5, 1e308, "", " ", "0", "a", "r-a"),
    *("\u2028", "\ud800", "\x00", [], {}, [[]], [None], [{}], {"a": None}, {"error": {}}, ["r-a"]),
    *("stop", "completed", "succeeded", "STOP", "end_turn", "tool_use", "refusal", "failed"),
    *({"type": "text"}, {"type": "text", "text": 1}, {"type": []}, {"code": []}, {"code": {}}),
    *("9" * 30, "x" * 3000, [0] * 50),
)


class Corpus:
    """Lines, job objects and ids of the cases and of hand-made rows, per provider."""

    def __init__(self) -> None:
        self.lines: dict[str, list[bytes]] = {name: [] for name in PROVIDERS}
        self.looks: dict[str, list[Any]] = {name: [] for name in PROVIDERS}
        self.ids = ["a", "b", "1", "0"]
        for path in sorted(CASES.glob("*/case.json")):
            provider = json.loads(path.read_text())["provider"]
            provider = DIALECT.get(provider, provider)
            if provider not in self.lines or not (path.parent / "status.json").exists():
                continue
            self.looks[provider] += json.loads((path.parent / "status.json").read_text())
            self.ids += (path.parent / "manifest_ids.txt").read_text().split()
            for file in sorted(path.parent.glob("*.jsonl")):
                lines = file.read_bytes().split(b"\n")
                self.lines[provider] += [one for one in lines if one and len(one) < 5000]
        self.ids = sorted(set(self.ids))
        self.lines["openai"] += [
            make.openai("a", body).rstrip()
            for body in (make.responses(), make.chat(), {"data": []}, {"results": []})
        ]
        self.lines["anthropic"].append(make.anthropic("a", make.claude()).rstrip())
        self.lines["gemini"].append(make.gemini("a").rstrip())
        self.lines["gemini"].append(b'{"key": "a", "response": {"embedding": {"values": [1]}}}')
        self.lines["bedrock"] += [
            make.bedrock("a", output).rstrip()
            for output in (make.claude(), make.converse(), {"embedding": [1.0]}, {"outputs": []})
        ]


def inputs(provider: str, seed: int, corpus: Corpus) -> tuple[list[bytes], list[Any]]:
    """One or two files and zero or more looks."""
    rng = random.Random(f"{provider}-{seed}")
    files = [_file(rng, corpus.lines[provider]) for _ in range(rng.randrange(1, 3))]
    looks = []
    if rng.random() < 0.3:
        look = rng.choice(corpus.looks[provider])
        looks.append(_twist(rng, deepcopy(look)) if rng.random() < 0.8 else look)
    return files, looks


def check(provider: str, seed: int, corpus: Corpus) -> None:
    """One input through everything: readers, status, account, report.

    Raises:
        AssertionError: when the identity or a bound is broken.
        Exception: whatever crashes.
    """
    files, looks = inputs(provider, seed, corpus)
    rng = random.Random(seed)
    ids = rng.sample(corpus.ids, rng.randrange(1, 12))
    rules = Rules(
        provider,
        answer=rng.choice(["auto", "auto", "json", "text", "tool", "embedding"]),
        schema=rng.choice([None, SCHEMA, {"type": "integer"}]),
        model=rng.choice([None, "gpt-4o-mini", "claude-sonnet-5"]),
        inputs_per_record=rng.choice([None, 1, {"a": 2}]),
        attempt=rng.randrange(1, 4),
    )
    wire = wire_of(provider)
    views = [wire.read_batch(look) for look in looks if isinstance(look, dict)]
    raws = [RawFile.of(f"f{at}", "results", data) for at, data in enumerate(files)]
    found = account(Expected(ids, tag="r"), rules, raws, views)
    facts = report(found)
    assert facts["partition_ok"]
    assert found.table.num_rows == len(ids) == len(found.answers)
    for row, text in zip(found.table.to_pylist(), found.answers.to_pylist(), strict=True):
        assert (text is not None) == (row["cls"] == "succeeded"), row
        assert (row["answer_digest"] is None) == (text is None)
        assert row["file"] is None or row["length"] > 0
    json.dumps(facts).encode()
    for anomaly in found.anomalies:
        (anomaly.id or "").encode()


def _file(rng: random.Random, lines: list[bytes]) -> bytes:
    rows = [_line(rng, rng.choice(lines)) for _ in range(rng.randrange(0, 8))]
    data = rng.choice([b"\n", b"\n", b"\n", b"\r\n", b"\n\n", b"\r"]).join(rows)
    for _ in range(rng.choice([0, 0, 1, 5])):
        if data:
            at = rng.randrange(len(data))
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return rng.choice([b"", b"", b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\x00"]) + data


def _line(rng: random.Random, line: bytes) -> bytes:
    kind = rng.randrange(6)
    if kind <= 2:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return line
        for _ in range(rng.randrange(1, 4)):
            value = _twist(rng, value)
        return json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if kind == 3 and line:
        return line[: rng.randrange(len(line))]
    if kind == 4 and line:
        at = rng.randrange(len(line))
        extra = rng.choice([b'"', b"\\", b"{", b"[" * 300, b"NaN", b"\\ud800", b"9" * 5000, b","])
        return line[:at] + extra + line[at:]
    return line


def _twist(rng: random.Random, value: Any) -> Any:
    """Replace, remove, or add one value somewhere inside."""
    places = list(_places(value))
    if not places:
        return deepcopy(rng.choice(HOSTILE))
    holder, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0 and isinstance(holder, dict):
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.append(deepcopy(holder[key]))
    elif kind == 2 and isinstance(holder, dict):
        holder[rng.choice(["error", "status", "code", "type", "key", "text", "id"])] = deepcopy(
            holder[key]
        )
    else:
        holder[key] = deepcopy(rng.choice(HOSTILE))
    return value


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    if depth > 30:
        return
    keys = value.keys() if isinstance(value, dict) else range(len(value) if _is_list(value) else 0)
    for key in list(keys):
        yield value, key
        yield from _places(value[key], depth + 1)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
