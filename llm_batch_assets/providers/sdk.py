"""The part of a provider module that is the same for every SDK: one call, its reply, its faults."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2

from llm_batch_assets.errors import DownloadError, ProviderError
from llm_batch_assets.providers.common import (
    CALL_SECONDS,
    Refusal,
    Reply,
    boundary,
    bounded,
    provider_error,
)
from llm_batch_assets.providers.transport import Deadline
from llm_batch_assets.types import BatchView, Effects

_EMPTY_PAGES = 10
"""Empty pages in a row after which a list by token is taken for one that does not end."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list: its raw items, and the cursor of the next one or None at the end.

    ``by_token`` where the cursor is the server's own token: its documentation lets a page be empty
    before the end, so that following the tokens is what proves the end.
    """

    items: list[Any]
    next: str | None
    reply: Reply
    by_token: bool = False


class SdkProvider(ABC):
    """One account at one provider. Every call is one attempt under a hard limit."""

    name: str
    account_codes: frozenset[str] = frozenset()
    capacity_codes: frozenset[str] = frozenset()
    request_id_header = "x-request-id"
    live: frozenset[str] = frozenset({"queued", "running", "unknown"})

    def __init__(self, *, deployment: str, effects: Effects, secrets: tuple[str, ...]) -> None:
        self._deployment = deployment
        self._effects = effects
        self._secrets = secrets
        self._deadline = Deadline()

    @abstractmethod
    def _send(self, call: Callable[[], Any]) -> Reply:
        """Run an SDK call; gives its reply, also an error reply.

        Raises:
            httpx2.HTTPError: when no whole reply came back.
        """

    @abstractmethod
    def _refusal(self, reply: Reply) -> Refusal | None:
        """The provider's own error body; None for any other body."""

    @abstractmethod
    def _is_batch(self, raw: Mapping[str, Any]) -> bool:
        """Whether a JSON object is a batch of this provider, with an id."""

    @abstractmethod
    def _read(self, raw: Mapping[str, Any]) -> BatchView:
        """A batch in our words."""

    @abstractmethod
    def get(self, batch_id: str) -> BatchView:
        """One look."""

    def _call(self, operation: str, timeout: float, call: Callable[[], Any]) -> Reply:
        """One request under a hard limit: its whole reply, or a ``ProviderError``."""
        with boundary(self._effects, f"provider.{operation}"), self._deadline.limit(timeout):
            try:
                reply = self._send(call)
            except httpx2.HTTPError as error:
                raise self._lost(operation, error) from None
            if not 200 <= reply.status < 300:
                raise self._error(operation, reply)
            return reply

    def _lost(self, operation: str, error: Exception) -> ProviderError:
        kind = type(error).__name__
        said = str(error) or str(error.__cause__ or "")
        return self._error(operation, None, detail=f"{kind}: {said}" if said else kind)

    def _error(self, operation: str, reply: Reply | None, detail: str = "") -> ProviderError:
        failed = reply is not None and not 200 <= reply.status < 300
        return provider_error(
            self.name,
            operation,
            reply,
            self._refusal(reply) if failed and reply is not None else None,
            account_codes=self.account_codes,
            capacity_codes=self.capacity_codes,
            request_id=reply.headers.get(self.request_id_header) if reply else None,
            secrets=self._secrets,
            detail=detail,
        )

    def _view(self, operation: str, reply: Reply, raw: object) -> BatchView:
        if not isinstance(raw, dict) or not self._is_batch(raw):
            raise self._error(operation, reply, detail="the reply is no batch")
        view = self._read(raw)
        # A list's view rests on its own entry, which the reader kept; any other on the reply.
        return view if operation == "list" else replace(view, raw=reply.content)

    def _view_of(self, operation: str, reply: Reply, batch_id: str) -> BatchView:
        view = self._view(operation, reply, reply.json_object())
        if view.batch_id != batch_id:
            raise self._error(operation, reply, detail=f"the reply is about {view.batch_id[:100]}")
        return view

    def _walk(self, page_at: Callable[[str | None], Page]) -> Iterator[BatchView]:
        """Every batch of a paged list, each once, to a proven end.

        Raises:
            ProviderError: also for a page that brings nothing new and says that there is more.
        """
        cursor: str | None = None
        seen: set[str] = set()
        cursors: set[str] = set()
        empty = 0
        while True:
            page = page_at(cursor)
            fresh = False
            for item in page.items:
                view = self._view("list", page.reply, item)
                if view.batch_id not in seen:
                    seen.add(view.batch_id)
                    fresh = True
                    yield view
            if page.next is None:
                return
            empty = 0 if fresh else empty + 1
            most = _EMPTY_PAGES if page.by_token else 0
            if empty > most or page.next in cursors:
                detail = "a page without a new batch says that there is more"
                raise self._error("list", page.reply, detail=detail)
            cursor = page.next
            cursors.add(cursor)

    def _cancel(self, batch_id: str, call: Callable[[], Any]) -> BatchView | None:
        """Cancel, and look where the provider says that it cannot: it may be over."""
        try:
            reply = self._call("cancel", CALL_SECONDS, call)
        except ProviderError as error:
            if error.http_status not in (400, 409):
                raise
            view = self.get(batch_id)
            if view.status in self.live:
                raise
            return view if view.status == "stopping" else None
        raw = reply.json_object()
        view = self._view("cancel", reply, raw) if raw else self.get(batch_id)
        return view if view.status in self.live or view.status == "stopping" else None

    def _delete(self, call: Callable[[], Any]) -> None:
        """Delete something; absent is fine."""
        try:
            self._call("delete", CALL_SECONDS, call)
        except ProviderError as error:
            if error.fault != "not_found":
                raise

    def _broken(self, error: httpx2.HTTPError) -> DownloadError:
        said = bounded(f"{type(error).__name__}: {error}", self._secrets)
        return DownloadError(f"{self.name} broke off the download: {said}")

    @contextmanager
    def _opened(self, open_stream: Callable[[], httpx2.Response]) -> Iterator[httpx2.Response]:
        """A streamed 2xx reply, opened under a limit and closed at the end of the block."""
        with boundary(self._effects, "provider.download"), self._deadline.limit(CALL_SECONDS):
            try:
                response = open_stream()
            except httpx2.HTTPError as error:
                raise self._lost("download", error) from None
            if not 200 <= response.status_code < 300:
                try:
                    response.read()
                except httpx2.HTTPError as error:
                    raise self._lost("download", error) from None
                finally:
                    response.close()
                raise self._error("download", reply_of(response))
        try:
            yield response
        finally:
            response.close()


def reply_of(response: httpx2.Response) -> Reply:
    """A read response as a ``Reply``."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Reply(response.status_code, headers, response.content)
