"""Everything that is alive in the simulator, and the one place where lines are executed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Any, Protocol

from llm_batch_assets.simulator.clock import VirtualClock
from llm_batch_assets.simulator.dice import dice, digest, short_id
from llm_batch_assets.simulator.faults import FaultBook, RecordFault
from llm_batch_assets.simulator.jobs import ENDS, Job, Line, Outcome
from llm_batch_assets.simulator.meter import Execution, Label, Meter
from llm_batch_assets.simulator.options import Options
from llm_batch_assets.simulator.reqlog import RequestLog
from llm_batch_assets.simulator.rowfile import compose

_SLICE_SECONDS = 0.02
_ODD = 0x9E3779B97F4A7C15
_FAILED = {
    "error_429",
    "error_500",
    "error_400",
    "error_quota",
    "invalid_json",
    "schema_violation",
    "fenced",
    "empty",
    "nan",
    "lone_surrogate",
    "response_failed",
    "other_model",
    "unknown_type",
}
_REFUSED = {"refusal", "content_filter"}
_WITHHELD = {"missing", "duplicate_conflicting", "mangled_id", "unreadable"}


class Dialect(Protocol):
    """What a provider's part gives to the common engine."""

    def perform(
        self, job: Job, line: Line, fault: str | None, rng: random.Random
    ) -> tuple[dict[str, Any], bool, dict[str, int], str | None]:
        """Answer one line: payload, is it an error, token counts, and a word on the label.

        The word is ``cut`` if a limit cut the answer, ``plain`` if the endpoint has no such
        fault and answered as usual, else None.
        """

    def row(self, job: Job, line_id: str, payload: dict[str, Any], error: bool, mark: str) -> bytes:
        """The result line for a payload; ``mark`` names the execution."""

    def stranger(self, job: Job, name: str, rng: random.Random) -> bytes:
        """A plausible result line for an id that nobody sent."""

    def clone(self, source: Job, *, foreign: bool, labels: Any) -> Job:
        """The same requests once more; or somebody else's, of the same size, if ``foreign``."""

    async def finish(self, job: Job) -> None:
        """Write the result files of a batch that is over."""


