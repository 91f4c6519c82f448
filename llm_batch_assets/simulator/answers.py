"""What a model would have answered, before any provider's envelope is put around it."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import shake_256
from typing import Any, Literal

from llm_batch_assets.simulator.dice import digest
from llm_batch_assets.simulator.schema import Maker, broken

Stop = Literal["end", "length", "tool", "refusal", "filter", "unheard"]

REFUSAL = "I'm sorry, but I can't help with that request."


@dataclass(frozen=True, slots=True)
class Ask:
    """What an answer depends on, taken out of a provider's body."""

    text: str
    system: str = ""
    schema: Mapping[str, Any] | None = None
    json_mode: bool = False
    tool: tuple[str, Mapping[str, Any]] | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Text or a tool's input as JSON text, why it stopped, and tokens."""

    text: str
    stop: Stop
    tool: str | None
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0


def tokens(text: str) -> int:
    """A rough count: four characters each, as the providers' own rules of thumb say."""
    return -(-len(text) // 4) if text else 0


def answer(ask: Ask, rng: random.Random, fault: str | None, *, reasoning: bool = False) -> Answer:
    """The answer to a request, bent by at most one record fault."""
    natural = _natural(ask, rng)
    thought = 16 * (1 + rng.randrange(12)) if reasoning else 0
    stop: Stop = "tool" if ask.tool else "end"
    text = natural
    if fault == "refusal":
        text, stop = REFUSAL, "refusal"
    elif fault == "content_filter":
        text, stop = "", "filter"
    elif fault == "cut":
        text, stop = natural[: max(1, len(natural) * 2 // 3)], "length"
    elif fault == "invalid_json":
        text = natural[:-1] + ", ]" if len(natural) > 1 else "{"
    elif fault == "schema_violation":
        text = _violating(ask, natural)
    elif fault == "fenced":
        text = f"```json\n{natural}\n```"
    elif fault == "unknown_type":
        stop = "unheard"
    elif fault == "empty":
        text = ""
    elif fault == "nan":
        text = _inject(natural, "NaN")
    elif fault == "lone_surrogate":
        text = _inject(natural, '"\\ud83d"') if natural.startswith("{") else natural + "\ud83d"
    elif fault == "u2028":
        text = _separated(ask, natural)
    if ask.max_tokens is not None and fault is None and tokens(text) > ask.max_tokens:
        text, stop = text[: ask.max_tokens * 4], "length"
    if ask.max_tokens is not None:
        thought = min(thought, max(0, ask.max_tokens - tokens(text)))
    spent = tokens(text) + thought
    return Answer(
        text=text,
        stop=stop,
        tool=ask.tool[0] if ask.tool and stop in ("tool", "length") else None,
        input_tokens=tokens(ask.text) + tokens(ask.system) + 8,
        output_tokens=spent,
        reasoning_tokens=thought,
    )


def _natural(ask: Ask, rng: random.Random) -> str:
    schema = ask.tool[1] if ask.tool else ask.schema
    if schema is not None:
        return json.dumps(Maker(schema, ask.text, rng).make(), ensure_ascii=False)
    if ask.json_mode:
        return json.dumps({"answer": ask.text[:60], "nonce": f"{rng.getrandbits(24):06x}"})
    return f"About: {' '.join(ask.text.split())[:120]} [{rng.getrandbits(24):06x}]"


def _violating(ask: Ask, natural: str) -> str:
    schema = ask.tool[1] if ask.tool else ask.schema
    if schema is None:
        return ""
    return json.dumps(broken(json.loads(natural), schema), ensure_ascii=False)


def _separated(ask: Ask, natural: str) -> str:
    """A raw U+2028 where any text may stand, so that the answer stays what was asked for."""
    schema = ask.tool[1] if ask.tool else ask.schema
    if not natural.startswith("{"):
        return natural if natural.startswith("[") else natural + "\u2028"
    members, rules = json.loads(natural), (schema or {}).get("properties", {})
    bound = ("enum", "const", "pattern", "format", "maxLength", "$ref")
    for name in reversed(members):
        if isinstance(members[name], str) and not any(key in rules.get(name, {}) for key in bound):
            members[name] += "\u2028"
            break
    return json.dumps(members, ensure_ascii=False)


def _inject(natural: str, literal: str) -> str:
    """Put a literal where the first member's value was, or use it as the whole answer."""
    if not natural.startswith("{"):
        return literal
    members = json.loads(natural)
    marker = digest("marker", natural)
    for name in members:
        members[name] = marker
        break
    return json.dumps(members, ensure_ascii=False).replace(f'"{marker}"', literal)


def embedding(text: str, dimensions: int) -> list[float]:
    """A vector of fixed length that depends on the text alone."""
    raw = array("h", shake_256(text.encode("utf-8", "surrogatepass")).digest(2 * dimensions))
    scale = 1.0 / (32768.0 * dimensions**0.5 / 1.7320508)
    return [round(value * scale, 7) for value in raw]
