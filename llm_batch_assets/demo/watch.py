"""Look at a dataset's life in the ledger, as a person would: read only."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from typing import Any

from llm_batch_assets.ledger import Ledger, views
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.views import RevisionView

SETS = ("accepted", "human_review", "permanent_failure", "cancelled")


@dataclass(frozen=True, slots=True)
class Result:
    """How it ended: the last line of the demo.

    ``provider_batches`` and ``paid_twice`` come from the provider's own meter, never from our
    ledger.
    """

    closed: bool
    published: bool
    records: int
    sets: dict[str, int]
    attempts: int
    provider_batches: int | None
    paid_twice: int | None

    @property
    def ok(self) -> bool:
        """Whether the demo shows what it promises."""
        return self.closed and self.published

    def line(self) -> str:
        """``closed=true records=N …``, for machines."""
        fields: dict[str, Any] = {"closed": self.closed, "records": self.records, **self.sets}
        fields["attempts"] = self.attempts
        fields["provider_batches"] = self.provider_batches
        fields["paid_twice"] = self.paid_twice
        return " ".join(f"{name}={_plain(value)}" for name, value in fields.items())

    def table(self) -> str:
        """The closure table, for people."""
        rows = [(name, self.sets[name]) for name in SETS]
        rows.append(("sum", sum(self.sets.values())))
        rows.append(("manifest", self.records))
        width = max(len(name) for name, _ in rows)
        lines = [f"  {name:<{width}}  {count:>8,}" for name, count in rows]
        rule = "  " + "-" * (width + 10)
        return "\n".join([*lines[:-2], rule, *lines[-2:]])


def meter(origin: str) -> dict[str, Any]:
    """The simulator's own account of what it executed."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{origin}/_sim/meter", timeout=10) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


def result(view: RevisionView, metered: dict[str, Any] | None) -> Result:
    """What ledger and meter say now."""
    row = view.row
    found = metered or {}
    return Result(
        closed=row.closed_at is not None,
        published=row.published_at is not None,
        records=row.records,
        sets={name: getattr(row, name) or 0 for name in SETS},
        attempts=view.attempt,
        provider_batches=found.get("provider_batches"),
        paid_twice=found.get("paid_twice"),
    )


def find(ledger: Ledger, tenant_id: str, workload: str, dataset: str) -> RevisionView | None:
    """The dataset's newest revision, if it is frozen."""
    return views.revision_view(ledger, tenant_id, workload, dataset)


def shard_line(row: SubmissionRow) -> str:
    """One shard, for a progress line."""
    done = "" if row.total is None else f" {row.done or 0}/{row.total}"
    epoch = f" epoch {row.epoch}" if row.epoch else ""
    return f"a{row.attempt}/p{row.ordinal:05d}{epoch} {row.state}{done}"


def changes(seen: dict[str, str], view: RevisionView) -> list[str]:
    """Lines for what has changed since the last look; ``seen`` is brought up to date."""
    lines = []
    for row in view.shards:
        if seen.get(row.shard_key) != row.state:
            seen[row.shard_key] = row.state
            lines.append(shard_line(row))
    settled = f"{view.row.accepted} accepted, {view.row.open} open"
    if view.row.settled_at is not None and seen.get("settled") != settled:
        seen["settled"] = settled
        lines.append(f"accounted: {settled}")
    if view.row.published_at is not None and "published" not in seen:
        seen["published"] = "yes"
        lines.append(f"published as version {view.row.published_version}")
    return lines


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
