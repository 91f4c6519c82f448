"""on_published(): wakes for a new version of any partition, once, and for nothing else."""

from datetime import UTC, datetime

import dagster as dg
import pytest

from llm_batch_assets.defs.automation import automation_sensor, on_published
from llm_batch_assets.defs.keys import ACCEPTED, STEP_TAG

DAILY = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-10")
DYNAMIC = dg.DynamicPartitionsDefinition(name="datasets")
KEY = dg.AssetKey(["w", ACCEPTED])


def _definitions(partitions) -> dg.Definitions:
    @dg.asset(key=KEY, partitions_def=partitions, tags={STEP_TAG: ACCEPTED})
    def accepted() -> None: ...

    @dg.asset(partitions_def=partitions)
    def other() -> None: ...

    @dg.asset(
        deps=[accepted, other], partitions_def=partitions, automation_condition=on_published()
    )
    def downstream() -> None: ...

    return dg.Definitions(assets=[accepted, other, downstream], sensors=[automation_sensor])


def _publish(instance: dg.DagsterInstance, partition: str, version: str, key=KEY) -> None:
    tags = {"dagster/data_version": version}
    instance.report_runless_asset_event(
        dg.AssetMaterialization(key, partition=partition, tags=tags)
    )


@pytest.mark.parametrize("partitions", [DAILY, DYNAMIC])
def test_wakes_once_per_version_of_any_partition(partitions) -> None:
    definitions = _definitions(partitions)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("datasets", ["2026-01-02", "2026-01-03"])
        cursor = None

        def woken() -> set[str]:
            nonlocal cursor
            result = dg.evaluate_automation_conditions(
                definitions,
                instance,
                cursor=cursor,
                evaluation_time=datetime(2026, 2, 1, tzinfo=UTC),
            )
            cursor = result.cursor
            found = result.get_requested_partitions(dg.AssetKey("downstream"))
            for partition in found:  # what the daemon would do with the request
                _publish(instance, str(partition), "done", dg.AssetKey("downstream"))
            return {str(partition) for partition in found}

        assert woken() == set()
        _publish(instance, "2026-01-02", "v1")  # not the newest day
        assert woken() == {"2026-01-02"}
        assert woken() == set()
        _publish(instance, "2026-01-02", "v1")
        assert woken() == set(), "the same version wakes nobody"
        _publish(instance, "2026-01-02", "v2")
        assert woken() == {"2026-01-02"}
        _publish(instance, "2026-01-03", "w1", dg.AssetKey("other"))
        assert woken() == set(), "another upstream does not publish"
        _publish(instance, "2026-01-03", "v1")
        assert woken() == {"2026-01-03"}


def test_the_sensor_covers_only_what_is_downstream_of_published_tables() -> None:
    graph = _definitions(DYNAMIC).resolve_asset_graph()
    assert automation_sensor.asset_selection.resolve(graph) == {dg.AssetKey("downstream")}
    assert automation_sensor.default_status is dg.DefaultSensorStatus.RUNNING
