"""JSON Schema under each provider's rules: what may be enforced, what must be translated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_STRICT_UNSUPPORTED = frozenset(
    {
        "allOf",
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "patternProperties",
        "propertyNames",
        "unevaluatedProperties",
        "unevaluatedItems",
        "contains",
        "prefixItems",
        "oneOf",
        "uniqueItems",
        "$dynamicRef",
    }
)
_SUBSCHEMAS = ("properties", "$defs", "definitions")


def strict_fault(schema: Mapping[str, Any], where: str = "schema") -> str | None:
    """Why OpenAI's strict mode would refuse a schema, or None.

    Strict mode wants every object closed and every property required, and an object at the root
    (guide "Structured Outputs", supported schemas).
    """
    if where == "schema" and (schema.get("type") != "object" or "anyOf" in schema):
        return "schema: the root must be type: object, without anyOf"
    unsupported = _STRICT_UNSUPPORTED.intersection(schema)
    if unsupported:
        return f"{where}: {sorted(unsupported)[0]} is not supported"
    if "properties" in schema or _is_object(schema):
        if schema.get("additionalProperties") is not False:
            return f"{where}: write additionalProperties: false"
        optional = sorted(set(schema.get("properties", {})) - set(schema.get("required", ())))
        if optional:
            return f"{where}: list {optional[0]} under required"
    for name, child in _children(schema):
        if not isinstance(child, Mapping):
            return f"{where}.{name}: write a schema, not {child!r}"
        fault = strict_fault(child, f"{where}.{name}")
        if fault is not None:
            return fault
    return None


def _is_object(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def _children(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for group in _SUBSCHEMAS:
        if isinstance(schema.get(group), Mapping):
            found += [(f"{group}.{name}", child) for name, child in schema[group].items()]
    if "items" in schema:
        found.append(("items", schema["items"]))
    for number, child in enumerate(schema.get("anyOf", ())):
        found.append((f"anyOf.{number}", child))
    return found


_GEMINI_KEYS = frozenset(
    {
        "type",
        "format",
        "title",
        "description",
        "nullable",
        "enum",
        "items",
        "maxItems",
        "minItems",
        "properties",
        "required",
        "propertyOrdering",
        "minProperties",
        "maxProperties",
        "minLength",
        "maxLength",
        "pattern",
        "minimum",
        "maximum",
        "anyOf",
        "example",
        "default",
    }
)
_GEMINI_DROPPED = frozenset({"$schema", "$id", "$comment", "additionalProperties", "examples"})


def gemini_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema as Gemini's ``responseSchema`` (a subset of OpenAPI 3.0), or None.

    None means that it says something the subset cannot say; ``responseJsonSchema`` can, but gave
    degenerate output in batches (crmne/ruby_llm#894), so it is the second choice. What is dropped
    here (``additionalProperties: false``) is still required of the answer by our own validation.
    """
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _GEMINI_DROPPED:
            if key == "additionalProperties" and value not in (False, True):
                return None
            continue
        if key == "const":
            key, value = "enum", [value]
        if key not in _GEMINI_KEYS:
            return None
        if key == "enum" and not all(isinstance(item, str) for item in value):
            return None
        if key == "type" and isinstance(value, list):
            kinds = [kind for kind in value if kind != "null"]
            if len(kinds) != 1:
                return None
            if "null" in value:
                found["nullable"] = True
            value = kinds[0]
        if key == "type":
            value = value.upper()
        elif key == "properties":
            children = {name: _gemini_child(child) for name, child in value.items()}
            if None in children.values():
                return None
            # The order of generation follows ``propertyOrdering``, not JSON's.
            found.setdefault("propertyOrdering", list(children))
            value = children
        elif key == "items":
            value = _gemini_child(value)
            if value is None:
                return None
        elif key == "anyOf":
            value = [_gemini_child(child) for child in value]
            if None in value:
                return None
        found[key] = value
    return found


def _gemini_child(schema: Any) -> dict[str, Any] | None:
    return gemini_schema(schema) if isinstance(schema, Mapping) else None
