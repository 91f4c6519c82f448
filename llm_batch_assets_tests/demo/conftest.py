"""The demo's parts in process need what the Dagster layer's tests need."""

from llm_batch_assets_tests.defs.conftest import home, simulator, start

__all__ = ["home", "simulator", "start"]
