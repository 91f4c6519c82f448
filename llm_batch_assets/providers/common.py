"""What the provider modules share: effect boundaries, JSON bodies, errors in our words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from llm_batch_assets.errors import Effect, InputError, ProviderError, ProviderFault
from llm_batch_assets.types import Effects

CALL_SECONDS = 60.0
"""The wall-clock limit of calls that name none: a page of a list, a look, a cancel."""

READ_SECONDS = 60.0
"""The longest silence inside a download."""

_ACCOUNT_CONTEXT = b"llm_batch_assets/account/1"
_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole HTTP reply. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json_object(self) -> dict[str, Any] | None:
        """The body as a JSON object; None when it is anything else."""
        return json_object(self.content)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The provider's own error body: nothing but this makes a refusal certain."""

    message: str
    code: str | None


def json_object(content: bytes) -> dict[str, Any] | None:
    """Bytes as a JSON object; None when they are anything else."""
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def account_digest(provider: str, *parts: str | None) -> str:
    """A keyed digest that recognises an account again without telling its key.

    The address is no part of it: the same key behind another URL is the same account.
    """
    text = json.dumps([provider, *parts], ensure_ascii=True).encode()
    return hashlib.blake2b(text, key=_ACCOUNT_CONTEXT, digest_size=16).hexdigest()


def required(env: Mapping[str, str], *names: str) -> str:
    """The first of some environment variables that is set.

    Raises:
        InputError: when none is; the sentence names them and no value.
    """
    for name in names:
        if value := env.get(name, "").strip():
            return value
    raise InputError(f"{' or '.join(names)} is not set: the provider needs it.")


@contextmanager
def boundary(effects: Effects, name: str) -> Iterator[None]:
    """Name both sides of a provider call, also when the provider answered with an error."""
    effects.at(name, "before")
    try:
        yield
    except Exception:
        effects.at(name, "after")
        raise
    effects.at(name, "after")


def classify(
    status: int,
    code: str | None,
    account_codes: frozenset[str],
    capacity_codes: frozenset[str] = frozenset(),
) -> ProviderFault:
    """A refusal's fault in our words, from the status and the provider's own code."""
    word = (code or "").lower()
    if status in (401, 402, 403) or word in account_codes:
        return "account"
    if status == 429 or word in capacity_codes:
        return "refused_now"
    if status == 404:
        return "not_found"
    if 400 <= status < 500 and status not in (408, 409):
        return "refused"
    return "transport" if status >= 500 or status == 408 else "unknown"


def create_effect(status: int, refusal: Refusal | None) -> Effect:
    """Whether a create that ended with an error can have made a batch.

    Certain is only the provider's own refusal with a 4xx other than 408 and 409.
    """
    own = refusal is not None and 400 <= status < 500 and status not in (408, 409)
    return "none" if own else "unknown"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the provider asked to wait; None when it said nothing readable."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        if 0 <= seconds < 1e9:
            return seconds
    return None


def bounded(text: object, secrets: tuple[str, ...] = ()) -> str:
    """A provider's text, short, on one line and without our secrets."""
    line = " ".join(str(text).split())
    for secret in secrets:
        if secret:
            line = line.replace(secret, "[secret]")
    return line if len(line) <= _MESSAGE else line[: _MESSAGE - 1] + "…"


def provider_error(
    provider: str,
    operation: str,
    reply: Reply | None,
    refusal: Refusal | None,
    *,
    account_codes: frozenset[str] = frozenset(),
    capacity_codes: frozenset[str] = frozenset(),
    request_id: str | None = None,
    secrets: tuple[str, ...] = (),
    detail: str = "",
) -> ProviderError:
    """The error for a call that did not answer as asked.

    Args:
        provider: its name.
        operation: upload, create, list, get, download, cancel, delete.
        reply: what came back; None when nothing did.
        refusal: the provider's own error body, where there was one.
        account_codes: the provider's codes that mean credential or billing, in lower case.
        capacity_codes: those that mean later, beside HTTP 429.
        request_id: the provider's id of the request.
        secrets: what must not appear in the message.
        detail: what happened, where there was no refusal.
    """
    if reply is None:
        fault: ProviderFault = "transport"
    elif refusal is None:
        # A gateway's page, or a body that nobody can read: the provider itself has not spoken.
        fault = "transport" if reply.status >= 400 else "unknown"
    else:
        fault = classify(reply.status, refusal.code, account_codes, capacity_codes)
    if operation == "create":
        effect = "unknown" if reply is None else create_effect(reply.status, refusal)
        if effect == "none" and fault == "not_found":
            fault = "refused"
    elif operation in ("upload", "cancel", "delete"):
        effect = "none" if refusal and reply and reply.status < 500 else "unknown"
    else:
        effect = "none"
    said = bounded(refusal.message if refusal else detail, secrets)
    status = f" with HTTP {reply.status}" if reply is not None else ""
    return ProviderError(
        f"{provider} did not answer {operation} as asked{status}: {said or 'no readable body'}",
        provider=provider,
        operation=operation,
        fault=fault,
        effect=effect,
        http_status=reply.status if reply else None,
        code=refusal.code[:200] if refusal and refusal.code else None,
        request_id=request_id[:200] if request_id else None,
        retry_after=retry_after(reply.headers) if reply else None,
    )
