"""The Dagster layer: every body is ``engine.execute`` plus events."""

from llm_batch_assets.defs.automation import on_published
from llm_batch_assets.defs.build import build_llm_batch_assets

__all__ = ["build_llm_batch_assets", "on_published"]
