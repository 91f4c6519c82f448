"""``/v1/messages/batches``: create, get, list, results, cancel and delete."""

from __future__ import annotations

import random
import re
from hashlib import sha256
from typing import Any

import msgspec
import orjson

from llm_batch_assets.simulator.anthropic import messages
from llm_batch_assets.simulator.anthropic.wire import account_of, check, error_body, refuse
from llm_batch_assets.simulator.app import Call, json_reply
from llm_batch_assets.simulator.clock import rfc3339
from llm_batch_assets.simulator.dice import short_id
from llm_batch_assets.simulator.jobs import ENDS, Job, Line
from llm_batch_assets.simulator.lines import dumps
from llm_batch_assets.simulator.ranges import etag_of, ranged
from llm_batch_assets.simulator.transport import Reply
from llm_batch_assets.simulator.world import World

_DAY = 86_400.0
_RESULTS_DAYS = 29
_MAX_REQUESTS = 100_000
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ROW_ERRORS = {
    "error_429": ("rate_limit_error", "This request would exceed your rate limit."),
    "error_500": ("api_error", "Internal server error"),
    "error_400": ("invalid_request_error", "messages.0.content: Input should be valid"),
    "error_quota": (
        "invalid_request_error",
        "Your credit balance is too low to access the Anthropic API.",
    ),
    "response_failed": ("overloaded_error", "Overloaded"),
}


class _Request(msgspec.Struct):
    custom_id: msgspec.Raw = msgspec.Raw(b"null")
    params: msgspec.Raw = msgspec.Raw(b"null")


class _Create(msgspec.Struct):
    requests: list[_Request] | None = None


_DECODER = msgspec.json.Decoder(_Create)


