"""The Gemini Batch API (Developer API) through google-genai, in file mode.

The SDK's own types drop an operation's counters and error (python-genai #1323), so the calls go
through the SDK and the replies are read from the wire: a hook on its HTTP client keeps them.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
from google import genai
from google.genai import errors, types

from llm_batch_assets.errors import ProviderError
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
from llm_batch_assets.wire.gemini.request import EMBEDDING_ENDPOINT
from llm_batch_assets.wire.gemini.status import INLINE, inline_lines, read_batch

_DEFAULT_URL = "https://generativelanguage.googleapis.com"
_PAGE = 100
_SHORT_ID = 40
"""Ids longer than this cannot be looked up or deleted, only downloaded (python-genai #1759)."""


class GeminiProvider(SdkProvider):
    """One Gemini API project, as the environment names it."""

    name = "gemini"
    has_upload = True
    settles_by_label = True
    label_proves = False
    account_codes = frozenset({"permission_denied", "unauthenticated", "api_key_invalid"})
    request_id_header = "x-request-id"

    def __init__(
        self, *, env: Mapping[str, str], deployment: str, effects: Effects = NO_EFFECTS
    ) -> None:
        """Prepare a client; nothing is sent.

        Args:
            env: ``GOOGLE_API_KEY`` or ``GEMINI_API_KEY``, and optionally
                ``GOOGLE_GEMINI_BASE_URL``, ``GOOGLE_GENAI_API_VERSION`` and the usual proxy
                variables.
            deployment: the ledger's name.
            effects: hook around every call.

        Raises:
            InputError: when the key is missing or the address is none.
        """
        self._key = required(env, "GOOGLE_API_KEY", "GEMINI_API_KEY")
        super().__init__(deployment=deployment, effects=effects, secrets=(self._key,))
        self._base_url = (env.get("GOOGLE_GEMINI_BASE_URL", "").strip() or _DEFAULT_URL).rstrip("/")
        version = env.get("GOOGLE_GENAI_API_VERSION", "").strip() or "v1"
        self._version = "v1beta" if version == "beta" else version
        self._local = threading.local()
        self._http = httpx2.Client(
            transport=BoundTransport(self._base_url, env, self._deadline),
            follow_redirects=False,
            timeout=READ_SECONDS,
            event_hooks={"response": [self._keep]},
        )
        self._client = genai.Client(
            vertexai=False,
            api_key=self._key,
            http_options=types.HttpOptions(
                base_url=self._base_url,
                api_version=self._version,
                # Milliseconds; without it there is no limit at all [EXP].
                timeout=int(READ_SECONDS * 1000),
                # Given without a number of attempts, it would be five, create included.
                retry_options=types.HttpRetryOptions(attempts=1),
                httpx_client=self._http,
            ),
        )

    def account(self) -> str:
        """A keyed digest of the key, which belongs to one project."""
        return account_digest(self.name, self._key)

    def upload(self, path: Path, *, name: str, timeout: float) -> Uploaded:
        """Send a request file as a resumable upload, in chunks.

        Raises:
            ProviderError: also when the provider counts other bytes than the file has.
        """
        size = path.stat().st_size
        reply = self._call(
            "upload",
            timeout,
            lambda: self._client.files.upload(
                file=path,
                config=types.UploadFileConfig(display_name=name, mime_type="application/jsonl"),
            ),
        )
        body = (reply.json_object() or {}).get("file")
        ref, counted = (
            (body.get("name"), body.get("sizeBytes")) if isinstance(body, dict) else (None, None)
        )
        if not isinstance(ref, str) or not ref.startswith("files/"):
            raise self._error("upload", reply, detail="the reply names no file")
        if str(counted) != str(size):
            raise self._error("upload", reply, detail=f"{counted!r} of {size} bytes arrived")
        return Uploaded(ref=ref, bytes=size)

    def create(self, request: CreateRequest, path: Path, *, timeout: float) -> BatchView:
        """Create one batch with one POST. It is not idempotent [GEM-guide].

        Raises:
            ProviderError: with effect ``none`` only for the provider's own refusal.
        """
        label = f"{request.deployment}/{request.submission_key}"
        ref = request.input_ref or ""

        def call() -> Any:
            if request.endpoint == EMBEDDING_ENDPOINT:
                return self._client.batches.create_embeddings(
                    model=request.model,
                    src=types.EmbeddingsBatchJobSource(file_name=ref),
                    config=types.CreateEmbeddingsBatchJobConfig(display_name=label),
                )
            return self._client.batches.create(
                model=request.model,
                src=types.BatchJobSource(file_name=ref),
                config=types.CreateBatchJobConfig(display_name=label),
            )

        reply = self._call("create", timeout, call)
        return self._view("create", reply, reply.json_object())

    def list_batches(self) -> Iterator[BatchView]:
        """Every batch of the project, to the end. Its order is not documented.

        Raises:
            ProviderError: also when pages go on without bringing anything.
        """
        return self._walk(self._page)

    def get(self, batch_id: str) -> BatchView:
        """One look at one batch."""
        return self._view_of("get", self._operation("get", batch_id), batch_id)

    @contextmanager
    def open_result(
        self, ref: ResultRef, *, offset: int = 0, etag: str | None = None
    ) -> Iterator[Body]:
        """Open a result file, or the rows that the operation itself carries (B86).

        A result file's id is too long to be looked up, so its length is told by the transfer.
        """
        if ref.ref.startswith(f"{INLINE}:"):
            reply = self._operation("download", ref.ref.removeprefix(f"{INLINE}:"))
            rows = inline_lines(reply.content)
            if rows is None:
                raise self._error("download", reply, detail="the operation carries no rows")
            yield Body(
                status=200,
                chunks=iter((rows[offset:],)),
                announced_bytes=len(rows) - offset,
                expected_bytes=len(rows),
            )
            return
        request = self._http.build_request(
            "GET",
            f"{self._base_url}/{self._version}/{ref.ref}:download",
            params={"alt": "media"},
            headers={"x-goog-api-key": self._key, **resume_headers(offset, etag)},
        )
        with self._opened(lambda: self._http.send(request, stream=True)) as http:
            yield body_of(http, None, offset, self._broken)

    def cancel(self, batch_id: str) -> BatchView | None:
        """Ask to cancel; None when the batch was already over. The reply is empty [GEM-ref]."""
        return self._cancel(batch_id, lambda: self._client.batches.cancel(name=batch_id))

    def delete_input(self, ref: str) -> None:
        """Delete an uploaded file; absent is fine, in whatever words (it may be a 403)."""
        try:
            self._delete(lambda: self._client.files.delete(name=ref))
        except ProviderError as error:
            if error.http_status != 403 or "may not exist" not in str(error):
                raise

    def delete_remote(self, batch_id: str, refs: tuple[str, ...]) -> None:
        """Delete result files and the batch.

        Result files have ids that the API itself cannot delete yet; they go after 48 hours.
        """
        for ref in refs:
            if ref.startswith("files/"):
                try:
                    self.delete_input(ref)
                except ProviderError as error:
                    if error.http_status != 400 or len(ref.split("/", 1)[1]) <= _SHORT_ID:
                        raise
        self._delete(lambda: self._client.batches.delete(name=batch_id))

    def close(self) -> None:
        """Close sockets."""
        self._client.close()
        self._http.close()

    def _operation(self, operation: str, batch_id: str) -> Reply:
        if not batch_id.startswith("batches/"):
            raise self._error(operation, None, detail=f"{batch_id[:100]!r} is no batch's name")
        return self._call(operation, CALL_SECONDS, lambda: self._client.batches.get(name=batch_id))

    def _page(self, token: str | None) -> Page:
        reply = self._call(
            "list",
            CALL_SECONDS,
            lambda: self._client.batches.list(
                config=types.ListBatchJobsConfig(page_size=_PAGE, page_token=token)
            ),
        )
        page = reply.json_object()
        if page is None or not page.keys() <= {"operations", "nextPageToken"}:
            raise self._error("list", reply, detail="the page is no list")
        # Empty fields are left out of the JSON.
        items, following = page.get("operations", []), page.get("nextPageToken") or None
        if not isinstance(items, list) or not isinstance(following, str | None):
            raise self._error("list", reply, detail="the page is no list")
        return Page(items, following, reply, by_token=True)

    def _keep(self, response: httpx2.Response) -> None:
        if getattr(self._local, "keeping", False):
            response.read()
            self._local.reply = reply_of(response)

    def _send(self, call: Callable[[], Any]) -> Reply:
        self._local.reply, self._local.keeping = None, True
        try:
            with warnings.catch_warnings():
                # A state that the SDK does not know, a method that it calls experimental.
                warnings.simplefilter("ignore")
                call()
        except errors.APIError:
            pass  # the kept reply says it all
        except httpx2.HTTPError:
            raise
        except Exception as error:
            # The SDK fails in many ways on a reply that is not what it expects.
            if self._local.reply is None:
                raise httpx2.TransportError(f"{type(error).__name__}: {error}") from error
        finally:
            self._local.keeping = False
        reply: Reply | None = self._local.reply
        if reply is None:
            raise httpx2.TransportError("no reply")
        return reply

    def _refusal(self, reply: Reply) -> Refusal | None:
        """The error body: ``{"error": {"code", "message", "status", "details"}}``."""
        error = (reply.json_object() or {}).get("error")
        if not isinstance(error, dict):
            return None
        message, status = error.get("message"), error.get("status")
        if not isinstance(message, str) or not isinstance(status, str):
            return None
        if reply.status == 400 and ("API key" in message or "billing" in message.lower()):
            # A wrong key is typed INVALID_ARGUMENT, an unpaid account FAILED_PRECONDITION.
            status = "API_KEY_INVALID"
        return Refusal(message, status)

    def _is_batch(self, raw: Mapping[str, Any]) -> bool:
        name = raw.get("name")
        return (
            isinstance(name, str)
            and name.startswith("batches/")
            and isinstance(raw.get("metadata"), dict)
        )

    def _read(self, raw: Mapping[str, Any]) -> BatchView:
        view = read_batch(raw)
        refs = tuple(
            ResultRef(r.kind, f"{INLINE}:{view.batch_id}") if r.ref == INLINE else r
            for r in view.results
        )
        return replace(view, results=refs)
