"""The partition spaces of a code location, as a sensor finds and fills them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from llm_batch_assets.defs import keys

if TYPE_CHECKING:
    from llm_batch_assets.controller import Work
    from llm_batch_assets.ledger import Ledger
    from llm_batch_assets.ledger.announcing import Fact


def shard_spaces(context: dg.SensorEvaluationContext) -> dict[str, dg.DynamicPartitionsDefinition]:
    """Workload -> its shard partitions, of every workload in this code location."""
    assert context.repository_def is not None
    found = {}
    for node in context.repository_def.asset_graph.asset_nodes:
        if node.tags.get(keys.STEP_TAG) == keys.PROVIDER_JOB:
            assert isinstance(node.partitions_def, dg.DynamicPartitionsDefinition)
            found[node.tags[keys.WORKLOAD_TAG]] = node.partitions_def
    return found


def dataset_spaces(context: dg.SensorEvaluationContext) -> dict[str, dg.PartitionsDefinition]:
    """Workload -> the team's dataset partitions, of every workload in this code location."""
    assert context.repository_def is not None
    found = {}
    for node in context.repository_def.asset_graph.asset_nodes:
        if node.tags.get(keys.STEP_TAG) == keys.MANIFEST:
            assert node.partitions_def is not None
            found[node.tags[keys.WORKLOAD_TAG]] = node.partitions_def
    return found


class Partitions:
    """Which partition keys Dagster has, and which the ledger adds to the dynamic spaces."""

    def __init__(self, context: dg.SensorEvaluationContext, ledger: Ledger) -> None:
        from llm_batch_assets.ledger import views

        self._store = context.instance
        self._datasets = dataset_spaces(context)
        self._new: dict[str, dict[str, None]] = {}
        self.order: dict[str, list[str]] = {}
        self.known: dict[str, set[str]] = {}
        for workload, space in shard_spaces(context).items():
            assert space.name is not None
            known = context.instance.get_dynamic_partitions(space.name)
            self.known[workload] = set(known)
            new = sorted(set(views.shard_keys(ledger, workload)) - self.known[workload])
            self._new[space.name] = dict.fromkeys(new)
            self.order[workload] = [*known, *new]

    def has_dataset(self, workload: str, dataset: str) -> bool:
        """Whether Dagster has a dataset's partition; a dynamic space is given it at this tick."""
        space = self._datasets[workload]
        with dg.partition_loading_context(dynamic_partitions_store=self._store):
            if space.has_partition_key(dataset):
                return True
        if isinstance(space, dg.DynamicPartitionsDefinition) and space.name is not None:
            self._new.setdefault(space.name, {})[dataset] = None
        return False

    def can_run(self, item: Work) -> bool:
        """Whether a run can be asked for: the work's partition exists, or is being added.

        A dataset that the CLI froze may be no key of a static or time space: one such run request
        would fail the whole tick.
        """
        if item.workload not in self.order or item.shard_key is not None:
            return True
        if self.has_dataset(item.workload, item.dataset):
            return True
        space = self._datasets[item.workload]
        return isinstance(space, dg.DynamicPartitionsDefinition) and space.name is not None

    def has(self, fact: Fact) -> bool:
        """Whether the partition of a fact exists in Dagster now."""
        if fact.step in (keys.PROVIDER_JOB, keys.RAW_RESULTS):
            return fact.partition in self.known[fact.workload]
        return self.has_dataset(fact.workload, fact.partition)

    def requests(self) -> list[dg.AddDynamicPartitionsRequest]:
        """What the tick adds."""
        return [
            dg.AddDynamicPartitionsRequest(space, list(new))
            for space, new in self._new.items()
            if new
        ]
