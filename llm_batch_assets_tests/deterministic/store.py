"""An artifact store in memory, with faults; its boundaries are those of the real ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from llm_batch_assets.artifacts.base import absent
from llm_batch_assets.artifacts.spool import SpoolWriter
from llm_batch_assets.errors import ArtifactError
from llm_batch_assets_tests.deterministic.world import World


class MemoryStore:
    """Objects of one deployment. ``folder`` gives objects a path; paths may outlive a seed."""

    url = "memory:"
    store_id = "simulated"

    def __init__(self, world: World, folder: Path, objects: dict[str, bytes]) -> None:
        self.world, self.folder = world, folder
        self.objects = dict(objects)
        self.fault = 0.0

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.world.step("store.put before")
        self._fault("before")
        self.objects[digest] = data
        self._fault("after")
        self.world.step("store.put after")
        return digest

    def put_file(self, path: Path) -> str:
        return self.put(path.read_bytes())

    def writer(self) -> _Writer:
        return _Writer(self)

    def get(self, digest: str) -> bytes:
        self._fault("read")
        try:
            return self.objects[digest]
        except KeyError:
            raise absent(digest, self.url) from None

    @contextmanager
    def fetch(self, digest: str) -> Iterator[Path]:
        data = self.get(digest)
        path = self.folder / digest
        if not path.exists():
            path.write_bytes(data)
        yield path

    def has(self, digest: str) -> bool:
        return digest in self.objects

    def digests(self) -> Iterator[str]:
        yield from sorted(self.objects)

    def _fault(self, where: str) -> None:
        actor = self.world.current
        if self.fault and actor is not None and not actor.calm:
            draw = self.world.rng.random()
            if draw < self.fault:
                self.world.say(f"STORE FAULT {where}")
                if draw < self.fault / 2:
                    raise OSError(28, "No space left on device")
                raise ArtifactError(f"The store did not answer ({where}).")


class _Writer(SpoolWriter):
    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        super().__init__(BytesIO())

    def _commit(self, digest: str) -> None:
        assert isinstance(self._file, BytesIO)
        assert self._store.put(self._file.getvalue()) == digest

    def _discard(self) -> None:
        """Nothing is left behind."""
