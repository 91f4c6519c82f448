"""The served model is compared by rule."""

from __future__ import annotations

import pytest

from llm_batch_assets.reconcile.served import same_model


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("gpt-4o-mini", "gpt-4o-mini-2024-07-18"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini-2024-07-18"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("gpt-4", "gpt-4-0613"),
        ("claude-haiku-4-5", "claude-haiku-4-5-20251001"),
        ("claude-3-5-sonnet-latest", "claude-3-5-sonnet-20241022"),
        ("claude-haiku-4-5@20251001", "claude-haiku-4-5-20251001"),
        ("models/gemini-2.5-flash", "gemini-2.5-flash"),
        ("publishers/google/models/gemini-2.0-flash", "gemini-2.0-flash-001"),
        ("gemini-2.5-flash", "gemini-2.5-flash-preview-09-2025"),
        ("gemini-flash-latest", "gemini-2.5-flash-preview-09-2025"),
        ("gemini-flash-latest", "gemini-3-flash"),
        ("anthropic.claude-haiku-4-5-20251001-v1:0", "claude-haiku-4-5-20251001"),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", "claude-haiku-4-5-20251001"),
        ("arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-x-v1:0", "claude-x"),
        ("anthropic.claude-sonnet-5-v1:0", "claude-sonnet-5"),
        ("anthropic.claude-opus-4-6-v1", "claude-opus-4-6"),
        ("GPT-4o-mini", "gpt-4o-mini-2024-07-18"),
        ("ft:gpt-4o-mini:org::abc", "ft:gpt-4o-mini:org::abc"),
    ],
)
def test_no_mismatch(asked: str, served: str) -> None:
    assert same_model(asked, served)


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("gpt-4o", "gpt-4o-mini-2024-07-18"),
        ("gpt-4o-mini", "gpt-4o-2024-08-06"),
        ("gpt-5-mini-2025-08-07", "gpt-5-mini-2025-10-01"),
        ("gpt-5-mini", "gpt-5-nano"),
        ("gpt-4o-mini", "gpt-4o-mini-tts"),
        ("gpt-4", "gpt-4o"),
        ("claude-haiku-4-5", "claude-sonnet-4-5-20250929"),
        ("claude-3-5-sonnet-latest", "claude-3-7-sonnet-20250219"),
        ("gemini-2.5-flash", "gemini-2.5-flash-lite"),
        ("gemini-2.5-flash", "gemini-2.5-pro"),
        ("gemini-flash-latest", "gemini-2.5-flash-lite"),
        ("gemini-flash-latest", "gemini-2.5-pro"),
        ("gemini-2.0-flash-001", "gemini-2.0-flash-002"),
        ("deepseek-v3", "deepseek-v2"),
        ("text-embedding-3-small", "text-embedding-3-large"),
        ("ft:gpt-4o-mini:org::abc", "ft:gpt-4o-mini:org::other"),
    ],
)
def test_another_model(asked: str, served: str) -> None:
    assert not same_model(asked, served)
