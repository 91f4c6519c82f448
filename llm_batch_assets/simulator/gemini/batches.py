"""Batches as long-running operations: create, get, list, cancel and delete."""

from __future__ import annotations

import random
from hashlib import sha256
from typing import Any

import msgspec
import orjson

from llm_batch_assets.simulator.app import Call, json_reply
from llm_batch_assets.simulator.clock import rfc3339
from llm_batch_assets.simulator.dice import short_id
from llm_batch_assets.simulator.gemini import content, wire
from llm_batch_assets.simulator.gemini.files import Files
from llm_batch_assets.simulator.jobs import ENDS, Job, Line
from llm_batch_assets.simulator.lines import dumps
from llm_batch_assets.simulator.transport import Reply
from llm_batch_assets.simulator.world import World

_TYPE = "type.googleapis.com/google.ai.generativelanguage.v1main."
_WINDOW = 48 * 3600.0
_INLINE_LIMIT = 20_000_000
_STATES = {
    "validating": "BATCH_STATE_PENDING",
    "running": "BATCH_STATE_RUNNING",
    "finalizing": "BATCH_STATE_RUNNING",
    "cancelling": "BATCH_STATE_RUNNING",
    "completed": "BATCH_STATE_SUCCEEDED",
    "failed": "BATCH_STATE_FAILED",
    "expired": "BATCH_STATE_EXPIRED",
    "cancelled": "BATCH_STATE_CANCELLED",
}
_ROW_ERRORS = {
    "error_429": (8, "Resource has been exhausted (e.g. check quota)."),
    "error_500": (13, "An internal error has occurred. Please retry or report."),
    "error_400": (3, "Request contains an invalid argument."),
    "error_quota": (7, "Billing is not enabled for this project."),
    "response_failed": (14, "The model is overloaded. Please try again later."),
}


class _Line(msgspec.Struct):
    key: msgspec.Raw = msgspec.Raw(b"null")
    request: msgspec.Raw = msgspec.Raw(b"null")
    metadata: msgspec.Raw = msgspec.Raw(b"null")


class _Requests(msgspec.Struct):
    requests: list[_Line] = []


_LINE = msgspec.json.Decoder(_Line)
_INLINE = msgspec.json.Decoder(_Requests)


