"""Byte ranges for downloads, as RFC 9110 has them; one range only."""

from __future__ import annotations

import re
from hashlib import sha256

from llm_batch_assets.simulator.app import Call
from llm_batch_assets.simulator.transport import Reply


def etag_of(data: bytes) -> str:
    """A strong entity tag; made once, when the bytes are stored."""
    return f'"{sha256(data).hexdigest()[:32]}"'


def ranged(call: Call, data: bytes, content_type: str, etag: str, *, enabled: bool) -> Reply:
    """The whole of ``data``, or the range that was asked for where ranges are on offer."""
    if not enabled:
        return Reply(200, data, {}, content_type)
    headers = {"accept-ranges": "bytes", "etag": etag}
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", call.headers.get("range", ""))
    if not wanted or call.headers.get("if-range", etag) != etag:
        return Reply(200, data, headers, content_type)
    start = int(wanted[1])
    end = min(int(wanted[2]) if wanted[2] else len(data) - 1, len(data) - 1)
    if start >= len(data) or end < start:
        return Reply(416, b"", {**headers, "content-range": f"bytes */{len(data)}"}, content_type)
    headers["content-range"] = f"bytes {start}-{end}/{len(data)}"
    return Reply(206, data[start : end + 1], headers, content_type)
