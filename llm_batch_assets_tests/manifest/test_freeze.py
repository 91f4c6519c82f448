"""Freezing: what is in a manifest, what names it, and what refuses a table."""

import hashlib
import itertools
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_batch_assets import identity
from llm_batch_assets.errors import ArtifactError, InputError, WorkloadError
from llm_batch_assets.manifest import (
    RECORDS_SCHEMA,
    Manifest,
    load_manifest,
    prepare,
    record_batches,
    rows_digest,
)
from llm_batch_assets.workload import Workload
from llm_batch_assets_tests.manifest.helpers import (
    FIELDS,
    NOW,
    batches,
    frozen,
    lines_of,
    retried,
    rows,
    selection,
    store,
    table_of,
    workload,
)


def test_a_manifest_and_everything_it_names(tmp_path: Path) -> None:
    where = store(tmp_path)
    asked = workload(
        limits={"records_per_shard": 40},
        generation={"max_output_tokens": 9, "temperature": 0},
        cost_center="c",
        gate={"version": "g1", "function": "m:f"},
    )
    found = frozen(where, rows(100), asked)
    manifest = load_manifest(where, found.manifest_digest)
    assert manifest == found.manifest
    assert json.loads(where.get(found.manifest_digest))["kind"] == "llm_batch_assets.manifest"
    assert (manifest.expected_record_count, manifest.preflight_rejected) == (100, 0)
    assert [shard.records for shard in manifest.shards] == [40, 40, 20]
    assert manifest.deterministic
    assert manifest.temperature == 0
    assert manifest.output.json_schema == asked.output.json_schema
    assert manifest.retry == asked.retry
    assert manifest.created_at == NOW
    table = table_of(where, manifest)
    assert table.schema.equals(RECORDS_SCHEMA)
    assert table["ordinal"].to_pylist() == list(range(100))
    assert rows_digest(record_batches(where, manifest.records_digest)) == manifest.rows_digest
    seen = table.to_pylist()
    place = 0
    for shard, lines in zip(manifest.shards, lines_of(where, manifest), strict=True):
        data = where.get(shard.digest)
        assert (len(data), len(lines)) == (shard.bytes, shard.records)
        assert shard.tag == identity.wire_tag(manifest.job_key, shard.ordinal)
        for number, (raw, line) in enumerate(zip(data.split(b"\n"), lines, strict=False)):
            row = seen[place]
            assert (row["shard"], row["line"]) == (shard.ordinal, number)
            assert line["custom_id"] == row["wire_id"]
            assert identity.parse_wire_id(row["wire_id"]) == (shard.tag, row["record_id"])
            assert (line["method"], line["url"]) == ("POST", "/v1/responses")
            body = raw[raw.index(b'"body":') + 7 : -1]
            assert hashlib.sha256(body).hexdigest() == row["request_digest"]
            assert len(body) == row["request_bytes"]
            assert line["body"]["input"].endswith(f" {int(row['business_key'][4:])}")
            place += 1
    assert place == 100
    one = seen[0]
    assert one["record_id"] == identity.record_id(
        tenant_id="t",
        workload="small",
        business_key=one["business_key"],
        source_version="1",
        prompt_version="v1",
        config_digest=asked.config_digest,
    )
    pairs = zip(table["record_id"].to_pylist(), table["request_digest"].to_pylist(), strict=True)
    manifest_hash = identity.input_manifest_hash(
        deployment="dev",
        workload="small",
        dataset="d",
        revision=1,
        attempt=1,
        parent_job_key=None,
        records_digest=identity.records_digest(pairs),
    )
    assert manifest.input_manifest_hash == manifest_hash


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    count=st.integers(2, 40),
    seed=st.integers(0, 99),
    per_shard=st.integers(1, 15),
    texts=st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12), min_size=40
    ),
)
def test_keys_differ_where_work_differs_and_only_there(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    seed: int,
    per_shard: int,
    texts: list[str],
) -> None:
    where = store(tmp_path_factory.mktemp("store"))
    asked = workload(limits={"records_per_shard": per_shard})
    items = [{"k": f"k{n}", "v": "1", "text": texts[n]} for n in range(count)]
    first = frozen(where, items, asked).manifest

    again = frozen(where, items, asked, submitter="another").manifest
    mixed = random.Random(seed).sample(items, count)
    reordered = frozen(where, mixed, asked).manifest
    for same in (again, reordered):
        assert same.job_key == first.job_key
        assert same.input_manifest_hash == first.input_manifest_hash
        assert same.shards == first.shards
        assert same.rows_digest == first.rows_digest
    layout = workload(limits={"records_per_shard": per_shard + 1})
    assert frozen(where, items, layout).manifest.job_key == first.job_key

    everything = table_of(where, first)
    second = retried(where, [first], selection(everything, first.job_key)).manifest
    assert retried(where, [first], selection(everything, first.job_key)).manifest == second
    third = retried(
        where, [first, second], selection(table_of(where, second), second.job_key)
    ).manifest
    others = [
        second,
        third,
        frozen(where, items, asked, revision=2).manifest,
        frozen(where, items, asked, dataset="e").manifest,
        frozen(where, items, asked, deployment="prod").manifest,
        frozen(where, items, workload(name="other")).manifest,
        frozen(where, items, workload(tenant_id="other")).manifest,
        frozen(where, items, workload(salt="again")).manifest,
        frozen(where, items[:-1], asked).manifest,
    ]
    manifests = [first, *others]
    assert len({m.job_key for m in manifests}) == len(manifests)
    assert len({m.input_manifest_hash for m in manifests}) == len(manifests)
    submissions = {
        identity.submission_key(m.job_key, shard.ordinal, epoch)
        for m in manifests
        for shard in m.shards
        for epoch in (0, 1)
    }
    assert len(submissions) == 2 * sum(len(m.shards) for m in manifests)
    tags = [shard.tag for m in manifests for shard in m.shards]
    assert len(set(tags)) == len(tags)
    # A record keeps its name through attempts; only its wire id changes.
    assert set(table_of(where, third)["record_id"].to_pylist()) == set(
        everything["record_id"].to_pylist()
    )


