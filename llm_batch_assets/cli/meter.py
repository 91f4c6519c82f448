"""What was paid twice, from the provider's own meter where it has one: never from our ledger."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

from llm_batch_assets.settings import is_loopback

BASE_URL = {
    "openai": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
    "gemini": "GOOGLE_GEMINI_BASE_URL",
    "bedrock": "AWS_ENDPOINT_URL_BEDROCK",
}


def read_paid_twice(provider: str, env: Mapping[str, str]) -> int | None:
    """Executions that were paid twice, or None where the provider cannot tell.

    Only a server on this machine is asked: a real provider has no such route.
    """
    base = env.get(BASE_URL[provider])
    if not base or not is_loopback(base):
        return None
    parts = urlsplit(base)
    try:
        with urllib.request.urlopen(  # noqa: S310 - http(s) on loopback, checked above
            f"{parts.scheme}://{parts.netloc}/_sim/meter", timeout=10
        ) as reply:
            value = json.loads(reply.read(1_000_000)).get("paid_twice")
    except (OSError, ValueError, AttributeError):
        return None
    return value if isinstance(value, int) else None
