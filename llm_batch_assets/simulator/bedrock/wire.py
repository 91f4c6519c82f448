"""Accounts, refusals and field rules of the Bedrock control plane (REST-JSON)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import orjson

from llm_batch_assets.simulator.app import Call, Refusal, credential, json_reply
from llm_batch_assets.simulator.faults import HttpFault
from llm_batch_assets.simulator.transport import Reply

ACCOUNT_ID = "123456789012"
_STATUS = {
    "ValidationException": 400,
    "ConflictException": 400,
    "ServiceQuotaExceededException": 400,
    "AccessDeniedException": 403,
    "MissingAuthenticationTokenException": 403,
    "UnrecognizedClientException": 403,
    "ResourceNotFoundException": 404,
    "ThrottlingException": 429,
    "InternalServerException": 500,
    "ServiceUnavailableException": 503,
}
_TYPES = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    409: "ConflictException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
}
_PATTERNS = {
    "jobName": r"(?=.{1,63}$)[a-zA-Z0-9]{1,63}(-*[a-zA-Z0-9\+\-\.]){0,63}",
    "clientRequestToken": r"(?=.{1,256}$)[a-zA-Z0-9]{1,256}(-*[a-zA-Z0-9]){0,256}",
    "roleArn": r"arn:aws(-[^:]+)?:iam::(\d{12})?:role/.+",
}
_SCOPE = re.compile(r"Credential=([^/]+)/\d{8}/([^/]+)/bedrock/")


def error_reply(kind: str, message: str, status: int | None = None) -> Reply:
    """The error body; its type travels in a header."""
    code = status or _STATUS.get(kind, 400)
    return json_reply({"message": message}, code, {"x-amzn-errortype": kind})


def refuse(kind: str, message: str) -> NoReturn:
    """Answer with an error.

    Raises:
        Refusal: Always.
    """
    raise Refusal(error_reply(kind, message))


def check(fine: bool, message: str) -> None:
    """Refuse with a ValidationException unless ``fine``."""
    if not fine:
        refuse("ValidationException", message)


def account_of(call: Call) -> tuple[str, str]:
    """(account, region) of a signed call; the signature itself is not checked."""
    given = call.headers.get("authorization", "")
    scope = _SCOPE.search(given)
    if scope:
        key, region = scope[1], scope[2]
    elif given.startswith("Bearer ") and given[7:].strip():
        key, region = given[7:].strip(), "us-east-1"
    else:
        refuse("MissingAuthenticationTokenException", "Missing Authentication Token")
    known = call.world.options.keys
    if (known and key not in known) or key.startswith("invalid"):
        refuse("UnrecognizedClientException", "The security token included is invalid.")
    return credential("bedrock", key, region), region


def json_object(body: bytes) -> dict[str, Any]:
    """The body of a call, or a ValidationException."""
    try:
        parsed = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        refuse("ValidationException", "The request body is no JSON object.")
    return parsed


def check_create(body: Mapping[str, Any]) -> tuple[str, str]:
    """Judge a create's fields; the S3 addresses of input and output."""
    for name in ("jobName", "roleArn", "modelId", "inputDataConfig", "outputDataConfig"):
        check(bool(body.get(name)), f"1 validation error detected: '{name}' must not be null")
    for name, pattern in _PATTERNS.items():
        value = body.get(name)
        if value is not None:
            fine = isinstance(value, str) and re.fullmatch(pattern, value) is not None
            check(fine, f"Value at '{name}' failed to satisfy constraint: pattern {pattern}")
    hours = body.get("timeoutDurationInHours", 24)
    check(
        isinstance(hours, int) and 24 <= hours <= 168,
        "Value at 'timeoutDurationInHours' failed to satisfy constraint: 24 to 168",
    )
    kind = body.get("modelInvocationType", "InvokeModel")
    check(kind in ("InvokeModel", "Converse"), "Value at 'modelInvocationType' is no member")
    tags = body.get("tags") or []
    check(len(tags) <= 200, "Value at 'tags' failed to satisfy constraint: at most 200")
    for tag in tags:
        fine = 1 <= len(tag.get("key", "")) <= 128 and len(tag.get("value", "")) <= 256
        check(fine, "Value at 'tags' failed to satisfy constraint: key 128, value 256")
    found = []
    for config, inner in (
        ("inputDataConfig", "s3InputDataConfig"),
        ("outputDataConfig", "s3OutputDataConfig"),
    ):
        uri = (body[config].get(inner) or {}).get("s3Uri", "")
        fine = re.fullmatch(r"s3://[a-z0-9][-.a-z0-9]{1,61}(/.*)?", uri) is not None
        check(fine, f"Value at '{config}.{inner}.s3Uri' failed to satisfy constraint: pattern")
        found.append(uri)
    return found[0], found[1]


def faulty(fault: HttpFault) -> Reply:
    """The answer of a status fault: JSON from the API, HTML from a gateway."""
    status = fault.status or (429 if fault.fault == "status_before" else 500)
    headers = {} if fault.retry_after is None else {"retry-after": fault.retry_after}
    if fault.fault.startswith("html_"):
        return Reply(200, b"<html><body>sign in</body></html>", headers, "text/html")
    if status in (502, 504):
        return Reply(status, b"<html><body>bad gateway</body></html>", headers, "text/html")
    kind = fault.code or _TYPES.get(status, "InternalServerException")
    reply = error_reply(kind, "The request failed.", status)
    reply.headers |= headers
    return reply


def empty_page(reply: Reply) -> Reply:
    """A page without jobs that names a next page."""
    del reply
    return json_reply({"invocationJobSummaries": [], "nextToken": "page-0"})