def test_a_freeze_that_dies_leaves_nothing_that_counts(tmp_path: Path) -> None:
    where = store(tmp_path)

    class Died(Exception):
        pass

    def broken() -> Any:
        yield from batches(rows(10))
        raise Died

    with pytest.raises(Died):
        frozen(where, broken())
    assert list(where.digests()) == []
    with prepare(
        workload(), batches(rows(10)), dataset="d", revision=1, deployment="dev", submitter="me"
    ) as prepared:
        assert list(where.digests()) == []
        found = prepared.commit(where, NOW)
    assert found.manifest.job_key == frozen(where, rows(10)).manifest.job_key


def refused(tmp_path: Path, items: Any, says: str, **changes: Any) -> str:
    where = store(tmp_path)
    with pytest.raises(InputError, match=says) as caught:
        frozen(where, items, **changes)
    assert caught.value.exit_code == 2
    assert list(where.digests()) == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_empty_tables(tmp_path: Path) -> None:
    refused(tmp_path, [], "empty")
    schema = pa.schema([(name, pa.string()) for name in ("k", "v", "text")])
    refused(tmp_path, iter([pa.RecordBatch.from_pylist([], schema=schema)]), "empty")


def test_null_empty_and_float_keys_name_the_first_ten(tmp_path: Path) -> None:
    items = rows(30)
    for n in range(12):
        items[n]["k"] = None
    items[20]["k"] = ""
    message = refused(tmp_path, items, "13 keys that cannot be used")
    assert "row 1 " in message
    assert "row 10 " in message
    assert "row 11 " not in message
    assert "and 3 more" in message
    assert "'k'" in message
    floats = [{**row, "k": float(n)} for n, row in enumerate(rows(3))]
    refused(tmp_path, floats, "Column 'k': a key must not be a float")
    refused(tmp_path, [{**row, "v": None} for row in rows(3)], "Column 'v': a key must not be null")
    nested = [{**row, "k": [1]} for row in rows(2)]
    refused(tmp_path, nested, "Column 'k': a value of type list")


def test_duplicate_keys_name_the_first_ten(tmp_path: Path) -> None:
    items = rows(30) + rows(11)
    message = refused(tmp_path, items, "22 rows share their key")
    assert "row 1 'key-000000'" in message
    assert "and 12 more" in message
    versions = rows(2) + [{**row, "v": "2"} for row in rows(2)]
    assert frozen(store(tmp_path), versions).manifest.expected_record_count == 4


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    asked = workload(business_key="id")
    message = refused(tmp_path, rows(2), "business_key: the table has no column 'id'", asked=asked)
    assert "k, v, text" in message
    prompt = {"version": "v1", "user": "{{ text }} {{ body }} {{ title }}"}
    with pytest.raises(WorkloadError, match=r"prompt\.user: the template names 'body', 'title'"):
        frozen(store(tmp_path), rows(2), workload(prompt=prompt))
    refused(tmp_path, rows(2), "Dataset key", dataset="a/b")


