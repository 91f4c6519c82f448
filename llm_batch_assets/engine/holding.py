"""Records that are held: how many of which shard, why, what releases them and until when."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.deps import Deps
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.views import RevisionView
from llm_batch_assets.reconcile.candidate import REVISION_CLOSURE
from llm_batch_assets.reconcile.digests import read_document
from llm_batch_assets.reconcile.tables import read_table

_HELD = ("hold", "refetch")


@dataclass(frozen=True, slots=True)
class HeldRecords:
    """Records of one shard that wait for a person.

    ``until``: when (microseconds) they go to human_review by themselves.
    """

    shard_key: str
    records: int
    reason: str
    release: str
    until: int

    @property
    def why(self) -> str:
        """For people."""
        return f"{self.records} records are held: {self.reason}"


def held_records(view: RevisionView, deps: Deps) -> list[HeldRecords]:
    """What the latest accounting of an open revision holds; reads the store only if it does."""
    row = view.row
    if row.closure_digest is None or row.closed_at is not None or not row.open:
        return []
    document = read_document(deps.store, row.closure_digest, REVISION_CLOSURE)
    if not any(document["next"].get(step) for step in _HELD):
        return []
    table = read_table(deps.store, document["table"]["object"])
    mine = table.filter(pc.is_in(table["next"], pa.array(_HELD, pa.string())))
    shards = {(s.job_key, s.ordinal): s for s in view.shards}
    found = Counter(
        zip(
            mine["sent_job_key"].to_pylist(),
            mine["sent_shard"].to_pylist(),
            mine["reason"].to_pylist(),
            strict=True,
        )
    )
    return [
        HeldRecords(
            shard.shard_key,
            count,
            reason,
            _release(shard, reason),
            shard.state_at + row.hold_deadline,
        )
        for (job_key, ordinal, reason), count in sorted(found.items())
        if (shard := shards.get((job_key, ordinal))) is not None and shard.released_at is None
    ]


def _release(shard: SubmissionRow, reason: str) -> str:
    name = shard.shard_key
    first = {
        "results_gone": f"`release {name}` pays for them again",
        "unconfirmed": f"`release {name}` asks them again",
    }.get(reason, f"mend the {shard.provider} account, then `release {name}`")
    return f"{first}; `abandon {name}` gives them to human_review"
