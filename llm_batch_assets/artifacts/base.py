"""What every artifact store promises, and the small things that all of them share."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Protocol

from llm_batch_assets.errors import ArtifactError

Data = bytes
"""The builtin, under a name that a ``bytes`` counter attribute does not hide."""

CHUNK = 1 << 20
"""How many bytes are read or written at a time."""

STORE_FILE = "store.json"
OBJECTS = "objects"

_HEX = re.compile(r"[0-9a-f]{64}")


class ArtifactWriter(Protocol):
    """A streaming write of one object, visible only after a clean exit."""

    def __enter__(self) -> ArtifactWriter:
        """Start writing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Make the object durable, or leave nothing when the block raised."""

    def write(self, data: Data) -> None:
        """Append bytes."""

    def reset(self) -> None:
        """Forget everything that was written so far, to start again from the first byte."""

    @property
    def bytes(self) -> int:
        """How many bytes were written since the start or the last ``reset``."""

    @property
    def digest(self) -> str:
        """The sha256 in hex; known only after a clean exit."""


class ArtifactStore(Protocol):
    """A write-once store. Objects are named by their own sha256 and are never replaced.

    Whatever a ``put`` returned is durable: the file and its directory are synced, or the remote
    store said 200. Every read checks the digest and raises ``ArtifactError`` on other bytes.
    """

    url: str
    store_id: str
    """Random, made once by conditional create, so that two stores are never taken for one."""

    def put(self, data: bytes) -> str:
        """Store bytes; gives their sha256 in hex. Storing the same bytes again changes nothing."""

    def put_file(self, path: Path) -> str:
        """Store a file's bytes, streaming."""

    def writer(self) -> ArtifactWriter:
        """Store bytes as they come, with bounded memory."""

    def get(self, digest: str) -> bytes:
        """The object's bytes, verified."""

    def fetch(self, digest: str) -> AbstractContextManager[Path]:
        """A local path to the verified bytes, valid inside the block; not to be written to."""

    def has(self, digest: str) -> bool:
        """Whether the object exists; its bytes are not read."""

    def digests(self) -> Iterator[str]:
        """The name of every object, in no order."""


def object_key(digest: str) -> str:
    """The relative key of an object: ``objects/<first 2 hex>/<sha256 hex>``.

    Raises:
        ArtifactError: for anything but 64 lower-case hex digits.
    """
    if not _HEX.fullmatch(digest):
        raise ArtifactError(f"{digest[:80]!r} is not a sha256 in lower-case hex.")
    return f"{OBJECTS}/{digest[:2]}/{digest}"


def is_digest(name: str) -> bool:
    """Whether a name can be an object's."""
    return _HEX.fullmatch(name) is not None


def new_store_file() -> bytes:
    """The content of a fresh ``store.json``."""
    return store_file(secrets.token_hex(16))


def store_file(store_id: str) -> bytes:
    """The one content of a ``store.json`` with this id.

    It carries a digest of its own, so that the only file not named by its bytes can be checked.
    """
    return json.dumps({"store_id": store_id, "sha256": _own_digest(store_id)}).encode() + b"\n"


def read_store_file(data: bytes, where: str) -> str:
    """The store id in a ``store.json``.

    Raises:
        ArtifactError: when the file is not what this package writes.
    """
    try:
        content = json.loads(data)
        store_id = content["store_id"]
        own = content.get("sha256")
    except (ValueError, KeyError, TypeError, AttributeError):
        store_id = own = None
    known = isinstance(store_id, str) and bool(store_id)
    if not known or own not in (None, _own_digest(store_id)):
        raise ArtifactError(
            f"{where} does not name a store_id that its own digest confirms.",
            remedy="Restore it from a backup of the store.",
        )
    assert isinstance(store_id, str)
    return store_id


def _own_digest(store_id: str) -> str:
    return hashlib.sha256(store_id.encode("utf-8", "backslashreplace")).hexdigest()


def damaged(digest: str, where: str, found: str) -> ArtifactError:
    """The error for an object whose bytes are not the ones that its name promises."""
    return ArtifactError(
        f"The object {digest} in {where} is damaged: its bytes have the sha256 {found}.",
        remedy="Restore that one object from a backup of the store.",
    )


def absent(digest: str, where: str) -> ArtifactError:
    """The error for an object that is not there."""
    return ArtifactError(f"The object {digest} is not in {where}.")


def file_sha256(path: Path) -> tuple[str, int]:
    """A file's sha256 in hex and its length in bytes, streaming."""
    hasher, size = hashlib.sha256(), 0
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK):
            hasher.update(chunk)
            size += len(chunk)
    return hasher.hexdigest(), size
