"""Capabilities: the shipped table, and refusals that name what would do instead."""

import json
from datetime import date
from typing import Any

import pytest
from click.testing import CliRunner

from llm_batch_assets.cli.capabilities import command
from llm_batch_assets.wire.ask import request_module
from llm_batch_assets.wire.capabilities import Cell, cells, find, read_cells, refusals
from llm_batch_assets.workload import Workload
from llm_batch_assets.workload.needs import capability_refusals, needs

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
CLAUDE = "anthropic.claude-haiku-4-5-20251001-v1:0"


def workload(**changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "name": "small",
        "tenant_id": "t",
        "provider": "openai",
        "model": "gpt-5-mini-2025-08-07",
        "business_key": "k",
        "prompt": {"version": "v1", "user": "{{ text }}"},
        "output": {"schema": SCHEMA},
        "generation": {"max_output_tokens": 5},
    }
    return Workload(**{**fields, **changes})


def test_the_table_agrees_with_the_encoders() -> None:
    for cell in cells():
        module = request_module(cell.provider)
        assert cell.endpoint in getattr(module, "BATCH_ENDPOINTS", module.ENDPOINTS)
        assert cell.limits.get("records") == module.LIMITS.records
        assert cell.limits["bytes"] == module.LIMITS.bytes
        assert cell.limits.get("minimum", 1) == module.LIMITS.minimum
        assert cell.learned_from
        assert cell.last_tested is None  # no live test was ever recorded
    for provider in ("openai", "anthropic", "gemini", "bedrock"):
        for endpoint in request_module(provider).ENDPOINTS:  # type: ignore[arg-type]
            assert any((c.provider, c.endpoint) == (provider, endpoint) for c in cells())


def test_no_cell_is_hidden_by_an_earlier_one() -> None:
    for place, cell in enumerate(cells()):
        example = cell.model.replace("*", "")
        first = find(cell.provider, example or "anything", cell.endpoint)
        assert first is not None
        assert cells().index(first) <= place
        if example:
            assert first == cell


def test_what_a_workload_needs() -> None:
    assert needs(workload()) == {"json"}
    assert needs(workload(output={"answer": "text"})) == {"text"}
    images = {"version": "v1", "user": "{{ a }}", "images": ["{{ b }}"]}
    tool = {"name": "f", "schema": SCHEMA}
    assert needs(workload(prompt=images, tools=[tool])) == {"json", "image", "tool"}
    cached = workload(provider="anthropic", model="claude-haiku-4-5-20251001", cache="1h")
    assert needs(cached) == {"json", "cache"}
    native = {"version": "v1", "body": "{{ a }}"}
    found = needs(workload(prompt=native, body="native", generation={}, output={"answer": "text"}))
    assert found == {"native"}


def test_a_need_that_the_cell_lacks_is_refused_with_alternatives() -> None:
    images = {"version": "v1", "user": "{{ a }}", "images": ["{{ b }}"]}
    asked = workload(provider="bedrock", model=CLAUDE, endpoint="InvokeModel", prompt=images)
    [refusal] = capability_refusals(asked, loopback=True)
    assert refusal.feature == "image"
    assert "does not offer images by reference; these do: bedrock * Converse" in refusal.sentence
    assert "anthropic claude-*" in refusal.sentence
    assert capability_refusals(workload(), loopback=True) == []


def test_unknown_models_are_refused() -> None:
    asked = workload(provider="gemini", model="other-001")
    [refusal] = capability_refusals(asked, loopback=True)
    assert refusal.feature == "endpoint"
    assert "gemini-*" in refusal.sentence


def test_an_untested_cell_needs_a_word_outside_loopback() -> None:
    assert capability_refusals(workload(), loopback=True) == []
    [refusal] = capability_refusals(workload(), loopback=False)
    assert refusal.feature == "untested"
    assert "allow_untested: true" in refusal.sentence
    assert capability_refusals(workload(allow_untested=True), loopback=False) == []
    tested = Cell(
        "openai",
        "m",
        "/v1/responses",
        frozenset({"json"}),
        "a live canary",
        date(2026, 1, 1),
        last_tested=date(2026, 1, 2),
    )
    given = {"loopback": False, "allow_untested": False, "table": [tested]}
    assert refusals("openai", "m", "/v1/responses", ["json"], **given) == []
    [refusal] = refusals("openai", "m", "/v1/responses", ["tool"], **given)
    assert refusal.feature == "tool"


def test_result_files_are_planned_to_survive_a_download() -> None:
    small = find("openai", "text-embedding-3-small", "/v1/embeddings")
    large = find("openai", "text-embedding-3-large", "/v1/embeddings")
    assert small is not None
    assert large is not None
    assert small.records_for_results() == 5882
    assert large.records_for_results() == 2941
    chat = find("openai", "gpt-5-mini-2025-08-07", "/v1/responses")
    assert chat is not None
    assert chat.records_for_results() is None


CELL = """
[[cell]]
provider = "openai"
model = "*"
endpoint = "/v1/responses"
limits = {}
features = []
learned_from = "x"
learned_on = 2026-01-01
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CELL + "surprise = 1", "Unknown in a capability cell: surprise"),
        (CELL.replace("[]", '["telepathy"]'), "Unknown in a capability cell: telepathy"),
        (CELL.replace("{}", "{ wishes = 3 }"), "Unknown in a capability cell: wishes"),
        (CELL.replace('learned_from = "x"\n', ""), "Missing in a capability cell: learned_from"),
        (CELL.replace('"openai"', '"mistral"'), "Unknown provider"),
    ],
)
def test_a_row_is_whole_or_refused(text: str, says: str) -> None:
    assert len(read_cells(CELL)) == 1
    with pytest.raises(ValueError, match=says):
        read_cells(text)


def test_the_command() -> None:
    result = CliRunner().invoke(command, ["--format", "json", "--provider", "bedrock"])
    found = json.loads(result.stdout)
    assert {row["provider"] for row in found} == {"bedrock"}
    assert all(row["last_tested"] is None for row in found)
    result = CliRunner().invoke(command, ["--model", "claude-haiku-4-5-20251001"])
    assert "anthropic" in result.stdout
    assert "gemini" not in result.stdout
