"""The streaming writer that every store uses: a temp file, hashed as it grows."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from types import TracebackType
from typing import IO, Self

from llm_batch_assets.artifacts.base import Data
from llm_batch_assets.errors import ArtifactError


class SpoolWriter(ABC):
    """A temp file that becomes an object on a clean exit, and nothing otherwise."""

    def __init__(self, file: IO[Data]) -> None:
        self._file = file
        self._hasher = hashlib.sha256()
        self._size = 0
        self._digest: str | None = None

    @abstractmethod
    def _commit(self, digest: str) -> None:
        """Give the temp file's bytes their name, durably. The file is still open."""

    @abstractmethod
    def _discard(self) -> None:
        """Remove the temp file; called after it was closed, whatever happened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with self._file:
                if kind is None:
                    digest = self._hasher.hexdigest()
                    self._commit(digest)
                    self._digest = digest
        finally:
            self._discard()

    def write(self, data: Data) -> None:
        """Append bytes."""
        self._file.write(data)
        self._hasher.update(data)
        self._size += len(data)

    def reset(self) -> None:
        """Start again from the first byte."""
        self._file.seek(0)
        self._file.truncate()
        self._hasher, self._size = hashlib.sha256(), 0

    @property
    def bytes(self) -> int:
        """Bytes written so far."""
        return self._size

    @property
    def digest(self) -> str:
        """The object's name, after a clean exit."""
        if self._digest is None:
            raise ArtifactError("An object has no digest before its writer was closed cleanly.")
        return self._digest
