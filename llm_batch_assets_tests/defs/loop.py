"""A code location driven in this process: the daemon's part of the work, with real Dagster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from unittest import mock

import dagster as dg
import pyarrow as pa
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.instance.types import CachingDynamicPartitionsLoader

from llm_batch_assets import engine
from llm_batch_assets.defs import build_llm_batch_assets
from llm_batch_assets.defs.keys import asset_key, check_keys
from llm_batch_assets.defs.resources import llm_batch
from llm_batch_assets.defs.sensors import llm_batch_poll, llm_batch_tick
from llm_batch_assets.ledger import views
from llm_batch_assets.ledger.views import RevisionView
from llm_batch_assets.workload import Workload

SENSOR = "dagster/sensor_name"
DATASET = "2026-07-28"
SCHEMA = {
    "type": "object",
    "required": ["summary", "topic"],
    "additionalProperties": False,
    "properties": {
        "summary": {"type": "string"},
        "topic": {"type": "string", "enum": ["data", "text", "other"]},
    },
}


def small_workload(name: str = "summaries", **changes: Any) -> Workload:
    """Shards of ten records, and no wait between attempts."""
    fields: dict[str, Any] = {
        "name": name,
        "tenant_id": "t",
        "provider": "openai",
        "model": "gpt-5-mini-2025-08-07",
        "endpoint": "/v1/responses",
        "business_key": "key",
        "prompt": {"version": "v1", "user": "{{ key }}: {{ text }}"},
        "generation": {"max_output_tokens": 200},
        "output": {"version": "v1", "answer": "json", "schema": SCHEMA},
        "retry": {"backoff": {"initial": "1s", "factor": 1, "max": "1s"}},
        "limits": {"records_per_shard": 10},
        "publish": {"min_accepted": 0.9},
    }
    return Workload(**{**fields, **changes})


def rows(count: int, start: int = 0) -> pa.Table:
    """``count`` records with keys k0000 and on."""
    numbers = range(start, start + count)
    return pa.table(
        {"key": [f"k{n:04d}" for n in numbers], "text": [f"text of {n}" for n in numbers]}
    )


class Loop:
    """One code location on one instance. ``tick`` is one turn of the daemon."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        workload: Workload,
        source: Callable[[str], Any] | None = None,
        *,
        more: Sequence[dg.Definitions] = (),
        **options: Any,
    ) -> None:
        self.instance = instance
        self.workload = workload
        self.source: Any = source or (lambda _dataset: rows(40))
        built = build_llm_batch_assets(workload, lambda d: self.source(d), **options)
        self.defs = dg.Definitions.merge(built, *more)
        self.repository = self.defs.get_repository_def()
        self.run_keys: set[str] = set()
        self.asked: list[dg.RunRequest] = []
        self._cursors: dict[str, str | None] = {}
        self._automation: Any = None

    def add_dataset(self, dataset: str = DATASET) -> None:
        self.instance.add_dynamic_partitions(f"{self.workload.name}__dataset", [dataset])

    def click(
        self,
        *steps: str,
        partition: str | None = DATASET,
        ends: tuple[str, str] | None = None,
        checks: Sequence[dg.AssetCheckKey] = (),
        tags: Mapping[str, str] | None = None,
        assets: Iterable[dg.AssetKey] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Materialize, as the button or a run request does; a failed run is returned."""
        selected = {asset_key(self.workload.name, step) for step in steps} | set(assets or ())
        job = self.defs.resolve_implicit_global_asset_job_def().get_subset(
            asset_selection=selected, asset_check_selection=set(checks)
        )
        more = dict(tags or {})
        if ends is not None:
            more |= {
                "dagster/asset_partition_range_start": ends[0],
                "dagster/asset_partition_range_end": ends[1],
            }
        return job.execute_in_process(
            instance=self.instance,
            partition_key=partition if ends is None else None,
            tags=more,
            raise_on_error=False,
        )

    def by_cli(
        self,
        done: Callable[[RevisionView], bool] = lambda view: view.row.published_at is not None,
        dataset: str = DATASET,
        within: float = 60.0,
        but: Sequence[str] = (),
    ) -> RevisionView:
        """Freeze and execute what is due as the command line does: Dagster hears of nothing.

        Kinds of work in ``but`` are left undone.
        """
        end = time.monotonic() + within
        with llm_batch.open(actor="cli") as deps:
            engine.freeze(
                self.workload,
                self.source(dataset).to_batches(),
                dataset=dataset,
                deps=deps,
                submitter="cli",
            )
            while True:
                view = self.view(dataset)
                assert view is not None
                if done(view):
                    return view
                for work in engine.plan(deps, dataset=dataset):
                    if work.kind in but:
                        continue
                    engine.execute(work, deps)
                    view = self.view(dataset)
                    if view is not None and done(view):
                        return view
                assert time.monotonic() < end, f"not within {within} s: {view}"
                time.sleep(0.02)

    def queued(
        self,
        request: dg.RunRequest,
        status: dg.DagsterRunStatus = dg.DagsterRunStatus.NOT_STARTED,
        retry_of: dg.DagsterRun | None = None,
    ) -> dg.DagsterRun:
        """The run of a request, as the daemon stores it before anything starts."""
        tags = dict(request.tags)
        if request.partition_key is not None:
            tags["dagster/partition"] = request.partition_key
        selection = frozenset(request.asset_selection or ())
        return self.instance.create_run_for_job(
            self._job_of(request),
            tags=tags,
            status=status,
            asset_selection=selection,
            root_run_id=(retry_of.root_run_id or retry_of.run_id) if retry_of else None,
            parent_run_id=retry_of.run_id if retry_of else None,
        )

    def start(self, run: dg.DagsterRun, request: dg.RunRequest) -> bool:
        """What the worker of a stored run does when it starts, be it late; whether it succeeded."""
        job = InMemoryJob(self._job_of(request))
        return bool(execute_run(job, run, self.instance, raise_on_error=False).success)

    def _job_of(self, request: dg.RunRequest) -> dg.JobDefinition:
        return self.defs.resolve_implicit_global_asset_job_def().get_subset(
            asset_selection=set(request.asset_selection or ()),
            asset_check_selection=set(request.asset_check_keys or ()),
        )

    def publish_job(self, dataset: str = DATASET) -> dg.ExecuteInProcessResult:
        """The named job of the workload, as a person launches it."""
        job = self.defs.resolve_job_def(f"{self.workload.name}__publish_job")
        return job.execute_in_process(
            instance=self.instance, partition_key=dataset, raise_on_error=False
        )

    def evaluate(self, sensor: dg.SensorDefinition) -> Any:
        """One tick of one sensor, with what the daemon does about partitions and events."""
        with (
            dg.build_sensor_context(
                instance=self.instance,
                repository_def=self.repository,
                cursor=self._cursors.get(sensor.name),
                resources={"llm_batch": llm_batch},
            ) as context,
            dg.partition_loading_context(dynamic_partitions_store=self.instance),
            # An instance in memory has no ref, and without one Dagster resolves requests without
            # the partitions that the same tick adds. The daemon's context always has this loader.
            mock.patch.object(
                dg.SensorEvaluationContext,
                "caching_dynamic_partitions_loader",
                CachingDynamicPartitionsLoader(self.instance),
            ),
        ):
            found = sensor.evaluate_tick(context)
        self._cursors[sensor.name] = found.cursor
        for request in found.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(
                request.partitions_def_name, list(request.partition_keys)
            )
        for event in found.asset_events:
            self.instance.report_runless_asset_event(event)
        return found

    def requests(self) -> list[dg.RunRequest]:
        """What the tick sensor asks for now. Its keys never repeat."""
        found = list(self.evaluate(llm_batch_tick).run_requests or ())
        for request in found:
            assert request.run_key not in self.run_keys, request.run_key
            self.run_keys.add(request.run_key or "")
        self.asked += found
        return found

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        """Execute a run request as the daemon and its launcher would."""
        return self.click(
            assets=request.asset_selection or (),
            partition=request.partition_key,
            ends=(
                (request.partition_key_range.start, request.partition_key_range.end)
                if request.partition_key_range
                else None
            ),
            checks=request.asset_check_keys or (),
            tags=request.tags,
        )

    def tick(self) -> list[dg.ExecuteInProcessResult]:
        """Poll, dispatch, and wake what waits on published tables."""
        self.evaluate(llm_batch_poll)
        done = [self.run(request) for request in self.requests()]
        woken = dg.evaluate_automation_conditions(self.defs, self.instance, cursor=self._automation)
        self._automation = woken.cursor
        for key in self.defs.resolve_asset_graph().get_all_asset_keys():
            for partition in woken.get_requested_partitions(key):
                done.append(
                    self.click(
                        assets=[key], partition=partition, tags={SENSOR: "llm_batch_automation"}
                    )
                )
        return done

    def until(self, what: Callable[[RevisionView], bool], *, within: float = 60.0) -> RevisionView:
        """Turn the daemon until the revision is as wanted."""
        end = time.monotonic() + within
        while True:
            view = self.view()
            if view is not None and what(view):
                return view
            assert time.monotonic() < end, f"not within {within} s: {view}"
            self.tick()
            time.sleep(0.02)

    def until_published(self) -> RevisionView:
        return self.until(lambda view: view.row.published_at is not None)

    def view(self, dataset: str = DATASET) -> RevisionView | None:
        with llm_batch.open(actor="test") as deps:
            return views.revision_view(deps.ledger, "t", self.workload.name, dataset)

    def shard_keys(self) -> list[str]:
        view = self.view()
        return [shard.shard_key for shard in view.shards] if view else []

    def materialized(self, step: str) -> set[str]:
        return self.instance.get_materialized_partitions(asset_key(self.workload.name, step))

    def data_version(self, step: str, partition: str = DATASET) -> str | None:
        """Of the newest materialization of one partition."""
        found = self.instance.fetch_materializations(
            dg.AssetRecordsFilter(
                asset_key=asset_key(self.workload.name, step), asset_partitions=[partition]
            ),
            limit=1,
        ).records
        if not found:
            return None
        event = found[0].asset_materialization
        assert event is not None
        return (event.tags or {}).get("dagster/data_version")

    def materializations(self, step: str, partition: str = DATASET) -> int:
        return len(
            self.instance.fetch_materializations(
                dg.AssetRecordsFilter(
                    asset_key=asset_key(self.workload.name, step), asset_partitions=[partition]
                ),
                limit=1000,
            ).records
        )


def failure_text(result: dg.ExecuteInProcessResult) -> str:
    """What the failed run says to people."""
    assert not result.success
    texts = []
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            failure = data.user_failure_data
            texts.append((failure.description if failure else None) or str(data.error))
    return "\n".join(texts)


def publishing_checks(workload: Workload) -> list[dg.AssetCheckKey]:
    return check_keys(workload.name)
