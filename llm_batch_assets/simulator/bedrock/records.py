"""Records of a job: read from its input objects, counted in its manifest."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec
import orjson

from llm_batch_assets.simulator.dice import short_id
from llm_batch_assets.simulator.jobs import Job, Line, Outcome

_MAX_RECORDS = 50_000


class _Record(msgspec.Struct):
    recordId: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815 - the wire's name
    modelInput: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815 - the wire's name


_DECODER = msgspec.json.Decoder(_Record)


def manifest(job: Job) -> dict[str, int]:
    """The counts of ``manifest.json.out``."""
    done: list[Outcome] = list(job.outcomes.values())
    failed = sum(1 for one in done if one.error)
    return {
        "totalRecordCount": len(job.lines),
        "processedRecordCount": len(done),
        "successRecordCount": len(done) - failed,
        "errorRecordCount": failed,
        "inputTokenCount": sum(one.input_tokens for one in done),
        "outputTokenCount": sum(one.output_tokens for one in done),
    }


def read_input(
    objects: Sequence[tuple[str, bytes]],
) -> tuple[list[Line], list[tuple[str, int]], str | None]:
    """The records of every input object, how many each has, and what fails the job."""
    lines: list[Line] = []
    files: list[tuple[str, int]] = []
    seen: set[str] = set()
    for name, data in objects:
        before = len(lines)
        for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
            if not raw.strip():
                continue
            try:
                record = _DECODER.decode(raw)
                record_id = orjson.loads(bytes(record.recordId))
                given = bytes(record.modelInput).strip()
                whole = isinstance(orjson.loads(given), dict)
            except (ValueError, msgspec.MsgspecError):
                return lines, files, f"{name}: line {number} is not valid JSON."
            if not whole or not isinstance(record_id, (str, type(None))):
                return lines, files, f"{name}: line {number} has no valid recordId and modelInput."
            record_id = record_id or f"RECORD{len(lines):07d}"
            if record_id in seen:
                return lines, files, f"{name}: line {number} repeats recordId {record_id}."
            seen.add(record_id)
            lines.append(Line(record_id, given, sha256(given).hexdigest()))
        files.append((name, len(lines) - before))
    if len(lines) > _MAX_RECORDS:
        return lines, files, f"The job has {len(lines)} records; the maximum is {_MAX_RECORDS}."
    return lines, files, None if lines else "The input has no records."


def other_line(source: Job, line: Line) -> Line:
    """A record of somebody else that looks like one of ours."""
    body = orjson.dumps({**orjson.loads(line.body), "metadata": {"user_id": "somebody-else"}})
    return Line(short_id("other", source.id, line.id), body, sha256(body).hexdigest())
