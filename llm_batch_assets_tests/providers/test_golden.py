"""A recorded exchange, replayed: what goes over the wire and what we make of it stay the same."""

from __future__ import annotations

import json

import pytest

from llm_batch_assets.providers.factory import open_provider
from llm_batch_assets_tests.providers.golden import (
    FOLDER,
    NAMES,
    Origin,
    dialect_of,
    life,
    sent,
)
from llm_batch_assets_tests.providers.harness import DEPLOYMENT
from llm_batch_assets_tests.scripted_server import ScriptedServer


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_exchange(name, tmp_path):
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    waiting = list(golden["exchanges"])
    differences = []

    def handler(request, wire):
        origin = f"http://{request.headers['host']}"
        exchange = waiting.pop(0)
        if sent(request, origin) != exchange["request"]:
            differences.append((sent(request, origin), exchange["request"]))
        reply = exchange["reply"]
        body = reply["body"].replace("{origin}", origin).encode()
        headers = {k: v.replace("{origin}", origin) for k, v in reply["headers"].items()}
        wire.reply(reply["status"], body, headers)

    with ScriptedServer(handler) as server:
        dialect = dialect_of(name)
        env = dialect.env(Origin(server.url), "sk-other")
        provider = open_provider(name, env=env, deployment=DEPLOYMENT)
        outcome = life(provider, dialect, tmp_path, lambda: None)
        provider.close()
    for ours, recorded in differences:
        assert ours == recorded
    assert waiting == []
    text = json.dumps(outcome).replace(server.url, "{origin}")
    assert json.loads(text) == golden["outcome"]