@dataclass(slots=True)
class World:
    """State for the life of the process. Only the server's event loop touches it."""

    seed: int
    clock: VirtualClock
    options: Options
    book: FaultBook
    meter: Meter = field(default_factory=Meter)
    log: RequestLog = field(default_factory=RequestLog)
    jobs: dict[str, Job] = field(default_factory=dict)
    dialects: dict[str, Dialect] = field(default_factory=dict)
    stores: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    _live: list[Job] = field(default_factory=list)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def over_quota(
        self, provider: str, account: str, model: str | None, lines: Sequence[Line]
    ) -> bool:
        """Whether a batch would take an account over its limit of enqueued tokens."""
        limit = self.options.enqueued_tokens
        if limit is None:
            return False
        now = self.clock.now()
        queued = sum(
            _enqueued(job.lines)
            for job in self._live
            if (job.provider, job.account, job.extra.get("model")) == (provider, account, model)
            and job.phase(now) not in ENDS
        )
        return queued + _enqueued(lines) > limit

    def new_id(self, prefix: str, length: int = 24) -> str:
        """The next identifier of a kind; the same seed gives the same sequence."""
        number = self.counters[prefix] = self.counters.get(prefix, 0) + 1
        return short_id(prefix, self.seed, number, length=length)

    def open_job(
        self,
        job_id: str,
        provider: str,
        account: str,
        lines: Sequence[Line],
        *,
        shares: tuple[float, float, float],
        window: float,
        foreign: bool,
        behind: bool,
        extra: dict[str, Any],
        errors: Sequence[dict[str, Any]] = (),
    ) -> Job:
        """Take a new batch in: plan its faults, book its lines.

        Args:
            job_id: as the provider names it.
            provider: who runs it.
            account: whose it is.
            lines: its requests.
            shares: of a batch's time, for validating, running and finalizing.
            window: seconds it may live.
            foreign: whether it is none of the account's that the tests are about.
            behind: whether it was made behind the client's back.
            extra: the provider's own.
            errors: why it fails as a whole, if it does.
        """
        whole = self.options.batch_seconds
        validating, running, finalizing = (whole * share for share in shares)
        job = Job(
            id=job_id,
            provider=provider,
            account=account,
            ordinal=len(self.jobs) + 1,
            created=self.clock.now(),
            lines=lines,
            validating=validating,
            running=running,
            finalizing=finalizing,
            window=window,
            cancelling=self.options.cancel_seconds,
            foreign=foreign,
            behind=behind,
            real_created=self.clock.real(),
            errors=list(errors),
            extra=extra,
        )
        if not job.foreign and not job.behind:
            job.faults = self.book.for_batch(job.provider)
        job.order = list(range(len(job.lines)))
        dice(self.seed, "order", job.id).shuffle(job.order)
        for fault in job.faults:
            self._bend(job, fault.kind, fault.fraction, fault.code)
        if not job.errors and not job.foreign:
            job.plan = self._plan(job)
        self.jobs[job.id] = job
        self._live.append(job)
        self.meter.book_batch(
            job.id, [(line.id, line.sha256) for line in job.lines], foreign=job.foreign
        )
        if job.fault("look_alike"):
            self.dialects[job.provider].clone(job, foreign=True, labels=None)
        return job

    async def take_cancel(self, job: Job) -> str | None:
        """Ask a batch to stop; where it is over already nothing changes, and its end is given."""
        await self.settle()
        now = self.clock.now()
        phase = job.phase(now)
        if phase in ENDS:
            return phase
        if phase != "cancelling":
            job.cancel(now)
        return None

    def _bend(self, job: Job, kind: str, fraction: float, code: str) -> None:
        if kind == "expire":
            room = max(job.window - job.validating, 1.0)
            job.running = room / fraction if fraction > 0 else room * 1e9
        elif kind == "provider_cancel":
            job.cancel_at = job.run_start + fraction * job.running
        elif kind == "fail" and not job.errors:
            job.errors = [{"code": code, "message": _FAIL_TEXT.get(code, code), "line": None}]

    def _plan(self, job: Job) -> dict[int, RecordFault]:
        plan: dict[int, RecordFault] = {}
        for number, fault in enumerate(self.book.records):
            if fault.provider not in (None, job.provider):
                continue
            free = [
                index
                for index, line in enumerate(job.lines)
                if index not in plan
                and (not fault.ids or line.id in fault.ids)
                and (fault.executions < 0 or self.meter.times(line.sha256) < fault.executions)
            ]
            wanted = len(free) if fault.ids else self._wanted(fault, len(free), len(job.lines))
            known = fault.known
            again = [i for i in free if job.lines[i].sha256 in known] if known else []
            fresh = self._pick(job, set(free) - set(again), f"{number}:{fault.kind}", wanted)
            for index in again + fresh:
                plan[index] = fault
                fault.known.add(job.lines[index].sha256)
            fault.picked += len(fresh)
        odd = job.fault("unknown_type")
        if odd is not None:
            once = RecordFault("unknown_type")
            spare = set(range(len(job.lines))) - set(plan)
            plan |= dict.fromkeys(self._pick(job, spare, odd.kind, odd.count), once)
        return plan

    def _pick(self, job: Job, free: set[int], name: str, wanted: int) -> list[int]:
        """The bodies that draw the lowest numbers for a fault, whatever batch they come in."""
        if not wanted:
            return []
        salt = int(digest(self.seed, name)[:16], 16)
        ranks = {i: (int(job.lines[i].sha256[:16], 16) ^ salt) * _ODD % 2**64 for i in free}
        return nsmallest(wanted, ranks, key=ranks.__getitem__)

    @staticmethod
    def _wanted(fault: RecordFault, free: int, lines: int) -> int:
        wanted = max(fault.count, round(fault.fraction * lines))
        if fault.total is not None:
            wanted = min(wanted, fault.total - fault.picked)
        return max(0, min(wanted, free))

    async def settle(self) -> None:
        """Execute everything that is due, in slices, so that other calls are answered meanwhile."""
        async with self._lock:
            now = self.clock.now()
            for job in list(self._live):
                while job.executed < job.due(now):
                    self._slice(job, job.due(now))
                    await asyncio.sleep(0)
                if not job.finished and now >= job.end and not job.stuck:
                    job.finished = True
                    await self.dialects[job.provider].finish(job)
                    self._live.remove(job)

    def _slice(self, job: Job, due: int) -> None:
        started = time.perf_counter()
        while job.executed < due and time.perf_counter() - started < _SLICE_SECONDS:
            index = job.order[job.executed]
            job.outcomes[index] = self._execute(job, index)
            job.executed += 1

    def _execute(self, job: Job, index: int) -> Outcome:
        line = job.lines[index]
        nth = self.meter.times(line.sha256) + 1
        planned = job.plan.get(index)
        fault = None
        if planned is not None and (planned.executions < 0 or nth <= planned.executions):
            fault = planned.kind
        dialect = self.dialects[job.provider]
        rng = dice(self.seed, line.sha256, nth)
        payload, error, count, label = dialect.perform(job, line, fault, rng)
        mark = short_id("", self.seed, job.id, line.id, nth)
        row = dialect.row(job, line.id, payload, error, mark)
        rows: tuple[bytes, ...] = (row,)
        if fault == "missing":
            rows = ()
        elif fault == "duplicate_identical":
            rows = (row, row)
        elif fault == "duplicate_conflicting":
            other, _, _, _ = dialect.perform(job, line, None, dice(self.seed, mark, "other"))
            rows = (row, dialect.row(job, line.id, other, error, mark[::-1]))
        elif fault == "mangled_id":
            rows = (dialect.row(job, _mangled(job, line.id), payload, error, mark),)
        elif fault == "unreadable":
            rows = (row[: len(row) * 2 // 3].rstrip(b"\\"),)
        self.meter.record(
            Execution(
                batch=job.id,
                provider=job.provider,
                custom_id=line.id,
                body=line.sha256,
                nth=nth,
                label=_label(fault, error, label),
                fault=fault,
                input_tokens=count.get("input", 0),
                output_tokens=count.get("output", 0),
                cached_tokens=count.get("cached", 0),
                foreign=job.foreign,
            )
        )
        return Outcome(
            rows=rows,
            error=error,
            input_tokens=count.get("input", 0),
            output_tokens=count.get("output", 0),
            cached_tokens=count.get("cached", 0),
            reasoning_tokens=count.get("reasoning", 0),
        )

    @staticmethod
    def strip(job: Job) -> None:
        """Forget the rows of a batch whose result files are written."""
        job.outcomes = {index: replace(one, rows=()) for index, one in job.outcomes.items()}

    def visible(self, provider: str, account: str, *, first_page: bool) -> list[Job]:
        """An account's batches as a list call shows them, newest first.

        A walk counts as one look: only its first page counts.
        """
        shown = []
        for job in reversed(self.jobs.values()):
            if job.provider != provider or job.account != account or job.deleted:
                continue
            job.lists += first_page
            late = job.fault("late_list")
            seconds = self.clock.real() - job.real_created
            if late and (job.lists <= late.looks or seconds < late.seconds):
                continue
            shown.append(job)
        return shown

    def file_of(self, job: Job, name: str, rows: Sequence[bytes]) -> bytes:
        """Compose one result file of a batch, foreign rows and odd formats included."""
        rng = dice(self.seed, "file", job.id, name)
        extra: list[bytes] = []
        if name == "output":
            for fault in job.faults:
                if fault.kind == "unknown_row":
                    extra += self._unknown(job, fault.count, fault.source, rng)
        return compose([*rows, *extra], job.faults, rng, shuffle=self.book.shuffle)

    def _unknown(self, job: Job, count: int, source: str, rng: random.Random) -> list[bytes]:
        names = [f"stranger-{rng.getrandbits(48):012x}" for _ in range(count)]
        if source == "other_batch":
            others = [
                line.id
                for other in self.jobs.values()
                if other.id != job.id and not other.foreign
                for line in other.lines
            ]
            own = {line.id for line in job.lines}
            others = [name for name in others if name not in own]
            names = rng.sample(others, min(count, len(others))) or names
        return [self.dialects[job.provider].stranger(job, name, rng) for name in names]


def _enqueued(lines: Sequence[Line]) -> int:
    return sum(len(line.body) for line in lines) // 4


_FAIL_TEXT = {
    "token_limit_exceeded": (
        "Enqueued token limit reached for this model in this organization. Limit: 2,000,000 "
        "enqueued tokens. Please try again once some in_progress batches have been completed."
    ),
    "billing_hard_limit_reached": "Billing hard limit has been reached.",
}


def _label(fault: str | None, error: bool, given: Label | str | None) -> Label:
    if fault in _WITHHELD:
        return "withheld"
    if given == "plain":
        return "failed" if error else "good"
    if fault == "cut" or given == "cut":
        return "cut"
    if fault in _REFUSED:
        return "refused"
    return "failed" if error or fault in _FAILED else "good"


def _mangled(job: Job, line_id: str) -> str:
    """An id that nobody sent and that looks like one that somebody did."""
    taken: set[str] = job.extra.setdefault("ids", {line.id for line in job.lines})
    candidates = (line_id[:-1], line_id.swapcase(), f"{line_id}-1", f"mangled-{line_id}")
    return next(name for name in candidates if name and name not in taken)
