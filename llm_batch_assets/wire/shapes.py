"""The one shape into which every provider's result line is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from llm_batch_assets.wire.classes import Rule

AnswerKind = Literal["auto", "json", "text", "tool", "embedding"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the request asked for, as far as reading an answer depends on it."""

    answer: AnswerKind = "auto"
    """``auto`` (loose files): whatever the row holds, JSON where there is a schema."""
    endpoint: str | None = None
    has_schema: bool = False

    @property
    def tool(self) -> bool:
        """Whether the answer is a tool's input."""
        return self.answer == "tool"


Usage = tuple[int | None, int | None, int | None, int | None, int | None]
"""Tokens of one row (input with cached tokens, cached, cache write, output with reasoning,
reasoning), None where the row does not say."""

NO_USAGE: Usage = (None, None, None, None, None)


class Row(NamedTuple):
    """What one line says of one record.

    ``rule`` is ``ACCEPTED`` when ``answer`` is still to be judged: its exact text, or for
    embeddings a JSON array of the vectors in index order with the provider's own digits.
    """

    rule: Rule
    answer: str | None = None
    http_status: int | None = None
    error_type: str | None = None
    error_code: str | None = None
    stop_reason: str | None = None
    served_model: str | None = None
    request_id: str | None = None
    usage: Usage = NO_USAGE
    embedding: bool = False


Reader = Callable[[Mapping[str, Any], bytes, Asked], Row]
"""(parsed line, its bytes, what was asked) -> row. Total: any object gives a row."""

RowId = Callable[[Mapping[str, Any]], Any]
"""The id as the line gives it, of whatever type."""


def short(value: Any, limit: int = 200) -> str | None:
    """Text for a column: bounded, writable, None for an empty or absent value."""
    if value == "" or not isinstance(value, (str, int, float)) or isinstance(value, bool):
        return None
    text = value if isinstance(value, str) else str(value)
    return text[:limit].encode("utf-8", "replace").decode("utf-8")
