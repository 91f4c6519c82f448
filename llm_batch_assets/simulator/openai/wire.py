"""Accounts, refusals and gateway errors in the shape of the OpenAI API."""

from __future__ import annotations

from typing import NoReturn

from llm_batch_assets.simulator.app import Call, Refusal, credential, json_reply
from llm_batch_assets.simulator.faults import HttpFault
from llm_batch_assets.simulator.openai.errors import error_payload
from llm_batch_assets.simulator.transport import Reply

_KINDS = {401: "invalid_request_error", 429: "requests"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


def refuse(status: int, message: str, param: str | None, code: str | None = None) -> NoReturn:
    """Answer with an error body.

    Raises:
        Refusal: Always.
    """
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    raise Refusal(json_reply(error_payload(message, kind, param, code), status))


def check(fine: bool, message: str, param: str | None) -> None:
    """Refuse with a 400 unless ``fine``."""
    if not fine:
        refuse(400, message, param)


def account_of(call: Call) -> str:
    """The account that a call belongs to: key, organisation and project together."""
    scheme, _, key = call.headers.get("authorization", "").partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not key:
        refuse(401, "You didn't provide an API key.", None, "invalid_api_key")
    known = call.world.options.keys
    if (known and key not in known) or key.startswith("invalid"):
        refuse(401, "Incorrect API key provided.", None, "invalid_api_key")
    organization = call.headers.get("openai-organization", "")
    return credential("openai", key, organization, call.headers.get("openai-project", ""))


def faulty(fault: HttpFault) -> Reply:
    """The answer of a status fault: JSON from the API, HTML from a gateway."""
    status = fault.status or (429 if fault.fault == "status_before" else 500)
    headers = {} if fault.retry_after is None else {"retry-after": fault.retry_after}
    if status in (502, 504) and fault.code is None:
        page = f"<html><head><title>{status}</title></head><body>nginx</body></html>"
        return Reply(status, page.encode(), headers, "text/html")
    if fault.fault.startswith("html_"):
        return Reply(200, b"<html><body>sign in</body></html>", headers, "text/html")
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    message = {429: "Rate limit reached for batch creation.", 400: "Invalid request."}.get(
        status, "The server had an error while processing your request."
    )
    code = fault.code or _CODES.get(status)
    return json_reply(error_payload(message, kind, None, code), status, headers)


def empty_page(reply: Reply) -> Reply:
    """A page that shows nothing and claims that there is more."""
    del reply
    body: dict[str, object] = {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": True,
    }
    return json_reply(body)