class Batches:
    """The batches of every project, and how their requests are answered."""

    def __init__(self, world: World, files: Files) -> None:
        self._world = world
        self._files = files

    # --- calls -----------------------------------------------------------------------------

    async def generate(self, call: Call) -> Reply:
        """``POST /{version}/models/{model}:batchGenerateContent``."""
        return self._create(call, "generate")

    async def embed(self, call: Call) -> Reply:
        """``POST /{version}/models/{model}:asyncBatchEmbedContent``."""
        return self._create(call, "embed")

    def _create(self, call: Call, kind: str) -> Reply:
        account = wire.account_of(call)
        model = call.path["model"]
        if not content.KNOWN_MODEL.match(model):
            wire.refuse(404, f"models/{model} is not found for API version v1.")
        batch = wire.field(wire.json_object(call.body), "batch", {})
        source = wire.field(batch, "inputConfig", {})
        name = wire.field(source, "fileName")
        inline = wire.field(source, "requests")
        wire.check((name is None) != (inline is None), "input_config needs a file or requests.")
        if name is not None:
            found = self._files.find(account, str(name))
            if found is None:
                status = self._world.options.missing_file_status
                wire.refuse(status, f"File {name} is not found.")
            lines, wrong = read_file(found.data)
        else:
            wire.check(len(call.body) < _INLINE_LIMIT, "Inline requests are limited to 20 MB.")
            lines, wrong = _read_inline(orjson.dumps(inline)), None
            wire.check(bool(lines), "requests is empty.")
        if self._world.over_quota("gemini", account, model, lines):
            wire.refuse(429, "You exceeded your enqueued tokens quota for this model.")
        label = wire.field(batch, "displayName", "")
        job = self._make(
            account,
            lines,
            {"kind": kind, "model": model, "display_name": label, "file": name},
            wrong,
        )
        call.entry.notes |= {"made": job.id, "display_name": label, "input": name}
        return json_reply(self._view(job, job.created, fresh=True))

    def _make(
        self,
        account: str,
        lines: list[Line],
        extra: dict[str, Any],
        wrong: str | None,
        *,
        foreign: bool = False,
        behind: bool = False,
    ) -> Job:
        return self._world.open_job(
            f"batches/{self._world.new_id('', length=36)}",
            "gemini",
            account,
            lines,
            shares=(0.2, 0.7, 0.1),
            window=_WINDOW,
            foreign=foreign,
            behind=behind,
            errors=[] if wrong is None else [{"code": 3, "message": wrong}],
            extra=extra,
        )

    def clone(self, source: Job, *, foreign: bool, labels: Any) -> Job:
        """The same requests once more, or a look-alike with other keys and bodies.

        A look-alike keeps the display name unless ``labels`` gives another: it is not unique.
        """
        lines = [_other(source, line) for line in source.lines] if foreign else list(source.lines)
        extra = {name: source.extra.get(name) for name in ("kind", "model", "display_name", "file")}
        if foreign and extra["file"] is not None:
            rows = [dumps({"key": one.id, "request": orjson.loads(one.body)}) for one in lines]
            kept = self._files.add(
                source.account, b"\n".join(rows), "", "application/jsonl", generated=False
            )
            extra["file"] = f"files/{kept.id}"
        if labels is not None:
            extra["display_name"] = str(labels)
        return self._make(source.account, lines, extra, None, foreign=foreign, behind=True)

    async def get(self, call: Call) -> Reply:
        """``GET /{version}/batches/{id}``."""
        job = self._require(call)
        await self._world.settle()
        now = self._world.clock.now()
        job.polls += 1
        job.end_polls += job.phase(now) in ENDS
        return json_reply(self._view(job, now))

    async def list_all(self, call: Call) -> Reply:
        """``GET /{version}/batches``: without inline answers."""
        account = wire.account_of(call)
        start, size = wire.page_of(call, self._world.options.page_size)
        await self._world.settle()
        now = self._world.clock.now()
        jobs = self._world.visible("gemini", account, first_page=start == 0)
        shown = [self._view(job, now, inline=False) for job in jobs[start : start + size]]
        body: dict[str, Any] = {"operations": shown} if shown else {}
        if start + size < len(jobs):
            body["nextPageToken"] = f"page-{start + size}"
        return json_reply(body)

    async def cancel(self, call: Call) -> Reply:
        """``POST /{version}/batches/{id}:cancel``: an empty answer, the state changes later."""
        if await self._world.take_cancel(self._require(call)) is not None:
            status = self._world.options.cancel_ended_status
            wire.refuse(status, "The batch is over.", "FAILED_PRECONDITION")
        return json_reply({})

    async def delete(self, call: Call) -> Reply:
        """``DELETE /{version}/batches/{id}``."""
        job = self._require(call)
        await self._world.settle()
        now = self._world.clock.now()
        if job.phase(now) not in ENDS:
            job.cancel(now)
        job.deleted = True
        return json_reply({})

    def _require(self, call: Call) -> Job:
        account = wire.account_of(call)
        job = self._world.jobs.get(f"batches/{call.path['id']}")
        if job is None or job.account != account or job.deleted:
            wire.refuse(404, f"Batch batches/{call.path['id']} is not found.")
        return job

    # --- the operation -------------------------------------------------------------------------

    def _view(
        self, job: Job, now: float, *, fresh: bool = False, inline: bool = True
    ) -> dict[str, Any]:
        phase = "validating" if fresh else job.phase(now)
        over = phase in ENDS
        state = _STATES[phase]
        strange = job.fault("unknown_status")
        if strange and not fresh and job.polls <= strange.looks:
            state, over = "BATCH_STATE_RETICULATING", False
        kind = "GenerateContentBatch" if job.extra["kind"] == "generate" else "EmbedContentBatch"
        metadata: dict[str, Any] = {
            "@type": f"{_TYPE}{kind}",
            "name": job.id,
            "model": f"models/{job.extra['model']}",
            "displayName": job.extra["display_name"],
            "createTime": rfc3339(job.created),
            "updateTime": rfc3339(job.end if over else max(job.created, min(now, job.end))),
            "state": state,
            "inputConfig": {"fileName": job.extra["file"]} if job.extra["file"] else {},
            "batchStats": self._stats(job, over=over),
        }
        if over:
            metadata["endTime"] = rfc3339(job.end)
        operation: dict[str, Any] = {"name": job.id, "metadata": metadata}
        if over:
            operation["done"] = True
            self._result(job, phase, operation, inline=inline)
        return operation

    def _result(self, job: Job, phase: str, operation: dict[str, Any], *, inline: bool) -> None:
        if phase == "failed":
            error = job.errors[0]
            code = error["code"] if isinstance(error["code"], int) else 8
            operation["error"] = {"code": code, "message": error["message"]}
            return
        late = job.fault("late_files")
        output = self._output(job, inline=inline)
        if output and not (late and job.end_polls <= late.looks):
            operation["metadata"]["output"] = output
        if phase == "completed":
            name = (
                "EmbedContentBatchOutput"
                if job.extra["kind"] == "embed"
                else ("GenerateContentBatchOutput")
            )
            shown = operation["metadata"].get("output", {})
            operation["response"] = {"@type": f"{_TYPE}{name}", **shown}
        elif phase == "cancelled":
            operation["error"] = {"code": 1, "message": "The batch was cancelled."}
        else:
            operation["error"] = {"code": 4, "message": "The batch expired."}

    def _output(self, job: Job, *, inline: bool) -> dict[str, Any]:
        if job.extra.get("responses_file"):
            return {"responsesFile": job.extra["responses_file"]}
        if not inline or "inlined" not in job.extra:
            return {}
        return {"inlinedResponses": {"inlinedResponses": job.extra["inlined"]}}

    @staticmethod
    def _stats(job: Job, *, over: bool) -> dict[str, str]:
        """int64 as strings; zero counters are left out."""
        failed = sum(1 for one in job.outcomes.values() if one.error)
        done = len(job.outcomes)
        counts = {
            "requestCount": len(job.lines),
            "successfulRequestCount": done - failed,
            "failedRequestCount": failed,
            "pendingRequestCount": 0 if over else len(job.lines) - done,
        }
        if job.fault("zero_counts"):
            return {}
        return {name: str(value) for name, value in counts.items() if value}

    # --- the engine's side ---------------------------------------------------------------------

    def perform(
        self, job: Job, line: Line, fault: str | None, rng: random.Random
    ) -> tuple[dict[str, Any], bool, dict[str, int], str | None]:
        """Answer one request."""
        wrong = _ROW_ERRORS.get(fault or "")
        if wrong is None:
            request = orjson.loads(line.body)
            try:
                if job.extra["kind"] == "embed":
                    body, count = content.embed(request)
                    return {"response": body}, False, count, "plain"
                body, count, label = content.generate(request, job.extra["model"], fault, rng)
                return {"response": body}, False, count, label
            except content.ContentError as error:
                wrong = (3, str(error))
        code, message = wrong
        return {"error": {"code": code, "message": message}}, True, {}, None

    def row(self, job: Job, line_id: str, payload: dict[str, Any], error: bool, mark: str) -> bytes:
        """A result line; inline answers wear their key as metadata."""
        del error, mark
        if self._inline(job):
            if job.fault("no_metadata") or not line_id:
                return dumps(payload)
            return dumps({"metadata": {"key": line_id}, **payload})
        return dumps({"key": line_id, **payload} if line_id else payload)

    @staticmethod
    def _inline(job: Job) -> bool:
        return job.extra["file"] is None or job.fault("inline_output") is not None

    def stranger(self, job: Job, name: str, rng: random.Random) -> bytes:
        """A good answer for a key of somebody else."""
        payload, error, _, _ = self.perform(job, job.lines[0], None, rng)
        return self.row(job, name, payload, error, "")

    async def finish(self, job: Job) -> None:
        """Write the answers; a batch that expires loses them all."""
        phase = job.phase(job.end)
        lost = phase == "cancelled" and not self._world.options.gemini_cancel_output
        if phase == "failed":
            return
        if phase == "expired" or lost:
            self._world.meter.withhold(job.id)
            return
        rows = [
            row
            for index in range(len(job.lines))
            if index in job.outcomes
            for row in job.outcomes[index].rows
        ]
        data = self._world.file_of(job, "output", rows)
        self._world.strip(job)
        if self._inline(job):
            job.extra["inlined"] = [one for one in map(_readable, data.split(b"\n")) if one]
            return
        name = f"{job.id.removeprefix('batches/')}-output"
        kept = self._files.add(job.account, data, name, "application/jsonl", generated=True)
        job.extra["responses_file"] = f"files/{kept.id}"


