"""GenerateContent and EmbedContent: what is asked, and the response that answers."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

from llm_batch_assets.simulator.answers import Answer, Ask, answer, embedding, tokens
from llm_batch_assets.simulator.gemini.wire import field

KNOWN_MODEL = re.compile(r"^(gemini-|gemma-|text-embedding-|embedding-)")
_THINKING = re.compile(r"^gemini-(2\.5|3)")


class ContentError(Exception):
    """A request that the model's endpoint refuses: google.rpc code 3."""


def generate(
    request: Mapping[str, Any], model: str, fault: str | None, rng: random.Random
) -> tuple[dict[str, Any], dict[str, int], str | None]:
    """A GenerateContentResponse, its token counts and ``cut`` where the limit cut it.

    Raises:
        ContentError: The request is one that the API refuses.
    """
    made = answer(_ask(request), rng, fault, reasoning=bool(_THINKING.match(model)))
    served = "gemini-2.0-flash-lite" if fault == "other_model" else model
    response: dict[str, Any] = {}
    seen = made.output_tokens - made.reasoning_tokens
    if made.stop == "filter":
        response["promptFeedback"] = {"blockReason": "PROHIBITED_CONTENT"}
        seen = 0
    else:
        response["candidates"] = [_candidate(made, fault)]
    usage = {
        "promptTokenCount": made.input_tokens,
        "candidatesTokenCount": seen,
        "thoughtsTokenCount": made.reasoning_tokens if made.stop != "filter" else 0,
        "totalTokenCount": made.input_tokens + seen + made.reasoning_tokens,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": made.input_tokens}],
    }
    response |= {
        "usageMetadata": {name: value for name, value in usage.items() if value},
        "modelVersion": served,
        "responseId": f"{rng.getrandbits(96):024x}",
    }
    count = {
        "input": made.input_tokens,
        "output": made.output_tokens,
        "reasoning": made.reasoning_tokens,
    }
    return response, count, "cut" if made.stop == "length" else None


def _candidate(made: Answer, fault: str | None) -> dict[str, Any]:
    if made.stop == "refusal":
        return {"finishReason": "SAFETY", "index": 0}
    finish = {"length": "MAX_TOKENS", "unheard": "RETICULATED"}.get(made.stop, "STOP")
    part: dict[str, Any] = {"text": made.text}
    if made.tool:
        try:
            part = {"functionCall": {"name": made.tool, "args": json.loads(made.text)}}
        except ValueError:
            if made.stop != "length":
                return {"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}
    content: dict[str, Any] = {"parts": [part], "role": "model"}
    if fault == "empty" or not made.text:
        content = {"role": "model"}
    return {"content": content, "finishReason": finish, "index": 0}


def _ask(request: Mapping[str, Any]) -> Ask:
    contents = field(request, "contents")
    if isinstance(contents, Mapping):
        contents = [contents]
    if not isinstance(contents, list) or not contents:
        raise ContentError("contents is not specified")
    if "config" in request:
        raise ContentError('Invalid JSON payload received. Unknown name "config"')
    config = field(request, "generationConfig", {})
    schema = field(config, "responseSchema") or field(config, "responseJsonSchema")
    plain = field(config, "responseMimeType") == "application/json"
    if schema is not None and not plain:
        raise ContentError("response_schema needs response_mime_type application/json")
    return Ask(
        text="\n".join(_text(one) for one in contents),
        system=_text(field(request, "systemInstruction", {})),
        schema=_plain_schema(schema) if schema is not None else None,
        json_mode=plain,
        tool=_tool(request),
        max_tokens=field(config, "maxOutputTokens"),
    )


def _plain_schema(schema: Any) -> Any:
    """Gemini's own schema dialect as JSON Schema: type names in lower case, counts as numbers."""
    if isinstance(schema, list):
        return [_plain_schema(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "type" and isinstance(value, str):
            plain[name] = value.lower()
        elif name in ("properties", "$defs") and isinstance(value, Mapping):
            plain[name] = {key: _plain_schema(one) for key, one in value.items()}
        elif name in ("minItems", "maxItems", "minLength", "maxLength"):
            plain[name] = int(value)
        elif name in ("enum", "required", "const"):
            plain[name] = value
        else:
            plain[name] = _plain_schema(value)
    return plain


def _text(content: Any) -> str:
    found = []
    for part in field(content, "parts", []) or []:
        data = field(part, "fileData", {})
        found.append(str(part.get("text") or field(data, "fileUri", "") or ""))
    return "\n".join(found)


def _tool(request: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    calling = field(field(request, "toolConfig", {}), "functionCallingConfig", {})
    if str(calling.get("mode", "")).upper() != "ANY":
        return None
    offered = [
        one
        for tool in request.get("tools") or []
        for one in field(tool, "functionDeclarations", []) or []
    ]
    allowed = field(calling, "allowedFunctionNames") or [one.get("name") for one in offered]
    for one in offered:
        if one.get("name") in allowed:
            schema = field(one, "parametersJsonSchema") or one.get("parameters") or {}
            return str(one["name"]), _plain_schema(schema) or {"type": "object"}
    raise ContentError("allowed_function_names names no function of tools")


def embed(request: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """An embedding with its token count."""
    content = field(request, "content")
    if not content:
        raise ContentError("content is not specified")
    text = _text(content)
    size = int(field(request, "outputDimensionality") or 3072)
    used = tokens(text)
    body = {"embedding": {"values": embedding(text, size)}, "tokenCount": str(used)}
    return body, {"input": used, "output": 0}
