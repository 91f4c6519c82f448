"""Switches: what is not documented, or differs between accounts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Options:
    """What is not documented, or differs between accounts, stays a switch."""

    batch_seconds: float = 14_400.0
    """Virtual seconds from create to the end of an ordinary batch."""
    cancel_seconds: float = 600.0
    ranges: bool = True
    """Result downloads honour Range and If-Range and carry an ETag."""
    keys: tuple[str, ...] = ()
    """The keys that are known; empty: every key but those that begin with ``invalid``."""
    enqueued_tokens: int | None = None
    """Tokens that an account may have in live batches of a model; beyond it a batch fails."""
    missing_file_status: int = 404
    """What a create answers when its input file is not there."""
    cancel_ended_status: int = 400
    """What a cancel answers when the batch is over."""
    page_size: int = 20
    max_input_bytes: int = 200_000_000
    max_lines: int = 50_000
    max_body_bytes: int = 256_000_000
    anthropic_ranges: bool = False
    bedrock_minimum: int = 100
    bedrock_minimum_at_create: bool = False
    bedrock_token_mismatch_conflict: bool = False
    bedrock_stop_ended: str = "ConflictException"
    bedrock_expired_rows: bool = False
    bedrock_nulls: bool = False
    s3_endpoint: str | None = None
    s3_access_key: str = "test"
    s3_secret_key: str = "test"  # noqa: S105 - a local server's
    gemini_cancel_output: bool = False
    gemini_result_hours: float = 48.0
    gemini_ranges: bool = False


def read_option(name: str, text: str) -> Any:
    """A switch's value from text: JSON, or the text itself where it is no JSON.

    Raises:
        ValueError: There is no such switch, or it takes another type.
    """
    defaults = {one.name: one.default for one in fields(Options)}
    if name not in defaults:
        raise ValueError(f"unknown option {name!r}: one of {', '.join(sorted(defaults))}")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = text
    wanted = defaults[name]
    if isinstance(wanted, tuple):
        return tuple(text.split(","))
    if isinstance(wanted, float) and type(value) is int:
        return float(value)
    if wanted is not None and type(value) is not type(wanted):
        raise ValueError(f"option {name} takes a {type(wanted).__name__}, not {text!r}")
    return value
