"""Gemini request lines: ``{"key","request"}`` in a JSONL file (providers.md 3.3, 3.4).

File mode only: inline responses came back without their keys (python-genai #2008), and inline
embeddings carry none at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_batch_assets.errors import WorkloadError
from llm_batch_assets.wire.ask import (
    Ask,
    Encoder,
    Limits,
    Message,
    dumps,
    fragment,
    image_type,
    settings,
    slice_body,
    tool_specs,
)
from llm_batch_assets.wire.schemas import gemini_schema

LIMITS = Limits(records=None, bytes=2_000_000_000)
ENDPOINTS = ("generateContent", "embedContent")
EMBEDDING_ENDPOINT: str | None = "embedContent"

_NAMES = {
    "max_output_tokens": "maxOutputTokens",
    "max_tokens": "maxOutputTokens",
    "top_p": "topP",
    "top_k": "topK",
    "stop": "stopSequences",
}
_RESERVED = frozenset(
    {
        "model",
        "contents",
        "systemInstruction",
        "system_instruction",
        "tools",
        "toolConfig",
        "tool_config",
        "responseSchema",
        "response_schema",
        "responseJsonSchema",
        "response_json_schema",
        "responseMimeType",
        "response_mime_type",
        "candidateCount",
        "candidate_count",
    }
)
_TOP_LEVEL = ("safetySettings", "cachedContent", "labels")
"""Settings that live beside ``generationConfig``, not in it."""


def request_line(wire_id: str, body: bytes, endpoint: str) -> bytes:
    """One line of a request file. ``endpoint`` is not part of it."""
    return b'{"key":"%b","request":' % wire_id.encode("ascii") + body + b"}\n"


def request_body(line: bytes) -> bytes:
    """The request's bytes inside a line that ``request_line`` wrote."""
    return slice_body(line, b',"request":', 2)


def encoder(ask: Ask) -> Encoder:
    """From rendered messages to the REST request; the model is the batch's, not the line's.

    Raises:
        WorkloadError: for what this API cannot ask.
    """
    if (ask.answer == "embedding") != (ask.endpoint == EMBEDDING_ENDPOINT):
        raise WorkloadError(
            f"endpoint: {ask.endpoint} does not give output.answer: {ask.answer}; write "
            "embedContent for embeddings, generateContent for the rest."
        )
    if ask.endpoint == EMBEDDING_ENDPOINT:
        return _embeddings(ask)
    if ask.endpoint != "generateContent":
        raise WorkloadError(f"endpoint: write one of {', '.join(ENDPOINTS)}.")
    config = settings(
        ask,
        provider="gemini",
        names=_NAMES,
        unsupported={"dimensions": "only embeddings have dimensions; remove it."},
        reserved=_RESERVED,
    )
    body: dict[str, Any] = {name: config.pop(name) for name in _TOP_LEVEL if name in config}
    if isinstance(config.get("stopSequences"), str):
        config["stopSequences"] = [config["stopSequences"]]
    effort = config.pop("reasoning_effort", None)
    if effort is not None:
        config["thinkingConfig"] = {**config.get("thinkingConfig", {}), "thinkingLevel": effort}
    if ask.answer == "json":
        config["responseMimeType"] = "application/json"
        schema = gemini_schema(ask.schema or {})
        if schema is not None:
            config["responseSchema"] = schema
        else:
            config["responseJsonSchema"] = ask.schema
    if ask.system is not None:
        body["systemInstruction"] = {"parts": [{"text": ask.system}]}
    if config:
        body["generationConfig"] = config
    body.update(_tools(ask))
    tail = {name: fragment(value) for name, value in body.items()}

    def encode(messages: Sequence[Message]) -> bytes:
        return dumps({"contents": list(map(_content, messages)), **tail})

    return encode


def _tools(ask: Ask) -> dict[str, Any]:
    tools = tool_specs(ask)
    if not tools:
        return {}
    declarations = [
        {
            "name": tool.name,
            **({"description": tool.description} if tool.description else {}),
            **_parameters(tool.schema),
        }
        for tool in tools
    ]
    found: dict[str, Any] = {"tools": [{"functionDeclarations": declarations}]}
    if ask.answer == "tool":
        names = [tool.name for tool in tools]
        found["toolConfig"] = {
            "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": names}
        }
    return found


def _parameters(schema: Any) -> dict[str, Any]:
    simple = gemini_schema(schema)
    return {"parameters": simple} if simple is not None else {"parametersJsonSchema": schema}


def _content(message: Message) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"text": message.text}]
    parts += [
        {"fileData": {"mimeType": image_type(address), "fileUri": address}}
        for address in message.images
    ]
    return {"role": "model" if message.role == "assistant" else "user", "parts": parts}


def _embeddings(ask: Ask) -> Encoder:
    no = "embeddings do not take it; remove it."
    body = settings(
        ask,
        provider="gemini",
        names={
            "dimensions": "outputDimensionality",
            "output_dimensionality": "outputDimensionality",
            "task_type": "taskType",
        },
        unsupported=dict.fromkeys(
            (
                "max_output_tokens",
                "temperature",
                "top_p",
                "top_k",
                "seed",
                "stop",
                "reasoning_effort",
            ),
            no,
        ),
        reserved=_RESERVED,
    )
    if ask.system is not None or ask.tools:
        raise WorkloadError("prompt.system, tools: embeddings take neither; remove them.")
    tail = {name: fragment(value) for name, value in body.items()}

    def encode(messages: Sequence[Message]) -> bytes:
        return dumps({"content": {"parts": [{"text": messages[0].text}]}, **tail})

    return encode
