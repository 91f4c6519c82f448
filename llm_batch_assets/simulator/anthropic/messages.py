"""Messages: which parameters are refused, and the message that answers."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from llm_batch_assets.simulator.answers import Ask, answer, tokens

VERSIONS = ("2023-06-01", "2026-10-21")
_SAMPLING = ("temperature", "top_p", "top_k")
_SNAPSHOTS = {
    "claude-haiku-4-5": "claude-haiku-4-5-20251001",
    "claude-sonnet-4-5": "claude-sonnet-4-5-20250929",
    "claude-opus-4-5": "claude-opus-4-5-20251101",
    "claude-opus-4-1": "claude-opus-4-1-20250805",
}
_CACHE_MINIMUM = 1024
_CACHE_LIVES = {"5m": 300.0, "1h": 3600.0}
_HIT_RATE = 0.8
_STOPS = {
    "end": "end_turn",
    "length": "max_tokens",
    "tool": "tool_use",
    "refusal": "refusal",
    "filter": "refusal",
    "unheard": "reticulated",
}


class ParamsError(Exception):
    """Parameters that the Messages API refuses."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def served_model(model: str, fault: str | None) -> str:
    """The snapshot that answers."""
    if fault == "other_model":
        return "claude-3-haiku-20240307"
    return _SNAPSHOTS.get(model, model)


def check_params(params: Mapping[str, Any], version: str) -> None:
    """Refuse what the API refuses; in a batch this shows only when the batch has ended.

    Raises:
        ParamsError: With the error's type and message.
    """
    for name in ("model", "max_tokens", "messages"):
        if params.get(name) is None:
            raise ParamsError("invalid_request_error", f"{name}: Field required")
    if not str(params["model"]).startswith("claude-"):
        raise ParamsError("not_found_error", f"model: {params['model']}")
    limit = params["max_tokens"]
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        text = "max_tokens: Input should be greater than or equal to 1"
        raise ParamsError("invalid_request_error", text)
    if not isinstance(params["messages"], list) or not params["messages"]:
        raise ParamsError("invalid_request_error", "messages: at least one message is required")
    for name in ("stream", "speed"):
        if params.get(name):
            text = f"{name}: not supported in message batches"
            raise ParamsError("invalid_request_error", text)
    if version >= "2026-10-21":
        for name in _SAMPLING:
            if name in params:
                text = f"{name}: Extra inputs are not permitted"
                raise ParamsError("invalid_request_error", text)


class Cache:
    """Prompt prefixes that are cached: best effort, as it is in batches."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}

    def look(
        self, account: str, params: Mapping[str, Any], now: float, rng: random.Random
    ) -> tuple[int, int, str]:
        """(tokens read, tokens written, lifetime) for a request's marked prefix."""
        prefix, lifetime = _marked_prefix(params)
        size = tokens(prefix)
        if not prefix or size < _CACHE_MINIMUM:
            return 0, 0, "5m"
        key = (account, sha256(f"{params.get('model')}\x1f{prefix}".encode()).hexdigest())
        hit = self._until.get(key, 0.0) > now and rng.random() < _HIT_RATE
        self._until[key] = now + _CACHE_LIVES[lifetime]
        return (size, 0, lifetime) if hit else (0, size, lifetime)


def _marked_prefix(params: Mapping[str, Any]) -> tuple[str, str]:
    """Everything up to the last block with ``cache_control``, and its lifetime."""
    blocks: list[tuple[str, Any]] = [
        (json.dumps(tool, sort_keys=True), tool.get("cache_control"))
        for tool in params.get("tools") or []
    ]
    for content in (params.get("system"), *(m.get("content") for m in params.get("messages", []))):
        if isinstance(content, list):
            blocks += [(str(one.get("text", "")), one.get("cache_control")) for one in content]
        elif content:
            blocks.append((str(content), None))
    last = max((i for i, (_, mark) in enumerate(blocks) if mark), default=None)
    if last is None:
        return "", "5m"
    return "\x1e".join(text for text, _ in blocks[: last + 1]), blocks[last][1].get("ttl", "5m")


def ask_of(params: Mapping[str, Any]) -> Ask:
    """What an answer depends on."""
    schema = None
    form = (params.get("output_config") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        schema = form.get("schema")
        if not isinstance(schema, Mapping):
            text = "output_config.format.schema: Field required"
            raise ParamsError("invalid_request_error", text)
    text = "\n".join(_text(one.get("content")) for one in params["messages"])
    return Ask(
        text=text,
        system=_text(params.get("system")),
        schema=schema,
        tool=_tool(params),
        max_tokens=params.get("max_tokens"),
    )


def _tool(params: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    choice, offered = params.get("tool_choice") or {}, params.get("tools") or []
    if choice.get("type") not in ("any", "tool") or not offered:
        return None
    named = [one for one in offered if choice.get("name") in (None, one.get("name"))]
    if not named:
        raise ParamsError("invalid_request_error", "tool_choice: no such tool")
    return str(named[0]["name"]), named[0].get("input_schema") or {"type": "object"}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = []
    for block in content or []:
        source = block.get("source") or {}
        parts.append(str(block.get("text") or source.get("url") or ""))
    return "\n".join(parts)


def message(
    params: Mapping[str, Any],
    fault: str | None,
    rng: random.Random,
    cached: tuple[int, int, str],
    *,
    prefix: str = "msg_",
) -> tuple[dict[str, Any], dict[str, int], str | None]:
    """A message, its token counts and ``cut`` where the limit cut it."""
    made = answer(ask_of(params), rng, fault)
    content: list[dict[str, Any]] = [{"type": "text", "text": made.text}]
    if made.tool:
        content = [_tool_use(made.tool, made.text, rng)]
    if made.stop == "filter" or not made.text:
        content = []
    read, written, lifetime = cached
    rest = max(made.input_tokens - read - written, 1)
    refused = made.stop in ("refusal", "filter")
    body = {
        "id": f"{prefix}{rng.getrandbits(96):024x}",
        "type": "message",
        "role": "assistant",
        "model": served_model(str(params.get("model")), fault),
        "content": content,
        "stop_reason": _STOPS[made.stop],
        "stop_sequence": None,
        "stop_details": {"type": "refusal", "category": None, "explanation": None}
        if refused
        else None,
        "usage": {
            "input_tokens": rest,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": written if lifetime == "5m" else 0,
                "ephemeral_1h_input_tokens": written if lifetime == "1h" else 0,
            },
            "output_tokens": made.output_tokens,
            "output_tokens_details": {"thinking_tokens": 0},
            "service_tier": "batch",
        },
    }
    count = {"input": rest + read + written, "output": made.output_tokens, "cached": read}
    return body, count, "cut" if made.stop == "length" else None


def _tool_use(name: str, text: str, rng: random.Random) -> dict[str, Any]:
    """A tool call; input that is no JSON arrives as far as it could be read."""
    try:
        given = json.loads(text)
    except ValueError:
        given = {}
        whole = re.match(r'\{"(\w+)": ("[^"]*")', text)
        if whole:
            given[whole[1]] = json.loads(whole[2])
    if not isinstance(given, dict):
        given = {"value": given}
    return {"type": "tool_use", "id": f"toolu_{rng.getrandbits(96):024x}", "name": name,
            "input": given}  # fmt: skip
