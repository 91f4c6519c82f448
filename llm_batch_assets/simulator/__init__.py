"""A local server that speaks the batch APIs, with faults, a meter and a virtual clock.

It imports nothing of the rest of the package: what it judges cannot lend it an opinion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_batch_assets.simulator.server import Simulator

__all__ = ["Simulator"]


def __getattr__(name: str) -> object:
    """Import the server only when it is asked for: it loads uvicorn."""
    if name == "Simulator":
        from llm_batch_assets.simulator.server import Simulator

        return Simulator
    raise AttributeError(name)
