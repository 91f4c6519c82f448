"""Anthropic request lines: ``{"custom_id","params"}`` (providers.md 2.3).

The request file holds one element of ``requests`` per line; the create call wraps the stored bytes
as they are with ``envelope``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

_OPEN, _CLOSE = b'{"requests":[', b"]}"
# An open batch shows its id, its time and its total: providers.md, section 2.7, from the API's
# reference of "Message Batches".
LIMITS = Limits(
    records=100_000, bytes=256_000_000, overhead=len(_OPEN) + len(_CLOSE), labelled=False
)
ENDPOINTS = ("/v1/messages",)
EMBEDDING_ENDPOINT: str | None = None

RESERVED = frozenset(
    {
        "model",
        "system",
        "messages",
        "tools",
        "tool_choice",
        "stream",
        "speed",
        "metadata",
        "store",
        "previous_thread_id",
    }
)
_SAMPLING = (
    "API version 2026-10-21 refuses it (every record would come back errored); remove it, or give "
    "whole bodies with body: native and send another version."
)
_UNSUPPORTED = {
    "temperature": _SAMPLING,
    "top_p": _SAMPLING,
    "top_k": _SAMPLING,
    "seed": "Anthropic has no seed; remove it.",
    "dimensions": "Anthropic offers no embeddings; remove it.",
}


def request_line(wire_id: str, body: bytes, endpoint: str) -> bytes:
    """One line of a request file. ``endpoint`` is not part of it."""
    return b'{"custom_id":"%b","params":' % wire_id.encode("ascii") + body + b"}\n"


def request_body(line: bytes) -> bytes:
    """The params' bytes inside a line that ``request_line`` wrote."""
    return slice_body(line, b',"params":', 2)


def envelope(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The body of the create call around stored lines: the bytes that were digested, unchanged."""
    before = _OPEN
    for line in lines:
        yield before + line.rstrip(b"\n")
        before = b","
    yield _CLOSE if before == b"," else _OPEN + _CLOSE


def encoder(ask: Ask) -> Encoder:
    """From rendered messages to the params of one message.

    With ``ask.cache`` the last block of what records share (tools, system, every message but the
    last) carries one ``cache_control``; blocks must be byte-identical to hit.

    Raises:
        WorkloadError: for what this API cannot ask.
    """
    if ask.endpoint not in ENDPOINTS:
        raise WorkloadError(f"endpoint: write {ENDPOINTS[0]}.")
    return encode_messages(ask, provider="anthropic", head={"model": ask.model})


def encode_messages(ask: Ask, *, provider: str, head: Mapping[str, Any]) -> Encoder:
    """The Messages body around ``head``; Bedrock's InvokeModel for Claude takes it as well."""
    if ask.answer == "embedding":
        raise WorkloadError(
            f"output.answer: {provider} offers no embeddings here; use openai or gemini."
        )
    body = settings(
        ask,
        provider=provider,
        names={"max_output_tokens": "max_tokens", "stop": "stop_sequences"},
        unsupported=_UNSUPPORTED,
        reserved=RESERVED,
    )
    limit = body.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise WorkloadError(
            "generation.max_output_tokens: write how long an answer may be, such as 1024; "
            f"{provider} refuses a request without it."
        )
    if isinstance(body.get("stop_sequences"), str):
        body["stop_sequences"] = [body["stop_sequences"]]
    config = dict(body.pop("output_config", {}))
    effort = body.pop("reasoning_effort", None)
    if effort is not None:
        config["effort"] = effort
    if ask.answer == "json":
        if "format" in config:
            raise WorkloadError(
                "generation.output_config: write no format; output.schema gives it."
            )
        config["format"] = {"type": "json_schema", "schema": ask.schema}
    if config:
        body["output_config"] = config
    control = {"type": "ephemeral", "ttl": ask.cache} if ask.cache else None
    body.update(_tools(ask, control if ask.system is None else None))
    if ask.system is not None:
        block = {"type": "text", "text": ask.system}
        body["system"] = [{**block, "cache_control": control}] if control else ask.system
    tail = {name: fragment(value) for name, value in body.items()}

    def encode(messages: Sequence[Message]) -> bytes:
        turns = [_message(message) for message in messages]
        if control is not None and len(turns) > 1:
            turns[-2] = _message(messages[-2], control)
        return dumps({**head, "messages": turns, **tail})

    return encode


def _tools(ask: Ask, control: Mapping[str, Any] | None) -> dict[str, Any]:
    tools = [
        {
            "name": tool.name,
            **({"description": tool.description} if tool.description else {}),
            "input_schema": tool.schema,
        }
        for tool in tool_specs(ask)
    ]
    if not tools:
        return {}
    if control is not None:
        tools[-1]["cache_control"] = control
    found: dict[str, Any] = {"tools": tools}
    if ask.answer == "tool":
        found["tool_choice"] = (
            {"type": "tool", "name": tools[0]["name"]} if len(tools) == 1 else {"type": "any"}
        )
    return found


def _message(message: Message, control: Mapping[str, Any] | None = None) -> dict[str, Any]:
    if not message.images and control is None:
        return {"role": message.role, "content": message.text}
    text: dict[str, Any] = {"type": "text", "text": message.text}
    if control is not None:
        text["cache_control"] = control
    return {"role": message.role, "content": [*map(_image, message.images), text]}


def _image(address: str) -> dict[str, Any]:
    if address.startswith("file_"):
        return {"type": "image", "source": {"type": "file", "file_id": address}}
    return {"type": "image", "source": {"type": "url", "url": address}}
