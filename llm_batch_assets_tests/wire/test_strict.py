"""Strict JSON: the quick way and the slow way are one rule."""

from __future__ import annotations

import json
import re

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_batch_assets.wire import scan, strict

PIECES = st.sampled_from(
    [
        *("{", "}", "[", "]", ":", ",", '"', "\\", " ", "\n", "\t", "\r"),
        *('"a"', '"a":', '"a": 1', '"b":', '"a" :', '\\"', "\\\\", "\\u003a", "\\u003A", "\\u0061"),
        *(
            "\\ud83d",
            "\\ude00",
            "\\u0000",
            "null",
            "true",
            "NaN",
            "Infinity",
            "-",
            "1",
            "0",
            "1e400",
        ),
        *("123456789012345678901234567890", "1.5e3", "é", "\u2028", "\x00", "\x7f", "\ufeff"),
    ]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(alphabet='ab":\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def verdict(parse, text):
    try:
        return json.dumps(parse(text), sort_keys=True, default=str)
    except strict.Fault as fault:
        return fault.reason


@settings(max_examples=1500, deadline=None)
@given(TEXTS)
def test_any_text_gets_one_verdict_as_an_answer(text: str) -> None:
    assert verdict(strict.answer, text) == verdict(strict.answer_slowly, text)


@settings(max_examples=1500, deadline=None)
@given(TEXTS)
def test_any_text_gets_one_verdict_as_a_line(text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    quick, slow = verdict(strict.line, raw), verdict(strict.line_slowly, raw)
    if quick != slow:
        # The quick parser reads integers beyond 64 bits as floats: no field takes either.
        assert re.search(r"\d{19}", text) and "e+" in quick


@settings(max_examples=400, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_written_values_come_back_exactly(value, ascii_only: bool, indent) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert strict.answer(text) == value
    assert verdict(strict.answer, text) == verdict(strict.answer_slowly, text)


@settings(max_examples=600, deadline=None)
@given(VALUES, st.integers(0, 200), st.sampled_from([b"\\u003a", b":", b'"', b",", b"\\"]))
def test_a_key_is_never_dropped_in_silence(value, at: int, extra: bytes) -> None:
    """Whatever is spliced in: a line that passes has no key twice, by the slow parser's word."""
    raw = json.dumps({"k": value, "k2": [{"k": value}]}).encode()
    at %= len(raw)
    spliced = raw[:at] + extra + raw[at:]
    twice = raw[:1] + b'"k": "\\u003a", ' + raw[1:]
    for line in (raw, spliced, twice):
        quick, slow = verdict(strict.line, line), verdict(strict.line_slowly, line)
        assert (quick in FAULTS) == (slow in FAULTS)
    assert verdict(strict.line, twice) == "duplicate_key"


FAULTS = {"not_utf8", "unparseable", "invalid_json", "duplicate_key", "too_deep"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "unparseable"),
        ("   ", "unparseable"),
        ("```json\n{}\n```", "unparseable"),
        ("Sure: {}", "unparseable"),
        ("{} {}", "unparseable"),
        ("{'a': 1}", "unparseable"),
        ("{,}", "unparseable"),
        ('"tab\tin string"', "unparseable"),
        ("\ufeff{}", "unparseable"),
        ("NaN", "invalid_json"),
        ("-Infinity", "invalid_json"),
        ("[1, NaN]", "invalid_json"),
        ('{"a": 1, "a": 1}', "duplicate_key"),
        ('{"a": {"b": 1, "c": 2, "b": 3}}', "duplicate_key"),
        ('{"a": 1, "\\u0061": 2}', "duplicate_key"),
        ('{"x": "\\u003a", "x": 1}', "duplicate_key"),
        ('{"x": 1, "x" : 1}', "duplicate_key"),
        ('"half \\ud83d pair"', "lone_surrogate"),
        ('{"\\udc00": 1}', "lone_surrogate"),
        ('["\ud83d"]', "lone_surrogate"),
        ("9" * 4301, "integer_too_long"),
        ("-" + "9" * 4301, "integer_too_long"),
        ("1e400", "number_out_of_range"),
        ("-1e400", "number_out_of_range"),
        ("[" * 255 + "]" * 255, "too_deep"),
        ('{"a":' * 255 + "1" + "}" * 255, "too_deep"),
        ("[" * 60_000, "too_deep"),
        ("[" * 60_000 + "]" * 60_000, "too_deep"),
    ],
)
def test_answers_that_are_refused(text: str, reason: str) -> None:
    assert verdict(strict.answer, text) == reason
    assert verdict(strict.answer_slowly, text) == reason


@pytest.mark.parametrize(
    "text",
    [
        "9007199254740993",
        "-0",
        "123456789012345678901234567890",
        "9" * 4300,
        '{"a": {"a": [{"a": "a: b"}]}}',
        '"\\ud83d\\ude00"',
        '"a\\u0000b"',
        '{"a:b": ":", ":": "\\"x\\": 1"}',
        "[" * 254 + "]" * 254,
        " \t\r\n[1]\n",
    ],
)
def test_answers_that_are_exact(text: str) -> None:
    value = strict.answer(text)
    assert value == strict.answer_slowly(text) == json.loads(text)
    assert type(value) is type(json.loads(text))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"custom_id": "\xff"}', "not_utf8"),
        (b'{"custom_id": "\xed\xa0\x80"}', "not_utf8"),
        (b"\xef\xbb\xbf{}", "unparseable"),
        (b'{"a": 1', "unparseable"),
        (b'{"a": NaN}', "invalid_json"),
        (b'{"a": 1, "a": 1}', "duplicate_key"),
        (b"[" * 255 + b"]" * 255, "too_deep"),
        (b"[" * 100_000, "too_deep"),
    ],
)
def test_lines_that_are_refused(raw: bytes, reason: str) -> None:
    assert verdict(strict.line, raw) == reason
    assert verdict(strict.line_slowly, raw) == reason


