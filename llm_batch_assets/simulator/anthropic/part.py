"""The Anthropic part as a whole."""

from __future__ import annotations

from llm_batch_assets.simulator.anthropic import wire
from llm_batch_assets.simulator.anthropic.batches import Batches
from llm_batch_assets.simulator.app import FaultyBody, Route, route
from llm_batch_assets.simulator.world import World


def install(world: World, faulty: FaultyBody) -> list[Route]:
    """Join the world; the routes, at the root and under ``/anthropic``."""
    batches = Batches(world)
    world.dialects["anthropic"] = batches
    faulty.errors["anthropic"] = wire.faulty
    faulty.pages["anthropic"] = wire.empty_page
    table = (
        ("create", "POST", "", batches.create),
        ("list", "GET", "", batches.list_all),
        ("poll", "GET", "/{id}", batches.get),
        ("delete", "DELETE", "/{id}", batches.delete),
        ("download", "GET", "/{id}/results", batches.results),
        ("cancel", "POST", "/{id}/cancel", batches.cancel),
    )
    return [
        route("anthropic", name, method, f"(?:/anthropic)?/v1/messages/batches{path}", handler)
        for name, method, path, handler in table
    ]
