"""Accounts, refusals and the two spellings of field names of the Gemini API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import orjson

from llm_batch_assets.simulator.app import Call, Refusal, credential, json_reply
from llm_batch_assets.simulator.faults import HttpFault
from llm_batch_assets.simulator.transport import Reply

_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def error_body(status: int, message: str, name: str | None = None) -> dict[str, Any]:
    """The error body of any status but 200."""
    name = name or _NAMES.get(status, "UNKNOWN")
    return {"error": {"code": status, "message": message, "status": name}}


def refuse(status: int, message: str, name: str | None = None) -> NoReturn:
    """Answer with an error body.

    Raises:
        Refusal: Always.
    """
    raise Refusal(json_reply(error_body(status, message, name), status))


def check(fine: bool, message: str) -> None:
    """Refuse with a 400 unless ``fine``."""
    if not fine:
        refuse(400, message)


def account_of(call: Call) -> str:
    """The project that a call belongs to, by its key in header or query."""
    key = call.headers.get("x-goog-api-key") or call.query.get("key", "")
    if not key:
        refuse(403, "Method doesn't allow unregistered callers.")
    known = call.world.options.keys
    if (known and key not in known) or key.startswith("invalid"):
        refuse(400, "API key not valid. Please pass a valid API key.")
    return credential("gemini", key)


def field(given: Any, name: str, default: Any = None) -> Any:
    """A field under its camelCase or its snake_case name, as proto JSON takes both."""
    if not isinstance(given, Mapping):
        return default
    if name in given:
        return given[name]
    return given.get(re.sub(r"([A-Z])", lambda m: "_" + m[1].lower(), name), default)


def json_object(body: bytes) -> dict[str, Any]:
    """The body of a call, or a 400."""
    try:
        parsed = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        refuse(400, "Invalid JSON payload received.")
    return parsed


def page_of(call: Call, default: int) -> tuple[int, int]:
    """(first index, size) of the page that a call asks for."""
    size, token = call.query.get("pageSize", str(default)), call.query.get("pageToken", "")
    check(size.isdigit() and int(size) >= 1, "Invalid page_size.")
    if not token:
        return 0, min(int(size), 1000)
    match = re.fullmatch(r"page-(\d+)", token)
    if match is None:
        refuse(400, "Invalid page_token.")
    return int(match[1]), min(int(size), 1000)


def faulty(fault: HttpFault) -> Reply:
    """The answer of a status fault: JSON from the API, HTML from a gateway."""
    status = fault.status or (429 if fault.fault == "status_before" else 500)
    headers = {} if fault.retry_after is None else {"retry-after": fault.retry_after}
    if fault.fault.startswith("html_"):
        return Reply(200, b"<html><body>sign in</body></html>", headers, "text/html")
    if status == 502:
        return Reply(status, b"<html><body>bad gateway</body></html>", headers, "text/html")
    return json_reply(error_body(status, "The request failed.", fault.code), status, headers)


def empty_page(reply: Reply) -> Reply:
    """A page without operations that names a next page."""
    del reply
    return json_reply({"nextPageToken": "page-0"})