def _readable(row: bytes) -> Any:
    """An inline item is part of a JSON answer, so a row that is no JSON is not there at all."""
    try:
        return orjson.loads(row.strip().removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError:
        return None


def read_file(data: bytes) -> tuple[list[Line], str | None]:
    """The lines of an input file, and what makes the whole file unusable."""
    lines: list[Line] = []
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not raw.strip():
            continue
        try:
            parsed = _LINE.decode(raw)
            key, request = orjson.loads(bytes(parsed.key)), bytes(parsed.request).strip()
            whole = isinstance(orjson.loads(request), dict)
        except (ValueError, msgspec.MsgspecError):
            return lines, f"Line {number} of the input file is not valid JSON."
        if not whole or not isinstance(key, (str, type(None))):
            return lines, f"Line {number} of the input file has no valid key and request."
        lines.append(Line(key or "", request, sha256(request).hexdigest()))
    return lines, None if lines else "The input file is empty."


def _read_inline(given: bytes) -> list[Line]:
    try:
        parsed = _INLINE.decode(given)
    except msgspec.MsgspecError:
        wire.refuse(400, "Invalid JSON payload received.")
    lines = []
    for one in parsed.requests:
        request = bytes(one.request).strip()
        metadata = orjson.loads(bytes(one.metadata)) or {}
        lines.append(Line(str(metadata.get("key", "")), request, sha256(request).hexdigest()))
    return lines


def _other(source: Job, line: Line) -> Line:
    request = {**orjson.loads(line.body), "labels": {"team": "somebody-else"}}
    body = orjson.dumps(request)
    return Line(short_id("other-", source.id, line.id), body, sha256(body).hexdigest())
