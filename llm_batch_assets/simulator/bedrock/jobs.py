"""Model invocation jobs: create, get, list, stop and tags."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson

from llm_batch_assets.simulator.app import Call, json_reply
from llm_batch_assets.simulator.bedrock import bodies, wire
from llm_batch_assets.simulator.bedrock.records import manifest, other_line, read_input
from llm_batch_assets.simulator.bedrock.storage import Storage, StorageError
from llm_batch_assets.simulator.clock import rfc3339
from llm_batch_assets.simulator.dice import short_id
from llm_batch_assets.simulator.jobs import ENDS, Job, Line
from llm_batch_assets.simulator.lines import dumps
from llm_batch_assets.simulator.transport import Reply
from llm_batch_assets.simulator.world import World

_ROW_ERRORS = {
    "error_429": (429, "Too many requests, please wait before trying again."),
    "error_500": (500, "The system encountered an unexpected error during processing."),
    "error_400": (400, "The provided request is not valid."),
    "error_quota": (403, "You don't have access to the model with the specified model ID."),
    "response_failed": (503, "The model is unable to serve the request."),
}


class Jobs:
    """The jobs of every account, and how their records are answered."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._storage = Storage(world.options)
        self._tokens: dict[tuple[str, str], Job] = {}

    # --- calls -----------------------------------------------------------------------------

    async def create(self, call: Call) -> Reply:
        """``POST /model-invocation-job``."""
        account, region = wire.account_of(call)
        body = wire.json_object(call.body)
        source, _ = wire.check_create(body)
        token = body.get("clientRequestToken")
        known = self._tokens.get((account, token)) if token else None
        if known is not None:
            return self._replay(call, known, body)
        wire.check(bodies.family(body["modelId"]) is not None, "The provided model identifier "
                   "is invalid.")  # fmt: skip
        try:
            objects = await self._storage.read_input(source)
        except StorageError as error:
            wire.refuse("ValidationException", f"Could not read the input: {error}")
        if token and (account, token) in self._tokens:
            # The same call arrived twice while its input was being read.
            return self._replay(call, self._tokens[account, token], body)
        wire.check(bool(objects), f"No .jsonl object was found below {source}.")
        lines, files, wrong = read_input(objects)
        minimum = self._world.options.bedrock_minimum
        if wrong is None and len(lines) < minimum:
            wrong = f"Batch job {body['jobName']} contains less records ({len(lines)}) than the "
            wrong += f"required minimum of: {minimum}"
            wire.check(not self._world.options.bedrock_minimum_at_create, wrong)
        job = self._make(account, region, body, lines, files, wrong)
        if token:
            self._tokens[account, token] = job
        call.entry.notes |= {"made": job.id, "jobName": body["jobName"], "token": token}
        return json_reply({"jobArn": job.id})

    def _replay(self, call: Call, known: Job, body: dict[str, Any]) -> Reply:
        """A token that was seen: the original answer, whatever else the call says."""
        same = known.extra["body"] == body
        if not same and self._world.options.bedrock_token_mismatch_conflict:
            wire.refuse("ConflictException", "The token was used with other parameters.")
        call.entry.notes["replayed"] = known.id
        return json_reply({"jobArn": known.id})

    def _make(
        self,
        account: str,
        region: str,
        body: dict[str, Any],
        lines: list[Line],
        files: list[tuple[str, int]],
        wrong: str | None,
        *,
        foreign: bool = False,
        behind: bool = False,
    ) -> Job:
        name = self._world.new_id("", length=12)
        job = self._world.open_job(
            f"arn:aws:bedrock:{region}:{wire.ACCOUNT_ID}:model-invocation-job/{name}",
            "bedrock",
            account,
            lines,
            shares=(0.15, 0.8, 0.05),
            window=body.get("timeoutDurationInHours", 24) * 3600.0,
            foreign=foreign,
            behind=behind,
            errors=[] if wrong is None else [{"code": "validation", "message": wrong}],
            extra={"body": body, "files": files, "short": name, "region": region},
        )
        expire = job.fault("expire")
        if expire is not None and expire.fraction <= 0:
            job.validating = job.window * 2
        return job

    def clone(self, source: Job, *, foreign: bool, labels: Any) -> Job:
        """The same records once more, or a look-alike with other ids, bodies, name and token."""
        lines = (
            [other_line(source, line) for line in source.lines] if foreign else list(source.lines)
        )
        token = short_id("", source.id, len(self._world.jobs), length=32)
        body = {**source.extra["body"], "clientRequestToken": token}
        if foreign:
            body["jobName"] = str(labels or f"other-{source.extra['short']}")
        return self._make(
            source.account, source.extra["region"], body, lines, source.extra["files"], None,
            foreign=foreign, behind=True,
        )  # fmt: skip

    async def get(self, call: Call) -> Reply:
        """``GET /model-invocation-job/{id}``: by ARN or by the short id."""
        job = self._require(call)
        await self._world.settle()
        now = self._world.clock.now()
        job.polls += 1
        if job.phase(now) in ENDS:
            job.end_polls += 1
            await self._publish(job)
        return json_reply(self._view(job, now))

    async def list_all(self, call: Call) -> Reply:
        """``GET /model-invocation-jobs``."""
        account, _ = wire.account_of(call)
        query = call.query
        size = query.get("maxResults", str(self._world.options.page_size))
        wire.check(size.isdigit() and 1 <= int(size) <= 1000, "maxResults must be 1 to 1000.")
        token = re.fullmatch(r"page-(\d+)", query.get("nextToken", "page-0"))
        if token is None:
            wire.refuse("ValidationException", "Invalid nextToken.")
        await self._world.settle()
        now, start = self._world.clock.now(), int(token[1])
        jobs = self._world.visible("bedrock", account, first_page=start == 0)
        shown = [self._view(job, now) for job in jobs]
        after, before = (
            _instant(query.get("submitTimeAfter")),
            _instant(query.get("submitTimeBefore")),
        )
        shown = [
            one
            for one, job in zip(shown, jobs, strict=True)
            if query.get("nameContains", "") in one["jobName"]
            and query.get("statusEquals", one["status"]) == one["status"]
            and (after is None or job.created > after)
            and (before is None or job.created < before)
        ]
        if query.get("sortOrder") == "Ascending":
            shown.reverse()
        body: dict[str, Any] = {"invocationJobSummaries": shown[start : start + int(size)]}
        if start + int(size) < len(shown):
            body["nextToken"] = f"page-{start + int(size)}"
        return json_reply(body)

    async def stop(self, call: Call) -> Reply:
        """``POST /model-invocation-job/{id}/stop``."""
        if await self._world.take_cancel(self._require(call)) is not None:
            kind = self._world.options.bedrock_stop_ended
            wire.refuse(kind, "The job is not in a state that can be stopped.")
        return json_reply({})

    async def list_tags(self, call: Call) -> Reply:
        """``POST /listTagsForResource``."""
        job = self._tagged(call)
        return json_reply({"tags": job.extra["body"].get("tags") or []})

    async def tag(self, call: Call) -> Reply:
        """``POST /tagResource``."""
        job, given = self._tagged(call), wire.json_object(call.body).get("tags") or []
        names = {one["key"] for one in given}
        kept = [one for one in job.extra["body"].get("tags") or [] if one["key"] not in names]
        job.extra["body"]["tags"] = [*kept, *given]
        return json_reply({})

    async def untag(self, call: Call) -> Reply:
        """``POST /untagResource``."""
        job, gone = self._tagged(call), wire.json_object(call.body).get("tagKeys") or []
        kept = [one for one in job.extra["body"].get("tags") or [] if one["key"] not in gone]
        job.extra["body"]["tags"] = kept
        return json_reply({})

    def _tagged(self, call: Call) -> Job:
        return self._find(call, str(wire.json_object(call.body).get("resourceARN", "")))

    def _require(self, call: Call) -> Job:
        return self._find(call, call.path["id"])

    def _find(self, call: Call, name: str) -> Job:
        account, region = wire.account_of(call)
        if re.fullmatch(r"[a-z0-9]{12}", name):
            name = f"arn:aws:bedrock:{region}:{wire.ACCOUNT_ID}:model-invocation-job/{name}"
        job = self._world.jobs.get(name)
        if job is None or job.account != account:
            wire.refuse("ResourceNotFoundException", f"Could not find job {name}")
        return job

    # --- the job object --------------------------------------------------------------------------

    def _status(self, job: Job, now: float) -> str:
        phase = job.phase(now)
        if phase == "validating":
            share = (now - job.created) / max(min(job.validating, job.window), 1e-9)
            return "Submitted" if share < 0.3 else "Validating" if share < 0.7 else "Scheduled"
        if phase == "expired":
            return "PartiallyCompleted" if job.outcomes else "Expired"
        return {
            "running": "InProgress",
            "finalizing": "InProgress",
            "cancelling": "Stopping",
            "cancelled": "Stopped",
            "completed": "Completed",
            "failed": "Failed",
        }[phase]

    def _view(self, job: Job, now: float) -> dict[str, Any]:
        body = job.extra["body"]
        phase = job.phase(now)
        over = phase in ENDS
        status = self._status(job, now)
        strange = job.fault("unknown_status")
        if strange and job.polls <= strange.looks:
            status = "Reticulating"
        failed = sum(1 for one in job.outcomes.values() if one.error)
        started = phase not in ("validating", "failed") and not job.fault("zero_counts")
        view = {
            "jobArn": job.id,
            "jobName": body["jobName"],
            "modelId": body["modelId"],
            "clientRequestToken": body.get("clientRequestToken"),
            "roleArn": body["roleArn"],
            "status": status,
            "message": job.errors[0]["message"] if phase == "failed" else None,
            "submitTime": rfc3339(job.created),
            "lastModifiedTime": rfc3339(job.end if over else max(job.created, min(now, job.end))),
            "endTime": rfc3339(job.end) if over else None,
            "inputDataConfig": body["inputDataConfig"],
            "outputDataConfig": body["outputDataConfig"],
            "vpcConfig": body.get("vpcConfig"),
            "timeoutDurationInHours": body.get("timeoutDurationInHours", 24),
            "jobExpirationTime": rfc3339(job.expires),
            "modelInvocationType": body.get("modelInvocationType", "InvokeModel"),
            "totalRecordCount": len(job.lines) if started else 0,
            "processedRecordCount": len(job.outcomes) if started else 0,
            "successRecordCount": len(job.outcomes) - failed if started else 0,
            "errorRecordCount": failed if started else 0,
        }
        return {name: value for name, value in view.items() if value is not None}

    # --- the engine's side ---------------------------------------------------------------------

    def perform(
        self, job: Job, line: Line, fault: str | None, rng: random.Random
    ) -> tuple[dict[str, Any], bool, dict[str, int], str | None]:
        """Answer one record; its input travels along, because the output repeats it."""
        wrong = _ROW_ERRORS.get(fault or "")
        body = job.extra["body"]
        if wrong is None:
            kind = body.get("modelInvocationType", "InvokeModel")
            nulls = self._world.options.bedrock_nulls
            try:
                output, count, label = bodies.invoke(
                    orjson.loads(line.body), body["modelId"], kind, fault, rng, nulls=nulls
                )
                return {"input": line.body, "modelOutput": output}, False, count, label
            except bodies.InputError as error:
                wrong = (400, str(error))
        refusal = {"errorCode": wrong[0], "errorMessage": wrong[1]}
        return {"input": line.body, "error": refusal}, True, {}, None

    def row(self, job: Job, line_id: str, payload: dict[str, Any], error: bool, mark: str) -> bytes:
        """An output line, with the record's input repeated in full."""
        del job, error, mark
        rest = dumps({name: value for name, value in payload.items() if name != "input"})
        head = dumps({"recordId": line_id})[:-1]
        return head + b',"modelInput":' + bytes(payload["input"]) + b"," + rest[1:]

    def stranger(self, job: Job, name: str, rng: random.Random) -> bytes:
        """A good answer for a record id of somebody else."""
        payload, error, _, _ = self.perform(job, job.lines[0], None, rng)
        return self.row(job, name, payload, error, "")

    async def finish(self, job: Job) -> None:
        """Write the output objects, unless they come late or never."""
        if not job.fault("late_files"):
            await self._publish(job)

    async def _publish(self, job: Job) -> None:
        late = job.fault("late_files")
        if job.extra.get("published") or (late and job.end_polls <= late.looks):
            return
        job.extra["published"] = True
        lost = job.fault("lost_result") or job.phase(job.end) == "failed" or not job.outcomes
        if lost or job.foreign:
            return
        objects: dict[str, bytes] = {}
        start = 0
        for name, count in job.extra["files"]:
            rows = self._rows(job, range(start, start + count))
            label = "output" if start == 0 else f"output-{name}"
            objects[f"{name}.out"] = self._world.file_of(job, label, rows)
            start += count
        objects["manifest.json.out"] = orjson.dumps(manifest(job))
        prefix = job.extra["body"]["outputDataConfig"]["s3OutputDataConfig"]["s3Uri"]
        self._world.strip(job)
        await self._storage.write(f"{prefix.rstrip('/')}/{job.extra['short']}/", objects)

    def _rows(self, job: Job, indexes: Sequence[int]) -> list[bytes]:
        rows: list[bytes] = []
        for index in indexes:
            outcome = job.outcomes.get(index)
            if outcome is not None:
                rows.extend(outcome.rows)
            elif self._world.options.bedrock_expired_rows:
                line = job.lines[index]
                refusal = {"errorCode": 408, "errorMessage": "Expired", "expired": True}
                payload = {"input": line.body, "error": refusal}
                rows.append(self.row(job, line.id, payload, True, ""))
        return rows


def _instant(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        wire.refuse("ValidationException", f"Not a timestamp: {text}")
