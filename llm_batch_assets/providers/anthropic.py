"""Anthropic Message Batches through the official SDK. The create call carries the stored lines.

A batch has no name, label or metadata [ANT-ref]: ``submission_key`` is None in every view, and
who it belongs to is told only by the tag in its first result line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2

from llm_batch_assets.errors import InputError
from llm_batch_assets.providers.base import Body, Uploaded
from llm_batch_assets.providers.common import (
    CALL_SECONDS,
    READ_SECONDS,
    Refusal,
    Reply,
    account_digest,
    required,
)
from llm_batch_assets.providers.content import body_of, resume_headers
from llm_batch_assets.providers.sdk import Page, SdkProvider, reply_of
from llm_batch_assets.providers.transport import BoundTransport
from llm_batch_assets.types import NO_EFFECTS, BatchView, CreateRequest, Effects, ResultRef
from llm_batch_assets.wire.anthropic.request import LIMITS, envelope
from llm_batch_assets.wire.anthropic.status import read_batch

_DEFAULT_URL = "https://api.anthropic.com"
_PATH = "/v1/messages/batches"
_PAGE = 1000
"""The most that one list page may ask for [ANT-ref]."""

_BLOCK = 1 << 18


class AnthropicProvider(SdkProvider):
    """One Anthropic workspace, as the environment names it."""

    name = "anthropic"
    has_upload = False
    settles_by_label = False
    label_proves = True
    account_codes = frozenset({"authentication_error", "permission_error", "billing_error"})
    request_id_header = "request-id"

    def __init__(
        self, *, env: Mapping[str, str], deployment: str, effects: Effects = NO_EFFECTS
    ) -> None:
        """Prepare a client; nothing is sent.

        Args:
            env: ``ANTHROPIC_API_KEY`` or ``ANTHROPIC_AUTH_TOKEN``, and optionally
                ``ANTHROPIC_BASE_URL``, ``ANTHROPIC_VERSION`` (the API version that every record
                of a batch is read by) and the usual proxy variables.
            deployment: the ledger's name.
            effects: hook around every call.

        Raises:
            InputError: when the key is missing or the address is none.
        """
        key = env.get("ANTHROPIC_API_KEY", "").strip()
        self._secret = key or required(env, "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
        super().__init__(deployment=deployment, effects=effects, secrets=(self._secret,))
        base_url = env.get("ANTHROPIC_BASE_URL", "").strip() or _DEFAULT_URL
        version = env.get("ANTHROPIC_VERSION", "").strip()
        self._client = anthropic.Anthropic(
            api_key=key or None,
            auth_token=None if key else self._secret,
            webhook_key="",
            base_url=base_url,
            max_retries=0,
            timeout=httpx2.Timeout(READ_SECONDS),
            default_headers={"anthropic-version": version} if version else None,
            open_telemetry=False,
            http_client=httpx2.Client(
                transport=BoundTransport(base_url, env, self._deadline),
                follow_redirects=False,
                timeout=READ_SECONDS,
            ),
        )

    def account(self) -> str:
        """A keyed digest of the key, which belongs to one workspace."""
        return account_digest(self.name, self._secret)

    def upload(self, path: Path, *, name: str, timeout: float) -> Uploaded:
        """Nothing to upload: the create call carries the requests."""
        return Uploaded(ref=None, bytes=path.stat().st_size)

    def create(self, request: CreateRequest, path: Path, *, timeout: float) -> BatchView:
        """Create one batch with one POST of the stored lines, streaming from disk.

        Raises:
            ProviderError: with effect ``none`` only for the provider's own refusal.
            InputError: when the file does not end its last line, so that it is no request file.
        """
        size = path.stat().st_size
        with path.open("rb") as lines:
            if size:
                lines.seek(-1, 2)
            if lines.read(1) != b"\n":
                raise InputError(f"The request file of {request.shard_key} is cut.")
            lines.seek(0)
            # Each line's end becomes a comma, the last one's goes away.
            length = size - 1 + LIMITS.overhead
            reply = self._call(
                "create",
                timeout,
                lambda: self._client.post(
                    _PATH,
                    cast_to=httpx2.Response,
                    content=_blocks(envelope(lines)),
                    options={
                        "headers": {
                            "Content-Type": "application/json",
                            "Content-Length": str(length),
                        }
                    },
                ),
            )
        return self._view("create", reply, reply.json_object())

    def list_batches(self) -> Iterator[BatchView]:
        """Every batch of the workspace, newest first [ANT-ref], to the end.

        Raises:
            ProviderError: also when a page is empty and says that there is more.
        """
        return self._walk(self._page)

    def get(self, batch_id: str) -> BatchView:
        """One look at one batch."""
        reply = self._call(
            "get",
            CALL_SECONDS,
            lambda: self._client.messages.batches.with_raw_response.retrieve(batch_id),
        )
        return self._view_of("get", reply, batch_id)

    @contextmanager
    def open_result(
        self, ref: ResultRef, *, offset: int = 0, etag: str | None = None
    ) -> Iterator[Body]:
        """Open ``results_url``, on the configured host only; its length is told by the transfer."""

        def opened() -> httpx2.Response:
            try:
                response: httpx2.Response = self._client.get(
                    ref.ref,
                    cast_to=httpx2.Response,
                    options={
                        "headers": {
                            "Accept": "application/binary",
                            **resume_headers(offset, etag),
                        }
                    },
                    stream=True,
                )
            except anthropic.APIStatusError as error:
                return error.response
            except anthropic.APIConnectionError as error:
                raise _cause(error) from None
            return response

        with self._opened(opened) as http:
            yield body_of(http, None, offset, self._broken)

    def cancel(self, batch_id: str) -> BatchView | None:
        """Ask to cancel; None when the batch was already over."""
        return self._cancel(
            batch_id, lambda: self._client.messages.batches.with_raw_response.cancel(batch_id)
        )

    def delete_input(self, ref: str) -> None:
        """Nothing was uploaded."""

    def delete_remote(self, batch_id: str, refs: tuple[str, ...]) -> None:
        """Delete an ended batch with its results; absent is fine."""
        self._delete(lambda: self._client.messages.batches.with_raw_response.delete(batch_id))

    def close(self) -> None:
        """Close sockets."""
        self._client.close()

    def _page(self, after: str | None) -> Page:
        reply = self._call(
            "list",
            CALL_SECONDS,
            lambda: self._client.messages.batches.with_raw_response.list(
                limit=_PAGE, after_id=after if after is not None else anthropic.omit
            ),
        )
        page = reply.json_object() or {}
        data, more = page.get("data"), page.get("has_more")
        if not isinstance(data, list) or not isinstance(more, bool):
            raise self._error("list", reply, detail="the page is no list that tells its end")
        last = page.get("last_id")
        return Page(data, (last if isinstance(last, str) else "") if more else None, reply)

    def _send(self, call: Callable[[], Any]) -> Reply:
        try:
            response = call()
        except anthropic.APIStatusError as error:
            return reply_of(error.response)
        except anthropic.APIConnectionError as error:
            raise _cause(error) from None
        if isinstance(response, httpx2.Response):
            return reply_of(response)
        return reply_of(response.http_response)

    def _refusal(self, reply: Reply) -> Refusal | None:
        """The error body: ``{"type": "error", "error": {"type", "message"}}``."""
        body = reply.json_object() or {}
        error = body.get("error")
        if body.get("type") != "error" or not isinstance(error, dict):
            return None
        kind, message = error.get("type"), error.get("message")
        if not isinstance(kind, str) or not isinstance(message, str):
            return None
        if "credit balance" in message.lower():
            # Used-up credit is typed invalid_request_error (B99).
            kind = "billing_error"
        return Refusal(message, kind)

    def _is_batch(self, raw: Mapping[str, Any]) -> bool:
        words = (raw.get("id"), raw.get("processing_status"))
        return raw.get("type") == "message_batch" and all(isinstance(w, str) and w for w in words)

    def _read(self, raw: Mapping[str, Any]) -> BatchView:
        return read_batch(raw)


def _blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Small pieces joined, so that 100,000 records are not as many socket writes."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _BLOCK:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


def _cause(error: anthropic.APIConnectionError) -> httpx2.HTTPError:
    """What really happened, where the SDK tells it."""
    cause = error.__cause__
    return cause if isinstance(cause, httpx2.HTTPError) else httpx2.TransportError(str(error))
