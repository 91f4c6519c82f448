"""Collect everything that has ended, whoever sent it and whatever became of its dataset.

From cron, with Dagster down, this alone keeps results from being lost at their deadline. It sends
nothing, publishes nothing and asks no gate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_batch_assets import controller
from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.collecting import collect
from llm_batch_assets.engine.execute import execute
from llm_batch_assets.engine.outcome import Outcome
from llm_batch_assets.errors import LLMBatchError
from llm_batch_assets.ledger import views
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.states import COLLECTABLE, LIVE, POLLED
from llm_batch_assets.polling import poll
from llm_batch_assets.retention import Deadline, near_deadlines

NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Gathered:
    """What one pass found.

    Attributes:
        collected: one outcome per shard whose results are in the store now.
        faults: shard key -> why its results could not be fetched; they stay due.
        running: shards whose batches have not ended, or that nobody has found yet.
        deadlines: uncollected results that can be fetched for less than three days.
    """

    collected: list[Outcome] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    deadlines: list[Deadline] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 when nothing is left that could be lost, else 3."""
        return 3 if self.running or self.faults else 0


def collect_all(deps: Deps, *, workload: str | None = None, dataset: str | None = None) -> Gathered:
    """Look for what waits, poll what runs, and collect what has ended, the most urgent first.

    Intervals and backoffs are for loops: here everything is asked once, now.
    """
    gathered = Gathered()
    snapshot = views.snapshot(deps.ledger, workload=workload, dataset=dataset)
    for work in controller.of_kind(controller.due(snapshot, deps.settings), "look"):
        try:
            execute(work, deps)
        except LLMBatchError as error:
            gathered.faults[f"look:{work.key[:16]}"] = str(error)
    for shard in _shards(deps, workload, dataset, POLLED):
        try:
            poll(shard, deps)
        except LLMBatchError as error:
            gathered.faults[shard.shard_key] = str(error)
    for shard in _shards(deps, workload, dataset, COLLECTABLE):
        try:
            gathered.collected.append(collect(shard, deps))
        except LLMBatchError as error:
            gathered.faults[shard.shard_key] = str(error)
    left = _shards(deps, workload, dataset, LIVE | COLLECTABLE)
    gathered.running.extend(shard.shard_key for shard in left if shard.state in LIVE)
    gathered.deadlines.extend(near_deadlines(left, deps.ledger.time()))
    return gathered


def _shards(
    deps: Deps, workload: str | None, dataset: str | None, states: frozenset[str]
) -> list[SubmissionRow]:
    snapshot = views.snapshot(deps.ledger, workload=workload, dataset=dataset)
    found = [s for view in snapshot.revisions for s in view.shards if s.state in states]
    return sorted(found, key=lambda s: (s.result_deadline or NEVER, s.id))
