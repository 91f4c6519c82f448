"""The Protocol behind which every provider's SDK lives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from llm_batch_assets.types import BatchView, CreateRequest, ResultRef


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A request file that the provider has named; ``ref`` is None where there is no upload."""

    ref: str | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Body:
    """An open result file.

    ``announced_bytes`` comes from the transfer (Content-Length without an encoding),
    ``expected_bytes`` from the provider's own description of the file. ``chunks`` gives raw bytes
    and may raise ``DownloadError``. ``offset`` is where this body really starts: 0 unless the
    server honoured a range.
    """

    status: int
    chunks: Iterator[bytes] = field(repr=False)
    announced_bytes: int | None = None
    expected_bytes: int | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    etag: str | None = None
    accepts_ranges: bool = False
    offset: int = 0
    marks_end: bool = False
    """True where the transfer marks its own end (chunked), so that an early end raises."""


class BatchProvider(Protocol):
    """One account at one provider. Every call is exactly one attempt: retries are the caller's.

    All methods raise ``ProviderError``; ``create`` says in its ``effect`` whether a batch may
    exist. No method follows an address to another host than the configured one.
    """

    name: str
    has_upload: bool
    settles_by_label: bool
    """True where a batch carries our submission key, so that a list look finds it by name."""

    label_proves: bool
    """True where nobody else gives a batch our key by chance (metadata, a client token); False
    for a display name, which has to agree with the input file."""

    def account(self) -> str:
        """A keyed digest of key, organisation and project: never the URL, never the key."""

    def upload(self, path: Path, *, name: str, timeout: float) -> Uploaded:
        """Send a request file. ``timeout`` is a hard wall-clock limit in seconds."""

    def create(self, request: CreateRequest, path: Path, *, timeout: float) -> BatchView:
        """Create one batch with one POST; ``path`` is the request file where there is no upload.

        ``timeout`` is a hard wall-clock limit after which the socket is closed.
        """

    def list_batches(self) -> Iterator[BatchView]:
        """Every batch of the account, newest first where the provider says so, to the end.

        Raises:
            ProviderError: also when an empty page claims that there is more: not an end.
        """

    def get(self, batch_id: str) -> BatchView:
        """One look. A failed look changes nothing."""

    def open_result(
        self, ref: ResultRef, *, offset: int = 0, etag: str | None = None
    ) -> AbstractContextManager[Body]:
        """Open a result file, from ``offset`` where the server offers ranges."""

    def cancel(self, batch_id: str) -> BatchView | None:
        """Ask to cancel; idempotent; None when it was already over."""

    def delete_input(self, ref: str) -> None:
        """Delete an uploaded request file; absent is fine."""

    def delete_remote(self, batch_id: str, refs: tuple[str, ...]) -> None:
        """Delete result files and, where the provider has it, the batch; absent is fine."""

    def close(self) -> None:
        """Close sockets."""