def test_key_types_and_composites(tmp_path: Path) -> None:
    where = store(tmp_path)
    asked = workload(business_key=["k", "n"], source_version=None)
    items = [{"k": "a", "n": 7, "text": "x"}, {"k": "a", "n": 8, "text": "x"}]
    table = table_of(where, frozen(where, items, asked).manifest)
    assert sorted(table["business_key"].to_pylist()) == ['["a","7"]', '["a","8"]']
    assert table["source_version"].null_count == 2
    text = [{"k": "a", "n": "7", "text": "x"}, {"k": "a", "n": "8", "text": "x"}]
    same = table_of(where, frozen(where, text, asked).manifest)
    assert same["record_id"] == table["record_id"]
    refused(tmp_path / "other", items, "was not read as text", asked=asked, text_keys=True)
    gap = [{"k": "", "n": "", "text": "x"}]
    refused(tmp_path / "gap", gap, r"row 1 \(empty\)", asked=asked)


BAD = {"lone": "a \ud83d b", "nul": "a\x00b", "escape": "\x1b[0m"}
RULES = {"lone": "lone_surrogate", "nul": "control_character", "escape": "control_character"}


def raw_batches(items: list[dict[str, str]]) -> list[pa.RecordBatch]:
    """Arrow text that may hold what is no UTF-8, as a careless writer leaves it in Parquet."""
    arrays = []
    for name in items[0]:
        data = [row[name].encode("utf-8", "surrogatepass") for row in items]
        binary = pa.array(data, pa.binary())
        arrays.append(pa.Array.from_buffers(pa.string(), len(data), binary.buffers()))
    return [pa.RecordBatch.from_arrays(arrays, list(items[0]))]


def test_faults_of_one_record_keep_it_back(tmp_path: Path) -> None:
    where = store(tmp_path)
    items = rows(400)
    bad = dict(zip(BAD, (5, 77, 399), strict=True))
    for name, n in bad.items():
        items[n]["text"] = BAD[name]
    items[9]["text"] = "tab\t newline\n return\r nel\x85 sep\u2028 del\x7f"
    long = {**rows(1, start=400)[0], "text": "x" * 5000}
    asked = workload(limits={"bytes_per_shard": "4KB"})
    manifest = frozen(where, raw_batches([*items, long]), asked).manifest
    assert manifest.preflight_rejected == 4
    assert manifest.expected_record_count == 401
    assert all(shard.bytes <= 4000 for shard in manifest.shards)
    table = table_of(where, manifest).to_pylist()
    kept = {row["business_key"]: row for row in table if row["preflight_rule"] is not None}
    want = {items[n]["k"]: RULES[name] for name, n in bad.items()} | {long["k"]: "line_too_long"}
    assert {key: row["preflight_rule"] for key, row in kept.items()} == want
    assert [row["shard"] for row in table[-4:]] == [-1] * 4
    assert {row["line"] for row in table[-4:]} == {-1}
    for name, n in bad.items():
        raw = BAD[name].encode("utf-8", "surrogatepass")
        assert kept[items[n]["k"]]["request_digest"] == identity.rejected_digest(RULES[name], raw)
    assert sum(shard.records for shard in manifest.shards) == 397
    sent = [line["body"]["input"] for shard in lines_of(where, manifest) for line in shard]
    assert items[9]["text"] in sent
    # What is kept back is part of the question: mended, it is another job.
    items[5]["text"] = "mended"
    mended = frozen(where, raw_batches([*items, long]), asked).manifest
    assert mended.job_key != manifest.job_key


def test_more_than_one_percent_kept_back_refuses_the_dataset(tmp_path: Path) -> None:
    items = rows(200)
    items[0]["text"] = items[1]["text"] = "\x00"
    assert frozen(store(tmp_path / "a"), items).manifest.preflight_rejected == 2
    items[2]["text"] = "\x00"
    message = refused(tmp_path / "b", items, "3 records cannot be sent")
    assert "'key-000000' (version 1): control_character" in message


