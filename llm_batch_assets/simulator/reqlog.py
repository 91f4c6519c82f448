"""A log of every request, in order of arrival, with credentials reduced to digests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

_SECRET = ("authorization", "x-api-key", "x-goog-api-key", "cookie", "x-amz-security-token")


@dataclass(slots=True)
class Entry:
    """One request. ``status`` is what was answered: None while open, 0 for a closed socket."""

    seq: int
    method: str
    path: str
    query: str
    route: str | None
    provider: str | None
    headers: dict[str, str]
    body_sha256: str
    body_bytes: int
    at: float
    virtual_at: float
    status: int | None = None
    fault: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)


def redact(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Header names and values, each credential as the first 12 hex digits of its sha256."""
    seen: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1").lower()
        value = raw_value.decode("latin-1")
        seen[name] = f"sha256:{sha256(raw_value).hexdigest()[:12]}" if name in _SECRET else value
    return seen


class RequestLog:
    """Entries in order of arrival."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def arrive(
        self,
        method: str,
        path: str,
        query: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        *,
        at: float,
        virtual_at: float,
    ) -> Entry:
        """Open an entry for a request that has arrived whole."""
        entry = Entry(
            seq=len(self.entries) + 1,
            method=method,
            path=path,
            query=query,
            route=None,
            provider=None,
            headers=redact(headers),
            body_sha256=sha256(body).hexdigest(),
            body_bytes=len(body),
            at=at,
            virtual_at=virtual_at,
        )
        self.entries.append(entry)
        return entry

    def since(self, seq: int) -> list[dict[str, Any]]:
        """Entries after number ``seq``."""
        return [asdict(entry) for entry in self.entries[max(seq, 0) :]]
