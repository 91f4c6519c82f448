"""OpenAI request lines: ``{"custom_id","method","url","body"}`` (providers.md 1.3, 1.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_batch_assets.errors import WorkloadError
from llm_batch_assets.wire.ask import (
    Ask,
    Encoder,
    Limits,
    Message,
    dumps,
    fragment,
    settings,
    slice_body,
    tool_specs,
)
from llm_batch_assets.wire.schemas import strict_fault

LIMITS = Limits(records=50_000, bytes=200_000_000, inputs=50_000)
ENDPOINTS = ("/v1/responses", "/v1/chat/completions", "/v1/embeddings")
EMBEDDING_ENDPOINT: str | None = "/v1/embeddings"
BATCH_ENDPOINTS = (
    *ENDPOINTS,
    "/v1/completions",
    "/v1/moderations",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/videos",
)
"""Every endpoint that a batch may name (SDK 3.57.0); the others only with native bodies."""

_RESERVED = frozenset(
    {
        "model",
        "input",
        "instructions",
        "messages",
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        "response_format",
        "stream",
        "stream_options",
        "background",
        "n",
        "metadata",
        "previous_response_id",
        "conversation",
    }
)
_NO_TOP_K = "OpenAI has no top_k; remove it or write top_p."


def request_line(wire_id: str, body: bytes, endpoint: str) -> bytes:
    """One line of a request file. ``body`` is taken as it is."""
    return (
        b'{"custom_id":"%b","method":"POST","url":"%b","body":'
        % (wire_id.encode("ascii"), endpoint.encode("ascii"))
        + body
        + b"}\n"
    )


def request_body(line: bytes) -> bytes:
    """The body's bytes inside a line that ``request_line`` wrote."""
    return slice_body(line, b',"body":', 2)


def encoder(ask: Ask) -> Encoder:
    """From rendered messages to the body of ``ask.endpoint``.

    Raises:
        WorkloadError: for what this endpoint cannot ask.
    """
    if (ask.answer == "embedding") != (ask.endpoint == EMBEDDING_ENDPOINT):
        raise WorkloadError(
            f"endpoint: {ask.endpoint} does not give output.answer: {ask.answer}; write "
            "/v1/embeddings for embeddings, /v1/responses or /v1/chat/completions for the rest."
        )
    if ask.endpoint == "/v1/responses":
        return _responses(ask)
    if ask.endpoint == "/v1/chat/completions":
        return _chat(ask)
    if ask.endpoint == EMBEDDING_ENDPOINT:
        return _embeddings(ask)
    raise WorkloadError(
        f"endpoint: for {ask.endpoint} give whole bodies with body: native, or write one of "
        f"{', '.join(ENDPOINTS)}."
    )


def _json_schema(ask: Ask) -> dict[str, Any]:
    fault = strict_fault(ask.schema or {})
    if ask.strict and fault is not None:
        raise WorkloadError(f"output.strict: OpenAI's strict mode refuses this schema: {fault}.")
    strict = fault is None if ask.strict is None else ask.strict
    return {"name": ask.name, "strict": strict, "schema": ask.schema}


def _responses(ask: Ask) -> Encoder:
    no = "the responses endpoint does not take it; remove it or use /v1/chat/completions."
    body = settings(
        ask,
        provider="openai",
        names={"max_tokens": "max_output_tokens"},
        unsupported={"seed": no, "stop": no, "top_k": _NO_TOP_K, "dimensions": no},
        reserved=_RESERVED,
    )
    effort = body.pop("reasoning_effort", None)
    if effort is not None:
        body["reasoning"] = {**body.get("reasoning", {}), "effort": effort}
    if ask.answer == "json":
        text = body.get("text", {})
        if not isinstance(text, Mapping) or "format" in text:
            raise WorkloadError("generation.text: write no format; output.schema gives it.")
        body["text"] = {**text, "format": {"type": "json_schema", **_json_schema(ask)}}
    tools = tool_specs(ask)
    if tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                **({"description": tool.description} if tool.description else {}),
                "parameters": tool.schema,
                "strict": strict_fault(tool.schema) is None,
            }
            for tool in tools
        ]
        if ask.answer == "tool":
            body["tool_choice"] = (
                {"type": "function", "name": tools[0].name} if len(tools) == 1 else "required"
            )
    head: dict[str, Any] = {"model": ask.model}
    if ask.system is not None:
        head["instructions"] = fragment(ask.system)
    tail = {name: fragment(value) for name, value in body.items()}

    def encode(messages: Sequence[Message]) -> bytes:
        return dumps({**head, "input": _responses_input(messages), **tail})

    return encode


def _responses_input(messages: Sequence[Message]) -> Any:
    if len(messages) == 1 and not messages[0].images:
        return messages[0].text
    return [
        {
            "role": message.role,
            # An assistant's turn is plain text: its parts would need ids that we do not have.
            "content": message.text
            if not message.images
            else [
                {"type": "input_text", "text": message.text},
                *map(_responses_image, message.images),
            ],
        }
        for message in messages
    ]


def _responses_image(address: str) -> dict[str, str]:
    key = "file_id" if address.startswith("file-") else "image_url"
    return {"type": "input_image", "detail": "auto", key: address}


def _chat(ask: Ask) -> Encoder:
    body = settings(
        ask,
        provider="openai",
        names={"max_output_tokens": "max_completion_tokens"},
        unsupported={
            "top_k": _NO_TOP_K,
            "dimensions": "only embeddings have dimensions; remove it.",
        },
        reserved=_RESERVED,
    )
    if ask.answer == "json":
        body["response_format"] = {"type": "json_schema", "json_schema": _json_schema(ask)}
    tools = tool_specs(ask)
    if tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    **({"description": tool.description} if tool.description else {}),
                    "parameters": tool.schema,
                    "strict": strict_fault(tool.schema) is None,
                },
            }
            for tool in tools
        ]
        if ask.answer == "tool":
            body["tool_choice"] = (
                {"type": "function", "function": {"name": tools[0].name}}
                if len(tools) == 1
                else "required"
            )
    system = [] if ask.system is None else [fragment({"role": "system", "content": ask.system})]
    tail = {name: fragment(value) for name, value in body.items()}

    def encode(messages: Sequence[Message]) -> bytes:
        turns = [*system, *map(_chat_message, messages)]
        return dumps({"model": ask.model, "messages": turns, **tail})

    return encode


def _chat_message(message: Message) -> dict[str, Any]:
    if not message.images:
        return {"role": message.role, "content": message.text}
    images = [{"type": "image_url", "image_url": {"url": address}} for address in message.images]
    return {"role": message.role, "content": [{"type": "text", "text": message.text}, *images]}


def _embeddings(ask: Ask) -> Encoder:
    no = "embeddings do not take it; remove it."
    unsupported = dict.fromkeys(
        ("max_output_tokens", "temperature", "top_p", "top_k", "seed", "stop", "reasoning_effort"),
        no,
    )
    body = settings(ask, provider="openai", names={}, unsupported=unsupported, reserved=_RESERVED)
    if ask.system is not None or ask.tools:
        raise WorkloadError("prompt.system, tools: embeddings take neither; remove them.")
    tail = {name: fragment(value) for name, value in body.items()}

    def encode(messages: Sequence[Message]) -> bytes:
        return dumps({"model": ask.model, "input": _only_text(messages), **tail})

    return encode


def _only_text(messages: Sequence[Message]) -> str:
    return messages[0].text
