"""A snapshot of the definitions: nothing in the location changes unnoticed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from llm_batch_assets.defs import build_llm_batch_assets, keys
from llm_batch_assets.defs.keys import CHECKS
from llm_batch_assets.errors import InputError
from llm_batch_assets_tests.defs.loop import rows, small_workload

ROOT = Path(__file__).parents[2]
SNAPSHOT = Path(__file__).parent / "definitions.json"


def _describe(defs: dg.Definitions) -> dict[str, Any]:
    repository = defs.get_repository_def()
    graph = repository.asset_graph
    assets = {}
    for node in graph.asset_nodes:
        parents = {}
        for parent in sorted(node.parent_keys):
            mapping = node.partition_mappings.get(parent)
            parents[parent.to_user_string()] = type(mapping).__name__ if mapping else None
        assets[node.key.to_user_string()] = {
            "partitions": getattr(node.partitions_def, "name", None),
            "group": node.group_name,
            "kinds": sorted(node.kinds),
            "tags": {
                k: v for k, v in sorted(node.tags.items()) if not k.startswith("dagster/kind")
            },
            "parents": parents,
            "pools": sorted(node.pools or ()),
            "automation": node.automation_condition.get_label()
            if node.automation_condition
            else None,
            "skippable": node.assets_def.get_asset_spec(node.key).skippable,
        }
    checks = {}
    for key in sorted(graph.asset_check_keys, key=str):
        spec = graph.get_check_spec(key)
        checks[key.name] = {
            "asset": key.asset_key.to_user_string(),
            "blocking": spec.blocking,
            "partitions": getattr(spec.partitions_def, "name", None),
        }
    sensors = {
        sensor.name: {"status": sensor.default_status.value, "type": sensor.sensor_type.value}
        for sensor in repository.sensor_defs
    }
    jobs = sorted(name for name in repository.job_names if not name.startswith("__"))
    return {"assets": assets, "checks": checks, "sensors": sensors, "jobs": jobs}


def test_definitions_are_as_written_down(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change on purpose: delete the file, run this once, and read the difference."""
    monkeypatch.delenv("LLM_BATCH_EXAMPLE_WORKLOAD", raising=False)
    import llm_batch_assets.definitions as location

    shard_space = location.defs.get_repository_def().asset_graph
    found = _describe(location.defs)
    text = json.dumps(found, indent=1, sort_keys=True)
    for node in shard_space.asset_nodes:
        name = getattr(node.partitions_def, "name", "") or ""
        if name.endswith("__shards"):
            text = text.replace(name, "docstring_summaries__<deployment>__shards")
    if not SNAPSHOT.exists():
        SNAPSHOT.write_text(text + "\n", encoding="utf-8")
    assert json.loads(text) == json.loads(SNAPSHOT.read_text(encoding="utf-8"))


def test_two_workloads_merge_without_duplicates(home: Path) -> None:
    one = build_llm_batch_assets(small_workload("one"), lambda _d: rows(5))
    two = build_llm_batch_assets(
        small_workload("two"),
        lambda _d: rows(5),
        partitions_def=dg.DailyPartitionsDefinition("2026-01-01"),
        owners=["team:research"],
    )
    repository = dg.Definitions.merge(one, two).get_repository_def()
    assert sorted(s.name for s in repository.sensor_defs) == [
        "llm_batch_automation",
        "llm_batch_poll",
        "llm_batch_tick",
    ]
    assert len(repository.asset_graph.get_all_asset_keys()) == 14
    beside = {keys.IN_TIME}  # not blocking
    assert len(repository.asset_graph.asset_check_keys) == 2 * len({*CHECKS} | beside)
    node = repository.asset_graph.get(dg.AssetKey(["two", "manifest"]))
    assert list(node.owners) == ["team:research"]


def test_an_upstream_asset_is_a_source(home: Path) -> None:
    @dg.asset(partitions_def=dg.DynamicPartitionsDefinition(name="w__dataset"))
    def documents() -> None: ...

    for source in (documents, "documents", dg.AssetKey("documents")):
        defs = build_llm_batch_assets(small_workload("w"), source)  # type: ignore[arg-type]
        graph = dg.Definitions.merge(defs, dg.Definitions([documents])).resolve_asset_graph()
        parents = graph.get(dg.AssetKey(["w", "manifest"])).parent_keys
        assert parents == {dg.AssetKey("documents")}


def test_partitions_that_cannot_be_datasets_are_refused_when_defined(home: Path) -> None:
    bad = dg.StaticPartitionsDefinition(["a/b"])
    with pytest.raises(InputError, match="w: partitions_def cannot be used"):
        build_llm_batch_assets(small_workload("w"), lambda _d: rows(1), partitions_def=bad)


def test_building_says_nothing(home: Path) -> None:
    """Preview and beta parameters are used on purpose: not every team has to read about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_llm_batch_assets(small_workload("w"), lambda _d: rows(1))


def test_the_switch_turns_partitioned_checks_off(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_BATCH_PARTITIONED_CHECKS", "0")
    defs = build_llm_batch_assets(small_workload("w"), lambda _d: rows(1))
    graph = defs.resolve_asset_graph()
    specs = [graph.get_check_spec(key) for key in graph.asset_check_keys if key.name in CHECKS]
    assert [spec.partitions_def for spec in specs] == [None] * len(CHECKS)
    assert all(spec.blocking for spec in specs)


def test_workspace_and_pyproject_name_the_same_location() -> None:
    import tomllib

    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text(encoding="utf-8"))
    (entry,) = workspace["load_from"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert entry["python_module"] == {
        "module_name": "llm_batch_assets.definitions",
        "location_name": project["tool"]["dg"]["project"]["code_location_name"],
    }


def test_dagster_yaml_is_valid_and_keeps_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_bytes((ROOT / "dagster.yaml").read_bytes())
    settings = yaml.safe_load((ROOT / "dagster.yaml").read_text(encoding="utf-8"))
    assert not settings["storage"]["sqlite"]["base_dir"].startswith("/")
    assert settings["telemetry"] == {"enabled": False}
    from dagster._core.instance.ref import InstanceRef

    assert InstanceRef.from_dir(str(tmp_path)).settings["telemetry"] == {"enabled": False}
