"""The Gemini part as a whole."""

from __future__ import annotations

from llm_batch_assets.simulator.app import FaultyBody, Route, route
from llm_batch_assets.simulator.gemini import wire
from llm_batch_assets.simulator.gemini.batches import Batches
from llm_batch_assets.simulator.gemini.files import Files
from llm_batch_assets.simulator.world import World

_VERSION = "(?:v1|v1beta)"


def install(world: World, faulty: FaultyBody) -> list[Route]:
    """Join the world; the routes under ``/gemini``."""
    files = Files(world)
    batches = Batches(world, files)
    world.dialects["gemini"] = batches
    world.stores["gemini.files"] = files
    faulty.errors["gemini"] = wire.faulty
    faulty.pages["gemini"] = wire.empty_page
    table = (
        ("upload", "POST", f"upload/{_VERSION}/files", files.start),
        ("upload_data", "POST", f"upload/{_VERSION}/files/{{session}}", files.data),
        ("download", "GET", f"(?:download/)?{_VERSION}/files/{{id}}(?::|%3A)download",
         files.download),
        ("file_list", "GET", f"{_VERSION}/files", files.list_all),
        ("file_get", "GET", f"{_VERSION}/files/{{id}}", files.get),
        ("file_delete", "DELETE", f"{_VERSION}/files/{{id}}", files.delete),
        ("create", "POST", f"{_VERSION}/models/{{model}}(?::|%3A)batchGenerateContent",
         batches.generate),
        ("create", "POST", f"{_VERSION}/models/{{model}}(?::|%3A)asyncBatchEmbedContent",
         batches.embed),
        ("list", "GET", f"{_VERSION}/batches", batches.list_all),
        ("cancel", "POST", f"{_VERSION}/batches/{{id}}(?::|%3A)cancel", batches.cancel),
        ("poll", "GET", f"{_VERSION}/batches/{{id}}", batches.get),
        ("delete", "DELETE", f"{_VERSION}/batches/{{id}}", batches.delete),
    )  # fmt: skip
    return [
        route("gemini", name, method, f"/gemini/{path}", handler)
        for name, method, path, handler in table
    ]
