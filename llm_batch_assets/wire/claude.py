"""A Claude message: the answer of Anthropic's batches and of Bedrock's InvokeModel records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_batch_assets.wire.classes import (
    ACCEPTED,
    EMPTY,
    MALFORMED,
    PERMANENT,
    SEVERAL,
    UNKNOWN_STOP,
    WRONG_KIND,
    Rule,
    table,
)
from llm_batch_assets.wire.shapes import NO_USAGE, Asked, Usage, short
from llm_batch_assets.wire.strict import int64_of, map_of, raw_at

STOPS = table(
    "claude.stop",
    (
        ("end_turn", "succeeded", "accepted"),
        ("stop_sequence", "succeeded", "accepted"),
        ("tool_use", "unqualified", "tool_call"),
        ("max_tokens", "unqualified", "cut"),
        ("model_context_window_exceeded", "unqualified", "cut"),
        # A success that needs a follow-up request, which a batch cannot send.
        ("pause_turn", "unqualified", "paused"),
        ("compaction", "unqualified", "paused"),
        ("refusal", PERMANENT, "refusal"),
    ),
)
"""stop_reason of a message (anthropic SDK 2.14)."""


def read_message(
    message: Mapping[str, Any], raw: bytes, path: tuple[str, ...], asked: Asked
) -> tuple[Rule, str | None, str | None]:
    """(rule, stop reason, answer): the text blocks joined, or the one tool block's input.

    Thinking blocks are no answer. ``path`` leads to the message in the line's own bytes.
    """
    stop = message.get("stop_reason")
    rule = STOPS.get(stop, UNKNOWN_STOP) if isinstance(stop, str) else UNKNOWN_STOP
    content = message.get("content")
    if asked.tool and stop == "tool_use":
        rule = STOPS["end_turn"]
    elif asked.tool and rule.cls == "succeeded":
        rule = WRONG_KIND
    if rule.cls != "succeeded":
        return rule, short(stop), None
    if type(content) is not list:
        return MALFORMED, short(stop), None
    if asked.tool:
        places = [
            place
            for place, block in enumerate(content)
            if type(block) is dict and block.get("type") == "tool_use"
        ]
        if len(places) != 1:
            return (SEVERAL if places else EMPTY), short(stop), None
        piece = raw_at(raw, *path, "content", places[0], "input")
        return (ACCEPTED if piece else MALFORMED), short(stop), decoded(piece)
    if asked.answer == "embedding":
        return WRONG_KIND, short(stop), None
    texts = []
    for block in content:
        if type(block) is dict and block.get("type") == "text":
            text = block.get("text")
            if type(text) is not str:
                return MALFORMED, short(stop), None
            texts.append(text)
    answer = "".join(texts)
    return (ACCEPTED if answer else EMPTY), short(stop), answer or None


def usage_of(usage: Any) -> Usage:
    """Tokens of a message. ``input_tokens`` excludes cache tokens, the total does not."""
    if type(usage) is not dict:
        return NO_USAGE
    plain = int64_of(usage.get("input_tokens"))
    read = int64_of(usage.get("cache_read_input_tokens"))
    written = int64_of(usage.get("cache_creation_input_tokens"))
    total = None if plain is None else int64_of(plain + (read or 0) + (written or 0))
    details = map_of(usage.get("output_tokens_details"))
    return (
        total,
        read,
        written,
        int64_of(usage.get("output_tokens")),
        int64_of(details.get("thinking_tokens")),
    )


def decoded(piece: bytes | None) -> str | None:
    """The text of a slice that was parsed before."""
    return None if piece is None else piece.decode("utf-8", "surrogatepass")
