"""The store in a local directory: temp file, fsync, hard link, fsync of the directory."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

from llm_batch_assets.artifacts.base import (
    CHUNK,
    OBJECTS,
    STORE_FILE,
    ArtifactWriter,
    absent,
    damaged,
    file_sha256,
    is_digest,
    new_store_file,
    object_key,
    read_store_file,
)
from llm_batch_assets.artifacts.spool import SpoolWriter
from llm_batch_assets.errors import InputError
from llm_batch_assets.types import NO_EFFECTS, Effects

_TMP = "tmp"
_STALE_SECONDS = 24 * 3600
"""A temp file this old belongs to a writer that died: nothing streams for a day."""


class LocalStore:
    """A write-once store below one directory; safe for many processes at a time."""

    def __init__(self, root: Path, *, effects: Effects = NO_EFFECTS) -> None:
        """Open or create the store.

        Raises:
            InputError: when the directory cannot be made or written.
            ArtifactError: when its ``store.json`` is damaged.
        """
        self._root = root.expanduser().absolute()
        self._effects = effects
        self.url = self._root.as_uri()
        try:
            for directory in (self._root, self._root / OBJECTS, self._root / _TMP):
                _make_directory(directory)
            effects.at("store.open", "before")
            self.store_id = self._open_store_file()
            effects.at("store.open", "after")
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise InputError(f"The artifact store {self._root} cannot be used: {reason}.") from None
        self._drop_stale()

    def put(self, data: bytes) -> str:
        """Store bytes; gives their sha256 in hex."""
        digest = hashlib.sha256(data).hexdigest()
        self._effects.at("store.put", "before")
        if not self._settle_existing(digest, len(data)):
            temp, handle = self._temp()
            try:
                with handle:
                    handle.write(data)
                    _sync(handle)
                self._link(temp, digest, len(data))
            finally:
                temp.unlink(missing_ok=True)
        self._effects.at("store.put", "after")
        return digest

    def put_file(self, path: Path) -> str:
        """Store a file's bytes, streaming."""
        with path.open("rb") as source, self.writer() as writer:
            while chunk := source.read(CHUNK):
                writer.write(chunk)
        return writer.digest

    def writer(self) -> ArtifactWriter:
        """Store bytes as they come."""
        return _LocalWriter(self)

    def get(self, digest: str) -> bytes:
        """The object's bytes, verified."""
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError:
            raise absent(digest, self.url) from None
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise damaged(digest, self.url, found)
        return data

    @contextmanager
    def fetch(self, digest: str) -> Iterator[Path]:
        """The object's own path, after its bytes were verified."""
        path = self._path(digest)
        try:
            found, _ = file_sha256(path)
        except FileNotFoundError:
            raise absent(digest, self.url) from None
        if found != digest:
            raise damaged(digest, self.url, found)
        yield path

    def has(self, digest: str) -> bool:
        """Whether the object exists."""
        return self._path(digest).is_file()

    def digests(self) -> Iterator[str]:
        """The name of every object."""
        for directory in sorted((self._root / OBJECTS).iterdir()):
            if directory.is_dir():
                yield from (e.name for e in sorted(directory.iterdir()) if is_digest(e.name))

    def _path(self, digest: str) -> Path:
        return self._root / object_key(digest)

    def _temp(self) -> tuple[Path, BinaryIO]:
        path = self._root / _TMP / secrets.token_hex(16)
        # Exclusive create, so that the umask decides the mode and nobody's file is reused.
        return path, path.open("xb")

    def _link(self, temp: Path, digest: str, size: int) -> None:
        """Give a synced temp file its name, never replacing another."""
        target = self._path(digest)
        _make_directory(target.parent)
        try:
            os.link(temp, target)
        except FileExistsError:
            self._check_size(target, digest, size)
        _sync_directory(target.parent)

    def _settle_existing(self, digest: str, size: int) -> bool:
        """Whether the object is there already; if so its directory entry is durable afterwards."""
        target = self._path(digest)
        if not target.exists():
            return False
        self._check_size(target, digest, size)
        # Whoever linked it may have died before the sync of the directory.
        _sync_directory(target.parent)
        return True

    def _check_size(self, target: Path, digest: str, size: int) -> None:
        if target.stat().st_size != size:
            found, _ = file_sha256(target)
            raise damaged(digest, self.url, found)

    def _open_store_file(self) -> str:
        target = self._root / STORE_FILE
        if not target.exists():
            temp, handle = self._temp()
            try:
                with handle:
                    handle.write(new_store_file())
                    _sync(handle)
                with suppress(FileExistsError):
                    os.link(temp, target)
            finally:
                temp.unlink(missing_ok=True)
        _sync_directory(self._root)
        return read_store_file(target.read_bytes(), str(target))

    def _drop_stale(self) -> None:
        limit = time.time() - _STALE_SECONDS
        for path in (self._root / _TMP).iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < limit:
                    path.unlink()


class _LocalWriter(SpoolWriter):
    """A temp file inside the store, which gets its name on a clean exit."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._temp, handle = store._temp()
        super().__init__(handle)

    def _commit(self, digest: str) -> None:
        _sync(self._file)
        self._store._effects.at("store.put", "before")
        self._store._link(self._temp, digest, self._size)
        self._store._effects.at("store.put", "after")

    def _discard(self) -> None:
        self._temp.unlink(missing_ok=True)


def _sync(handle: IO[bytes]) -> None:
    handle.flush()
    os.fsync(handle.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(path: Path) -> None:
    """Make a directory and the ones above it, each durable in its parent."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
    _sync_directory(path.parent)
