"""How long providers keep results, and whose time is running out. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.states import POLLED

RESULT_LIFE: Final[dict[str, timedelta | None]] = {
    "openai": timedelta(days=30),
    "anthropic": timedelta(days=29),
    "gemini": timedelta(hours=48),
    "bedrock": None,
}
"""Provider -> how long results can be fetched, counted from the batch's creation.

Anthropic: 29 days from ``created_at``, not from the end (Message Batches guide). OpenAI: output
files go 30 days after completion (Batch guide); from creation is the careful reading. Gemini: not
stated apart from the job's own 48 h; unverified, so the shorter is assumed. Bedrock: the bucket's
own lifecycle, which we do not know.
"""

INPUT_LIFE: Final[dict[str, timedelta | None]] = {
    "openai": timedelta(days=30),
    "anthropic": None,
    "gemini": timedelta(hours=48),
    "bedrock": None,
}
"""Provider -> how long an uploaded request file is there (OpenAI Files API: batch files 30 days;
Gemini Files API: 48 hours; Anthropic has no upload, Bedrock's bucket has its own lifecycle)."""

UPLOAD_MARGIN: Final = timedelta(hours=1)
"""A file that has less than this left is uploaded again before it is named in a create."""

TOTAL_LOSS: Final[dict[str, timedelta]] = {"gemini": timedelta(hours=48)}
"""Provider -> age at which a batch that is not over ends without any result (Gemini Batch guide:
pending or running for 48 hours expires it, and what it had done is lost)."""

ALERT_BEFORE_LOSS: Final = timedelta(hours=12)
"""So long before that a person is told: at 36 hours."""

WARN_BEFORE: Final = timedelta(days=3)
"""Results that can be fetched for less than this are something to act on."""

_MICROSECOND: Final = timedelta(microseconds=1)


def result_deadline(provider: str, created_at: int | None) -> int | None:
    """Until when (microseconds UTC) the results of a batch can be fetched.

    Args:
        provider: its name.
        created_at: the provider's creation time in microseconds, None where it is not known.
    """
    life = RESULT_LIFE.get(provider)
    if life is None or created_at is None:
        return None
    return created_at + life // _MICROSECOND


def upload_expired(provider: str, uploaded_at: int | None, now: int) -> bool:
    """Whether a create should not rest on this upload any more (times in microseconds)."""
    life = INPUT_LIFE.get(provider)
    if life is None or uploaded_at is None:
        return False
    return now >= uploaded_at + (life - UPLOAD_MARGIN) // _MICROSECOND


@dataclass(frozen=True, slots=True)
class Deadline:
    """Results that are not in the store yet, and until when (microseconds) they can be."""

    shard_key: str
    workload: str
    dataset: str
    state: str
    batch_id: str | None
    at: int
    passed: bool


def near_deadlines(
    shards: Iterable[SubmissionRow], now: int, within: timedelta = WARN_BEFORE
) -> list[Deadline]:
    """Uncollected results whose deadline is nearer than ``within``, the nearest first."""
    found = [
        Deadline(
            shard.shard_key,
            shard.workload,
            shard.dataset,
            shard.state,
            shard.batch_id,
            shard.result_deadline,
            shard.result_deadline <= now,
        )
        for shard in shards
        if shard.result_deadline is not None
        and shard.state in POLLED | {"RESULTS_AVAILABLE"}
        and shard.result_deadline - now < within // _MICROSECOND
    ]
    return sorted(found, key=lambda item: (item.at, item.shard_key))


def near_loss(shards: Iterable[SubmissionRow], now: int) -> list[Deadline]:
    """Live batches that will soon end without any result, the nearest first."""
    found = []
    for shard in shards:
        life = TOTAL_LOSS.get(shard.provider)
        if life is None or shard.state not in POLLED or shard.provider_created_at is None:
            continue
        at = shard.provider_created_at + life // _MICROSECOND
        if now >= at - ALERT_BEFORE_LOSS // _MICROSECOND:
            found.append(
                Deadline(
                    shard.shard_key,
                    shard.workload,
                    shard.dataset,
                    shard.state,
                    shard.batch_id,
                    at,
                    at <= now,
                )
            )
    return sorted(found, key=lambda item: (item.at, item.shard_key))
