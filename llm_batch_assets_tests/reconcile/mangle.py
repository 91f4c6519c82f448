"""Random result files and random damage, for the property tests and the fuzz target."""

from __future__ import annotations

import json
import random

SCHEMA = {
    "type": "object",
    "required": ["label", "score"],
    "additionalProperties": False,
    "properties": {
        "label": {"type": "string", "minLength": 1},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
    },
}
ANSWERS = (
    '{"label": "a", "score": 0.5}',
    '{"label": "colon: in: text", "score": 1}',
    '{"label": "\\u003a\\u00e9 \\u2028", "score": 0}',
    '{"label": "\\ud83d\\ude00", "score": 0.25}',
    '{\n  "label": "pretty",\n  "score": 1e-3\n}',
    '{"label": "x", "label": "y", "score": 0.5}',
    '{"label": "x", "score": 0.5, "score": 0.5}',
    '{"label": "half \\ud83d", "score": 0.5}',
    '{"label": "x", "score": NaN}',
    '{"label": "x", "score": 1e400}',
    '{"label": "x", "score": 7}',
    '{"label": ["x"], "score": 0.1}',
    "```json\n{}\n```",
    "null",
    "",
    "[" * 300,
)
ERRORS = (
    (None, "batch_expired"),
    (None, "batch_cancelled"),
    (None, "server_error"),
    (None, "invalid_request"),
    (400, "invalid_value"),
    (401, "invalid_api_key"),
    (429, "insufficient_quota"),
    (429, "rate_limit_exceeded"),
    (500, "server_error"),
    (0, None),
)


def answer_row(
    rng: random.Random, wire_id: str, text: str | None = None, status: str | None = None
) -> bytes:
    """A 2xx row of the responses endpoint; text and status at random unless given."""
    if text is None:
        text = rng.choices(ANSWERS, weights=[30, 5, *[2] * (len(ANSWERS) - 2)])[0]
    if status is None:
        status = rng.choices(["completed", "incomplete"], weights=[20, 1])[0]
    body = {
        "id": f"resp_{rng.getrandbits(32):08x}",
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": "gpt-5-mini-2025-08-07",
        "output": [
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }
        ],
        "usage": {
            "input_tokens": rng.randrange(1000),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": rng.randrange(1000),
            "output_tokens_details": {"reasoning_tokens": 0},
        },
        "metadata": {},
    }
    response = {"status_code": 200, "request_id": f"r{rng.getrandbits(32):08x}", "body": body}
    row = {"id": "batch_req_1", "custom_id": wire_id, "response": response, "error": None}
    return json.dumps(row, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def error_row(rng: random.Random, wire_id: str) -> bytes:
    """A row of the error file, of either kind."""
    status, code = rng.choice(ERRORS)
    error = {"message": "m", "type": code, "param": None, "code": code}
    if status is None:
        row = {"id": "b", "custom_id": wire_id, "response": None, "error": error}
    else:
        body = {"error": error} if code else {}
        response = {"status_code": status, "request_id": "r", "body": body}
        row = {"id": "b", "custom_id": wire_id, "response": response, "error": None}
    return json.dumps(row).encode()


def files(rng: random.Random, ids: list[str]) -> list[bytes]:
    """An output and an error file for some ids, then damaged."""
    output, errors = [], []
    for wire_id in ids:
        if rng.random() < 0.8:
            output.append(answer_row(rng, wire_id))
        else:
            errors.append(error_row(rng, wire_id))
    return [damage(rng, output), damage(rng, errors)]


GARBAGE = (
    b"",
    b"   ",
    b"[1, 2]",
    b"null",
    b"upstream connect error",
    b'{"custom_id": 1}',
    b'{"custom_id": ""}',
    b'{"error": {"code": null}}',
    b'{"custom_id": "x", "custom_id": "y"}',
    b"\xff\xfe\xfd",
    b"[" * 2000,
    b'{"a": NaN, "custom_id": "x"}',
)


def damage(rng: random.Random, rows: list[bytes]) -> bytes:
    """Reorder, drop, repeat, alter, truncate, splice, foreign rows, garbage."""
    rows = list(rows)
    rng.shuffle(rows)
    for _ in range(rng.randrange(6)):
        kind = rng.randrange(7)
        at = rng.randrange(len(rows)) if rows else 0
        if kind == 0 and rows:
            rows.pop(at)
        elif kind == 1 and rows:
            rows.insert(rng.randrange(len(rows) + 1), rows[at])
        elif kind == 2 and rows and rows[at]:
            row = bytearray(rows[at])
            row[rng.randrange(len(row))] = rng.randrange(256)
            rows[at] = bytes(row)
        elif kind == 3 and len(rows) > 1:
            other = rng.choice(rows)
            rows[at] = rows[at][: rng.randrange(len(rows[at]) + 1)] + other
        elif kind == 4:
            rows.insert(at, answer_row(rng, f"foreign-{rng.randrange(3)}"))
        elif kind == 5:
            rows.insert(at, rng.choice(GARBAGE))
        elif kind == 6 and rows:
            rows[at] = answer_row(rng, _id(rows[at]))
    newline = b"\r\n" if rng.random() < 0.2 else b"\n"
    data = newline.join(rows) + (newline if rng.random() < 0.8 else b"")
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data) + 1)]
    return (b"\xef\xbb\xbf" if rng.random() < 0.1 else b"") + data


def _id(row: bytes) -> str:
    try:
        found = json.loads(row)["custom_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "r-0"
    return found if isinstance(found, str) else "r-0"
