"""A copied artifact folder, read and never written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llm_batch_assets.artifacts import ArtifactWriter
from llm_batch_assets.artifacts.base import (
    OBJECTS,
    STORE_FILE,
    file_sha256,
    is_digest,
    object_key,
    read_store_file,
    store_file,
)
from llm_batch_assets.errors import ArtifactError, InputError
from llm_batch_assets.reconcile.verify.report import Report


class Folder:
    """The store's read side over a folder; every object's bytes are checked once, by ``scan``."""

    def __init__(self, root: Path) -> None:
        """Open the folder.

        Raises:
            InputError: when it is no artifact folder.
        """
        if not (root / OBJECTS).is_dir():
            raise InputError(
                f"{root} is no artifact folder.",
                remedy=f"Give the folder that holds {OBJECTS}/ and {STORE_FILE}.",
            )
        self._root = root
        self.url = root.absolute().as_uri()
        self.store_id = ""
        self.sizes: dict[str, int] = {}
        self._damaged: set[str] = set()

    def scan(self, report: Report) -> None:
        """Hash every file; what is no sound object of ours is reported by name."""
        self._store_file(report)
        for path in sorted(self._root.rglob("*")):
            name = path.relative_to(self._root).as_posix()
            if path.is_dir() or name == STORE_FILE:
                continue
            if not is_digest(path.name) or name != object_key(path.name):
                report.note(name, "is no object of this store: nothing rests on it")
                continue
            found, size = file_sha256(path)
            report.count("objects")
            report.count("bytes", size)
            self.sizes[path.name] = size
            if found != path.name:
                self._damaged.add(path.name)
                report.fault(name, f"is damaged: its bytes have the sha256 {found}")

    def _store_file(self, report: Report) -> None:
        path = self._root / STORE_FILE
        if not path.is_file():
            report.fault(STORE_FILE, "is absent")
            return
        data = path.read_bytes()
        try:
            self.store_id = read_store_file(data, STORE_FILE)
        except (ArtifactError, UnicodeError) as error:
            report.fault(STORE_FILE, str(error))
            return
        if data != store_file(self.store_id):
            report.fault(STORE_FILE, "is not as this program writes it")

    def get(self, digest: str) -> bytes:
        """The object's bytes."""
        return self._sound(digest).read_bytes()

    @contextmanager
    def fetch(self, digest: str) -> Iterator[Path]:
        """The object's path."""
        yield self._sound(digest)

    def has(self, digest: str) -> bool:
        """Whether the object exists, sound or not."""
        return digest in self.sizes

    def digests(self) -> Iterator[str]:
        """The name of every object."""
        yield from sorted(self.sizes)

    def sound(self) -> Iterator[str]:
        """The objects whose bytes are the ones that their names promise."""
        yield from (digest for digest in self.digests() if digest not in self._damaged)

    def put(self, data: bytes) -> str:
        """Refused: verification writes nothing."""
        raise ArtifactError("A folder that is verified is not written to.")

    def put_file(self, path: Path) -> str:
        """Refused: verification writes nothing."""
        raise ArtifactError("A folder that is verified is not written to.")

    def writer(self) -> ArtifactWriter:
        """Refused: verification writes nothing."""
        raise ArtifactError("A folder that is verified is not written to.")

    def _sound(self, digest: str) -> Path:
        name = object_key(digest)
        if digest not in self.sizes:
            raise ArtifactError(f"{name} is absent.")
        if digest in self._damaged:
            raise ArtifactError(f"{name} is damaged.")
        return self._root / name
