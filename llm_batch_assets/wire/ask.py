"""The provider-neutral shape of a request, which each provider's ``request`` module encodes."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, Protocol, cast
from urllib.parse import urlsplit

import orjson

from llm_batch_assets.errors import WorkloadError
from llm_batch_assets.types import ProviderName

Answer = Literal["json", "text", "tool", "embedding"]


@dataclass(frozen=True, slots=True)
class Message:
    """One rendered message; ``images`` are addresses, never bytes."""

    role: str
    text: str
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function the model may call; ``schema`` is the JSON Schema of its input."""

    name: str
    description: str | None
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """What every request of a job has in common.

    Attributes:
        generation: neutral names (``max_output_tokens``, ``temperature``, ``top_p``, ``top_k``,
            ``seed``, ``stop``, ``reasoning_effort``, ``dimensions``); other names are sent as they
            are, in the place where the provider keeps its settings.
        strict: ask for enforcement of the schema; None where the provider's subset allows it.
        cache: lifetime of prompt-cache blocks, or None.
    """

    model: str
    endpoint: str
    answer: Answer
    system: str | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[ToolSpec, ...] = ()
    schema: Mapping[str, Any] | None = None
    name: str = "answer"
    strict: bool | None = None
    cache: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What one provider batch may hold.

    Attributes:
        records: requests per batch; None where the provider states none.
        bytes: size of the request file or body.
        inputs: embedding inputs across all requests; None for no limit.
        minimum: fewest requests per batch.
        overhead: bytes around the lines (an envelope), and ``separator`` bytes more per line.
        labelled: whether a batch carries a name of ours; of one without, only the number of its
            requests is seen while it is open.
    """

    records: int | None
    bytes: int
    inputs: int | None = None
    minimum: int = 1
    overhead: int = 0
    labelled: bool = True


Encoder = Callable[[Sequence[Message]], bytes]
"""From the messages of one record to the bytes of its request body."""


class RequestModule(Protocol):
    """What ``wire.<provider>.request`` offers."""

    LIMITS: Limits
    ENDPOINTS: tuple[str, ...]
    """Endpoints we encode for; the first is the default."""
    EMBEDDING_ENDPOINT: str | None

    def encoder(self, ask: Ask) -> Encoder:
        """A function from rendered messages to body bytes. Raises WorkloadError."""

    def request_line(self, wire_id: str, body: bytes, endpoint: str) -> bytes:
        """One line of a request file, with its newline."""

    def request_body(self, line: bytes) -> bytes:
        """The body's bytes inside a line that ``request_line`` wrote."""


def request_module(provider: ProviderName) -> RequestModule:
    """The request module of a provider."""
    found = import_module(f"llm_batch_assets.wire.{provider}.request")
    return cast(RequestModule, found)


def dumps(value: Any) -> bytes:
    """Compact JSON as sent; keys in the order given."""
    return orjson.dumps(value)


def fragment(value: Any) -> orjson.Fragment:
    """A part that is the same in every request, encoded once."""
    return orjson.Fragment(orjson.dumps(value))


def slice_body(line: bytes, head_end: bytes, tail: int) -> bytes:
    """The bytes between the first ``head_end`` and the last ``tail`` bytes of a line."""
    start = line.index(head_end) + len(head_end)
    return line[start : len(line) - tail]


def settings(
    ask: Ask,
    *,
    provider: str,
    names: Mapping[str, str],
    unsupported: Mapping[str, str],
    reserved: Collection[str],
) -> dict[str, Any]:
    """The generation config under the provider's own names, keys in sorted order.

    Args:
        ask: where the config comes from.
        provider: for messages.
        names: neutral name -> the provider's name.
        unsupported: neutral name -> why it cannot be sent and what to do.
        reserved: names that the encoder fills itself or that batch processing refuses.

    Raises:
        WorkloadError: naming the field.
    """
    found: dict[str, Any] = {}
    for name in sorted(ask.generation):
        if name in unsupported:
            raise WorkloadError(f"generation.{name}: {unsupported[name]}")
        target = names.get(name, name)
        if target in reserved:
            raise WorkloadError(
                f"generation.{name}: {provider} sets this from other fields or refuses it in a "
                "batch; remove it."
            )
        if target in found:
            raise WorkloadError(f"generation.{name}: given twice under two names; write one.")
        found[target] = ask.generation[name]
    return found


def image_type(address: str) -> str:
    """The MIME type that an image address ends in; ``image/jpeg`` where it says nothing."""
    kind, _ = mimetypes.guess_type(urlsplit(address).path)
    return kind if kind is not None and kind.startswith("image/") else "image/jpeg"


def tool_specs(ask: Ask) -> tuple[ToolSpec, ...]:
    """The tools of a job; for a tool answer without tools, one made of the output schema."""
    if ask.answer == "tool" and not ask.tools:
        return (ToolSpec(ask.name, "Give the answer.", ask.schema or {"type": "object"}),)
    return ask.tools
