"""Fetch one result file whole: stream, resume or start again, and prove that nothing is missing.

A short copy is never stored: its records would look missing and be paid for twice (invariant 7).
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from llm_batch_assets.artifacts import ArtifactStore, ArtifactWriter
from llm_batch_assets.errors import DownloadError, ProviderError, ResultsGone
from llm_batch_assets.providers.base import BatchProvider, Body
from llm_batch_assets.types import NO_EFFECTS, Effects, Receipt, ResultRef

_BACKOFF_SECONDS = 0.5
_LONGEST_SECONDS = 30.0
_PIECE = 1 << 20
_CRAWL_SECONDS = 60.0
_CRAWL_BYTES = 64 * 1024
"""Less than this in a minute is a dead transfer that keeps its socket alive."""
_MOST_TRIES = 8
"""Times ``max_tries``: where even a file that makes progress is given up for now."""
_GZIP = b"\x1f\x8b"
_PAGES = ("text/html", "application/xhtml+xml")
_GONE_WORDS = ("expired", "no longer", "deleted")


@dataclass(frozen=True, slots=True)
class Transfer:
    """What is known of the bytes at hand. Lengths are in bytes.

    ``received`` counts what came over the wire, pieces of a resumed file included; ``size`` what
    it is after a declared encoding was undone. ``announced`` is the whole file's length as the
    transfer told it, ``expected`` as the provider describes the file elsewhere.
    """

    status: int
    resumed: bool
    received: int
    size: int
    announced: int | None = None
    expected: int | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    encoding_ended: bool = True
    marks_end: bool = False
    head: bytes = b""


def judge(transfer: Transfer) -> tuple[bool, str]:
    """Whether a file is whole, and which rule decided. Pure.

    The SDKs return a short body without an error for a stream cut at the close of the
    connection, for 204 and 206, and for a gzip stream that ends early: so each is a rule here.
    """
    t = transfer
    if t.status != 200 and not (t.status == 206 and t.resumed):
        return False, f"HTTP {t.status} is not the whole file"
    if (t.content_type or "").split(";")[0].strip().lower() in _PAGES:
        return False, f"a result file is no {t.content_type}"
    if t.content_encoding not in (None, "gzip", "x-gzip", "deflate"):
        return False, f"its encoding {t.content_encoding!r} is not one that was asked for"
    if not t.encoding_ended:
        return False, f"its {t.content_encoding} stream ends early"
    if t.head == _GZIP:
        return False, "it is compressed without saying so"
    if t.announced is not None and t.received != t.announced:
        return False, f"{t.received} of {t.announced} announced bytes arrived"
    if t.expected is not None and t.size != t.expected:
        return False, f"{t.size} of the {t.expected} bytes that the provider counts arrived"
    if t.size == 0 and t.expected != 0:
        return False, "it is empty"
    if t.expected is not None:
        return True, "as many bytes as the provider counts"
    if t.announced is not None:
        return True, "as many bytes as the transfer announced"
    if t.marks_end or t.content_encoding is not None:
        return True, "the transfer marked its own end"
    return False, "nothing tells how long it is"


def download(
    provider: BatchProvider,
    ref: ResultRef,
    store: ArtifactStore,
    *,
    max_tries: int = 4,
    effects: Effects = NO_EFFECTS,
    sleep: Callable[[float], None] = time.sleep,
    rng: Callable[[], float] = random.random,
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[int], None] | None = None,
) -> Receipt:
    """Stream a result file into the store, with bounded memory.

    A transfer that breaks off is resumed by ``Range`` where the server offers it, else it starts
    again. Only a file that is proven whole becomes an object.

    Args:
        provider: the account that made the batch.
        ref: the file.
        store: where the bytes go, unchanged but for a declared ``Content-Encoding``.
        max_tries: how often the file is opened at most without any progress; a try that brought
            new bytes of a resumable file does not count.
        effects: hook around the whole download.
        sleep: waits between tries; seconds.
        rng: a number in [0, 1) that spreads the waits.
        clock: monotonic seconds; a transfer that crawls for a minute is broken off.
        progress: told the bytes so far after each piece, for a heartbeat.

    Returns:
        A receipt with ``whole`` True; its digest names the stored object.

    Raises:
        ResultsGone: 404 on each try, 410, or a 403 that says expired.
        DownloadError: when no try gave a whole file; nothing was stored.
        ProviderError: for a fault of the account, which no try mends.
    """
    effects.at("download", "before")
    with store.writer() as writer:
        fetch = _Fetch(provider, ref, writer, clock, progress)
        failures = tries = 0
        while (problem := fetch.attempt()) is not None:
            failures = 0 if fetch.advanced else failures + 1
            tries += 1
            if fetch.final or failures >= max_tries or tries >= max_tries * _MOST_TRIES:
                raise problem
            wait = _BACKOFF_SECONDS * 2.0**failures * (0.5 + rng())
            sleep(min(max(wait, fetch.retry_after), _LONGEST_SECONDS))
    effects.at("download", "after")
    t = fetch.transfer
    return Receipt(
        kind=ref.kind,
        ref=ref.ref,
        digest=writer.digest,
        status=t.status,
        received_bytes=t.received,
        announced_bytes=t.announced,
        expected_bytes=t.expected,
        content_type=t.content_type,
        content_encoding=t.content_encoding,
        whole=True,
        reason=fetch.reason,
    )


def first_line(provider: BatchProvider, ref: ResultRef, *, most: int = 64 << 20) -> bytes:
    """The first line of a result file that is not blank, without its end; the rest is not read.

    It tells whose batch this is, before anything of it is stored.

    Raises:
        DownloadError: when the file ends, breaks off or goes on for ``most`` bytes before it.
        ProviderError: when the file cannot be opened.
    """
    with provider.open_result(ref) as body:
        if body.status != 200:
            raise DownloadError(f"The result file {ref.ref} answered HTTP {body.status}.")
        decoder = _decoder(body.content_encoding)
        held = b""
        for data in body.chunks if decoder is None else _decoded(decoder, body.chunks):
            held = (held + data).removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
            line, end, _ = held.partition(b"\n")
            if len(line) > most:
                raise DownloadError(f"The first line of {ref.ref} is over {most} bytes long.")
            if end:
                return line.rstrip(b"\r")
    raise DownloadError(f"The result file {ref.ref} ends before its first line does.")


class _Fetch:
    """What survives from one try to the next."""

    def __init__(
        self,
        provider: BatchProvider,
        ref: ResultRef,
        writer: ArtifactWriter,
        clock: Callable[[], float],
        progress: Callable[[int], None] | None,
    ) -> None:
        self._provider, self._ref, self._writer = provider, ref, writer
        self._clock = clock
        self._progress = progress
        self._etag: str | None = None
        self._resumable = False
        self._head = b""
        self._furthest = 0
        self.transfer = Transfer(status=0, resumed=False, received=0, size=0)
        self.reason = ""
        self.retry_after = 0.0
        self.final = False
        self.advanced = False

    def attempt(self) -> DownloadError | None:
        """Open the file once; None when it is whole now, else why not."""
        self.retry_after, self.advanced = 0.0, False
        offset = self._writer.bytes if self._resumable else 0
        try:
            with self._provider.open_result(self._ref, offset=offset, etag=self._etag) as body:
                self._read(body, offset)
        except ProviderError as error:
            return self._refused(error)
        except DownloadError as error:
            # Broken off: what arrived stays where it can be resumed.
            self._note_progress()
            return error
        whole, self.reason = judge(self.transfer)
        if whole:
            return None
        t = self.transfer
        total = t.expected if t.expected is not None else t.announced
        cut = total is not None and t.received < total and t.announced in (None, total)
        self._resumable = self._resumable and cut
        self._note_progress()
        return DownloadError(
            f"The result file {self._ref.ref} did not come whole: {self.reason}.",
            remedy="Nothing was stored and no record changes its state.",
        )

    def _note_progress(self) -> None:
        """A resumable file that grew past every earlier try has not failed, it goes on."""
        self.advanced = self._resumable and self._writer.bytes > self._furthest
        self._furthest = max(self._furthest, self._writer.bytes)

    def _read(self, body: Body, asked: int) -> None:
        resumed = asked > 0 and body.status == 206 and body.offset == asked
        if not resumed:
            self._writer.reset()
            self._head = b""
        start = self._writer.bytes
        encoding = body.content_encoding
        self._etag = body.etag
        self._resumable = (
            encoding is None
            and (body.status == 200 or resumed)
            and (body.accepts_ranges or resumed)
        )
        decoder = _decoder(encoding)
        received = start

        def arriving() -> Iterator[bytes]:
            nonlocal received
            since, mark = self._clock(), received
            for chunk in body.chunks:
                received += len(chunk)
                yield chunk
                elapsed = self._clock() - since
                if elapsed >= _CRAWL_SECONDS:
                    if received - mark < _CRAWL_BYTES:
                        raise DownloadError(
                            f"The result file {self._ref.ref} crawls: {received - mark} bytes "
                            f"in {elapsed:.0f} s."
                        )
                    since, mark = self._clock(), received

        for data in arriving() if decoder is None else _decoded(decoder, arriving()):
            self._keep(data)
        announced = body.announced_bytes
        self.transfer = Transfer(
            status=body.status,
            resumed=resumed,
            received=received,
            size=self._writer.bytes,
            announced=None if announced is None else start + announced,
            expected=body.expected_bytes,
            content_type=body.content_type,
            content_encoding=encoding,
            encoding_ended=decoder is None or decoder.eof,
            marks_end=body.marks_end,
            head=self._head,
        )

    def _keep(self, data: bytes) -> None:
        if len(self._head) < len(_GZIP):
            self._head = (self._head + data[: len(_GZIP)])[: len(_GZIP)]
        self._writer.write(data)
        if self._progress is not None:
            self._progress(self._writer.bytes)

    def _refused(self, error: ProviderError) -> DownloadError:
        self.retry_after = error.retry_after or 0.0
        if error.http_status in (412, 416):
            # What we hold is not the beginning of what the server has: start again.
            self._resumable = False
        said = str(error).lower()
        expired = error.http_status == 403 and any(word in said for word in _GONE_WORDS)
        if expired or error.http_status in (404, 410):
            # A 404 is looked at again: results answered 404 for a while after the end (B08).
            self.final = error.http_status != 404
            return ResultsGone(
                f"The result file {self._ref.ref} can no longer be fetched: {error}",
                certain=self.final,
                remedy="Its records are held until a person decides.",
            )
        if error.fault == "account":
            raise error
        return DownloadError(f"The result file {self._ref.ref} could not be opened: {error}")


def _decoder(encoding: str | None) -> zlib._Decompress | None:
    """A streaming decoder for the encodings that servers use without being asked."""
    if encoding in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    return None


def _decoded(decoder: zlib._Decompress, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Undo an encoding in pieces of bounded size, however well it compresses."""
    try:
        for chunk in chunks:
            while chunk:
                yield decoder.decompress(chunk, _PIECE)
                chunk = decoder.unconsumed_tail
        yield decoder.flush()
    except zlib.error as error:
        raise DownloadError(f"The result file's encoding is broken: {error}.") from None
