"""From a provider's name to a client of its SDK; only that one SDK is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from llm_batch_assets.errors import InputError
from llm_batch_assets.providers.base import BatchProvider
from llm_batch_assets.types import NO_EFFECTS, Effects


def open_provider(
    name: str, *, env: Mapping[str, str], deployment: str, effects: Effects = NO_EFFECTS
) -> BatchProvider:
    """Open one account at one provider. Nothing is sent before the first call.

    Args:
        name: openai, anthropic, gemini or bedrock.
        env: where keys, addresses and proxies come from; nothing else is read for them.
        deployment: the ledger's name, which every batch carries.
        effects: hook around every provider call (``provider.create`` and so on).

    Raises:
        InputError: for an unknown name, a missing key, an address that is none, or an SDK that
            is not installed.
    """
    if name == "openai":
        from llm_batch_assets.providers.openai import OpenAIProvider

        return OpenAIProvider(env=env, deployment=deployment, effects=effects)
    if name == "anthropic":
        from llm_batch_assets.providers.anthropic import AnthropicProvider

        return AnthropicProvider(env=env, deployment=deployment, effects=effects)
    if name == "gemini":
        try:
            from llm_batch_assets.providers.gemini import GeminiProvider
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("google"):
                raise
            raise InputError(
                "google-genai is not installed: install llm_batch_assets[gemini]."
            ) from None
        return GeminiProvider(env=env, deployment=deployment, effects=effects)
    if name == "bedrock":
        from llm_batch_assets.providers.bedrock import BedrockProvider

        return BedrockProvider(env=env, deployment=deployment, effects=effects)
    raise InputError(
        f"The provider {name!r} is unknown: write openai, anthropic, gemini or bedrock."
    )
