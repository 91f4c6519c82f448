"""Hand-made mutants of the classification: each must be killed by the cases or by a row below."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from llm_batch_assets.reconcile import accounting, collect, lines, quality, unrowed
from llm_batch_assets.reconcile.accounting import account
from llm_batch_assets.reconcile.model import Expected, RawFile, Rules
from llm_batch_assets.reconcile.report import report
from llm_batch_assets.types import BatchView
from llm_batch_assets.wire import classes, claude, lane, shapes, strict
from llm_batch_assets.wire.anthropic import rows as anthropic_rows
from llm_batch_assets.wire.claude import STOPS as CLAUDE_STOPS
from llm_batch_assets.wire.gemini import rows as gemini_rows
from llm_batch_assets.wire.openai import rows as openai_rows
from llm_batch_assets.wire.openai import status as openai_status
from llm_batch_assets.wire.readers import wire_of
from llm_batch_assets.wire.rpc import CODES as RPC
from llm_batch_assets_tests.cases.driver import Case, differences, names
from llm_batch_assets_tests.wire import rowmaker as make

Patch = pytest.MonkeyPatch
GONE = object()


def _plain_chat(wire_id: str, finish: str) -> bytes:
    body = make.chat("fine", finish=finish)
    del body["usage"]["prompt_tokens_details"]["cache_write_tokens"]
    return make.openai(wire_id, body)


_JSON = {"answer": "json"}
_CREDIT = make.anthropic_error("a", "invalid_request_error", "Your credit balance is too low")
_THOUGHT = [{"text": "thinking", "thought": True}]
ROWS: list[tuple[str, bytes, dict[str, Any], str, str | None]] = [
    ("openai", make.openai("a", {}, 0), {}, "retryable", None),
    ("openai", make.openai("a", {"error": {}}, 401), {}, "retryable", "account"),
    ("openai", make.openai("a", {"error": {}}, 503), {}, "retryable", None),
    ("openai", _plain_chat("b", "stop") + _plain_chat("a", "length"), {}, "retryable", None),
    ("openai", make.openai("a", make.responses('{"k": 1, "k": 1}')), _JSON, "retryable", None),
    ("openai", make.openai("a", make.responses('{"k": NaN}')), _JSON, "retryable", None),
    ("openai", make.openai("a", make.responses('["\\ud83d"]')), _JSON, "retryable", None),
    (
        "anthropic",
        make.anthropic_error("a", "invalid_request_error"),
        {},
        "permanent_failure",
        None,
    ),
    ("anthropic", _CREDIT, {}, "retryable", "billing"),
    ("gemini", make.line({"key": "a", "error": {"code": 7}}), {}, "retryable", "account"),
    ("gemini", make.gemini("a", finish="RECITATION"), {}, "permanent_failure", None),
    ("gemini", make.gemini("a", parts=_THOUGHT), {}, "retryable", None),
    ("bedrock", make.bedrock_error("a", 403), {}, "retryable", "account"),
]
"""What no case pins: (provider, lines, rules, class of ``a``, hold)."""


def survives() -> bool:
    """Whether every case and every row still comes out as expected."""
    for provider, data, rules, cls, hold in ROWS:
        row = make.account_for(provider, data, ("a", "b"), **rules).table.to_pylist()[0]
        if (row["cls"], row["hold"]) != (cls, hold):
            return False
    for name in names():
        case = Case(name)
        if case.kind == "file" and differences(case.want, outcome(case)):
            return False
    return True


def outcome(case: Case) -> dict[str, Any]:
    """The case through the library, without the command line."""
    path, meta = case.path, case.meta
    wire = wire_of(case.provider)
    views: list[BatchView] = [wire.read_batch(look) for look in case.looks]
    notes = json.loads((path / "download.json").read_text()) if _has(path, "download.json") else {}
    raws = []
    for kind, pattern in (("results", "output*.jsonl"), ("errors", "error*.jsonl")):
        for file in sorted(path.glob(pattern)):
            whole = collect_whole(notes.get(file.name), file.read_bytes())
            raws.append(RawFile.of(file.name, kind, file.read_bytes(), whole=whole))  # type: ignore[arg-type]
    if wire.inline_rows is not None:
        data = wire.inline_rows((path / "status.json").read_bytes(), len(views) - 1)
        if data is not None:
            raws.append(RawFile.of("status.json:inlinedResponses", "results", data))
    schema = json.loads((path / meta["schema"]).read_text()) if meta.get("schema") else None
    inputs = path / "inputs_per_record.json"
    rules = Rules(
        case.provider,
        answer="tool" if meta.get("tool_output") else "auto",
        schema=schema,
        model=meta.get("requested_model"),
        attempt=meta.get("attempt", 1),
        max_attempts=meta.get("max_attempts", 3),
        inputs_per_record=json.loads(inputs.read_text()) if inputs.exists() else None,
    )
    ids = (path / "manifest_ids.txt").read_text().split("\n")[:-1]
    return report(account(Expected(ids), rules, raws, views))


def collect_whole(note: Any, data: bytes) -> bool:
    from llm_batch_assets.reconcile.receipts import whole_by_note

    return whole_by_note(note, data)


def _has(path: Any, name: str) -> bool:
    return bool((path / name).exists())


def entry(
    table: Any, key: Any, cls: Any = GONE, hold: str | None = None
) -> Callable[[Patch], None]:
    """A mutant that changes or removes one table row."""

    def patch(monkeypatch: Patch) -> None:
        if cls is GONE:
            monkeypatch.delitem(table, key)
        else:
            monkeypatch.setitem(table, key, classes.Rule("mutant", cls, "mutant", hold))

    return patch


def attribute(target: Any, name: str, value: Any) -> Callable[[Patch], None]:
    """A mutant that replaces one function or constant."""
    return lambda monkeypatch: monkeypatch.setattr(target, name, value)


def several(*patches: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """A mutant that needs more than one change."""

    def patch(monkeypatch: Patch) -> None:
        for one in patches:
            one(monkeypatch)

    return patch


def first_wins(self: Any, wire_id: str, line: bytes, number: int, start: int) -> None:
    """Repeats and foreign rows are dropped in silence."""


def repeats_collapse(self: Any, wire_id: str, line: bytes, number: int, start: int) -> None:
    """Any repeat counts as the same row."""
    if wire_id in self.expected.wire_ids:
        self.identical.add(list(self.expected.wire_ids).index(wire_id))
    else:
        self._mark("unknown", "unknown_id", number, start, len(line), wire_id)


def everything_may_differ(line: bytes, shape: Any, earlier: Any) -> Any:
    """A lane that pins nothing."""
    tokens = lane._tokens(line)
    assert tokens is not None
    loose = lane.Shape(shape.text, shape.stop, shape.fields, frozenset())
    return lane.Lane(loose, tokens, frozenset(range(len(tokens))))


def cut_everywhere(raw: RawFile, size: int = 0) -> Any:
    """As str.splitlines cuts."""
    data = bytes(raw.data).removeprefix(b"\xef\xbb\xbf")
    for other in ("\u2028", "\u2029", "\u0085"):
        data = data.replace(other.encode(), b"\n")
    return iter([(0, data)] if data else [])


def ready_at_once(raw: Any) -> BatchView:
    """Terminal means that the results are there."""
    from dataclasses import replace

    view = openai_read(raw)
    return replace(view, results_ready=view.status == "done")


openai_read = openai_status.read_batch
row_read = openai_rows.read


def body_errors_pass(line: Any, raw: bytes, asked: Any) -> Any:
    """HTTP 200 is taken as an answer, whatever the body says."""
    row = row_read(line, raw, asked)
    response = line.get("response")
    if isinstance(response, dict) and response.get("status_code") == 200 and not row.answer:
        return row._replace(rule=classes.MALFORMED)
    return row


def shifted(errors: Any) -> Any:
    from dataclasses import replace

    return tuple(
        replace(f, line=f.line - 1 if f.line else None) for f in openai_line_faults(errors)
    )


openai_line_faults = openai_status._faults

MUTANTS: dict[str, Callable[[Patch], None]] = {
    "401 fails the record": entry(classes.HTTP, 401, "permanent_failure"),
    "409 is permanent": entry(classes.HTTP, 409, "permanent_failure"),
    "413 is tried again": entry(classes.HTTP, 413, "retryable"),
    "429 holds": entry(classes.HTTP, 429, "retryable", "account"),
    "status 0 is permanent": entry(classes.HTTP, 0, "permanent_failure"),
    "5xx outside the table is permanent": attribute(
        classes, "HTTP_5XX", classes.Rule("mutant", "permanent_failure", "mutant")
    ),
    "an exhausted quota is a rate limit": entry(openai_rows.CODES, "insufficient_quota"),
    "batch_expired is an unknown error": entry(openai_rows.CODES, "batch_expired"),
    "batch_cancelled is tried again": entry(openai_rows.CODES, "batch_cancelled", "retryable"),
    "a content filter is tried again": entry(openai_rows.FINISHES, "content_filter", "retryable"),
    "invalid_request without a status is tried again": entry(
        openai_rows.KINDS, "invalid_request", "retryable"
    ),
    "a cut answer is accepted": entry(openai_rows.FINISHES, "length", "succeeded"),
    "HTTP 200 hides the body's error": attribute(openai_rows, "read", body_errors_pass),
    "the lane takes any finish": attribute(collect, "learn", everything_may_differ),
    "an unknown stop reason is accepted": several(
        attribute(openai_rows, "UNKNOWN_STOP", openai_rows.FINISHES["stop"]),
        attribute(
            claude,
            "UNKNOWN_STOP",
            CLAUDE_STOPS["end_turn"],
        ),
    ),
    "a refusal is tried again": attribute(openai_rows, "REFUSAL", classes.EMPTY),
    "a Claude refusal is tried again": entry(CLAUDE_STOPS, "refusal", "retryable"),
    "max_tokens is accepted": entry(CLAUDE_STOPS, "max_tokens", "succeeded"),
    "a tool call is asked for and text is taken": attribute(
        shapes.Asked,
        "tool",
        property(lambda self: False),
    ),
    "low credit fails the record": attribute(
        anthropic_rows, "LOW_CREDIT", anthropic_rows.ERRORS["invalid_request_error"]
    ),
    "overloaded is permanent": entry(
        anthropic_rows.ERRORS, "overloaded_error", "permanent_failure"
    ),
    "canceled rows are tried again": entry(anthropic_rows.TYPES, "canceled", "retryable"),
    "rpc 7 fails the record": entry(RPC, 7, "permanent_failure"),
    "rpc 13 is permanent": entry(RPC, 13, "permanent_failure"),
    "recitation is tried again": entry(gemini_rows.STOPS, "RECITATION", "retryable"),
    "a blocked prompt is an empty answer": attribute(gemini_rows, "BLOCKED", classes.EMPTY),
    "Vertex status text is ignored": attribute(
        gemini_rows, "error_of_text", lambda text: (None, None)
    ),
    "the first of two rows wins": attribute(collect.Collector, "_again", first_wins),
    "any repeat collapses": attribute(collect.Collector, "_again", repeats_collapse),
    "a missing row is retried at once": attribute(
        unrowed, "MISSING", classes.Rule("mutant", "retryable", "mutant")
    ),
    "innocent lines of a failed batch are permanent": attribute(
        unrowed, "NOT_REACHED", classes.Rule("mutant", "permanent_failure", "mutant")
    ),
    "lines of the request file count from 0": attribute(openai_status, "_faults", shifted),
    "an unknown status is an end": lambda monkeypatch: monkeypatch.setitem(
        openai_status.STATUSES,  # type: ignore[arg-type]
        "paused",
        "cancelled",
    ),
    "completed without a file is final": attribute(openai_status, "read_batch", ready_at_once),
    "the schema is not asked": attribute(
        quality,
        "compile_schema",
        lambda schema: type("Any", (), {"is_valid": staticmethod(lambda value: True)}),
    ),
    "a key may repeat": several(
        attribute(strict, "_pairs", dict), attribute(strict, "_ANSWER", json.JSONDecoder())
    ),
    "NaN is a number": attribute(strict, "_ANSWER", json.JSONDecoder()),
    "half a surrogate pair is text": attribute(
        strict, "answer_slowly", lambda text: strict._slow(strict._ANSWER, text, 254)
    ),
    "vectors are not counted": attribute(quality, "vector_fault", lambda *a, **k: None),
    "lines are cut where str.splitlines cuts": attribute(collect, "blocks", cut_everywhere),
    "a byte order mark is part of the first row": attribute(lines, "_BOM", b"\x00\x00\x00"),
    "UTF-16 is read": attribute(collect, "unreadable_file", lambda data: False),
}
"""What is wrong -> how it is made wrong."""


def test_nothing_is_wrong_without_a_mutant() -> None:
    assert survives()


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str, monkeypatch: Patch) -> None:
    MUTANTS[name](monkeypatch)
    try:
        alive = survives()
    except Exception:
        alive = False
    assert not alive


def test_there_are_at_least_twenty() -> None:
    assert len(MUTANTS) >= 20 and accounting.account is account
