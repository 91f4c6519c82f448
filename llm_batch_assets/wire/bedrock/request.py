"""Bedrock request lines: ``{"recordId","modelInput"}`` (providers.md 4.3, 4.4).

``endpoint`` is the ``modelInvocationType``: ``Converse`` bodies are the same for every model and
carry no ``modelId``; ``InvokeModel`` bodies are the model's own, which we write for Claude, Titan
and Cohere embeddings. Others go as native bodies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from llm_batch_assets.errors import WorkloadError
from llm_batch_assets.wire.anthropic.request import encode_messages
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
)

LIMITS = Limits(records=50_000, bytes=1_000_000_000, minimum=100)
ENDPOINTS = ("Converse", "InvokeModel")
EMBEDDING_ENDPOINT: str | None = "InvokeModel"

_CLAUDE = re.compile(r"(^|[./])anthropic\.")
_TITAN_EMBED = re.compile(r"(^|[./])amazon\.titan-embed-text")
_COHERE_EMBED = re.compile(r"(^|[./])cohere\.embed")
_INFERENCE = {
    "max_output_tokens": "maxTokens",
    "max_tokens": "maxTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "stop": "stopSequences",
}
_RESERVED = frozenset(
    {
        "modelId",
        "messages",
        "system",
        "toolConfig",
        "guardrailConfig",
        "outputConfig",
        "inferenceConfig",
        "anthropic_version",
        "inputText",
        "texts",
    }
)


def request_line(wire_id: str, body: bytes, endpoint: str) -> bytes:
    """One line of a request file. ``endpoint`` is not part of it."""
    return b'{"recordId":"%b","modelInput":' % wire_id.encode("ascii") + body + b"}\n"


def request_body(line: bytes) -> bytes:
    """The model input's bytes inside a line that ``request_line`` wrote."""
    return slice_body(line, b',"modelInput":', 2)


def encoder(ask: Ask) -> Encoder:
    """From rendered messages to one ``modelInput``.

    Raises:
        WorkloadError: for what this invocation type cannot ask.
    """
    if ask.endpoint == "InvokeModel":
        return _invoke(ask)
    if ask.endpoint != "Converse":
        raise WorkloadError(f"endpoint: write one of {', '.join(ENDPOINTS)}.")
    if ask.answer == "embedding":
        raise WorkloadError("endpoint: Converse gives no embeddings; write InvokeModel.")
    if ask.tools or ask.answer == "tool":
        raise WorkloadError(
            "endpoint: a Converse record with tools fails in a batch; write InvokeModel."
        )
    return _converse(ask)


def _converse(ask: Ask) -> Encoder:
    extra = settings(
        ask,
        provider="bedrock",
        names=_INFERENCE,
        unsupported={
            "seed": "Converse has no seed; remove it.",
            "dimensions": "only embeddings have dimensions; remove it.",
        },
        reserved=_RESERVED,
    )
    inference = {name: extra.pop(name) for name in _INFERENCE.values() if name in extra}
    if isinstance(inference.get("stopSequences"), str):
        inference["stopSequences"] = [inference["stopSequences"]]
    body: dict[str, Any] = {}
    if ask.system is not None:
        body["system"] = [{"text": ask.system}]
    if inference:
        body["inferenceConfig"] = inference
    output: dict[str, Any] = {}
    effort = extra.pop("reasoning_effort", None)
    if effort is not None:
        output["effort"] = effort
    if ask.answer == "json":
        definition = {"schema": dumps(ask.schema).decode(), "name": ask.name}
        output["textFormat"] = {"type": "json_schema", "structure": {"jsonSchema": definition}}
    if output:
        body["outputConfig"] = output
    if extra:
        body["additionalModelRequestFields"] = extra
    tail = {name: fragment(value) for name, value in body.items()}

    def encode(messages: Sequence[Message]) -> bytes:
        return dumps({"messages": list(map(_message, messages)), **tail})

    return encode


def _message(message: Message) -> dict[str, Any]:
    images = [
        {
            "image": {
                "format": image_type(address).removeprefix("image/"),
                "source": {"s3Location": {"uri": address}},
            }
        }
        for address in message.images
    ]
    return {"role": message.role, "content": [{"text": message.text}, *images]}


def _invoke(ask: Ask) -> Encoder:
    if _CLAUDE.search(ask.model):
        return encode_messages(
            ask, provider="bedrock", head={"anthropic_version": "bedrock-2023-05-31"}
        )
    if ask.answer != "embedding":
        raise WorkloadError(
            f"endpoint: the InvokeModel body of {ask.model} is its own; write Converse, or give "
            "whole bodies with body: native."
        )
    if ask.system is not None or ask.tools:
        raise WorkloadError("prompt.system, tools: embeddings take neither; remove them.")
    cohere = _COHERE_EMBED.search(ask.model) is not None
    if not cohere and not _TITAN_EMBED.search(ask.model):
        raise WorkloadError(
            f"model: no embedding body is known for {ask.model}; use amazon.titan-embed-text-v2:0, "
            "a cohere.embed model, or body: native."
        )
    no = "embeddings do not take it; remove it."
    unsupported = dict.fromkeys(
        ("max_output_tokens", "temperature", "top_p", "top_k", "seed", "stop", "reasoning_effort"),
        no,
    )
    body = settings(
        ask,
        provider="bedrock",
        names={"dimensions": "output_dimension"} if cohere else {},
        unsupported=unsupported,
        reserved=_RESERVED,
    )
    if cohere:
        body.setdefault("input_type", "search_document")
    tail = {name: fragment(value) for name, value in body.items()}

    def encode(messages: Sequence[Message]) -> bytes:
        text = messages[0].text
        return dumps({**({"texts": [text]} if cohere else {"inputText": text}), **tail})

    return encode
