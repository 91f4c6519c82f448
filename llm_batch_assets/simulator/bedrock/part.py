"""The Bedrock part as a whole."""

from __future__ import annotations

from llm_batch_assets.simulator.app import FaultyBody, Route, route
from llm_batch_assets.simulator.bedrock import wire
from llm_batch_assets.simulator.bedrock.jobs import Jobs
from llm_batch_assets.simulator.world import World


def install(world: World, faulty: FaultyBody) -> list[Route]:
    """Join the world; the routes under ``/bedrock``. ARNs arrive percent-encoded, or not."""
    jobs = Jobs(world)
    world.dialects["bedrock"] = jobs
    faulty.errors["bedrock"] = wire.faulty
    faulty.pages["bedrock"] = wire.empty_page
    table = (
        ("create", "POST", "model-invocation-job", jobs.create),
        ("list", "GET", "model-invocation-jobs", jobs.list_all),
        ("cancel", "POST", "model-invocation-job/(?P<id>.+?)/stop", jobs.stop),
        ("poll", "GET", "model-invocation-job/(?P<id>.+?)", jobs.get),
        ("tags", "POST", "listTagsForResource", jobs.list_tags),
        ("tags", "POST", "tagResource", jobs.tag),
        ("tags", "POST", "untagResource", jobs.untag),
    )
    return [
        route("bedrock", name, method, f"/bedrock/{path}", handler)
        for name, method, path, handler in table
    ]
