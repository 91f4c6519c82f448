"""The OpenAI Batch API through the official SDK. One call is one HTTP request: retries are off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import openai

from llm_batch_assets.errors import DownloadError, ProviderError
from llm_batch_assets.providers.base import Body, Uploaded
from llm_batch_assets.providers.common import (
    CALL_SECONDS,
    READ_SECONDS,
    Refusal,
    Reply,
    account_digest,
    boundary,
    bounded,
    provider_error,
    required,
)
from llm_batch_assets.providers.content import body_of, resume_headers
from llm_batch_assets.providers.transport import BoundTransport, Deadline
from llm_batch_assets.types import NO_EFFECTS, BatchView, CreateRequest, Effects, ResultRef
from llm_batch_assets.wire.openai.status import read_batch

_DEFAULT_URL = "https://api.openai.com/v1"
_PAGE = 100
"""The most that one list page may ask for [OAI-spec]."""

_ACCOUNT_CODES = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "account_deactivated",
        "invalid_api_key",
    }
)


class OpenAIProvider:
    """One OpenAI project, as the environment names it."""

    name = "openai"
    has_upload = True
    settles_by_label = True

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
            deployment: the ledger's name, which every create carries.
            effects: hook around every call.
            output_expires_seconds: 3600 to 2592000, counted from the creation of the output
                file; None leaves the provider's 30 days.

        Raises:
            InputError: when the key is missing or the address is none.
        """
        self._key = required(env, "OPENAI_API_KEY")
        self._organization = env.get("OPENAI_ORG_ID", "").strip() or None
        self._project = env.get("OPENAI_PROJECT_ID", "").strip() or None
        self._deployment = deployment
        self._effects = effects
        self._output_expires = output_expires_seconds
        base_url = env.get("OPENAI_BASE_URL", "").strip() or _DEFAULT_URL
        self._deadline = Deadline()
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
        after: str | None = None
        seen: set[str] = set()
        while True:
            page, reply = self._page(after)
            fresh = False
            for item in page["data"]:
                view = self._view("list", reply, item)
                if view.batch_id not in seen:
                    seen.add(view.batch_id)
                    fresh = True
                    yield view
            if page["has_more"] is False:
                return
            if not fresh:
                detail = "a page without a new batch says that there is more"
                raise self._error("list", reply, detail=detail)
            after = page["data"][-1]["id"]

    def get(self, batch_id: str) -> BatchView:
        """One look at one batch."""
        reply = self._call(
            "get", CALL_SECONDS, lambda: self._client.batches.with_raw_response.retrieve(batch_id)
        )
        view = self._view("get", reply, reply.json_object())
        if view.batch_id != batch_id:
            raise self._error("get", reply, detail=f"the reply is about {view.batch_id}")
        return view

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
        with (
            boundary(self._effects, "provider.download"),
            self._deadline.limit(CALL_SECONDS),
            self._sdk_errors("download"),
        ):
            opened = self._client.files.with_streaming_response.content(
                ref.ref, extra_headers=resume_headers(offset, etag)
            ).__enter__()
        http: httpx2.Response = opened.http_response
        try:
            yield body_of(http, expected, offset, _broken)
        finally:
            opened.close()

    def cancel(self, batch_id: str) -> BatchView | None:
        """Ask to cancel; None when the batch was already over.

        Which status a finished batch gives is not documented: 400 and 409 are looked into.
        """
        try:
            reply = self._call(
                "cancel",
                CALL_SECONDS,
                lambda: self._client.batches.with_raw_response.cancel(batch_id),
            )
        except ProviderError as error:
            if error.http_status not in (400, 409):
                raise
            view = self.get(batch_id)
            if view.status in ("queued", "running", "unknown"):
                raise
            return view if view.status == "stopping" else None
        return self._view("cancel", reply, reply.json_object())

    def delete_input(self, ref: str) -> None:
        """Delete an uploaded request file; absent is fine."""
        try:
            self._call(
                "delete", CALL_SECONDS, lambda: self._client.files.with_raw_response.delete(ref)
            )
        except ProviderError as error:
            if error.fault != "not_found":
                raise

    def delete_remote(self, batch_id: str, refs: tuple[str, ...]) -> None:
        """Delete result files. A batch itself cannot be deleted [OAI-spec]."""
        for ref in refs:
            self.delete_input(ref)

    def close(self) -> None:
        """Close sockets."""
        self._client.close()

    def _page(self, after: str | None) -> tuple[dict[str, Any], Reply]:
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
        return page, reply

    def _view(self, operation: str, reply: Reply, raw: object) -> BatchView:
        if not isinstance(raw, dict) or not isinstance(raw.get("id"), str) or not raw["id"]:
            raise self._error(operation, reply, detail="the reply is no batch")
        if raw.get("object") != "batch" or not isinstance(raw.get("status"), str):
            raise self._error(operation, reply, detail="the reply is no batch")
        view = read_batch(raw)
        # A list's view rests on its own entry, which the reader kept; any other on the reply.
        return view if operation == "list" else replace(view, raw=reply.content)

    def _call(self, operation: str, timeout: float, call: Callable[[], Any]) -> Reply:
        """One request under a hard limit, its whole reply, or a ``ProviderError``."""
        with (
            boundary(self._effects, f"provider.{operation}"),
            self._deadline.limit(timeout),
            self._sdk_errors(operation),
        ):
            return _reply(call().http_response)

    @contextmanager
    def _sdk_errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except openai.APIStatusError as error:
            raise self._error(operation, _reply(error.response)) from None
        except (openai.APIConnectionError, httpx2.HTTPError) as error:
            cause = error.__cause__ or error
            kind = type(cause).__name__
            detail = f"{kind}: {cause}" if str(cause) else kind
            raise self._error(operation, None, detail=detail) from None
        except openai.OpenAIError as error:
            raise self._error(operation, None, detail=type(error).__name__) from None

    def _error(self, operation: str, reply: Reply | None, detail: str = "") -> ProviderError:
        refusal = _refusal(reply) if reply is not None and reply.status >= 400 else None
        return provider_error(
            self.name,
            operation,
            reply,
            refusal,
            account_codes=_ACCOUNT_CODES,
            request_id=reply.headers.get("x-request-id") if reply else None,
            secrets=(self._key,),
            detail=detail,
        )


def _reply(response: httpx2.Response) -> Reply:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Reply(response.status_code, headers, response.content)


def _refusal(reply: Reply) -> Refusal | None:
    """OpenAI's error body: ``{"error": {"message", "type", "param", "code"}}``."""
    error = (reply.json_object() or {}).get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None
    if not isinstance(error.get("type"), str):
        return None
    code = error.get("code")
    return Refusal(error["message"], code if isinstance(code, str) and code else error["type"])


def _broken(error: httpx2.HTTPError) -> DownloadError:
    return DownloadError(
        f"openai broke off the download: {type(error).__name__}: {bounded(error)}",
        remedy="It is fetched again.",
    )
