"""Accounts, versions and refusals in the shape of the Anthropic API."""

from __future__ import annotations

from typing import Any, NoReturn

from llm_batch_assets.simulator.anthropic.messages import VERSIONS
from llm_batch_assets.simulator.app import Call, Refusal, credential, json_reply
from llm_batch_assets.simulator.faults import HttpFault
from llm_batch_assets.simulator.transport import Reply

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(kind: str, message: str, request: str | None = None) -> dict[str, Any]:
    """The error envelope of responses and of errored rows."""
    error = {"type": kind, "message": message}
    return {"type": "error", "error": error, "request_id": request}


def refuse(status: int, message: str) -> NoReturn:
    """Answer with an error body.

    Raises:
        Refusal: Always.
    """
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    raise Refusal(json_reply(error_body(kind, message, "req_refused"), status))


def check(fine: bool, message: str) -> None:
    """Refuse with a 400 unless ``fine``."""
    if not fine:
        refuse(400, message)


def account_of(call: Call) -> str:
    """The workspace that a call belongs to; the key comes in either header."""
    scheme, _, bearer = call.headers.get("authorization", "").partition(" ")
    key = call.headers.get("x-api-key") or (bearer.strip() if scheme.lower() == "bearer" else "")
    if not key:
        refuse(401, "x-api-key header is required")
    known = call.world.options.keys
    if (known and key not in known) or key.startswith("invalid"):
        refuse(401, "invalid x-api-key")
    version = call.headers.get("anthropic-version")
    if version is None:
        refuse(400, "anthropic-version: header is required")
    check(version in VERSIONS, f'anthropic-version: "{version}" is not a valid version')
    return credential("anthropic", key, call.headers.get("anthropic-workspace-id", ""))


def faulty(fault: HttpFault) -> Reply:
    """The answer of a status fault: JSON from the API, HTML from a gateway."""
    status = fault.status or (429 if fault.fault == "status_before" else 500)
    headers = {} if fault.retry_after is None else {"retry-after": fault.retry_after}
    if fault.fault.startswith("html_"):
        return Reply(200, b"<html><body>sign in</body></html>", headers, "text/html")
    if status in (502, 504):
        return Reply(status, b"<html><body>bad gateway</body></html>", headers, "text/html")
    kind = fault.code or _TYPES.get(status, "api_error")
    return json_reply(error_body(kind, "The request failed.", "req_fault"), status, headers)


def empty_page(reply: Reply) -> Reply:
    """A page that shows nothing and claims that there is more."""
    del reply
    body: dict[str, object] = {"data": [], "has_more": True, "first_id": None, "last_id": None}
    return json_reply(body)
