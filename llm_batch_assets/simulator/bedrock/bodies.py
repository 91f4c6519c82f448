"""Model inputs and outputs: InvokeModel bodies by model family, and Converse."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

from llm_batch_assets.simulator.answers import Ask, answer, embedding, tokens
from llm_batch_assets.simulator.anthropic import messages

FAMILIES = {
    "anthropic": re.compile(r"(^|\.|/)anthropic\.claude"),
    "nova": re.compile(r"(^|\.|/)amazon\.nova"),
    "titan-embed": re.compile(r"(^|\.|/)amazon\.titan-embed"),
    "cohere-embed": re.compile(r"(^|\.|/)cohere\.embed"),
}
_STOPS = {
    "end": "end_turn",
    "length": "max_tokens",
    "tool": "tool_use",
    "refusal": "content_filtered",
    "filter": "content_filtered",
    "unheard": "reticulated",
}
_NULLS = ("image", "document", "toolUse", "toolResult", "reasoningContent")
Made = tuple[dict[str, Any], dict[str, int], str | None]


class InputError(Exception):
    """A model input that the model refuses: a record error with code 400."""


def family(model: str) -> str | None:
    """The family of a model id or inference profile; None for one that is not served."""
    return next((name for name, one in FAMILIES.items() if one.search(model)), None)


def invoke(
    body: Mapping[str, Any],
    model: str,
    kind: str,
    fault: str | None,
    rng: random.Random,
    *,
    nulls: bool,
) -> Made:
    """The model output for one record.

    Raises:
        InputError: The record is one that the model refuses.
    """
    served = family(model)
    if kind == "Converse" or served == "nova":
        return _converse(body, fault, rng, strict=kind == "Converse", nulls=nulls)
    if served == "titan-embed":
        return _titan(body)
    if served == "cohere-embed":
        return _cohere(body, rng)
    return _claude(body, model, fault, rng)


def _claude(body: Mapping[str, Any], model: str, fault: str | None, rng: random.Random) -> Made:
    if body.get("anthropic_version") != "bedrock-2023-05-31":
        raise InputError("anthropic_version: Field required")
    for name in ("model", "modelId", "stream"):
        if name in body:
            raise InputError(f"{name}: Extra inputs are not permitted")
    match = re.search(r"claude-[a-z0-9.-]+?(?=-v\d+(:\d+)?$|$)", model)
    params = {**body, "model": match[0] if match else "claude"}
    try:
        messages.check_params(params, "2023-06-01")
        made = messages.message(params, fault, rng, (0, 0, "5m"), prefix="msg_bdrk_")
    except messages.ParamsError as error:
        raise InputError(str(error)) from error
    usage = made[0]["usage"]
    usage.pop("service_tier")
    usage.pop("output_tokens_details")
    return made


def _converse(
    body: Mapping[str, Any], fault: str | None, rng: random.Random, *, strict: bool, nulls: bool
) -> Made:
    refused = ("modelId", "toolConfig", "guardrailConfig") if strict else ()
    for name in refused:
        if name in body:
            raise InputError(f"{name}: Extra inputs are not permitted")
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise InputError("messages: Field required")
    blocks = [*(body.get("system") or []), *(b for m in given for b in m.get("content") or [])]
    if any("cachePoint" in block for block in blocks):
        raise InputError("cachePoint is not supported in batch inference")
    made = answer(
        Ask(
            text="\n".join(_text(one.get("content")) for one in given),
            system=_text(body.get("system")),
            schema=_schema(body),
            max_tokens=(body.get("inferenceConfig") or {}).get("maxTokens"),
        ),
        rng,
        fault,
    )
    block: dict[str, Any] = {"text": made.text}
    if nulls:
        block |= dict.fromkeys(_NULLS)
    empty = made.stop == "filter" or not made.text
    output = {
        "output": {"message": {"role": "assistant", "content": [] if empty else [block]}},
        "stopReason": _STOPS[made.stop],
        "usage": {
            "inputTokens": made.input_tokens,
            "outputTokens": made.output_tokens,
            "totalTokens": made.input_tokens + made.output_tokens,
            "cacheReadInputTokens": 0,
            "cacheWriteInputTokens": 0,
        },
        "metrics": {"latencyMs": 200 + rng.randrange(2000)},
    }
    count = {"input": made.input_tokens, "output": made.output_tokens}
    return output, count, "cut" if made.stop == "length" else None


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    form = (body.get("outputConfig") or {}).get("textFormat") or {}
    if form.get("type") != "json_schema":
        return None
    text = ((form.get("structure") or {}).get("jsonSchema") or {}).get("schema")
    try:
        schema = json.loads(str(text))
    except ValueError as error:
        raise InputError("outputConfig: the schema is no JSON text") from error
    return schema if isinstance(schema, Mapping) else None


def _text(content: Any) -> str:
    parts = []
    for block in content or []:
        image = (block.get("image") or {}).get("source") or {}
        parts.append(str(block.get("text") or (image.get("s3Location") or {}).get("uri") or ""))
    return "\n".join(parts)


def _titan(body: Mapping[str, Any]) -> Made:
    text = body.get("inputText")
    if not isinstance(text, str) or not text:
        raise InputError("inputText: Field required")
    used = tokens(text)
    vector = embedding(text, int(body.get("dimensions") or 1024))
    return {"embedding": vector, "inputTextTokenCount": used}, {"input": used}, "plain"


def _cohere(body: Mapping[str, Any], rng: random.Random) -> Made:
    texts = body.get("texts")
    if not isinstance(texts, list) or not texts or not body.get("input_type"):
        raise InputError("texts and input_type are required")
    output = {
        "id": f"{rng.getrandbits(96):024x}",
        "texts": texts,
        "embeddings": [embedding(str(one), 1024) for one in texts],
        "response_type": "embeddings_floats",
    }
    return output, {"input": sum(tokens(str(one)) for one in texts)}, "plain"
