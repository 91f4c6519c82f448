"""Which names are allowed: models that do not move, dataset keys that are safe in paths."""

from __future__ import annotations

import re

from llm_batch_assets.errors import InputError

_PINNED = re.compile(
    r"""
      \d{4}-\d{2}-\d{2}                     # gpt-5-mini-2025-08-07
    | (?<!\d)20\d{6}(?!\d)                  # claude-haiku-4-5-20251001
    | (?<!\d)\d{2}-20\d{2}(?!\d)            # gemini-2.5-flash-preview-09-2025
    | -\d{3,4}(?![0-9A-Za-z])               # gemini-2.0-flash-001, gpt-4-0613, gpt-4-1106-preview
    | [-.:@]v\d+(?:[.:]\d+)*$               # amazon.titan-embed-text-v2:0, cohere.embed-english-v3
    | :\d+$                                 # openai.gpt-oss-120b-1:0
    | @\d+$
    """,
    re.VERBOSE,
)
_NEVER_MOVES = re.compile(r"text-embedding-3-(small|large)")
"""Names without a date that their provider has never pointed at another model."""

_LATEST = re.compile(r"[-@:.]latest\b", re.IGNORECASE)
_DATASET_KEY = re.compile(r"[0-9A-Za-z][0-9A-Za-z:._-]{0,99}", re.ASCII)


def is_floating_model(name: str) -> bool:
    """True for a model name that its provider may point at another model tomorrow.

    That is one without a date, a numbered revision or a version suffix, and anything ``-latest``.
    """
    if _LATEST.search(name):
        return True
    return _PINNED.search(name) is None and _NEVER_MOVES.fullmatch(name) is None


def check_dataset_key(key: str) -> str:
    """A dataset key as it is, if it may be a partition, a path and a label at once.

    Raises:
        InputError: for a key outside ``^[0-9A-Za-z][0-9A-Za-z:._-]{0,99}$`` or with ``..``.
    """
    if _DATASET_KEY.fullmatch(key) is None or ".." in key:
        raise InputError(
            f"Dataset key {key!r}: write 1 to 100 of the characters 0-9 A-Z a-z : . _ - "
            "that start with a letter or a digit and hold no '..', such as 2026-07-28."
        )
    return key
