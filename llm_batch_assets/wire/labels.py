"""What a provider lets us write on a batch: metadata, tags, job names, client tokens. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llm_batch_assets.types import ProviderName
from llm_batch_assets.wire.strict import writable

# The same names as botocore's ``[a-zA-Z0-9]{1,63}(-*[a-zA-Z0-9\+\-\.]){0,63}``, which backtracks.
_JOB_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9+.-]*", re.ASCII)
_TOKEN = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?", re.ASCII)

Fault = dict[str, str | None]
"""``key`` (None for the whole) and ``reason``."""

_METADATA: dict[str, tuple[int, int, int]] = {"openai": (16, 64, 512), "bedrock": (200, 128, 256)}
"""Provider -> most pairs, longest key, longest value (OpenAI metadata; Bedrock tags)."""


def metadata_faults(provider: ProviderName, metadata: Mapping[str, Any]) -> list[Fault]:
    """Everything about a batch's metadata or tags that the provider would refuse."""
    if provider not in _METADATA:
        return [{"key": None, "reason": "no_metadata"}] if metadata else []
    pairs, longest_key, longest_value = _METADATA[provider]
    found: list[Fault] = []
    for key, value in metadata.items():
        if not key:
            found.append({"key": key, "reason": "empty_key"})
        elif len(key) > longest_key:
            found.append({"key": key, "reason": f"key_over_{longest_key}"})
        if not isinstance(value, str):
            found.append({"key": key, "reason": "value_not_text"})
        elif len(value) > longest_value:
            found.append({"key": key, "reason": f"value_over_{longest_value}"})
        if not (writable(key) and (not isinstance(value, str) or writable(value))):
            found.append({"key": key, "reason": "lone_surrogate"})
    if len(metadata) > pairs:
        found.append({"key": None, "reason": f"over_{pairs}_pairs"})
    return found


def job_name_fault(name: str) -> str | None:
    """Why Bedrock would refuse a job name, or None (botocore checks neither rule)."""
    if not name:
        return "job_name_empty"
    if len(name) > 63:
        return "job_name_over_63"
    return None if _JOB_NAME.fullmatch(name) else "job_name_charset"


def client_token_fault(token: str) -> str | None:
    """Why Bedrock would refuse a client request token, or None."""
    if not token:
        return "client_token_empty"
    if len(token) > 256:
        return "client_token_over_256"
    return None if _TOKEN.fullmatch(token) else "client_token_charset"
