"""``python -m llm_batch_assets.cli``: the same as the console script."""

from llm_batch_assets.cli.main import main

main()
