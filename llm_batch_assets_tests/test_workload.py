"""The workload: the commented example is complete, errors name the field and what to write."""

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_batch_assets import identity
from llm_batch_assets.errors import InputError, WorkloadError
from llm_batch_assets.workload import Workload, check_dataset_key, is_floating_model

EXAMPLE = Path(__file__).parent.parent / "examples" / "docstring_summaries.yaml"
SCHEMA = {
    "type": "object",
    "required": ["a"],
    "additionalProperties": False,
    "properties": {"a": {"type": "string"}},
}
SMALL: dict[str, Any] = {
    "name": "small",
    "tenant_id": "t",
    "provider": "openai",
    "model": "gpt-5-mini-2025-08-07",
    "business_key": "k",
    "prompt": {"version": "v1", "user": "{{ text }}"},
    "output": {"schema": SCHEMA},
}


def build(**changes: Any) -> Workload:
    fields = {**SMALL, **changes}
    return Workload(**{name: value for name, value in fields.items() if value is not ...})


def names(model: Any, prefix: str = "") -> set[str]:
    """Every field of a workload and its parts, as written in YAML."""
    found: set[str] = set()
    for name, info in type(model).model_fields.items():
        written = prefix + (info.alias or name)
        found.add(written)
        value = getattr(model, name)
        if hasattr(type(value), "model_fields"):
            found |= names(value, f"{written}.")
    return found


