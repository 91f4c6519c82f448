"""Seeded choices: everything random in the simulator is a function of the seed and a name."""

from __future__ import annotations

import random
from hashlib import sha256


def digest(*parts: object) -> str:
    """Hex sha256 of the parts, each framed so that no two lists collide."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def dice(*parts: object) -> random.Random:
    """A generator that always rolls the same for the same parts."""
    return random.Random(int(digest(*parts)[:16], 16))  # noqa: S311 - repeatable on purpose


def short_id(prefix: str, *parts: object, length: int = 24) -> str:
    """A repeatable identifier in the style of the providers."""
    return prefix + digest(prefix, *parts)[:length]
