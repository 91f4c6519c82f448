"""Preflight of loose request files, through the command people run."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from llm_batch_assets.cli.preflight import command
from llm_batch_assets.errors import InputError
from llm_batch_assets.manifest.preflight import JobFacts, judge
from llm_batch_assets.types import ProviderName
from llm_batch_assets.wire.labels import client_token_fault, job_name_fault, metadata_faults
from llm_batch_assets_tests.manifest.helpers import frozen, rows, store, workload


def openai(custom_id: Any = "id", **changes: Any) -> dict[str, Any]:
    line = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    }
    found = {**line, **changes}
    return {name: value for name, value in found.items() if value is not ...}


def anthropic(custom_id: Any = "id", **changes: Any) -> dict[str, Any]:
    params = {"model": "m", "max_tokens": 5, "messages": [], **changes}
    kept = {name: value for name, value in params.items() if value is not ...}
    return {"custom_id": custom_id, "params": kept}


def gemini(key: Any = "id", **request: Any) -> dict[str, Any]:
    return {"key": key, "request": request or {"contents": [{"parts": [{"text": "a"}]}]}}


def bedrock(record_id: Any = "id", **given: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": [{"text": "a"}]}], **given}
    return {"recordId": record_id, "modelInput": body}


def encode(line: Any) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line).encode()


def reasons(provider: ProviderName, *lines: Any, job: JobFacts | None = None) -> dict[int, str]:
    """Line -> reason, with a good line of another id at the end of the file."""
    verdict = judge(provider, [encode(line) + b"\n" for line in lines], job)
    return {line.line: line.reason for line in verdict.reject}


GOOD: dict[ProviderName, Any] = {
    "openai": openai,
    "anthropic": anthropic,
    "gemini": gemini,
    "bedrock": bedrock,
}


@pytest.mark.parametrize(
    ("provider", "line", "reason"),
    [
        ("openai", b"{", "invalid_json"),
        ("openai", b"\xff", "invalid_utf8"),
        ("openai", b"null", "not_object"),
        ("openai", b'"text"', "not_object"),
        ("openai", b'{"custom_id": "a", "x": NaN}', "invalid_json"),
        ("openai", b'{"custom_id": "a\x01"}', "control_character"),
        ("openai", b'{"custom_id": "a", "custom_id": "b"}', "repeated_key"),
        ("openai", openai(...), "missing_custom_id"),
        ("openai", openai(7), "custom_id_not_text"),
        ("openai", openai(None), "custom_id_not_text"),
        ("openai", openai(" "), "empty_custom_id"),
        ("openai", openai("a\u2028"), "control_character_in_id"),
        ("openai", openai("x" * 65), "id_over_64"),
        ("openai", openai("\ud83d"), "lone_surrogate"),
        ("openai", openai(method="GET"), "method_not_post"),
        ("openai", openai(url=...), "missing_url"),
        ("openai", openai(body=...), "missing_body"),
        ("openai", openai(body=[]), "body_not_object"),
        ("openai", openai(body={}), "missing_model"),
        ("openai", openai(body={"model": ""}), "model_not_text"),
        ("openai", openai(body={"model": "m", "stream": True}), "stream"),
        ("openai", openai(body={"model": "m"}), "missing_messages"),
        ("openai", openai(body={"model": "m", "messages": "hi"}), "messages_not_list"),
        ("openai", b'{"custom_id": "a", "x": 1e400}', "invalid_json"),
        (
            "openai",
            openai(body={"model": "m", "messages": [{"content": "a\x00"}]}),
            "control_character",
        ),
        (
            "openai",
            openai(body={"model": "m", "messages": [{"\udc00": 1}]}),
            "lone_surrogate",
        ),
        ("anthropic", {"custom_id": "a"}, "missing_params"),
        ("anthropic", anthropic("a b"), "id_charset"),
        ("anthropic", anthropic("é"), "id_charset"),
        ("anthropic", anthropic("x" * 65), "id_over_64"),
        ("anthropic", anthropic(model=...), "missing_model"),
        ("anthropic", anthropic(messages=...), "missing_messages"),
        ("anthropic", anthropic(messages="hi"), "messages_not_list"),
        ("anthropic", anthropic(max_tokens=...), "missing_max_tokens"),
        ("anthropic", anthropic(max_tokens=0), "max_tokens_not_positive"),
        ("anthropic", anthropic(stream=True), "stream"),
        ("anthropic", anthropic(speed="fast"), "speed"),
        ("gemini", {"request": {"contents": []}}, "missing_key"),
        ("gemini", {"key": "a"}, "missing_request"),
        ("gemini", gemini(generationConfig={}), "missing_contents"),
        ("gemini", gemini(contents=[], config={}), "config_not_generation_config"),
        ("gemini", gemini(contents="hi"), "contents_not_list"),
        ("bedrock", {"modelInput": {"a": 1}}, "missing_recordId"),
        ("bedrock", {"recordId": "a"}, "missing_modelInput"),
        ("bedrock", {"recordId": "a", "modelInput": {}}, "empty_modelInput"),
        ("bedrock", bedrock(modelId="m"), "model_id_in_input"),
        ("bedrock", bedrock(toolConfig={}), "tool_config_in_converse"),
    ],
)
def test_a_bad_line_beside_good_ones(provider: ProviderName, line: Any, reason: str) -> None:
    good = [GOOD[provider]("ok-1"), GOOD[provider]("ok-2")]
    assert reasons(provider, good[0], line, good[1]) == {2: reason}


@pytest.mark.parametrize("provider", list(GOOD))
def test_duplicates_lose_every_line(provider: ProviderName) -> None:
    make = GOOD[provider]
    found = reasons(provider, make("a"), make("b"), make("a"), make("A"), make("a"))
    assert found == {1: "duplicate_custom_id", 3: "duplicate_custom_id", 5: "duplicate_custom_id"}


def test_mixed_models_and_urls_lose_the_fewer() -> None:
    other = {"model": "other", "messages": []}
    found = reasons("openai", openai("a", body=other), openai("b"), openai("c"))
    assert found == {1: "mixed_model"}
    asked = JobFacts(model="other")
    found = reasons("openai", openai("a", body=other), openai("b"), openai("c"), job=asked)
    assert found == {2: "mixed_model", 3: "mixed_model"}
    embed = openai("a", url="/v1/embeddings", body={"model": "m", "input": "x"})
    assert reasons("openai", embed, openai("b"), openai("c")) == {1: "mixed_url"}
    azure = openai("a", url="/chat/completions")
    assert reasons("openai", azure) == {}
    odd = openai("a", url="/v1/nope")
    assert reasons("openai", odd) == {1: "unknown_url"}
    claude = bedrock("a", anthropic_version="bedrock-2023-05-31")
    assert reasons("bedrock", claude, bedrock("b"), bedrock("c")) == {1: "mixed_kind"}
    embed = gemini("a", content={"parts": []})
    assert reasons("gemini", embed, gemini("b"), gemini("c")) == {1: "mixed_kind"}
    # Anthropic may mix models.
    assert reasons("anthropic", anthropic("a", model="x"), anthropic("b")) == {}


def test_bytes_that_are_no_fault() -> None:
    raw = json.dumps(openai("a\u00e9"), ensure_ascii=False).encode()
    text = json.dumps(openai("b"), ensure_ascii=False).replace("hi", "\u2028 \u0085 \t").encode()
    text = text.replace(b"\t", b"\\t\\n\\r")
    lines = [raw + b"\r\n", b"\n", b"  \n", text]
    verdict = judge("openai", lines)
    assert verdict.ok
    assert verdict.accept == ("aé", "b")
    marked = judge("openai", [b"\xef\xbb\xbf" + raw])
    assert [fault["reason"] for fault in marked.reject_job] == ["byte_order_mark"]
    assert marked.accept == ("aé",)


def test_collisions_after_shortening_or_cleaning_are_named() -> None:
    long = ["k" * 64 + "1", "k" * 64 + "2"]
    verdict = judge("openai", [encode(openai(i)) for i in (*long, "a/b", "a_b", "a b", "ok")])
    assert set(verdict.collisions) == {tuple(long), ("a/b", "a_b", "a b")}
    assert verdict.accept == ("a/b", "a_b", "a b", "ok")


def job_reasons(provider: ProviderName, lines: list[Any], **job: Any) -> list[str | None]:
    verdict = judge(provider, [encode(line) + b"\n" for line in lines], JobFacts(**job))
    return [fault["reason"] for fault in verdict.reject_job]


def test_limits_of_the_whole_file() -> None:
    lines = [openai(str(n)) for n in range(5)]
    size = sum(len(encode(line)) + 1 for line in lines)
    assert job_reasons("openai", []) == ["empty_file"]
    assert job_reasons("openai", lines, max_records=5, max_bytes=size) == []
    assert job_reasons("openai", lines, max_records=4, max_bytes=size - 1) == [
        "over_4_records",
        f"over_{size - 1}_bytes",
    ]
    assert job_reasons("bedrock", [bedrock(str(n)) for n in range(99)]) == ["under_100_records"]
    assert job_reasons("bedrock", [bedrock(str(n)) for n in range(100)]) == []
    assert job_reasons("bedrock", [bedrock("a")], minimum=1) == []
    around = len('{"requests":[]}')
    only = [anthropic("a")]
    room = len(encode(only[0])) + 1 + around
    assert job_reasons("anthropic", only, max_bytes=room) == []
    assert job_reasons("anthropic", only, max_bytes=room - 1) == [f"over_{room - 1}_bytes"]


def test_embedding_inputs_are_counted_across_lines() -> None:
    def embed(name: str, given: Any) -> dict[str, Any]:
        return openai(name, url="/v1/embeddings", body={"model": "m", "input": given})

    lines = [embed("a", ["x"] * 30), embed("b", "x"), embed("c", [1, 2, 3]), embed("d", [[1], [2]])]
    assert job_reasons("openai", lines, max_inputs=34) == []
    assert job_reasons("openai", lines, max_inputs=33) == ["over_33_embedding_inputs"]
    whole = [embed(str(n), ["x"] * 25_000) for n in range(3)]
    assert job_reasons("openai", whole) == ["over_50000_embedding_inputs"]


def test_metadata_and_names() -> None:
    assert metadata_faults("openai", {"k" * 64: "v" * 512}) == []
    long = metadata_faults("openai", {"k" * 65: "v", "n": 7, "": "x", "v": "v" * 513})
    assert [fault["reason"] for fault in long] == [
        "key_over_64",
        "value_not_text",
        "empty_key",
        "value_over_512",
    ]
    assert [
        f["reason"] for f in metadata_faults("openai", dict.fromkeys(map(str, range(17)), ""))
    ] == ["over_16_pairs"]
    for odd in ({"\ud83d": "v"}, {"k": "\ud83d"}):
        assert [fault["reason"] for fault in metadata_faults("openai", odd)] == ["lone_surrogate"]
    assert metadata_faults("bedrock", {"k" * 128: "v" * 256}) == []
    assert [f["reason"] for f in metadata_faults("anthropic", {"a": "b"})] == ["no_metadata"]
    assert job_name_fault("shard-s-0001-a1") is None
    for name in ("", "a" * 64, "-a", "a b", "a_b", "ä", "a/b"):
        assert job_name_fault(name) is not None
    assert client_token_fault("ab12-cd") is None
    for token in ("", "a" * 257, "-a", "a-", "sha256:ab", "a_b"):
        assert client_token_fault(token) is not None


def run(tmp_path: Path, lines: list[Any], *options: str) -> tuple[int, str]:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b"\n".join(map(encode, lines)))
    given = ["--provider", "openai", "--requests", str(path), *options]
    result = CliRunner().invoke(command, given, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.stdout


def test_the_command(tmp_path: Path) -> None:
    code, out = run(tmp_path, [openai("a"), openai("b")], "--format", "json")
    assert code == 0
    assert json.loads(out) == {
        "accept": ["a", "b"],
        "reject": [],
        "reject_job": [],
        "collisions": [],
    }
    metadata = tmp_path / "m.json"
    metadata.write_text(json.dumps({"metadata": {"k": "v" * 513}}))
    options = ("--format", "json", "--metadata", str(metadata))
    code, out = run(tmp_path, [openai("a"), openai("\ud83d")], *options)
    assert code == 4
    assert json.loads(out)["reject"] == [{"line": 2, "id": "\ud83d", "reason": "lone_surrogate"}]
    assert json.loads(out)["reject_job"] == [{"key": "k", "reason": "value_over_512"}]
    code, out = run(tmp_path, [openai("a"), openai("a"), openai("[red]x[/red]", method=...)])
    assert code == 4
    assert "duplicate_custom_id" in out
    assert "[red]x[/red]" in out
    assert "0 accepted, 3 rejected" in out


def test_unreadable_files(tmp_path: Path) -> None:
    given = ["--provider", "openai", "--requests", str(tmp_path / "absent")]
    result = CliRunner().invoke(command, given, standalone_mode=False)
    assert isinstance(result.exception, InputError)
    metadata = tmp_path / "m.json"
    metadata.write_text("[1]")
    with pytest.raises(InputError, match="JSON object"):
        run(tmp_path, [], "--metadata", str(metadata))
    for odd in ("{", '{"a": "b", "a": "c"}', "[" * 100_000):
        metadata.write_text(odd)
        with pytest.raises(InputError, match="no JSON"):
            run(tmp_path, [], "--metadata", str(metadata))


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-5-mini-2025-08-07"),
        ("anthropic", "claude-haiku-4-5-20251001"),
        ("gemini", "gemini-2.0-flash-001"),
        ("bedrock", "anthropic.claude-haiku-4-5-20251001-v1:0"),
    ],
)
def test_what_we_freeze_ourselves_passes(
    tmp_path: Path, provider: ProviderName, model: str
) -> None:
    where = store(tmp_path)
    asked = workload(provider=provider, model=model, generation={"max_output_tokens": 9})
    manifest = frozen(where, rows(120), asked).manifest
    for shard in manifest.shards:
        verdict = judge(provider, where.get(shard.digest).splitlines(keepends=True))
        assert verdict.ok
        assert verdict.collisions == ()
        assert len(verdict.accept) == shard.records


@given(st.lists(st.binary(max_size=60), max_size=6), st.sampled_from(list(GOOD)))
def test_no_bytes_break_it(lines: list[bytes], provider: ProviderName) -> None:
    verdict = judge(provider, lines)
    filled = [line for line in lines if line.removeprefix(b"\xef\xbb\xbf").strip()]
    assert len(verdict.accept) + len(verdict.reject) <= len(filled) + 1


def test_deep_nesting_is_a_fault_and_no_crash() -> None:
    deep = b'{"custom_id":"a","body":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert reasons("openai", deep, openai("b")) == {1: "invalid_json"}
    fine = b'{"custom_id":"a","method":"POST","url":"/v1/responses","body":{"model":"m","x":%b%b}}'
    assert reasons("openai", fine % (b"[" * 900, b"]" * 900)) == {}