def test_a_line_with_an_unreadable_number_is_still_a_line() -> None:
    for digits in ("9" * 5000, "1e400"):
        found = strict.line(b'{"custom_id": "a", "n": %b}' % digits.encode())
        assert found["custom_id"] == "a" and strict.int64_of(found["n"]) is None


def test_a_line_with_a_lone_surrogate_is_still_a_line() -> None:
    found = strict.line(b'{"custom_id": "a", "text": "half \\ud83d"}')
    assert found["custom_id"] == "a" and not strict.writable(found["text"])


def test_raw_at_gives_the_exact_bytes() -> None:
    raw = b'{"a": [1, {"b":  {"n": 1.50, "big": 123456789012345678901234567890} }]}'
    assert strict.raw_at(raw, "a", 1, "b") == b'{"n": 1.50, "big": 123456789012345678901234567890}'
    assert strict.raw_at(raw, "a", 0) == b"1"
    for path in (("x",), ("a", 2), ("a", -1), ("a", "b"), ("a", 0, "b")):
        assert strict.raw_at(raw, *path) is None


@given(VALUES, st.sampled_from([None, 1]), st.lists(st.sampled_from(["", "a", 0, 1]), max_size=3))
def test_the_scanner_finds_what_the_parser_finds(value, indent, path) -> None:
    """msgspec reads the text alone; beside a lone surrogate only the scanner does."""
    text = json.dumps({"v": value}, indent=indent).encode()
    wanted = strict.raw_at(text, "v", *path)
    assert scan.found_at(text, "v", *path) == wanted
    beside = b'{"odd": ["\\ud83d", NaN], "v": 7, ' + text[1:]
    assert strict.raw_at(beside, "v", *path) == wanted


@given(st.lists(PIECES, max_size=12).map("".join), st.lists(st.sampled_from(["a", 0]), max_size=3))
def test_no_text_breaks_the_scanner(text: str, path) -> None:
    scan.found_at(text.encode("utf-8", "surrogatepass"), *path)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0, 0),
        (7, 7),
        ("12", 12),
        (2**63 - 1, 2**63 - 1),
        (2**63, None),
        (-1, None),
        (True, None),
        (1.0, None),
        ("1.0", None),
        ("-1", None),
        ("١", None),
        ("9" * 30, None),
        (None, None),
        ([], None),
    ],
)
def test_counts(value, number) -> None:
    assert strict.int64_of(value) == number


def test_the_limit_is_the_writers_own() -> None:
    """``orjson`` writes exactly as deep as ``LINE_DEPTH``: its success proves the depth."""
    at = orjson.loads(b"[" * strict.LINE_DEPTH + b"]" * strict.LINE_DEPTH)
    assert orjson.dumps(at)
    with pytest.raises(TypeError):
        orjson.dumps([at])
    assert strict.ANSWER_DEPTH == strict.LINE_DEPTH
