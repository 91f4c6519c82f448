"""The OpenAI Batch API through the official SDK. One call is one HTTP request: retries are off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai

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
from llm_batch_assets.wire.openai.status import read_batch

_DEFAULT_URL = "https://api.openai.com/v1"
_PAGE = 100
"""The most that one list page may ask for [OAI-spec]."""


class OpenAIProvider(SdkProvider):
    """One OpenAI project, as the environment names it."""

    name = "openai"
    has_upload = True
    settles_by_label = True
    label_proves = True
    account_codes = frozenset(
        {
            "insufficient_quota",
            "billing_hard_limit_reached",
            "billing_not_active",
            "account_deactivated",
            "invalid_api_key",
        }
    )

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        deployment: str,
        effects: Effects = NO_EFFECTS,
        output_expires_seconds: int | None = None,
    ) -> None:
        """Prepare a client; nothing is sent.

        Args:
            env: ``OPENAI_API_KEY``, and optionally ``OPENAI_BASE_URL``, ``OPENAI_ORG_ID``,
                ``OPENAI_PROJECT_ID`` and the usual proxy variables.
            deployment: the ledger's name.
            effects: hook around every call.
            output_expires_seconds: 3600 to 2592000, counted from the creation of the output
                file; None leaves the provider's 30 days.

        Raises:
            InputError: when the key is missing or the address is none.
        """
        self._key = required(env, "OPENAI_API_KEY")
        super().__init__(deployment=deployment, effects=effects, secrets=(self._key,))
        self._organization = env.get("OPENAI_ORG_ID", "").strip() or None
        self._project = env.get("OPENAI_PROJECT_ID", "").strip() or None
        self._output_expires = output_expires_seconds
        base_url = env.get("OPENAI_BASE_URL", "").strip() or _DEFAULT_URL
        self._client = openai.OpenAI(
            api_key=self._key,
            admin_api_key="",
            organization=self._organization or "",
            project=self._project or "",
            base_url=base_url,
            max_retries=0,
            timeout=httpx2.Timeout(READ_SECONDS),
            http_client=httpx2.Client(
                transport=BoundTransport(base_url, env, self._deadline),
                follow_redirects=False,
                timeout=READ_SECONDS,
            ),
        )
        # Empty strings kept the SDK from reading the process's environment behind ``env``.
        self._client.organization, self._client.project = self._organization, self._project

    def account(self) -> str:
        """A keyed digest of key, organisation and project."""
        return account_digest(self.name, self._key, self._organization, self._project)

    def upload(self, path: Path, *, name: str, timeout: float) -> Uploaded:
        """Send a request file with purpose ``batch``, streaming from disk.

        Raises:
            ProviderError: also when the provider counts other bytes than the file has.
        """
        size = path.stat().st_size
        with path.open("rb") as handle:
            reply = self._call(
                "upload",
                timeout,
                lambda: self._client.files.with_raw_response.create(
                    file=(name, handle, "application/octet-stream"), purpose="batch"
                ),
            )
        body = reply.json_object() or {}
        ref, counted = body.get("id"), body.get("bytes")
        if not isinstance(ref, str) or not ref:
            raise self._error("upload", reply, detail="the reply names no file")
        if counted != size:
            raise self._error("upload", reply, detail=f"{counted!r} of {size} bytes arrived")
        return Uploaded(ref=ref, bytes=size)

    def create(self, request: CreateRequest, path: Path, *, timeout: float) -> BatchView:
        """Create one batch with one POST.

        Raises:
            ProviderError: with effect ``none`` only for the provider's own refusal.
        """
        labels = {
            "deployment": request.deployment,
            "submission_key": request.submission_key,
            "job_key": request.job_key,
            "shard": request.shard_key,
        }
        extra: dict[str, Any] = {}
        if self._output_expires is not None:
            extra["output_expires_after"] = {
                "anchor": "created_at",
                "seconds": self._output_expires,
            }
        reply = self._call(
            "create",
            timeout,
            lambda: self._client.batches.with_raw_response.create(
                completion_window="24h",
                endpoint=request.endpoint,  # type: ignore[arg-type]
                input_file_id=request.input_ref or "",
                metadata=labels,
                **extra,
            ),
        )
        return self._view("create", reply, reply.json_object())

    def list_batches(self) -> Iterator[BatchView]:
        """Every batch of the project, to the end. The call has no filter [OAI-spec].

        Raises:
            ProviderError: also when a page is empty and says that there is more, or when pages
                go round in a circle: neither is an end.
        """
        return self._walk(self._page)

    def get(self, batch_id: str) -> BatchView:
        """One look at one batch."""
        reply = self._call(
            "get", CALL_SECONDS, lambda: self._client.batches.with_raw_response.retrieve(batch_id)
        )
        return self._view_of("get", reply, batch_id)

    @contextmanager
    def open_result(
        self, ref: ResultRef, *, offset: int = 0, etag: str | None = None
    ) -> Iterator[Body]:
        """Open a result file; its length comes from the file object and from the transfer."""
        described = self._call(
            "download",
            CALL_SECONDS,
            lambda: self._client.files.with_raw_response.retrieve(ref.ref),
        )
        size = (described.json_object() or {}).get("bytes")
        expected = size if isinstance(size, int) and size >= 0 else None

        def opened() -> httpx2.Response:
            try:
                manager = self._client.files.with_streaming_response.content(
                    ref.ref, extra_headers=resume_headers(offset, etag)
                )
                response: httpx2.Response = manager.__enter__().http_response
            except openai.APIStatusError as error:
                return error.response
            except openai.APIConnectionError as error:
                raise _cause(error) from None
            return response

        with self._opened(opened) as http:
            yield body_of(http, expected, offset, self._broken)

    def cancel(self, batch_id: str) -> BatchView | None:
        """Ask to cancel; None when the batch was already over.

        Which status a finished batch gives is not documented: 400 and 409 are looked into.
        """
        return self._cancel(
            batch_id, lambda: self._client.batches.with_raw_response.cancel(batch_id)
        )

    def delete_input(self, ref: str) -> None:
        """Delete an uploaded request file; absent is fine."""
        self._delete(lambda: self._client.files.with_raw_response.delete(ref))

    def delete_remote(self, batch_id: str, refs: tuple[str, ...]) -> None:
        """Delete result files. A batch itself cannot be deleted [OAI-spec]."""
        for ref in refs:
            self.delete_input(ref)

    def close(self) -> None:
        """Close sockets."""
        self._client.close()

    def _page(self, after: str | None) -> Page:
        reply = self._call(
            "list",
            CALL_SECONDS,
            lambda: self._client.batches.with_raw_response.list(
                limit=_PAGE, after=after if after is not None else openai.omit
            ),
        )
        page = reply.json_object() or {}
        data, more = page.get("data"), page.get("has_more")
        if not isinstance(data, list) or not isinstance(more, bool):
            raise self._error("list", reply, detail="the page is no list that tells its end")
        last = data[-1].get("id") if data and isinstance(data[-1], dict) else None
        return Page(data, (last or "") if more else None, reply)

    def _send(self, call: Callable[[], Any]) -> Reply:
        try:
            return reply_of(call().http_response)
        except openai.APIStatusError as error:
            return reply_of(error.response)
        except openai.APIConnectionError as error:
            raise _cause(error) from None

    def _refusal(self, reply: Reply) -> Refusal | None:
        """OpenAI's error body: ``{"error": {"message", "type", "param", "code"}}``."""
        error = (reply.json_object() or {}).get("error")
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            return None
        if not isinstance(error.get("type"), str):
            return None
        code = error.get("code")
        return Refusal(error["message"], code if isinstance(code, str) and code else error["type"])

    def _is_batch(self, raw: Mapping[str, Any]) -> bool:
        words = (raw.get("id"), raw.get("status"))
        return raw.get("object") == "batch" and all(isinstance(w, str) and w for w in words)

    def _read(self, raw: Mapping[str, Any]) -> BatchView:
        return read_batch(raw)


def _cause(error: openai.APIConnectionError) -> httpx2.HTTPError:
    """What really happened, where the SDK tells it."""
    cause = error.__cause__
    return cause if isinstance(cause, httpx2.HTTPError) else httpx2.TransportError(str(error))
