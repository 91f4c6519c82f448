"""LLM batch inference as Dagster assets, with every record accounted for.

Public names are loaded on first use: importing this package loads neither Dagster nor an SDK.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Workload": "llm_batch_assets.workload",
    "build_llm_batch_assets": "llm_batch_assets.defs",
    "on_published": "llm_batch_assets.defs",
    "LLMBatchError": "llm_batch_assets.errors",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    """Load a public name from the room that defines it."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
