"""The official SDK talks to the simulator, and its own models take every body."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types import Completion, CreateEmbeddingResponse, ModerationCreateResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel, ConfigDict

from llm_batch_assets_tests.simulator.raw import (
    MODEL,
    Raw,
    chat_body,
    line,
    lines,
    read_rows,
    responses_body,
)

BODIES: list[tuple[str, type[BaseModel], dict[str, Any]]] = [
    ("/v1/responses", Response, responses_body("Some text")),
    ("/v1/responses", Response, {"model": "gpt-5-mini-2025-08-07", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Look"},
         {"type": "input_image", "image_url": "https://example.org/a.png"}]}]}),
    ("/v1/chat/completions", ChatCompletion, chat_body("Some text")),
    ("/v1/chat/completions", ChatCompletion, {
        "model": MODEL, "messages": [{"role": "user", "content": [
            {"type": "text", "text": "Look"},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}],
        "response_format": {"type": "json_object"}}),
    ("/v1/completions", Completion, {"model": "gpt-3.5-turbo-instruct", "prompt": "Say"}),
    ("/v1/embeddings", CreateEmbeddingResponse,
     {"model": "text-embedding-3-small", "input": ["a", "b"], "dimensions": 8}),
    ("/v1/moderations", ModerationCreateResponse,
     {"model": "omni-moderation-latest", "input": "text"}),
]  # fmt: skip
FAULTS = [None, "refusal", "content_filter", "cut", "empty"]


def strict(model: type[BaseModel]) -> type[BaseModel]:
    """The SDK's model with required fields required: its own ``construct`` takes anything."""
    return type(model.__name__, (model,), {"model_config": ConfigDict(extra="allow"),
                                           "__annotations__": {}})  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("endpoint", "model", "body"), BODIES)
def test_bodies_fit_the_sdk_models(
    start: Callable[..., Raw], endpoint: str, model: type[BaseModel], body: Any, fault: str | None
) -> None:
    raw = start(*([{"kind": fault}] if fault else []))
    batch = raw.finish(line("a", body, endpoint).encode(), endpoint)
    (row,) = read_rows(raw.content(batch["output_file_id"]))
    assert row["response"]["status_code"] == 200
    strict(model).model_validate(row["response"]["body"])


def test_the_sdk_round_trip(raw: Raw) -> None:
    client = openai.OpenAI(api_key="sk-sdk", base_url=raw.sim.base_url, max_retries=0)
    stored = client.files.create(
        file=("in.jsonl", io.BytesIO(lines(30))),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600 * 48},
    )
    assert stored.expires_at is not None
    assert stored.expires_at - stored.created_at == 3600 * 48
    made = client.batches.create(
        input_file_id=stored.id,
        endpoint="/v1/responses",
        completion_window="24h",
        metadata={"submission_key": "s"},
        output_expires_after={"anchor": "created_at", "seconds": 86_400},
    )
    assert made.status == "validating"
    raw.sim.advance(20_000)
    done = client.batches.retrieve(made.id)
    assert done.status == "completed"
    assert done.output_file_id is not None
    rows = client.files.content(done.output_file_id).content.split(b"\n")
    assert {json.loads(row)["custom_id"] for row in rows if row} == {f"r-{n}" for n in range(30)}
    assert [one.id for one in client.batches.list(limit=1)] == [made.id]
    assert client.files.delete(stored.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(stored.id)
    with pytest.raises(openai.BadRequestError):
        client.batches.cancel(made.id)
    log = raw.sim.log()
    assert [one["route"] for one in log][:3] == ["upload", "create", "poll"]
    assert "sk-sdk" not in json.dumps(log)
    client.close()


def test_sdk_errors_have_their_classes(start: Callable[..., Raw]) -> None:
    raw = start({"route": "create", "fault": "status_before", "status": 429, "retry_after": "7"})
    client = openai.OpenAI(api_key="sk-sdk", base_url=raw.sim.base_url, max_retries=0)
    stored = client.files.create(file=("in.jsonl", lines(1)), purpose="batch")
    with pytest.raises(openai.RateLimitError) as caught:
        client.batches.create(
            input_file_id=stored.id, endpoint="/v1/responses", completion_window="24h"
        )
    assert caught.value.response.headers["retry-after"] == "7"
    bad = openai.OpenAI(api_key="invalid", base_url=raw.sim.base_url, max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        bad.batches.retrieve("batch_x")
    client.close()
    bad.close()
