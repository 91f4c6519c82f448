"""Synthetic OpenAI result rows of about 1 KB, as the responses endpoint writes them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator

SCHEMA = {
    "type": "object",
    "required": ["summary", "topic"],
    "additionalProperties": False,
    "properties": {
        "summary": {"type": "string", "minLength": 1},
        "topic": {"type": "string"},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
    },
}
MODEL = "gpt-5-mini-2025-08-07"
_TEXT = """
returns the number of lines in a file object and closes it; raises OSError: when the path is
missing, é or ü are kept, the default encoding is utf-8 and nothing is written
"""
_WORDS = tuple(_TEXT.split())


def wire_ids(tag: str, first: int, count: int) -> list[str]:
    """Ids of the product's own form: tag, dash, 43 characters."""
    ids = []
    for number in range(first, first + count):
        name = hashlib.sha256(b"%d" % number).hexdigest()[:43]
        ids.append(f"{tag}-{name}")
    return ids


def lines(ids: list[str], seed: int) -> Iterator[bytes]:
    """One line per id, in another order; 1 in 50 is an error of some kind."""
    rng = random.Random(seed)
    order = list(ids)
    rng.shuffle(order)
    for number, wire_id in enumerate(order):
        if number % 50 == 7:
            yield _error(wire_id, number)
        else:
            yield _answer(wire_id, rng)


def _answer(wire_id: str, rng: random.Random) -> bytes:
    words = rng.choices(_WORDS, k=24)
    answer = {"summary": " ".join(words), "topic": words[0], "score": round(rng.random(), 3)}
    body = {
        "id": f"resp_{rng.getrandbits(160):040x}",
        "object": "response",
        "created_at": 1795000000,
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "model": MODEL,
        "output": [
            {
                "type": "message",
                "id": f"msg_{rng.getrandbits(160):040x}",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": json.dumps(answer), "annotations": []}],
            }
        ],
        "reasoning": {"effort": "low", "summary": None},
        "temperature": 1.0,
        "text": {"format": {"type": "json_schema", "name": "answer", "strict": True}},
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": 100 + rng.randrange(100),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 40 + rng.randrange(40),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 200,
        },
        "metadata": {},
    }
    row = {
        "id": f"batch_req_{rng.getrandbits(96):024x}",
        "custom_id": wire_id,
        "response": {
            "status_code": 200,
            "request_id": f"{rng.getrandbits(128):032x}",
            "body": body,
        },
        "error": None,
    }
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _error(wire_id: str, number: int) -> bytes:
    status, code = ((500, "server_error"), (400, "invalid_value"), (429, "rate_limit_exceeded"))[
        number % 3
    ]
    error = {"message": "synthetic", "type": code, "param": None, "code": code}
    row = {
        "id": f"batch_req_{number}",
        "custom_id": wire_id,
        "response": {"status_code": status, "request_id": "r", "body": {"error": error}},
        "error": None,
    }
    return json.dumps(row).encode() + b"\n"
