"""Embedding answers: count, index order, dimension, finite numbers, the provider's digits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_batch_assets_tests.wire import rowmaker as make


def vectors(*pairs: tuple[int, Any]) -> bytes:
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in pairs]
    return make.openai("a", {"object": "list", "model": "text-embedding-3-small", "data": data})


@pytest.mark.parametrize(
    ("data", "rules", "reason"),
    [
        (vectors((1, [3.0, 4.0]), (0, [1.0, 2.0])), {"inputs_per_record": 2}, None),
        (vectors((0, [1.0, 2.0])), {"dimensions": 2}, None),
        (vectors((0, "AACAPwAAAEA=")), {"dimensions": 2}, None),
        (vectors((0, [1.0])), {"inputs_per_record": {"a": 2}}, "vector_count"),
        (vectors((0, [1.0]), (1, [2.0])), {"inputs_per_record": 1}, "vector_count"),
        (vectors((0, [1.0]), (0, [2.0])), {}, "malformed_body"),
        (vectors((0, [1.0]), (2, [2.0])), {}, "malformed_body"),
        (vectors((0, [1.0]), (True, [2.0])), {}, "malformed_body"),
        (vectors((0, [1.0]), (1, [2.0, 3.0])), {}, "vector_dimension"),
        (vectors((0, [1.0, 2.0])), {"dimensions": 3}, "vector_dimension"),
        (vectors((0, [])), {}, "vector_dimension"),
        (vectors((0, [1.0, None])), {}, "vector_value"),
        (vectors((0, [1.0, "2"])), {}, "vector_value"),
        (vectors((0, [True])), {}, "vector_value"),
        (vectors((0, None)), {}, "vector_value"),
        (vectors((0, "AACAPwAA")), {}, "vector_value"),
        (vectors((0, "not base64!")), {}, "vector_value"),
        (vectors((0, "AADAfwAAwH8=")), {}, "vector_value"),
        (vectors(), {}, "malformed_body"),
        (make.openai("a", {"data": None}), {}, "malformed_body"),
        (make.openai("a", {"data": [7]}), {}, "malformed_body"),
    ],
)
def test_embeddings(data: bytes, rules: dict[str, Any], reason: str | None) -> None:
    row = make.only("openai", data, answer="embedding", **rules)
    if reason is None:
        assert row["cls"] == "succeeded"
        assert json.loads(row["answer"])[0] in ([1.0, 2.0], "AACAPwAAAEA=")
    else:
        assert (row["cls"], row["reason"], row["unqualified"]) == ("retryable", reason, True)


def test_vectors_keep_their_digits_in_index_order() -> None:
    data = vectors((1, [9]), (0, [8])).replace(b"[9]", b"[0.10, 1e-07]").replace(b"[8]", b"[2, 3]")
    assert make.only("openai", data)["answer"] == "[[2, 3],[0.10, 1e-07]]"


def test_the_answers_kind_is_what_was_asked_for() -> None:
    text = make.openai("a", make.responses())
    assert make.only("openai", text, answer="embedding")["reason"] == "wrong_answer_kind"
    data = vectors((0, [1.0]))
    assert make.only("openai", data, answer="text")["reason"] == "wrong_answer_kind"
    for provider, row in (
        ("gemini", make.line({"key": "a", "response": {"embedding": {"values": [1]}}})),
        ("bedrock", make.bedrock("a", {"embedding": [1.0]})),
    ):
        assert make.only(provider, row, answer="json")["reason"] == "wrong_answer_kind"
        assert make.only(provider, row, answer="embedding")["cls"] == "succeeded"
