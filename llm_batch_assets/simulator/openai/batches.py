"""``/v1/batches``: create, get, list and cancel."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import orjson

from llm_batch_assets.simulator.app import Call, json_reply
from llm_batch_assets.simulator.dice import short_id
from llm_batch_assets.simulator.jobs import ENDS, Job, Line
from llm_batch_assets.simulator.lines import dumps
from llm_batch_assets.simulator.openai import bodies
from llm_batch_assets.simulator.openai.errors import BodyError, error_payload
from llm_batch_assets.simulator.openai.files import Files, page
from llm_batch_assets.simulator.openai.validation import fault, validate
from llm_batch_assets.simulator.openai.wire import account_of, check, refuse
from llm_batch_assets.simulator.transport import Reply
from llm_batch_assets.simulator.world import World

_DAY = 86_400.0
_STATUS = {"running": "in_progress"}
_ROW_ERRORS = {
    "error_429": (429, "Rate limit reached for requests.", "requests", "rate_limit_exceeded"),
    "error_500": (500, "The server had an error.", "server_error", "server_error"),
    "error_400": (400, "This model does not accept the request.", "invalid_request_error", None),
    "error_quota": (429, "You exceeded your current quota.", "insufficient_quota",
                    "insufficient_quota"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Item:
    """A batch as a list page needs it."""

    id: str
    shown: dict[str, Any]

    def view(self) -> dict[str, Any]:
        return self.shown


class Batches:
    """The batches of every account, and how their lines are answered."""

    def __init__(self, world: World, files: Files) -> None:
        self._world = world
        self._files = files

    # --- calls -----------------------------------------------------------------------------

    async def create(self, call: Call) -> Reply:
        """``POST /v1/batches``."""
        account = account_of(call)
        body = _json(call.body)
        file_id, endpoint = body.get("input_file_id"), body.get("endpoint")
        check(isinstance(file_id, str), "Missing required parameter: 'input_file_id'.",
              "input_file_id")  # fmt: skip
        check(endpoint in bodies.SERVED, f"Invalid value: '{endpoint}'. Supported values are: "
              f"{', '.join(bodies.SERVED)}.", "endpoint")  # fmt: skip
        check(body.get("completion_window") == "24h", "Invalid 'completion_window': only '24h'.",
              "completion_window")  # fmt: skip
        metadata = _metadata(body.get("metadata"))
        lifetime = _output_lifetime(body.get("output_expires_after"))
        found = self._files.find(account, str(file_id))
        if found is None:
            status = call.world.options.missing_file_status
            refuse(status, f"No such File object: {file_id}", "input_file_id")
        check(found.purpose == "batch", f"Invalid purpose '{found.purpose}': expected 'batch'.",
              "input_file_id")  # fmt: skip
        job = self.make(account, found.data, str(file_id), str(endpoint), metadata, lifetime)
        call.entry.notes |= {"made": job.id, "input_file_id": file_id}
        return json_reply(self._view(job, job.created, fresh=True))

    def make(
        self,
        account: str,
        data: bytes,
        file_id: str,
        endpoint: str,
        metadata: dict[str, str] | None,
        lifetime: float | None,
        *,
        foreign: bool = False,
        behind: bool = False,
    ) -> Job:
        """A batch over the bytes of an input file."""
        lines, errors, model = validate(data, endpoint)
        if not errors and self._world.over_quota("openai", account, model, lines):
            text = "Enqueued token limit reached for this model in this organization."
            errors = [fault("token_limit_exceeded", text)]
        return self._world.open_job(
            self._world.new_id("batch_"),
            "openai",
            account,
            lines,
            shares=(0.1, 0.8, 0.1),
            window=_DAY,
            foreign=foreign,
            behind=behind,
            errors=errors,
            extra={
                "endpoint": endpoint,
                "metadata": metadata,
                "input_file_id": file_id,
                "model": model,
                "lifetime": lifetime,
            },
        )

    def clone(self, source: Job, *, foreign: bool, labels: dict[str, str] | None) -> Job:
        """The same input once more, or a look-alike with other ids, bodies and labels."""
        found = self._files.files.get(source.extra["input_file_id"])
        lines = [_request(source, line, foreign=foreign) for line in source.lines]
        data = found.data if found is not None and not foreign else b"\n".join(lines) + b"\n"
        name = "other.jsonl" if foreign else "again.jsonl"
        kept = self._files.add(source.account, data, name, "batch", None)
        metadata = labels if labels is not None else source.extra["metadata"]
        if foreign and labels is None:
            metadata = {"job": "nightly", "team": "search"}
        return self.make(
            source.account, data, kept.id, source.extra["endpoint"], metadata,
            source.extra["lifetime"], foreign=foreign, behind=True,
        )  # fmt: skip

    async def get(self, call: Call) -> Reply:
        """``GET /v1/batches/{id}``."""
        job = self._require(call)
        await self._world.settle()
        now = self._world.clock.now()
        job.polls += 1
        job.end_polls += job.phase(now) in ENDS
        return json_reply(self._view(job, now))

    async def list_all(self, call: Call) -> Reply:
        """``GET /v1/batches``: newest first."""
        account = account_of(call)
        limit = call.query.get("limit", str(self._world.options.page_size))
        check(limit.isdigit() and 1 <= int(limit) <= 100, f"Invalid 'limit': {limit}. Expected a "
              "value between 1 and 100.", "limit")  # fmt: skip
        await self._world.settle()
        now = self._world.clock.now()
        after = call.query.get("after")
        visible = self._world.visible("openai", account, first_page=after is None)
        shown = [_Item(job.id, self._view(job, now)) for job in visible]
        if after is not None and all(one.id != after for one in shown):
            refuse(400, f"Invalid 'after': no batch with id '{after}' found.", "after")
        return json_reply(page(shown, after, int(limit)))

    async def cancel(self, call: Call) -> Reply:
        """``POST /v1/batches/{id}/cancel``."""
        job = self._require(call)
        over = await self._world.take_cancel(job)
        if over is not None:
            status = self._world.options.cancel_ended_status
            refuse(status, f"Cannot cancel a batch with status '{over}'.", None)
        return json_reply(self._view(job, self._world.clock.now()))

    def _require(self, call: Call) -> Job:
        account = account_of(call)
        job = self._world.jobs.get(call.path["id"])
        if job is None or job.account != account or job.provider != "openai":
            refuse(404, f"No batch found with id '{call.path['id']}'.", None)
        return job

    # --- the batch object --------------------------------------------------------------------

    def _view(self, job: Job, now: float, *, fresh: bool = False) -> dict[str, Any]:
        phase = "validating" if fresh else job.phase(now)
        status = _STATUS.get(phase, phase)
        strange = job.fault("unknown_status")
        if strange and not fresh and job.polls <= strange.looks:
            status = "reticulating"
        over = phase in ENDS
        late = job.fault("late_files")
        named = over and not (late and job.end_polls <= late.looks)
        output, error = job.extra.get("output_file_id"), job.extra.get("error_file_id")
        if over and error is None and job.fault("empty_file_id") and phase != "failed":
            error = ""
        cancelled = phase in ("cancelling", "cancelled")
        started = None if phase in ("validating", "failed") else int(job.run_start)
        if cancelled and job.cancel_at is not None and job.cancel_at < job.run_start:
            started = None
        finalizing = phase == "finalizing" or phase == "completed"
        return {
            "id": job.id,
            "object": "batch",
            "endpoint": job.extra["endpoint"],
            "model": job.extra["model"],
            "errors": {"object": "list", "data": job.errors} if phase == "failed" else None,
            "input_file_id": job.extra["input_file_id"],
            "completion_window": "24h",
            "status": status,
            "output_file_id": output if named else None,
            "error_file_id": error if named else None,
            "created_at": int(job.created),
            "in_progress_at": started,
            "expires_at": int(job.expires),
            "finalizing_at": int(job.run_end) if finalizing else None,
            "completed_at": int(job.end) if phase == "completed" else None,
            "failed_at": int(job.end) if phase == "failed" else None,
            "expired_at": int(job.end) if phase == "expired" else None,
            "cancelling_at": int(job.cancel_at or 0) if cancelled else None,
            "cancelled_at": int(job.end) if phase == "cancelled" else None,
            "request_counts": self._counts(job, phase),
            "usage": self._usage(job) if over and phase != "failed" else None,
            "metadata": job.extra["metadata"],
        }

    @staticmethod
    def _counts(job: Job, phase: str) -> dict[str, int]:
        if phase in ("validating", "failed") or job.fault("zero_counts"):
            return {"total": 0, "completed": 0, "failed": 0}
        failed = sum(1 for outcome in job.outcomes.values() if outcome.error)
        return {
            "total": len(job.lines),
            "completed": len(job.outcomes) - failed,
            "failed": failed,
        }

    @staticmethod
    def _usage(job: Job) -> dict[str, Any]:
        done = job.outcomes.values()
        into, out = sum(one.input_tokens for one in done), sum(one.output_tokens for one in done)
        return {
            "input_tokens": into,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": out,
            "output_tokens_details": {"reasoning_tokens": sum(o.reasoning_tokens for o in done)},
            "total_tokens": into + out,
        }

    # --- the engine's side ---------------------------------------------------------------------

    def perform(
        self, job: Job, line: Line, fault: str | None, rng: random.Random
    ) -> tuple[dict[str, Any], bool, dict[str, int], str | None]:
        """Answer one line."""
        endpoint = job.extra["endpoint"]
        status, label = 200, None
        payload: dict[str, Any]
        count: dict[str, int] = {}
        if fault in _ROW_ERRORS or (fault == "response_failed" and endpoint == "/v1/embeddings"):
            status, message, kind, code = _ROW_ERRORS.get(fault or "", _ROW_ERRORS["error_500"])
            payload = error_payload(message, kind, None, code)
        else:
            try:
                payload, count, label = bodies.respond(
                    endpoint, orjson.loads(line.body), fault, rng, int(self._world.clock.now())
                )
            except BodyError as error:
                status, payload = 400, error.payload
        request = short_id("req_", line.sha256, rng.random(), length=32)
        response = {"status_code": status, "request_id": request, "body": payload}
        return response, status >= 400, count, label

    def row(self, job: Job, line_id: str, payload: dict[str, Any], error: bool, mark: str) -> bytes:
        """A line of the output or the error file: an HTTP failure has a null ``error``, too."""
        del job, error
        row = {"id": f"batch_req_{mark}", "custom_id": line_id, "response": payload, "error": None}
        return dumps(row)

    def stranger(self, job: Job, name: str, rng: random.Random) -> bytes:
        """A good answer for an id of somebody else."""
        line = job.lines[0]
        payload, error, _, _ = self.perform(job, line, None, rng)
        return self.row(job, name, payload, error, short_id("", job.id, name))

    async def finish(self, job: Job) -> None:
        """Write the output and the error file; a file without rows is not made at all."""
        phase = job.phase(max(self._world.clock.now(), job.end))
        if phase == "failed":
            return
        output: list[bytes] = []
        errors: list[bytes] = []
        for index, line in enumerate(job.lines):
            outcome = job.outcomes.get(index)
            if outcome is None:
                errors.append(self._not_run(job, line, phase))
            else:
                (errors if outcome.error else output).extend(outcome.rows)
        unknown = any(fault.kind in ("unknown_row", "garbage_line") for fault in job.faults)
        for name, rows in (("output", output), ("error", errors)):
            if rows or (name == "output" and unknown):
                job.extra[f"{name}_file_id"] = self._keep(job, name, rows)
        self._world.strip(job)

    def _keep(self, job: Job, name: str, rows: list[bytes]) -> str:
        data = self._world.file_of(job, name, rows)
        expires = job.end + (job.extra["lifetime"] or 30 * _DAY)
        filename = f"{job.id}_{name}.jsonl"
        return self._files.add(job.account, data, filename, "batch_output", expires).id

    def _not_run(self, job: Job, line: Line, phase: str) -> bytes:
        code, message = (
            ("batch_cancelled", "This request was not executed because the batch was cancelled.")
            if phase == "cancelled"
            else (
                "batch_expired",
                "This request could not be executed before the completion window expired.",
            )
        )
        row = {
            "id": short_id("batch_req_", job.id, line.id),
            "custom_id": line.id,
            "response": None,
            "error": {"code": code, "message": message},
        }
        return dumps(row)


def _request(source: Job, line: Line, *, foreign: bool) -> bytes:
    name, body = line.id, line.body
    if foreign:
        name = short_id("other-", source.id, line.id)
        body = orjson.dumps({**orjson.loads(line.body), "user": "somebody-else"})
    head = orjson.dumps({"custom_id": name, "method": "POST", "url": source.extra["endpoint"]})
    return head[:-1] + b',"body":' + body + b"}"


def _json(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        refuse(400, "We could not parse the JSON body of your request.", None)
    return parsed


def _metadata(given: Any) -> dict[str, str] | None:
    if given is None:
        return None
    check(isinstance(given, dict), "Invalid type for 'metadata': expected an object.", "metadata")
    check(len(given) <= 16, "Invalid 'metadata': too many properties. Expected at most 16.",
          "metadata")  # fmt: skip
    for name, value in given.items():
        check(len(name) <= 64, f"Invalid property name in 'metadata': '{name}' is too long.",
              "metadata")  # fmt: skip
        check(isinstance(value, str), f"Invalid type for 'metadata.{name}': expected a string.",
              f"metadata.{name}")  # fmt: skip
        check(len(value) <= 512, f"Invalid 'metadata.{name}': string too long. Expected a string "
              "with maximum length 512.", f"metadata.{name}")  # fmt: skip
    return dict(given)


def _output_lifetime(given: Any) -> float | None:
    if given is None:
        return None
    seconds = given.get("seconds") if isinstance(given, dict) else None
    check(
        isinstance(seconds, int) and given.get("anchor") == "created_at"
        and 3600 <= seconds <= 2_592_000,
        "Invalid 'output_expires_after'.", "output_expires_after",
    )  # fmt: skip
    return float(seconds or 0)
