"""Answers satisfy whatever schema they are asked for."""

from __future__ import annotations

import random
from typing import Any

import jsonschema_rs
import pytest

from llm_batch_assets.simulator.schema import Maker, broken

SCHEMAS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "string", "minLength": 200, "maxLength": 210},
    {"type": "string", "maxLength": 3},
    {"type": "string", "pattern": r"^[A-Z]{3}-\d{4}$"},
    {"type": "string", "pattern": r"^(red|green)+x?[^ab]$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "email"},
    {"type": "integer", "minimum": 3, "maximum": 4},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "maximum": -5},
    {"type": "integer", "multipleOf": 7, "minimum": 20},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["string", "null"]},
    {"enum": ["a", 1, None]},
    {"const": {"x": 1}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 3},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "maxItems": 2},
    {"anyOf": [{"type": "integer"}, {"type": "object", "required": ["a"],
                                     "properties": {"a": {"type": "boolean"}}}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
               {"properties": {"b": {"type": "string"}}}]},
    {"type": "object", "required": ["free"], "properties": {}},
    {"$defs": {"node": {"type": "object", "required": ["name", "next"],
                        "additionalProperties": False,
                        "properties": {"name": {"type": "string"},
                                       "next": {"anyOf": [{"$ref": "#/$defs/node"},
                                                          {"type": "null"}]}}}},
     "$ref": "#/$defs/node"},
    {"type": "object", "additionalProperties": False, "required": ["items", "score"],
     "properties": {"items": {"type": "array", "items": {
         "type": "object", "required": ["label"], "additionalProperties": False,
         "properties": {"label": {"enum": ["x", "y"]}, "note": {"type": ["string", "null"]}}}},
         "score": {"type": "number", "minimum": 0, "maximum": 10}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_values_satisfy_their_schema(schema: dict[str, Any]) -> None:
    for seed in range(40):
        value = Maker(schema, "Some words to talk about", random.Random(seed)).make()
        jsonschema_rs.validate(schema, value)


@pytest.mark.parametrize("text", ["", "....", "日本語のテキスト", "a" * 5000, "\u2028\x00"])
def test_any_text_will_do(text: str) -> None:
    assert isinstance(Maker({"type": "string"}, text, random.Random(1)).make(), str)


@pytest.mark.parametrize(
    "schema", [one for one in SCHEMAS if one.get("required") or one.get("type") == "array"]
)
def test_broken_values_break_their_schema(schema: dict[str, Any]) -> None:
    value = Maker(schema, "words", random.Random(3)).make()
    assert not jsonschema_rs.is_valid(schema, broken(value, schema))
