"""Drift: counted by source key, so that a changed prompt is a change and not a replacement."""

from pathlib import Path

import pyarrow as pa

from llm_batch_assets.manifest import Drift, drift, prepare
from llm_batch_assets_tests.manifest.helpers import (
    batches,
    frozen,
    rows,
    store,
    table_of,
    workload,
)


def test_added_changed_and_removed(tmp_path: Path) -> None:
    where = store(tmp_path)
    old = table_of(where, frozen(where, rows(10)).manifest)
    assert drift(old, old) == Drift(0, 0, 0)
    assert not drift(old, old)
    items = rows(12)[1:]
    items[3]["text"] = "other"
    items[4]["v"] = "2"
    with prepare(
        workload(), batches(items), dataset="d", revision=1, deployment="dev", submitter="me"
    ) as prepared:
        assert drift(old, prepared.records()) == Drift(added=3, changed=1, removed=2)


def test_a_changed_prompt_changes_every_record(tmp_path: Path) -> None:
    where = store(tmp_path)
    old = table_of(where, frozen(where, rows(10)).manifest)
    other = workload(prompt={"version": "v2", "user": "{{ text }}"})
    new = table_of(where, frozen(where, rows(10), other).manifest)
    assert set(old["request_digest"].to_pylist()) == set(new["request_digest"].to_pylist())
    assert drift(old, new) == Drift(0, 10, 0)


def test_missing_versions_and_odd_keys_stay_apart() -> None:
    def table(keys: list[tuple[str, str | None]]) -> pa.Table:
        return pa.table(
            {
                "record_id": [str(n) for n in range(len(keys))],
                "business_key": [key for key, _ in keys],
                "source_version": pa.array([version for _, version in keys], pa.string()),
                "request_digest": ["r"] * len(keys),
            }
        )

    odd = [("a", None), ("a", ""), ("a", "-"), ("a:+", "b"), ("a", "+:b"), ("a:", "+b")]
    assert drift(table(odd), table(odd)) == Drift(0, 0, 0)
    for n in range(len(odd)):
        assert drift(table(odd[:n]), table(odd[n : n + 1])) == Drift(1, 0, n)
