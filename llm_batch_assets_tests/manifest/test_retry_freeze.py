"""The next attempt: the same bodies under new names, each record with its own lineage."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from llm_batch_assets import identity
from llm_batch_assets.errors import ArtifactError, DatasetError
from llm_batch_assets.manifest import Manifest
from llm_batch_assets_tests.manifest.helpers import (
    frozen,
    lines_of,
    retried,
    rows,
    selection,
    store,
    table_of,
    workload,
)


def rows_of(table: pa.Table, keys: set[str]) -> pa.Table:
    return table.filter(pc.is_in(table["business_key"], pa.array(sorted(keys))))


def bodies(where: object, manifest: Manifest) -> dict[str, dict]:
    return {
        line["custom_id"]: line["body"]
        for shard in lines_of(where, manifest)  # type: ignore[arg-type]
        for line in shard
    }


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-5-mini-2025-08-07"),
        ("anthropic", "claude-haiku-4-5-20251001"),
        ("gemini", "gemini-2.0-flash-001"),
        ("bedrock", "anthropic.claude-haiku-4-5-20251001-v1:0"),
    ],
)
def test_bodies_come_from_where_each_record_was_last_sent(
    tmp_path: Path, provider: str, model: str
) -> None:
    where = store(tmp_path)
    asked = workload(
        provider=provider,
        model=model,
        generation={"max_output_tokens": 99},
        limits={"records_per_shard": 100},
    )
    first = frozen(where, rows(300), asked).manifest
    table = table_of(where, first)
    keys = {f"key-{n:06d}" for n in range(0, 300, 7)}
    second = retried(where, [first], selection(rows_of(table, keys), first.job_key)).manifest
    assert second.parent_job_key == first.job_key
    assert second.attempt == 2
    sent = table_of(where, second)
    again = {"key-000007", "key-000014"}
    late = {"key-000001"}
    chosen = pa.concat_tables(
        [
            selection(rows_of(sent, again), second.job_key, "rate_limit"),
            selection(rows_of(table, late), first.job_key, "expired"),
        ]
    )
    third = retried(where, [first, second], chosen).manifest
    lineage = {row["business_key"]: row for row in table_of(where, third).to_pylist()}
    assert set(lineage) == again | late
    assert lineage["key-000001"]["parent_job_key"] == first.job_key
    assert lineage["key-000001"]["retry_reason"] == "expired"
    assert lineage["key-000007"]["parent_job_key"] == second.job_key
    assert third.parent_job_key == second.job_key
    origin = {row["business_key"]: row for row in table.to_pylist()}
    for key, row in lineage.items():
        for name in ("record_id", "request_digest", "request_bytes", "source_version"):
            assert row[name] == origin[key][name]
        assert row["wire_id"] != origin[key]["wire_id"]
        assert identity.parse_wire_id(row["wire_id"]) == (third.shards[0].tag, row["record_id"])
    [shard] = third.shards
    raw = where.get(shard.digest)
    assert raw.count(b"\n") == 3
    for row in lineage.values():
        assert row["wire_id"].encode() in raw


def test_policy_is_the_parents_and_a_retry_repeats_itself(tmp_path: Path) -> None:
    where = store(tmp_path)
    asked = workload(retry={"max_attempts": 7}, generation={"max_output_tokens": 5})
    first = frozen(where, rows(20), asked).manifest
    chosen = selection(table_of(where, first).slice(3, 5), first.job_key)
    second = retried(where, [first], chosen).manifest
    for name in ("retry", "output", "generation", "config_digest", "limits", "prompt_digest"):
        assert getattr(second, name) == getattr(first, name)
    mixed = chosen.take([4, 2, 0, 1, 3])
    assert retried(where, [first], mixed).manifest == second
    fewer = retried(where, [first], chosen.slice(1)).manifest
    assert fewer.job_key != second.job_key
    assert len(bodies(where, second)) == 5


def test_what_cannot_be_retried(tmp_path: Path) -> None:
    where = store(tmp_path)
    items = rows(150)
    items[0]["text"] = "\x00"
    first = frozen(where, items).manifest
    table = table_of(where, first)
    with pytest.raises(DatasetError, match="Nothing is left"):
        retried(where, [first], selection(table.slice(0, 0), first.job_key))
    twice = pa.concat_tables([table.slice(0, 1), table.slice(0, 1)])
    with pytest.raises(DatasetError, match="selected twice"):
        retried(where, [first], selection(twice, first.job_key))
    with pytest.raises(DatasetError, match="is no job of this revision"):
        retried(where, [first], selection(table.slice(0, 1), "sha256:" + "0" * 64))
    with pytest.raises(DatasetError, match="has no shard -1"):
        retried(where, [first], selection(table.slice(149), first.job_key))
    moved = selection(table.slice(0, 1), first.job_key).set_column(
        0, "record_id", pa.array(["0" * 64])
    )
    with pytest.raises(DatasetError, match="1 selected records were not sent in shard 0"):
        retried(where, [first], moved)


def test_a_request_file_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    where = store(tmp_path)
    first = frozen(where, rows(5)).manifest
    other = frozen(where, rows(5, text="other")).manifest
    swapped = first.model_copy(update={"shards": other.shards})
    chosen = selection(table_of(where, first).slice(0, 1), first.job_key)
    with pytest.raises(ArtifactError, match="not the one its records describe"):
        retried(where, [swapped], chosen)
