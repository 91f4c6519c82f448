"""An open HTTP reply as a ``Body``: ranges, lengths and encodings, as the wire said them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import httpx2

from llm_batch_assets.errors import DownloadError
from llm_batch_assets.providers.base import Body

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def resume_headers(offset: int, etag: str | None) -> dict[str, str]:
    """Request headers for the bytes from ``offset`` on, unencoded.

    A weak etag cannot guard a range [RFC 9110 13.1.5], so it is not sent.
    """
    headers = {"Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
        if etag and not etag.startswith("W/"):
            headers["If-Range"] = etag
    return headers


def body_of(
    http: httpx2.Response,
    expected: int | None,
    asked: int,
    broken: Callable[[httpx2.HTTPError], DownloadError],
) -> Body:
    """Describe an open reply without reading it.

    Args:
        http: the streamed reply.
        expected: the file's length as the provider describes it elsewhere.
        asked: the offset that was asked for.
        broken: makes the error of a transfer that breaks off.

    Raises:
        DownloadError: when a range comes back that nobody asked for.
    """
    offset = 0
    if http.status_code == 206:
        found = _CONTENT_RANGE.fullmatch(http.headers.get("content-range", "").strip())
        if asked and (found is None or int(found[1]) != asked):
            raise DownloadError("The provider answered with another range than was asked for.")
        offset = int(found[1]) if found else 0
        if found and found[3] != "*" and expected is None:
            expected = int(found[3])
    encoding = http.headers.get("content-encoding", "").strip().lower() or None
    encoding = None if encoding == "identity" else encoding
    length = http.headers.get("content-length", "")
    return Body(
        status=http.status_code,
        chunks=_raw(http, broken),
        announced_bytes=int(length) if length.isdigit() and encoding is None else None,
        expected_bytes=expected,
        content_type=http.headers.get("content-type"),
        content_encoding=encoding,
        etag=http.headers.get("etag"),
        accepts_ranges=http.headers.get("accept-ranges", "").strip().lower() == "bytes",
        offset=offset,
        marks_end="chunked" in http.headers.get("transfer-encoding", "").lower(),
    )


def _raw(
    http: httpx2.Response, broken: Callable[[httpx2.HTTPError], DownloadError]
) -> Iterator[bytes]:
    try:
        # No chunk size: it would hold back bytes, and lose them when the transfer breaks off.
        yield from http.iter_raw()
    except httpx2.HTTPError as error:
        raise broken(error) from None