def written(fields: Mapping[str, Any], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in fields.items():
        found.add(prefix + name)
        if isinstance(value, dict) and name not in ("schema", "generation"):
            found |= written(value, f"{prefix}{name}.")
    return found


def test_the_example_names_every_field_with_its_default() -> None:
    workload = Workload.from_yaml(EXAMPLE)
    raw = yaml.safe_load(EXAMPLE.read_text())
    assert written(raw) == names(workload)
    required = {"name", "tenant_id", "provider", "model", "business_key", "source_version"}
    kept = {name: value for name, value in raw.items() if name in required}
    kept["prompt"] = {name: raw["prompt"][name] for name in ("version", "system", "user")}
    kept["generation"] = raw["generation"]
    kept["output"] = {"schema": raw["output"]["schema"]}
    assert Workload(**kept) == workload


def test_yaml_and_python_agree_and_parts_are_frozen() -> None:
    workload = build(
        retry={"backoff": {"initial": "1h30m"}},
        limits={"bytes_per_shard": "64KiB", "usd_per_day": 0.1},
        retention={"delete_remote": "after 7d"},
    )
    assert workload.retry.backoff.initial == timedelta(minutes=90)
    assert workload.retry.backoff.delay(3) == timedelta(hours=6)
    assert workload.limits.bytes_per_shard == 65536
    assert workload.limits.usd_per_day == Decimal("0.1")
    assert workload.retention.delete_after == timedelta(days=7)
    assert workload.endpoint == "/v1/responses"
    with pytest.raises(Exception, match="frozen"):
        workload.retry.max_attempts = 9  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nam": "x"}, "nam: is no field"),
        ({"name": ...}, "name: is missing"),
        ({"name": "a b"}, "name: write text that matches"),
        ({"model": "gpt-5-mini"}, "model: .*allow_floating_model"),
        ({"provider": "mistral"}, "provider: write 'openai'"),
        ({"prompt": {"version": 3, "user": "x"}}, "prompt.version: write text .in quotes., not 3"),
        ({"prompt": {"version": "v 1", "user": "x"}}, "prompt.version"),
        ({"prompt": {"version": "v1"}}, "prompt: write exactly one of user"),
        ({"prompt": {"version": "v1", "user": "{{ a"}}, "prompt.user: line 1 is no valid template"),
        ({"prompt": {"version": "v1", "user": "{% include 'x' %}"}}, "prompt.user"),
        (
            {"prompt": {"version": "v1", "user": "x", "system": "a\x00b"}},
            "prompt.system: .*control",
        ),
        ({"output": {"answer": "json"}}, "output: answer: json needs schema"),
        ({"output": {"answer": "text", "schema": SCHEMA}}, "output: schema has no meaning"),
        ({"output": {"schema": {"type": "objekt"}}}, "output.schema: this is no JSON Schema"),
        ({"output": {"schema": {"$ref": "http://x.invalid/a"}}}, "output.schema: .*not part of"),
        ({"output": {"schema": {"type": "object"}, "strict": True}}, "output.strict"),
        ({"business_key": []}, "business_key"),
        ({"business_key": ["a", "a"]}, "business_key: a column is named twice"),
        ({"generation": {"seed": 1}}, "generation.seed"),
        ({"generation": {"model": "x"}}, "generation.model"),
        ({"generation": {"n": 2}}, "generation.n"),
        ({"generation": {"a": 2**60}}, "generation: .*2.*53|generation: Not expressible"),
        ({"generation": {"a": float("nan")}}, "generation"),
        ({"retry": {"cut_after": 5}}, "retry.cut_after: write a duration with its unit"),
        ({"retry": {"backoff": {"initial": "9h"}}}, "retry.backoff: initial must not"),
        ({"limits": {"bytes_per_shard": "9 zettabytes"}}, "limits.bytes_per_shard: write a size"),
        ({"limits": {"usd_per_day": "much"}}, "limits.usd_per_day: write an amount"),
        ({"publish": {"min_accepted": 1.5}}, "publish.min_accepted"),
        ({"gate": {"version": "v1", "function": "no colon"}}, "gate.function"),
        ({"retention": {"delete_remote": "tomorrow"}}, "retention.delete_remote: write keep"),
        ({"cache": "1h"}, "cache: only anthropic"),
        ({"endpoint": "/v1/nope"}, "endpoint: .*/v1/responses"),
        ({"provider": "anthropic", "endpoint": "/v1/responses"}, "endpoint: write one of"),
        ({"endpoint": "/v1/embeddings"}, "endpoint: .*embedding"),
        ({"body": "native"}, "body: write body: native together with prompt.body"),
        ({"reuse": "always"}, "reuse: write 'never'"),
        ({"limits": None}, "limits: write a mapping"),
        ({"tools": [{"name": "f", "schema": {"type": 3}}]}, "tools.0.schema: this is no JSON"),
    ],
)
def test_errors_name_the_field_and_what_to_write(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(WorkloadError, match=says) as caught:
        build(**changes)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_files_that_are_no_workload(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    with pytest.raises(WorkloadError, match="cannot be read"):
        Workload.from_yaml(path)
    for text, says in [
        ("a: [", "no valid YAML"),
        ("- a", "write a mapping"),
        ("name: a\nname: b", "'name' is written twice"),
        ("retry: {max_attempts: 1, max_attempts: 2}", "'max_attempts' is written twice"),
        ("name: a", "tenant_id: is missing"),
    ]:
        path.write_text(text)
        with pytest.raises(WorkloadError, match=says) as caught:
            Workload.from_yaml(path)
        assert str(path) in str(caught.value)
    path.write_bytes(b"name: \xff")
    with pytest.raises(WorkloadError, match="not UTF-8"):
        Workload.from_yaml(path)


@pytest.mark.parametrize(
    "name",
    [
        "gpt-5-mini",
        "gpt-4o",
        "claude-sonnet-5",
        "claude-haiku-4-5",
        "claude-3-5-haiku-latest",
        "gpt-4o-2024-08-06-latest",
        "gemini-2.5-flash",
        "chatgpt-4o-latest",
        "omni-moderation-latest",
    ],
)
def test_floating_names(name: str) -> None:
    assert is_floating_model(name)
    assert build(model=name, allow_floating_model=True).model == name


@pytest.mark.parametrize(
    "name",
    [
        "gpt-5-mini-2025-08-07",
        "gpt-4-0613",
        "gpt-4-1106-preview",
        "claude-haiku-4-5-20251001",
        "claude-sonnet-4-5@20250929",
        "gemini-2.0-flash-001",
        "gemini-2.5-flash-preview-09-2025",
        "gemini-embedding-001",
        "text-embedding-3-small",
        "text-embedding-ada-002",
        "amazon.titan-embed-text-v2:0",
        "us.anthropic.claude-haiku-4-5-20251001-v1:0",
        "cohere.embed-english-v3",
        "ft:gpt-4o-mini-2024-07-18:org::abc",
    ],
)
def test_names_that_do_not_move(name: str) -> None:
    assert not is_floating_model(name)


@pytest.mark.parametrize("key", ["2026-07-28", "cpython-3.11.9", "a:b_c", "0" * 100])
def test_dataset_keys(key: str) -> None:
    assert check_dataset_key(key) == key


@pytest.mark.parametrize("key", ["", "a/b", "a..b", "-a", ".a", "a b", "ä", "0" * 101, "a\n"])
def test_dataset_keys_refused(key: str) -> None:
    with pytest.raises(InputError, match="Dataset key"):
        check_dataset_key(key)


def test_endpoints_follow_provider_and_answer() -> None:
    embed = {"answer": "embedding"}
    assert build(output=embed).endpoint == "/v1/embeddings"
    gemini = {"provider": "gemini", "model": "gemini-embedding-001"}
    assert build(**gemini, output=embed).endpoint == "embedContent"
    claude = {"provider": "bedrock", "model": "anthropic.claude-haiku-4-5-20251001-v1:0"}
    assert build(**claude).endpoint == "Converse"
    tool = build(
        **claude, output={"answer": "tool", "schema": SCHEMA}, generation={"max_output_tokens": 9}
    )
    assert tool.endpoint == "InvokeModel"


def test_digests_follow_content_and_not_spelling() -> None:
    one, two = build(), build(prompt={"user": "{{ text }}", "version": "v2"})
    assert one.prompt_digest == two.prompt_digest
    assert one.labels()["prompt"][0] != two.labels()["prompt"][0]
    other = build(prompt={"version": "v1", "user": "{{ text }}!"})
    assert other.prompt_digest != one.prompt_digest
    assert other.config_digest == one.config_digest
    assert build(generation={"max_output_tokens": 7}).config_digest != one.config_digest
    gate = {"version": "v1", "function": "m:F"}
    labels = [build(gate=gate).labels(source)["gate"] for source in (str.upper, str.lower)]
    assert labels[0][0] == labels[1][0]
    assert labels[0][1] != labels[1][1]


def test_golden_digests() -> None:
    tools = [{"name": "f", "schema": {"type": "object"}}]
    workload = build(tools=tools, generation={"max_output_tokens": 7})
    want = {
        "config": identity.digest(
            [
                "openai",
                "gpt-5-mini-2025-08-07",
                "/v1/responses",
                {"max_output_tokens": 7},
                tools,
                None,
                SCHEMA,
            ]
        ),
        "prompt": identity.digest([{"user": "{{ text }}"}]),
        "output": identity.digest([{"schema": SCHEMA}]),
    }
    assert (
        workload.config_digest
        == want["config"]
        == "4e9a6c6e6277cb2a733b9802e92076ad7d9ad8a7dc2b5af472ed36cf6221420b"
    )
    assert (
        workload.prompt_digest
        == want["prompt"]
        == "5a05cf8647f2129bf5b71340af8b483da214d7d8e7a5d9690bb353a6c0d4f286"
    )
    assert (
        workload.output_digest
        == want["output"]
        == "1847bd434556c08ff02d89a2d4661e35ad4d27a67c384c8af8b89c7eeb5ff341"
    )


def test_import_of_the_package_stays_light() -> None:
    import subprocess
    import sys

    heavy = "[name for name in ('pyarrow', 'dagster', 'pandas', 'openai') if name in sys.modules]"
    code = f"import sys, llm_batch_assets.workload; print({heavy})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
