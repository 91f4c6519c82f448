"""The OpenAI part as a whole: its routes and its place in the world."""

from __future__ import annotations

from llm_batch_assets.simulator.app import FaultyBody, Route, route
from llm_batch_assets.simulator.openai import wire
from llm_batch_assets.simulator.openai.batches import Batches
from llm_batch_assets.simulator.openai.files import Files
from llm_batch_assets.simulator.world import World


def install(world: World, faulty: FaultyBody) -> list[Route]:
    """Join the world; the routes, at the root and under ``/openai``."""
    files = Files(world)
    batches = Batches(world, files)
    world.dialects["openai"] = batches
    world.stores["openai.files"] = files
    faulty.errors["openai"] = wire.faulty
    faulty.pages["openai"] = wire.empty_page
    table = (
        ("upload", "POST", "files", files.upload),
        ("file_list", "GET", "files", files.list_all),
        ("file_get", "GET", "files/{id}", files.get),
        ("file_delete", "DELETE", "files/{id}", files.delete),
        ("download", "GET", "files/{id}/content", files.content),
        ("create", "POST", "batches", batches.create),
        ("list", "GET", "batches", batches.list_all),
        ("poll", "GET", "batches/{id}", batches.get),
        ("cancel", "POST", "batches/{id}/cancel", batches.cancel),
    )
    return [
        route("openai", name, method, f"(?:/openai)?/v1/{path}", handler)
        for name, method, path, handler in table
    ]
