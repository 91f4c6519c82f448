"""What happens to an input file after create: the checks that turn a batch ``failed``."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec
import orjson

from llm_batch_assets.simulator.jobs import Line
from llm_batch_assets.simulator.openai.bodies import KNOWN_MODEL

MAX_TASKS = 50_000
MAX_EMBEDDING_INPUTS = 50_000
_MAX_ERRORS = 100


class _Task(msgspec.Struct):
    custom_id: msgspec.Raw = msgspec.Raw(b"null")
    method: msgspec.Raw = msgspec.Raw(b"null")
    url: msgspec.Raw = msgspec.Raw(b"null")
    body: msgspec.Raw = msgspec.Raw(b"null")


_DECODER = msgspec.json.Decoder(_Task)


def fault(
    code: str, message: str, line: int | None = None, param: str | None = None
) -> dict[str, Any]:
    """One entry of ``errors.data``; ``line`` is 1-based."""
    return {"code": code, "message": message, "param": param, "line": line}


def validate(
    data: bytes, endpoint: str, *, max_tasks: int = MAX_TASKS
) -> tuple[list[Line], list[dict[str, Any]], str | None]:
    """Read an input file: its lines, what is wrong with it, and its model."""
    if not data.strip():
        return [], [fault("empty_file", "The input file is empty.")], None
    lines: list[Line] = []
    errors: list[dict[str, Any]] = []
    seen: set[str] = set()
    models: dict[str, int] = {}
    inputs = 0
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not raw.strip():
            continue
        line, body, wrong = _task(raw, number, endpoint)
        if wrong is not None:
            errors.append(wrong)
        if line is None or body is None:
            continue
        if line.id in seen:
            errors.append(
                fault(
                    "duplicate_custom_id",
                    f"The custom_id '{line.id}' for this request is a duplicate of another "
                    "request. The custom_id parameter must be unique for each request in a batch.",
                    number,
                    "custom_id",
                )
            )
        seen.add(line.id)
        models.setdefault(str(body.get("model")), number)
        if endpoint == "/v1/embeddings":
            given = body.get("input")
            inputs += len(given) if isinstance(given, list) else 1
        lines.append(line)
        if len(errors) >= _MAX_ERRORS:
            break
    errors += _whole_file(lines, models, inputs, max_tasks)
    return lines, errors, next(iter(models), None)


def _task(
    raw: bytes, number: int, endpoint: str
) -> tuple[Line | None, Mapping[str, Any] | None, dict[str, Any] | None]:
    try:
        task = _DECODER.decode(raw)
        parts = {
            name: orjson.loads(bytes(part))
            for name, part in (
                ("custom_id", task.custom_id),
                ("method", task.method),
                ("url", task.url),
                ("body", task.body),
            )
        }
    except (ValueError, msgspec.MsgspecError):
        text = "This line is not parseable as valid JSON."
        return None, None, fault("invalid_json_line", text, number)
    for name in ("custom_id", "method", "url", "body"):
        if parts[name] is None:
            text = f"Missing required parameter: '{name}'."
            return None, None, fault("missing_required_parameter", text, number, name)
    custom_id, body = parts["custom_id"], parts["body"]
    if not isinstance(custom_id, str):
        text = "Invalid type for 'custom_id': expected a string."
        return None, None, fault("invalid_custom_id", text, number, "custom_id")
    if not isinstance(body, dict):
        text = "Invalid type for 'body': expected an object."
        return None, None, fault("invalid_body", text, number, "body")
    exact = bytes(task.body).strip()
    line = Line(custom_id, exact, sha256(exact).hexdigest())
    return line, body, _wrong(parts, body, number, endpoint)


def _wrong(
    parts: Mapping[str, Any], body: Mapping[str, Any], number: int, endpoint: str
) -> dict[str, Any] | None:
    if parts["method"] != "POST":
        return fault("invalid_method", "Only the POST method is supported.", number, "method")
    if parts["url"] != endpoint:
        text = f"The URL '{parts['url']}' of this request does not match the batch's endpoint."
        return fault("url_mismatch" if str(parts["url"]).startswith("/v1/") else "invalid_url",
                     text, number, "url")  # fmt: skip
    model = body.get("model")
    if model is None:
        text = "Missing required parameter: 'body.model'."
        return fault("missing_required_parameter", text, number, "body.model")
    if not KNOWN_MODEL.match(str(model)):
        text = f"The provided model '{model}' is not supported by the Batch API."
        return fault("model_not_found", text, number, "body.model")
    if body.get("stream"):
        text = "Streaming is not supported in the Batch API."
        return fault("invalid_request", text, number, "body.stream")
    return None


def _whole_file(
    lines: list[Line], models: dict[str, int], inputs: int, max_tasks: int
) -> list[dict[str, Any]]:
    errors = []
    if len(models) > 1:
        first, second = list(models)[:2]
        errors.append(
            fault(
                "model_mismatch",
                f"The provided model '{second}' does not match the model '{first}' of the first "
                "request. All requests in a batch must use the same model.",
                models[second],
                "body.model",
            )
        )
    if len(lines) > max_tasks:
        text = f"This batch contains {len(lines)} tasks; the maximum is {max_tasks}."
        errors.append(fault("too_many_tasks", text))
    if inputs > MAX_EMBEDDING_INPUTS:
        text = f"This batch contains {inputs} embedding inputs; the maximum is 50000."
        errors.append(fault("too_many_tasks", text))
    return errors