def test_templates_that_fail_on_one_record(tmp_path: Path) -> None:
    where = store(tmp_path)
    prompt = {"version": "v1", "user": "{{ 10 // n }} {{ row['odd name'] }} {{ gone }}"}
    asked = workload(prompt=prompt)
    items = [{"k": str(n), "v": "1", "n": n, "odd name": "o", "gone": None} for n in range(150)]
    typed = pa.Table.from_pylist(
        items,
        pa.schema(
            [
                ("k", "string"),
                ("v", "string"),
                ("n", "int64"),
                ("odd name", "string"),
                ("gone", "string"),
            ]
        ),
    )
    manifest = frozen(where, typed.to_batches(), asked).manifest
    kept = [row for row in table_of(where, manifest).to_pylist() if row["preflight_rule"]]
    assert [(row["business_key"], row["preflight_rule"]) for row in kept] == [("0", "template")]
    inputs = {line["body"]["input"] for shard in lines_of(where, manifest) for line in shard}
    assert "5 o " in inputs


def test_templates_cannot_reach_out(tmp_path: Path) -> None:
    prompt = {"version": "v1", "user": "{{ text.__class__.__mro__[1].__subclasses__() }}"}
    refused(tmp_path, rows(3), "template", asked=workload(prompt=prompt))


def native(**changes: Any) -> Workload:
    prompt = {"version": "v1", "body": "{{ text }}"}
    return workload(body="native", prompt=prompt, output={"answer": "text"}, **changes)


def test_native_bodies_are_sent_as_they_are(tmp_path: Path) -> None:
    where = store(tmp_path)
    model = FIELDS["model"]
    given = {
        "plain": f'{{"model": "{model}",  "input": "é \\u00e9", "x": 1.50}}',
        "lines": f'{{"model": "{model}",\r\n "input": "a"}}\n',
        "deep": json.dumps({"model": model, "input": "a", "x": [{"y": {"z": 1}}]}),
    }
    bad = {
        "twice": (f'{{"model": "{model}", "input": 1, "input": 2}}', "native_body"),
        "nan": (f'{{"model": "{model}", "x": NaN}}', "native_body"),
        "list": ("[1]", "native_body"),
        "other": ('{"model": "m", "input": "a"}', "native_model"),
        "stream": (f'{{"model": "{model}", "stream": true}}', "native_stream"),
        "surrogate": (f'{{"model": "{model}", "input": "\\ud83d"}}', "lone_surrogate"),
        "nul": (f'{{"model": "{model}", "input": "\\u0000"}}', "control_character"),
    }
    filler = {f"f{n}": given["plain"] for n in range(800)}
    texts = {**filler, **given, **{key: text for key, (text, _) in bad.items()}}
    items = [{"k": key, "v": "1", "text": text} for key, text in texts.items()]
    manifest = frozen(where, items, native()).manifest
    found = {row["business_key"]: row for row in table_of(where, manifest).to_pylist()}
    assert {k: r["preflight_rule"] for k, r in found.items() if r["preflight_rule"]} == {
        key: rule for key, (_, rule) in bad.items()
    }
    plain, lines = found["plain"], found["lines"]
    assert plain["request_digest"] == hashlib.sha256(given["plain"].encode()).hexdigest()
    sent = where.get(manifest.shards[0].digest).split(b"\n")[lines["line"]]
    assert json.loads(sent)["body"] == json.loads(given["lines"])


def test_embedding_inputs_limit_a_shard(tmp_path: Path) -> None:
    where = store(tmp_path)
    asked = native(model="text-embedding-3-small", endpoint="/v1/embeddings")
    body = json.dumps({"model": "text-embedding-3-small", "input": ["a"] * 20_000})
    items = [{"k": str(n), "v": "1", "text": body} for n in range(5)]
    manifest = frozen(where, items, asked).manifest
    assert [shard.records for shard in manifest.shards] == [2, 2, 1]
    again = retried(where, [manifest], selection(table_of(where, manifest), manifest.job_key))
    assert [shard.records for shard in again.manifest.shards] == [2, 2, 1]


def test_embedding_shards_stay_below_what_a_download_survives(tmp_path: Path) -> None:
    where = store(tmp_path)
    asked = workload(
        model="text-embedding-3-large",
        output={"answer": "embedding"},
        limits={"records_per_shard": 50_000},
    )
    manifest = frozen(where, rows(3000), asked).manifest
    assert [shard.records for shard in manifest.shards] == [2941, 59]