class Batches:
    """The message batches of every workspace, and how their requests are answered."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cache = messages.Cache()

    # --- calls -----------------------------------------------------------------------------

    async def create(self, call: Call) -> Reply:
        """``POST /v1/messages/batches``."""
        account = account_of(call)
        limit = call.world.options.max_body_bytes
        if len(call.body) > limit:
            refuse(413, "Request exceeds the maximum size")
        lines = self._read(call.body)
        job = self._make(account, lines, call.headers["anthropic-version"])
        call.entry.notes |= {"made": job.id, "requests": len(lines)}
        return json_reply(self._view(job, job.created, call, fresh=True))

    @staticmethod
    def _read(body: bytes) -> list[Line]:
        """The requests, or a 400: ids are checked at once, parameters are not."""
        try:
            parsed = _DECODER.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            refuse(400, f"The request body is not valid JSON: {error}")
        requests = parsed.requests
        if not requests:
            refuse(400, "requests: Field required" if requests is None else
                   "requests: List should have at least 1 item")  # fmt: skip
        check(len(requests) <= _MAX_REQUESTS, "requests: List should have at most 100000 items")
        lines: list[Line] = []
        seen: set[str] = set()
        for number, one in enumerate(requests):
            where = f"requests.{number}"
            try:
                name = orjson.loads(bytes(one.custom_id))
                params = bytes(one.params).strip()
                orjson.loads(params)
            except orjson.JSONDecodeError:
                refuse(400, f"{where}: not valid JSON")
            check(isinstance(name, str), f"{where}.custom_id: Input should be a valid string")
            check(len(name) <= 64, f"{where}.custom_id: String should have at most 64 characters")
            check(bool(_ID.fullmatch(name)), f"{where}.custom_id: String should match pattern "
                  "'^[a-zA-Z0-9_-]{1,64}$'")  # fmt: skip
            check(name not in seen, f"{where}.custom_id: duplicate custom_id '{name}'")
            check(params.startswith(b"{"), f"{where}.params: Input should be an object")
            seen.add(name)
            lines.append(Line(name, params, sha256(params).hexdigest()))
        return lines

    def _make(
        self,
        account: str,
        lines: list[Line],
        version: str,
        *,
        foreign: bool = False,
        behind: bool = False,
    ) -> Job:
        job = self._world.open_job(
            self._world.new_id("msgbatch_"),
            "anthropic",
            account,
            lines,
            shares=(0.05, 0.95, 0.0),
            window=_DAY,
            foreign=foreign,
            behind=behind,
            extra={"version": version},
        )
        # There is no failed batch here: what fails as a whole comes back with every row errored.
        job.errors = []
        return job

    def clone(self, source: Job, *, foreign: bool, labels: dict[str, str] | None) -> Job:
        """The same requests once more, or a look-alike with other ids and bodies."""
        del labels
        lines = list(source.lines)
        if foreign:
            lines = [self._stranger_line(source, line) for line in lines]
        return self._make(
            source.account, lines, source.extra["version"], foreign=foreign, behind=True
        )

    @staticmethod
    def _stranger_line(source: Job, line: Line) -> Line:
        body = orjson.dumps({**orjson.loads(line.body), "metadata": {"user_id": "somebody-else"}})
        return Line(short_id("other-", source.id, line.id), body, sha256(body).hexdigest())

    async def get(self, call: Call) -> Reply:
        """``GET /v1/messages/batches/{id}``."""
        job = self._require(call)
        await self._world.settle()
        now = self._world.clock.now()
        job.polls += 1
        job.end_polls += job.phase(now) in ENDS
        return json_reply(self._view(job, now, call))

    async def list_all(self, call: Call) -> Reply:
        """``GET /v1/messages/batches``: newest first, paged by id in both directions."""
        account = account_of(call)
        limit = call.query.get("limit", str(self._world.options.page_size))
        check(limit.isdigit() and 1 <= int(limit) <= 1000, "limit: Input should be 1 to 1000")
        after, before = call.query.get("after_id"), call.query.get("before_id")
        check(after is None or before is None, "after_id and before_id exclude each other")
        await self._world.settle()
        now, size = self._world.clock.now(), int(limit)
        first = after is None and before is None
        jobs = self._world.visible("anthropic", account, first_page=first)
        ids = [job.id for job in jobs]
        anchor = after if after is not None else before
        check(anchor is None or anchor in ids, f"no batch '{anchor}'")
        if before is not None:
            end = ids.index(before)
            start = max(0, end - size)
            more = start > 0
        else:
            start = ids.index(after) + 1 if after is not None else 0
            end = min(start + size, len(ids))
            more = end < len(ids)
        data = [self._view(job, now, call) for job in jobs[start:end]]
        return json_reply(
            {
                "data": data,
                "has_more": more,
                "first_id": data[0]["id"] if data else None,
                "last_id": data[-1]["id"] if data else None,
            }
        )

    async def results(self, call: Call) -> Reply:
        """``GET …/results``: only when the batch has ended, and not for ever."""
        job = self._require(call)
        await self._world.settle()
        data = job.extra.get("results")
        gone = data is None or self._archived(job) or job.fault("lost_result")
        if gone or not isinstance(data, bytes):
            refuse(404, f"No results for batch {job.id}")
        enabled = self._world.options.anthropic_ranges
        return ranged(call, data, "application/x-jsonl", job.extra["etag"], enabled=enabled)

    async def cancel(self, call: Call) -> Reply:
        """``POST …/cancel``."""
        job = self._require(call)
        if await self._world.take_cancel(job) is not None:
            status = self._world.options.cancel_ended_status
            refuse(status, f"Batch {job.id} cannot be canceled because it has ended.")
        return json_reply(self._view(job, self._world.clock.now(), call))

    async def delete(self, call: Call) -> Reply:
        """``DELETE …``: only after the end; the results go with it."""
        job = self._require(call)
        await self._world.settle()
        if job.phase(self._world.clock.now()) not in ENDS:
            refuse(400, f"Batch {job.id} cannot be deleted while it is in progress.")
        job.deleted = True
        job.extra.pop("results", None)
        return json_reply({"id": job.id, "type": "message_batch_deleted"})

    def _require(self, call: Call) -> Job:
        account = account_of(call)
        job = self._world.jobs.get(call.path["id"])
        if job is None or job.account != account or job.provider != "anthropic" or job.deleted:
            refuse(404, f"Could not find batch {call.path['id']}")
        return job

    # --- the batch object --------------------------------------------------------------------

    def _archived(self, job: Job) -> bool:
        return self._world.clock.now() >= job.created + _RESULTS_DAYS * _DAY

    def _view(self, job: Job, now: float, call: Call, *, fresh: bool = False) -> dict[str, Any]:
        phase = "validating" if fresh else job.phase(now)
        over = phase in ENDS
        status = "ended" if over else "canceling" if phase == "cancelling" else "in_progress"
        strange = job.fault("unknown_status")
        if strange and not fresh and job.polls <= strange.looks:
            status = "reticulating"
        late = job.fault("late_files")
        archived = over and self._archived(job)
        url = None
        if over and not archived and not (late and job.end_polls <= late.looks):
            root = call.entry.path.split("/v1/", 1)[0]
            url = f"{call.origin}{root}/v1/messages/batches/{job.id}/results"
        cancelled = job.cancel_at is not None and (phase in ("cancelling", "cancelled"))
        return {
            "id": job.id,
            "type": "message_batch",
            "processing_status": status,
            "request_counts": self._counts(job, over=over),
            "created_at": rfc3339(job.created),
            "expires_at": rfc3339(job.expires),
            "ended_at": rfc3339(job.end) if over else None,
            "cancel_initiated_at": rfc3339(job.cancel_at or 0.0) if cancelled else None,
            "archived_at": rfc3339(job.created + _RESULTS_DAYS * _DAY) if archived else None,
            "results_url": url,
        }

    @staticmethod
    def _counts(job: Job, *, over: bool) -> dict[str, int]:
        """All under ``processing`` until the whole batch has ended."""
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        if not over:
            counts["processing"] = len(job.lines)
            return counts
        counts["errored"] = sum(1 for one in job.outcomes.values() if one.error)
        counts["succeeded"] = len(job.outcomes) - counts["errored"]
        rest = "canceled" if job.phase(job.end) == "cancelled" else "expired"
        counts[rest] = len(job.lines) - len(job.outcomes)
        return dict.fromkeys(counts, 0) if job.fault("zero_counts") else counts

    # --- the engine's side ---------------------------------------------------------------------

    def perform(
        self, job: Job, line: Line, fault: str | None, rng: random.Random
    ) -> tuple[dict[str, Any], bool, dict[str, int], str | None]:
        """Answer one request."""
        wrong = _ROW_ERRORS.get(fault or "")
        if wrong is None and job.fault("fail"):
            wrong = _ROW_ERRORS["error_500"]
        if wrong is None:
            params = orjson.loads(line.body)
            try:
                messages.check_params(params, job.extra["version"])
                cached = self._cache.look(job.account, params, self._world.clock.now(), rng)
                body, count, label = messages.message(params, fault, rng, cached)
            except messages.ParamsError as error:
                wrong = (error.kind, str(error))
            else:
                kind = "reticulated" if fault == "unknown_type" else "succeeded"
                return {"type": kind, "message": body}, False, count, label
        payload = {"type": "errored", "error": error_body(*wrong, short_id("req_", rng.random()))}
        return payload, True, {}, None

    def row(self, job: Job, line_id: str, payload: dict[str, Any], error: bool, mark: str) -> bytes:
        """A result line."""
        del job, error, mark
        return dumps({"custom_id": line_id, "result": payload})

    def stranger(self, job: Job, name: str, rng: random.Random) -> bytes:
        """A good answer for an id of somebody else."""
        payload, error, _, _ = self.perform(job, job.lines[0], None, rng)
        return self.row(job, name, payload, error, "")

    async def finish(self, job: Job) -> None:
        """Write the one result file."""
        rest = "canceled" if job.phase(job.end) == "cancelled" else "expired"
        rows: list[bytes] = []
        for index, line in enumerate(job.lines):
            outcome = job.outcomes.get(index)
            if outcome is None:
                rows.append(dumps({"custom_id": line.id, "result": {"type": rest}}))
            else:
                rows.extend(outcome.rows)
        data = job.extra["results"] = self._world.file_of(job, "output", rows)
        job.extra["etag"] = etag_of(data)
        self._world.strip(job)
