"""Where every open dataset stands, what it waits for, and what releases it: plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from llm_batch_assets import controller
from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.holding import held_records
from llm_batch_assets.ledger import views
from llm_batch_assets.ledger.database import utc_from_micros
from llm_batch_assets.ledger.jobstate import job_state
from llm_batch_assets.ledger.lookup import find_datasets
from llm_batch_assets.ledger.rows import RevisionRow, SubmissionRow
from llm_batch_assets.ledger.states import COLLECTABLE, ENDED, LIVE
from llm_batch_assets.ledger.views import RevisionView, Snapshot
from llm_batch_assets.retention import Deadline, near_deadlines, near_loss


@dataclass(frozen=True, slots=True)
class Status:
    """What ``status`` says. Times are ISO 8601 in UTC.

    Attributes:
        datasets: one entry per dataset, its shards inside.
        deadlines: results that are not collected and can be fetched for less than three days.
        losing: live batches that soon end without any result, and lose what they have done.
        open: whether any dataset still needs something.
    """

    now: str
    deployment: str
    datasets: list[dict[str, Any]] = field(default_factory=list)
    deadlines: list[dict[str, Any]] = field(default_factory=list)
    losing: list[dict[str, Any]] = field(default_factory=list)
    open: bool = False

    @property
    def exit_code(self) -> int:
        """3 when something is open or a result deadline is near, else 0."""
        return 3 if self.open or self.deadlines or self.losing else 0

    def as_dict(self) -> dict[str, Any]:
        """For ``--format json``."""
        return asdict(self) | {"exit_code": self.exit_code}


def status(deps: Deps, *, dataset: str | None = None, workload: str | None = None) -> Status:
    """All open datasets, or one by its key, open or not.

    Raises:
        InputError: a dataset was named that the ledger does not have.
    """
    snapshot = views.snapshot(deps.ledger, workload=workload, dataset=dataset)
    found = list(snapshot.revisions)
    if dataset is not None:
        known = {view.row.id for view in found}
        with deps.ledger.read() as connection:
            rows = find_datasets(connection, dataset, workload)
        found += [views.view_by_id(deps.ledger, row.id) for row in rows if row.id not in known]
    shards = [shard for view in found for shard in view.shards]
    return Status(
        now=iso(snapshot.now) or "",
        deployment=deps.ledger.deployment,
        datasets=[_dataset(view, snapshot, deps) for view in found],
        deadlines=[_deadline(item) for item in near_deadlines(shards, snapshot.now)],
        losing=[_deadline(item) for item in near_loss(shards, snapshot.now)],
        open=any(_is_open(view) for view in found),
    )


def _is_open(view: RevisionView) -> bool:
    row = view.row
    if any(shard.state in LIVE | COLLECTABLE and _awaited(shard) for shard in view.shards):
        return True
    if row.superseded_at is not None:
        return False
    if row.closed_at is None:
        return True
    kept_back = row.cancel_requested_at is not None or row.withheld_closure == row.closure_digest
    return row.published_closure != row.closure_digest and not kept_back


def _awaited(shard: SubmissionRow) -> bool:
    return shard.abandoned_at is None or shard.state not in {"SUBMITTING", "UNCERTAIN"}


def _dataset(view: RevisionView, snapshot: Snapshot, deps: Deps) -> dict[str, Any]:
    row = view.row
    waiting = {
        item.shard_key: item
        for item in controller.waiting(
            Snapshot(snapshot.now, (view,), snapshot.running, snapshot.last_look), deps.settings
        )
    }
    due = {
        item.shard_key: item.kind
        for item in controller.due(snapshot, deps.settings)
        if item.revision_id == row.id
    }
    gate = waiting.pop(None, None)
    return {
        "tenant": row.tenant_id,
        "workload": row.workload,
        "dataset": row.dataset,
        "revision": row.revision,
        "state": _state(row),
        "open": _is_open(view),
        "records": row.records,
        "counts": {
            name: getattr(row, name) or 0
            for name in ("accepted", "human_review", "permanent_failure", "cancelled")
        }
        | {
            "open": row.records if row.open is None else row.open,
            "carried": row.carried or 0,
        },
        "why": gate.why if gate else _why(row),
        "release": gate.release if gate else None,
        "created_at": iso(row.created_at),
        "closed_at": iso(row.closed_at),
        "published_at": iso(row.published_at),
        "cancel": _cancel(row),
        "jobs": [
            {
                "attempt": job.attempt,
                "state": job_state(view, job),
                "records": job.records,
                "job_key": job.job_key,
            }
            for job in view.jobs
        ],
        "shards": [_shard(shard, waiting.get(shard.shard_key), due) for shard in view.shards],
        "held": [asdict(one) | {"until": iso(one.until)} for one in held_records(view, deps)],
    }


def _state(row: RevisionRow) -> str:
    if row.superseded_at is not None:
        return "superseded"
    if row.closed_at is None:
        return "cancelling" if row.cancel_requested_at is not None else "open"
    if row.published_closure == row.closure_digest:
        return "published"
    if row.cancel_requested_at is not None:
        return "cancelled"
    return "withheld" if row.withheld_closure == row.closure_digest else "closed"


def _why(row: RevisionRow) -> str | None:
    if row.withheld_closure is not None and row.withheld_closure == row.closure_digest:
        return row.withheld_reason
    return None


def _cancel(row: RevisionRow) -> dict[str, Any] | None:
    if row.cancel_requested_at is None:
        return None
    return {
        "at": iso(row.cancel_requested_at),
        "by": row.cancel_by,
        "reason": row.cancel_reason,
    }


def _shard(
    shard: SubmissionRow, waiting: controller.Waiting | None, due: Mapping[str | None, str]
) -> dict[str, Any]:
    why = shard.hold or (waiting.why if waiting else None) or shard.last_error
    if shard.state == "PROVISIONAL" and shard.hold is None:
        why = "one candidate fits; the tag in its first result line proves it, or it is let go"
    return {
        "shard": shard.shard_key,
        "state": shard.state,
        "epoch": shard.epoch,
        "submission_key": shard.submission_key,
        "batch_id": shard.batch_id,
        "raw_status": shard.raw_status,
        "outcome": shard.outcome,
        "records": shard.records,
        "done": shard.done,
        "failed": shard.failed,
        "total": shard.total,
        "hold": shard.hold,
        "why": None if shard.state in ENDED and shard.hold is None else why,
        "release": shard.hold_release or (waiting.release if waiting else None),
        "until": iso(waiting.until) if waiting else None,
        "due": due.get(shard.shard_key),
        "cancel_requested_at": iso(shard.cancel_requested_at),
        "cancel_taken_at": iso(shard.cancel_sent_at),
        "result_deadline": iso(shard.result_deadline),
        "last_error": shard.last_error,
    }


def _deadline(item: Deadline) -> dict[str, Any]:
    return asdict(item) | {"at": iso(item.at)}


def iso(micros: int | None) -> str | None:
    """Microseconds UTC as ISO 8601, to the second."""
    if micros is None:
        return None
    at: datetime = utc_from_micros(micros)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def table(found: Status, *, every_shard: bool = False) -> Sequence[str]:
    """The same for people: a line per dataset, then a line per shard that is not done."""
    lines = []
    for one in found.datasets:
        counts = " ".join(f"{name}={n}" for name, n in one["counts"].items() if n)
        lines.append(
            f"{one['workload']} {one['dataset']} r{one['revision']} {one['state']} "
            f"records={one['records']} {counts}".rstrip()
        )
        if one["why"]:
            lines.append(f"  waits: {one['why']} {one['release'] or ''}".rstrip())
        for job in one["jobs"]:
            lines.append(f"  attempt {job['attempt']}: {job['state']} records={job['records']}")
        for shard in one["shards"]:
            if every_shard or shard["state"] not in ENDED or shard["hold"]:
                lines.append(_shard_line(shard))
        for held in one["held"]:
            lines.append(
                f"    {held['shard_key']} holds {held['records']} records: {held['reason']} | "
                f"{held['release']} | until {held['until']}, then human_review"
            )
    for item in found.deadlines:
        word = "could be fetched until" if item["passed"] else "can be fetched until"
        lines.append(f"deadline: the results of {item['shard_key']} {word} {item['at']}")
    for item in found.losing:
        lines.append(
            f"alert: {item['batch_id']} of {item['shard_key']} is still {item['state']} and loses "
            f"everything at {item['at']}: its records go again in smaller shards, or `abandon` it"
        )
    return lines


def _shard_line(shard: dict[str, Any]) -> str:
    total = shard["total"] or shard["records"]
    line = f"    {shard['shard']} {shard['state']} {shard['done'] or 0}/{total}"
    for name, text in (("why", ""), ("release", ""), ("until", "until "), ("due", "due: ")):
        if shard[name]:
            line += f" | {text}{shard[name]}"
    if shard["result_deadline"] and shard["state"] not in ENDED:
        line += f" | results until {shard['result_deadline']}"
    return line
