"""Answers from a JSON schema: values that satisfy it and depend on the request's text."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

_WORD = re.compile(r"[^\W_]+", re.UNICODE)
_DEPTH = 12


class Maker:
    """Makes one value for one schema; everything it draws comes from ``rng`` and ``text``."""

    def __init__(self, schema: Mapping[str, Any], text: str, rng: random.Random) -> None:
        self._root = schema
        self._rng = rng
        self._words = _WORD.findall(text[:2000])[:40] or ["nothing"]

    def make(self) -> Any:
        """A value that satisfies the schema."""
        return self._value(self._root, "answer", 0)

    def _value(self, schema: Any, name: str, depth: int) -> Any:
        if schema is True or schema == {} or not isinstance(schema, Mapping):
            return self._sentence(name, 0, 80)
        if "$ref" in schema:
            return self._value(self._resolve(schema["$ref"]), name, depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._rng.choice(list(schema["enum"]))
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return self._value(self._branch(schema[key], depth), name, depth + 1)
        if schema.get("allOf"):
            merged = {**schema, "allOf": None}
            for part in schema["allOf"]:
                whole = self._resolve(part["$ref"]) if "$ref" in part else part
                merged = {
                    **merged,
                    **whole,
                    "properties": {**merged.get("properties", {}), **whole.get("properties", {})},
                }
            return self._value(merged, name, depth + 1)
        return self._typed(schema, self._type(schema, depth), name, depth)

    def _type(self, schema: Mapping[str, Any], depth: int) -> str:
        kind = schema.get("type")
        if isinstance(kind, list):
            if "null" in kind and (depth > _DEPTH or self._rng.random() < 0.1):
                return "null"
            kind = next((one for one in kind if one != "null"), "null")
        if kind is None:
            kind = (
                "object" if "properties" in schema else "array" if "items" in schema else "string"
            )
        # Gemini's responseSchema writes its types in capitals.
        return str(kind).lower()

    def _typed(self, schema: Mapping[str, Any], kind: str, name: str, depth: int) -> Any:
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind in ("integer", "number"):
            return self._number(schema, kind)
        if kind == "boolean":
            return self._rng.random() < 0.5
        if kind == "null":
            return None
        return self._string(schema, name)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        required = list(schema.get("required") or [])
        properties = dict(schema.get("properties") or {})
        names = [one for one in properties if one in required or depth < _DEPTH // 2]
        names += [one for one in required if one not in properties]
        return {one: self._value(properties.get(one, True), one, depth + 1) for one in names}

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        low = int(schema.get("minItems") or 0)
        high = int(schema.get("maxItems") or max(low, 3))
        wanted = low if depth > _DEPTH else max(low, min(high, 1 + self._rng.randrange(3)))
        made = [self._value(one, name, depth + 1) for one in schema.get("prefixItems", [])]
        tries = 0
        while len(made) < wanted and tries < 50:
            tries += 1
            value = self._value(schema.get("items", True), name, depth + 1)
            if not (schema.get("uniqueItems") and value in made):
                made.append(value)
        return made

    def _number(self, schema: Mapping[str, Any], kind: str) -> int | float:
        step = schema.get("multipleOf") or (1 if kind == "integer" else 0.01)
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        if low is None:
            low = 0 if high is None or high > 0 else high - 100 * step
        if high is None:
            high = low + 100 * step
        first = int(-(-low // step)) + (schema.get("exclusiveMinimum") == low)
        last = int(high // step) - (schema.get("exclusiveMaximum") == high)
        value = self._rng.randint(first, max(first, last)) * step
        return int(value) if kind == "integer" else round(value, 6)

    def _string(self, schema: Mapping[str, Any], name: str) -> str:
        form = schema.get("format")
        if form in ("date", "date-time", "time"):
            moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(
                minutes=self._rng.randrange(500_000)
            )
            return {
                "date": moment.date().isoformat(),
                "date-time": moment.isoformat().replace("+00:00", "Z"),
                "time": moment.time().isoformat() + "Z",
            }[form]
        if form == "uuid":
            return str(UUID(int=self._rng.getrandbits(128), version=4))
        if form == "email":
            return f"{self._rng.getrandbits(32):x}@example.org"
        if form in ("uri", "uri-reference"):
            return f"https://example.org/{self._rng.getrandbits(32):x}"
        if schema.get("pattern"):
            return matching(str(schema["pattern"]), self._rng)
        low, high = int(schema.get("minLength") or 0), int(schema.get("maxLength") or 80)
        return self._sentence(name, low, max(low, high))

    def _sentence(self, name: str, low: int, high: int) -> str:
        start = self._rng.randrange(max(1, len(self._words) - 5))
        words = [name.replace("_", " "), *self._words[start : start + 6]]
        text = " ".join([*words, f"{self._rng.getrandbits(24):06x}"])
        while len(text) < low:
            text += " " + self._rng.choice(self._words)
        return text[: max(low, high)]

    def _branch(self, branches: Sequence[Any], depth: int) -> Any:
        if depth > _DEPTH // 2:
            plain = [one for one in branches if one.get("type") in ("null", "string", "integer")]
            branches = plain or branches
        return self._rng.choice(list(branches))

    def _resolve(self, ref: str) -> Any:
        node: Any = self._root
        for part in ref.removeprefix("#").strip("/").split("/"):
            if part:
                node = node[part.replace("~1", "/").replace("~0", "~")]
        return node


def matching(pattern: str, rng: random.Random) -> str:
    """A string for a simple regular expression: classes, groups, counts and alternatives."""
    from re import _parser  # type: ignore[attr-defined]

    def draw(parsed: Any) -> str:
        return "".join(one(str(op), arg) for op, arg in parsed)

    def pick(items: Any) -> str:
        op, arg = str(items[0][0]), items[0][1]
        if op == "NEGATE":
            bad = {chr(a) for o, a in items if str(o) == "LITERAL"}
            return next(c for c in "xyzabc0189 -" if c not in bad)
        op, arg = rng.choice(list(items))
        return one(str(op), arg)

    def one(op: str, arg: Any) -> str:
        if op == "LITERAL":
            return chr(arg)
        if op == "RANGE":
            return chr(rng.randint(arg[0], arg[1]))
        if op == "IN":
            return pick(arg)
        if op == "ANY":
            return rng.choice("abcxyz")
        if op == "CATEGORY":
            name = str(arg)
            return rng.choice("0123456789" if "DIGIT" in name else " " if "SPACE" in name else "ab")
        if op in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, inner = arg
            times = rng.randint(low, min(int(high), low + 5))
            return "".join(draw(inner) for _ in range(times))
        if op == "SUBPATTERN":
            return draw(arg[-1])
        if op == "BRANCH":
            return draw(rng.choice(arg[1]))
        return ""

    return draw(_parser.parse(pattern))


def broken(value: Any, schema: Mapping[str, Any]) -> Any:
    """A value that is JSON and breaks the schema that ``value`` satisfies."""
    if isinstance(value, dict) and schema.get("required"):
        gone = list(schema["required"])[-1]
        return {name: one for name, one in value.items() if name != gone}
    return {"unexpected": True} if isinstance(value, (list, str)) else ["unexpected"]
