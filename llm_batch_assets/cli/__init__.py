"""``llm-batch-assets``: for machines without a browser, for CI and for looking inside."""

from llm_batch_assets.cli.main import main

__all__ = ["main"]