def test_bedrock_shards_never_fall_below_the_minimum(tmp_path: Path) -> None:
    where = store(tmp_path)
    asked = workload(
        provider="bedrock",
        model="anthropic.claude-haiku-4-5-20251001-v1:0",
        limits={"records_per_shard": 150},
    )
    refused(tmp_path / "few", rows(99), "fewer than 100 records", asked=asked)
    manifest = frozen(where, rows(310), asked).manifest
    assert [shard.records for shard in manifest.shards] == [104, 104, 102]


def test_records_with_one_prefix_lie_together_for_the_cache(tmp_path: Path) -> None:
    where = store(tmp_path)
    prompt = {
        "version": "v1",
        "system": "s",
        "messages": [
            {"text": "{{ document }}"},
            {"role": "assistant", "text": "Read."},
            {"text": "{{ text }}"},
        ],
    }
    asked = workload(
        provider="anthropic",
        model="claude-haiku-4-5-20251001",
        generation={"max_output_tokens": 50},
        cache="1h",
        prompt=prompt,
    )
    items = [{**row, "document": f"document {n % 7}"} for n, row in enumerate(rows(70))]
    manifest = frozen(where, items, asked).manifest
    again = retried(where, [manifest], selection(table_of(where, manifest), manifest.job_key))
    for one in (manifest, again.manifest):
        check_prefixes(lines_of(where, one)[0])


def check_prefixes(lines: list[dict[str, Any]]) -> None:
    control = {"type": "ephemeral", "ttl": "1h"}
    documents = []
    for line in lines:
        params = line["params"]
        assert params["system"] == [{"type": "text", "text": "s", "cache_control": control}]
        assert params["messages"][-2]["content"][-1]["cache_control"] == control
        documents.append(params["messages"][0]["content"])
    changes = sum(a != b for a, b in itertools.pairwise(documents))
    assert changes == 6


def test_a_system_prompt_is_never_a_template(tmp_path: Path) -> None:
    prompt = {"version": "v1", "system": "About {{ text }}.", "user": "{{ text }}"}
    refused(tmp_path, rows(2), "prompt.system: is sent as it is", asked=workload(prompt=prompt))
    literal = {"version": "v1", "system": "Write {{ name }} in braces.", "user": "{{ text }}"}
    found = frozen(store(tmp_path), rows(2), workload(prompt=literal)).manifest
    assert found.system_prompt == "Write {{ name }} in braces."


def test_a_manifest_keeps_every_policy_through_json(tmp_path: Path) -> None:
    where = store(tmp_path)
    asked = workload(
        retry={"backoff": {"initial": "90s", "factor": 1.5, "max": "1h"}, "cut_after": "30m"},
        limits={"usd_per_day": 0.1, "records_per_day": 5},
        canary={"records": 3},
        retention={"delete_remote": "after 7d"},
        gate={"version": "g", "function": "m:f"},
        tools=[{"name": "f", "schema": {"type": "object"}}],
    )
    found = frozen(where, rows(4), asked)
    assert load_manifest(where, found.manifest_digest) == found.manifest
    assert found.manifest.retry == asked.retry
    assert found.manifest.limits == asked.limits
    assert found.manifest.retention == asked.retention


def test_manifests_that_cannot_be_read(tmp_path: Path) -> None:
    where = store(tmp_path)
    for data in (b"", b"{}", b'{"kind": "llm_batch_assets.manifest", "version": 2}', b"\xff"):
        with pytest.raises(ArtifactError, match="no manifest"):
            load_manifest(where, where.put(data))
    with pytest.raises(ArtifactError):
        load_manifest(where, "0" * 64)
    found = frozen(where, rows(1))
    grown = {**json.loads(found.manifest.to_bytes()), "surprise": 1}
    with pytest.raises(ArtifactError, match="surprise"):
        load_manifest(where, where.put(json.dumps(grown).encode()))


def test_memory_stays_small(tmp_path: Path) -> None:
    where = store(tmp_path)

    def stream(count: int) -> Any:
        for start in range(0, count, 1000):
            yield from batches(rows(1000, "x" * 2000, start), 1000)

    def peak(count: int) -> tuple[int, Manifest]:
        tracemalloc.start()
        manifest = frozen(where, stream(count)).manifest
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top, manifest

    small, _ = peak(2_000)
    large, manifest = peak(12_000)
    assert manifest.expected_record_count == 12_000
    # 24 MB of text went through; the rows held for one group of the Parquet file come on top.
    assert large - small < 12_000_000
