"""A provider that exists in virtual time only: batches, files, and a log that judges us.

It speaks OpenAI's words (labels, uploads) or Anthropic's (neither). What it makes of a batch is
drawn when the batch arrives; nothing here knows of a ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from llm_batch_assets_tests.deterministic.world import SECOND, World

RowFate = Literal["good", "failed", "missing", "cut", "twice"]


@dataclass(frozen=True)
class Weather:
    """Chances of what a provider does to us, and durations in seconds.

    Attributes:
        create: weights of what becomes of a create.
        settle: the interval after which our side takes a batch for listed.
        lag: chances that a batch is listed late by less, and by more, than ``settle``.
        late: longest time after its sender's patience at which a lost create still arrives.
        batch: weights of what becomes of a batch.
        rows: weights of what becomes of a row.
        fault: chance that any other call fails.
        short: chance that a download breaks off or is short.
        skew: seconds that the provider's clock is ahead of ours.
        foreign: look-alikes of others in the same account.
    """

    create: dict[str, float]
    settle: float
    lag: tuple[float, float]
    late: float
    batch: dict[str, float]
    rows: dict[RowFate, float]
    fault: float
    short: float
    skew: float
    foreign: int


@dataclass(eq=False)
class Batch:
    """One batch; times are true (virtual) microseconds, shown to clients with the skew."""

    id: str
    created: int
    lines: list[tuple[str, str]]
    labels: dict[str, str]
    input_ref: str | None
    foreign: bool
    deadline: int
    listed: int
    fate: str
    start: int
    run_end: int
    finalize: int
    rows: list[RowFate]
    cancel_at: int | None = None
    deleted: bool = False
    unnamed: int = 0
    gets: int = 0
    answered: bool = False

    @property
    def stop(self) -> int:
        """When execution stops."""
        if self.fate == "fails":
            return self.start
        stop = self.run_end
        if self.fate == "expires":
            stop = self.start + (self.run_end - self.start) // 2
        if self.cancel_at is not None:
            stop = min(stop, max(self.cancel_at, self.start))
        return stop

    @property
    def end(self) -> int:
        return self.stop + (0 if self.fate == "fails" else self.finalize)

    @property
    def cancelled(self) -> bool:
        """Whether a cancel came in time to change anything."""
        return self.cancel_at is not None and self.stop < self.run_end and self.fate == "normal"

    def executed_at(self, index: int) -> int | None:
        """When a line ran, or None."""
        if self.fate == "fails":
            return None
        at = self.start + (index + 1) * (self.run_end - self.start) // len(self.lines)
        return at if at <= self.stop else None

    @property
    def tag(self) -> str:
        """Which shard its lines name."""
        return self.lines[0][0][:16]

    def unproven(self, settle: float, labelled: bool) -> bool:
        """Whether no client could have known of it in time: the only excuse for a second batch."""
        if labelled:
            return self.listed - self.created >= int(settle * SECOND)
        return self.listed >= self.deadline + int(settle * SECOND)


@dataclass
class File:
    """An uploaded request file."""

    data: bytes
    foreign: bool = False
    deleted: bool = False


@dataclass
class Server:
    """The account at the provider, and the log of everything that arrived."""

    world: World
    labelled: bool
    weather: Weather
    batches: list[Batch] = field(default_factory=list)
    files: dict[str, File] = field(default_factory=dict)
    log: list[tuple[int, str, str]] = field(default_factory=list)

    def note(self, operation: str, target: str) -> None:
        """A call that arrived."""
        self.log.append((self.world.now, operation, target))
        self.world.say(f"<{operation} {target}>")

    def draw(self, weights: dict[Any, float]) -> Any:
        """One of the keys."""
        return self.world.rng.choices(list(weights), list(weights.values()))[0]

    def shown(self, at: int) -> datetime:
        """A time as clients see it."""
        return datetime.fromtimestamp(at // SECOND + self.weather.skew, UTC)

    def find(self, batch_id: str) -> Batch | None:
        """A batch that was not deleted."""
        return next((b for b in self.batches if b.id == batch_id and not b.deleted), None)

    def accept(
        self,
        lines: list[tuple[str, str]],
        labels: dict[str, str],
        input_ref: str | None,
        *,
        deadline: int,
        foreign: bool = False,
    ) -> Batch:
        """Make a batch now."""
        world, weather = self.world, self.weather
        lag, chance = 0.0, world.rng.random()
        if not foreign and chance < weather.lag[0]:
            lag = world.seconds(0.1, 0.9 * weather.settle)
        elif not foreign and chance < sum(weather.lag):
            lag = world.seconds(weather.settle, 6 * weather.settle)
        start = world.now + int(world.seconds(1, 20) * SECOND)
        batch = Batch(
            id=f"batch_{len(self.batches):03d}",
            created=world.now,
            lines=lines,
            labels=labels,
            input_ref=input_ref,
            foreign=foreign,
            deadline=deadline,
            listed=world.now + int(lag * SECOND),
            fate=self.draw({"normal": 3, "gone": 1} if foreign else weather.batch),
            start=start,
            run_end=start + int(world.seconds(5, 150) * SECOND),
            finalize=int(world.seconds(0, 10) * SECOND),
            rows=[self.draw(weather.rows) for _ in lines],
            unnamed=world.rng.choice((0, 0, 0, 2)),
        )
        if not self.labelled and set(batch.rows) == {"missing"}:
            # An empty file that nobody counts is never whole: it would be fetched for 29 days.
            batch.rows[0] = "failed"
        self.batches.append(batch)
        self.note("made", f"{batch.id} {batch.fate} lag={lag:.0f} {'foreign' if foreign else ''}")
        return batch

    def page(self, after: str | None, size: int = 3) -> tuple[list[Batch], bool]:
        """One page of the list, newest first, and whether there is more."""
        seen = [b for b in reversed(self.batches) if not b.deleted and b.listed <= self.world.now]
        if after is not None:
            number = int(after.removeprefix("batch_"))
            seen = [b for b in seen if int(b.id.removeprefix("batch_")) < number]
        return seen[:size], len(seen) > size

    # --- what a client sees -----------------------------------------------------------------------

    def raw(self, batch: Batch) -> dict[str, Any]:
        """The batch object."""
        return self._openai(batch) if self.labelled else self._anthropic(batch)

    def _openai(self, batch: Batch) -> dict[str, Any]:
        now = self.world.now
        raw: dict[str, Any] = {
            "id": batch.id,
            "object": "batch",
            "status": "validating",
            "created_at": int(self.shown(batch.created).timestamp()),
            "input_file_id": batch.input_ref,
            "metadata": batch.labels,
            "request_counts": {"total": len(batch.lines), "completed": 0, "failed": 0},
        }
        if now >= batch.end:
            status = "completed"
            if batch.fate == "fails":
                status = "failed"
                raw["errors"] = {"data": [{"code": "token_limit_exceeded", "message": "later"}]}
            elif batch.fate == "expires":
                status = "expired"
            elif batch.cancelled:
                status = "cancelled"
            raw["status"] = status
            batch.gets += 1
            good = sum(1 for _ in self._rows(batch, "results")) if status != "failed" else 0
            bad = sum(1 for _ in self._rows(batch, "errors")) if status != "failed" else 0
            raw["request_counts"] |= {"completed": good, "failed": bad}
            if status != "failed" and batch.gets > batch.unnamed:
                raw["output_file_id"] = f"{batch.id}/results"
                raw["error_file_id"] = f"{batch.id}/errors" if bad else None
        elif batch.cancel_at is not None and now >= batch.cancel_at:
            raw["status"] = "cancelling"
        elif now >= batch.start:
            raw["status"] = "in_progress" if now < batch.run_end else "finalizing"
        return raw

    def _anthropic(self, batch: Batch) -> dict[str, Any]:
        now, total = self.world.now, len(batch.lines)
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        raw: dict[str, Any] = {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "in_progress",
            "request_counts": counts | {"processing": total},
            "created_at": self.shown(batch.created).isoformat(),
            "cancel_initiated_at": None,
            "results_url": None,
        }
        if batch.cancel_at is not None:
            raw["cancel_initiated_at"] = self.shown(batch.cancel_at).isoformat()
        if now >= batch.end:
            ran = sum(batch.executed_at(n) is not None for n in range(total))
            left = "canceled" if batch.cancelled else "expired"
            raw["processing_status"] = "ended"
            raw["request_counts"] = counts | {"succeeded": ran, left: total - ran}
            batch.gets += 1
            if batch.gets > batch.unnamed:
                raw["results_url"] = f"{batch.id}/results"
        elif batch.cancel_at is not None:
            raw["processing_status"] = "canceling"
        return raw

    def result(self, ref: str) -> tuple[Batch, bytes] | None:
        """A result file's bytes; None when there is none (any more)."""
        batch_id, _, kind = ref.partition("/")
        batch = self.find(batch_id)
        if batch is None or batch.fate == "gone" or self.world.now < batch.end:
            return None
        rows = list(self._rows(batch, kind))
        # Not in the order of the request, and the same at every look.
        rows.sort(key=lambda row: row[::-1])
        return batch, b"".join(rows)

    def _rows(self, batch: Batch, kind: str) -> Iterator[bytes]:
        for index, (custom_id, body) in enumerate(batch.lines):
            ran = batch.executed_at(index) is not None
            fate: str = batch.rows[index] if ran else "never"
            if fate == "missing":
                continue
            make = _openai_row if self.labelled else _anthropic_row
            error, row = make(custom_id, body, fate, batch.cancelled)
            if self.labelled and error != (kind == "errors"):
                continue
            data = json.dumps(row).encode() + b"\n"
            yield data[: len(data) // 2] + b"\n" if fate == "cut" else data
            if fate == "twice":
                yield data


def answer_to(body: str) -> str:
    """What the model answers: its question tells, so that a mix-up shows."""
    return f"answer to {body}"


def question(body: dict[str, Any]) -> str:
    """The question in a request body of either kind."""
    if "input" in body:
        return str(body["input"])
    return str(body["messages"][-1]["content"])


def _openai_row(
    custom_id: str, body: str, fate: str, cancelled: bool
) -> tuple[bool, dict[str, Any]]:
    if fate == "never":
        code = "batch_cancelled" if cancelled else "batch_expired"
        error = {"code": code, "message": "not run"}
        return True, {"custom_id": custom_id, "response": None, "error": error}
    if fate == "failed":
        content: dict[str, Any] = {"error": {"code": "server_error", "message": "sorry"}}
        response = {"status_code": 500, "request_id": "req", "body": content}
        return True, {"custom_id": custom_id, "response": response, "error": None}
    text = [{"type": "output_text", "text": answer_to(body), "annotations": []}]
    content = {
        "object": "response",
        "status": "completed",
        "model": "gpt-5-mini-2025-08-07",
        "output": [{"type": "message", "status": "completed", "content": text}],
        "usage": {"input_tokens": 5, "output_tokens": 6},
    }
    response = {"status_code": 200, "request_id": "req", "body": content}
    return False, {"custom_id": custom_id, "response": response, "error": None}


def _anthropic_row(
    custom_id: str, body: str, fate: str, cancelled: bool
) -> tuple[bool, dict[str, Any]]:
    if fate == "never":
        result: dict[str, Any] = {"type": "canceled" if cancelled else "expired"}
    elif fate == "failed":
        error = {"type": "error", "error": {"type": "api_error", "message": "sorry"}}
        result = {"type": "errored", "error": error}
    else:
        message = {
            "type": "message",
            "role": "assistant",
            "model": "claude-haiku-4-5-20251001",
            "content": [{"type": "text", "text": answer_to(body)}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 5, "output_tokens": 6},
        }
        result = {"type": "succeeded", "message": message}
    return fate in ("never", "failed"), {"custom_id": custom_id, "result": result}
