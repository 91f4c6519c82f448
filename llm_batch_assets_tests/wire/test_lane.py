"""The fast lane gives what the general way gives, or nothing."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_batch_assets.reconcile import accounting
from llm_batch_assets.reconcile.digests import rows_digest
from llm_batch_assets.reconcile.model import Account, Expected, RawFile, Rules
from llm_batch_assets.wire.lane import learn
from llm_batch_assets.wire.openai.quick import shape_of
from llm_batch_assets.wire.readers import wire_of
from llm_batch_assets.wire.shapes import Asked
from llm_batch_assets_tests.reconcile.mangle import ANSWERS, SCHEMA
from llm_batch_assets_tests.wire import rowmaker as make

ASKED = Asked("json", "/v1/responses", True)
GOOD = '{"label": "a", "score": 0.5}'
EDITS: tuple[tuple[bytes, bytes], ...] = (
    (b'"status": "completed"', b'"status": "incomplete"'),
    (b'"status": "completed"', b'"status":"completed"'),
    (b'"finish_reason": "stop"', b'"finish_reason": "length"'),
    (b'"refusal": null', b'"refusal": "no"'),
    (b'"error": null', b'"error": {"code": "server_error"}'),
    (b'"error": null', b'"error": true'),
    (b'"status_code": 200', b'"status_code": 500'),
    (b'"status_code": 200', b'"status_code": 200.0'),
    (b'"custom_id": "', b'"custom_id": "\\u0061", "custom_id": "'),
    (b'"custom_id": "', b'"custom_id": "x\\" '),
    (b'"request_id": "req_1"', b'"request_id": "r\xc3\xa9"'),
    (b'"request_id": "req_1"', b'"request_id": "\xff"'),
    (b'"request_id": "req_1"', b'"request_id": ""'),
    (b'"request_id": "req_1"', b'"request_id": null'),
    (b'"request_id": "req_1"', b'"request_id": "' + b"r" * 300 + b'"'),
    (b'tokens": 10', b'tokens": 010'),
    (b'tokens": 10', b'tokens": -10'),
    (b'tokens": 10', b'tokens": 10.0'),
    (b'tokens": 10', b'tokens": 99999999999999999999'),
    (b'tokens": 10', b'tokens": null'),
    (b'tokens": 10', b'tokens": 1e1'),
    (b'"model": "', b'"model": "other-'),
    (b'"id": "', b'"id": "\t'),
    (b'"id": "', b'"id": "\\n'),
    (b'"id": ', b'"id": "x", "id": '),
    (b"}", b"},"),
    (b"}\n", b"}"),
    (b"}\n", b"} \n"),
    (b"}\n", b"}\r\n"),
    (b"}\n", b"}x\n"),
    (b'"annotations": []', b'"annotations": [1]'),
    (b'"text": "', b'"text": "", "text": "'),
    (b'"text": "', b'"text": "\\ud83d'),
    (b'"content": "', b'"content": "\xed\xa0\x80'),
)


def rows(rng: random.Random, chat: bool) -> tuple[list[str], bytes]:
    """Rows of one layout, with answers of all kinds, some of them edited."""
    ids, found = [], []
    for number in range(rng.randrange(2, 12)):
        wire_id = f"r-{number}"
        text = rng.choices(ANSWERS, weights=[30, 9, *[2] * (len(ANSWERS) - 2)])[0]
        text = GOOD if number == 0 else text
        body = make.chat(text) if chat else make.responses(text)
        if chat:
            del body["usage"]["prompt_tokens_details"]["cache_write_tokens"]
        line = make.openai(wire_id, body)
        if number and rng.random() < 0.5:
            edit = rng.choice(EDITS)
            line = line.replace(*edit, 1)
        if number and rng.random() < 0.2:
            at = rng.randrange(len(line))
            line = line[:at] + bytes([rng.randrange(256)]) + line[at + 1 :]
        if rng.random() < 0.1:
            line += line
        ids.append(wire_id)
        found.append(line)
    return ids, b"".join(found)


def both_ways(monkeypatch: pytest.MonkeyPatch, ids: list[str], data: bytes, **rules: Any) -> None:
    asked = Rules("openai", schema=SCHEMA, answer="json", **rules)
    raw = RawFile.of("f", "results", data)
    quick = accounting.account(Expected(ids), asked, [raw])
    slow = general(monkeypatch, ids, asked, raw)
    assert rows_digest(quick.table) == rows_digest(slow.table), differing(quick, slow)
    assert quick.answers.to_pylist() == slow.answers.to_pylist()
    assert quick.anomalies == slow.anomalies
    assert (quick.rows, list(quick.identical)) == (slow.rows, list(slow.identical))


def general(monkeypatch: pytest.MonkeyPatch, ids: list[str], asked: Rules, raw: RawFile) -> Account:
    from dataclasses import replace

    wire = replace(wire_of("openai"), shape_of=None)
    with monkeypatch.context() as patch:
        patch.setattr(accounting, "wire_of", lambda provider: wire)
        return accounting.account(Expected(ids), asked, [raw])


def differing(quick: Account, slow: Account) -> list[Any]:
    pairs = zip(quick.table.to_pylist(), slow.table.to_pylist(), strict=True)
    return [{k: (a[k], b[k]) for k in a if a[k] != b[k]} for a, b in pairs if a != b]


@pytest.mark.parametrize("chat", [False, True], ids=["responses", "chat"])
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**48))
def test_any_edit_gives_the_same_account(chat: bool, seed: int) -> None:
    ids, data = rows(random.Random(seed), chat)
    model = "gpt-4o-mini" if chat else "gpt-5-mini-2025-08-07"
    with pytest.MonkeyPatch.context() as patch:
        both_ways(patch, ids, data, model=model)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit[1].decode("latin-1")[:30])
@pytest.mark.parametrize("chat", [False, True], ids=["responses", "chat"])
def test_each_edit(chat: bool, edit: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def row(wire_id: str) -> bytes:
        body = make.chat(GOOD) if chat else make.responses(GOOD)
        if chat:
            del body["usage"]["prompt_tokens_details"]["cache_write_tokens"]
        return make.openai(wire_id, body)

    good, changed = row("a"), row("b").replace(*edit, 1)
    both_ways(monkeypatch, ["a", "b", "c"], good + changed + row("c"))
    # The edited row may itself become the template.
    both_ways(monkeypatch, ["a", "b", "c"], changed + good + row("c"))


def test_the_lane_takes_what_fills_a_file() -> None:
    """Otherwise the tests above compare the general way with itself."""
    for body in (make.responses(GOOD), make.chat(GOOD)):
        if "choices" in body:
            del body["usage"]["prompt_tokens_details"]["cache_write_tokens"]
        first = make.openai("a", body).rstrip()
        shape = shape_of(json.loads(first), ASKED)
        assert shape is not None
        other = make.openai("bb", body).replace(b"req_1", b"req_22").rstrip()
        lane = learn(other, shape, learn(first, shape))
        assert lane is not None and lane.literal.startswith(lane.mark)
        head = lane.before(other)
        assert head is not None
        at = other.index(lane.mark, head.end())
        assert other[at:].startswith(lane.literal)
        tail = lane.after(other, at + len(lane.literal))
        assert tail is not None and tail.end() == len(other)
        captured = dict(zip(lane.names, head.groups() + tail.groups(), strict=True))
        assert captured["id"] == b"bb" and captured["provider_request_id"] == b"req_22"
        assert captured["input_tokens"] == b"10"


@pytest.mark.parametrize(
    "body",
    [
        make.chat(GOOD),  # has cache_write_tokens, which the lane does not capture
        make.chat(GOOD, finish="length"),
        make.chat(GOOD, refusal="no"),
        make.responses(GOOD, status="incomplete"),
        make.responses(GOOD, output=[]),
        make.responses(GOOD, usage=None),
        make.responses(GOOD, choices=[]),
        {"error": {"code": "x"}},
        [],
        "text",
        None,
    ],
)
def test_no_other_row_becomes_a_template(body: Any) -> None:
    assert shape_of(json.loads(make.openai("a", body)), ASKED) is None


def test_no_template_for_tools_and_embeddings() -> None:
    row = json.loads(make.openai("a", make.responses(GOOD)))
    assert shape_of(row, Asked("tool")) is None and shape_of(row, Asked("embedding")) is None


def test_a_line_with_an_escaped_key_teaches_nothing() -> None:
    row = make.openai("a", make.responses(GOOD, metadata={"k\u00e9": 1})).rstrip()
    shape = shape_of(json.loads(row), ASKED)
    assert shape is not None and learn(row, shape) is None
