"""The store in an S3 bucket: conditional writes, checksums that the server checks, verified reads.

Credentials, region and endpoint come from the environment, as boto3 reads them.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from llm_batch_assets.artifacts.base import (
    CHUNK,
    OBJECTS,
    STORE_FILE,
    ArtifactWriter,
    absent,
    damaged,
    is_digest,
    new_store_file,
    object_key,
    read_store_file,
)
from llm_batch_assets.artifacts.bucket import Bucket, Forbidden, Unusable
from llm_batch_assets.artifacts.spool import SpoolWriter
from llm_batch_assets.errors import ArtifactError, InputError
from llm_batch_assets.types import NO_EFFECTS, Clock, Effects

_ABANDONED = timedelta(hours=24)
"""A multipart upload this old belongs to a writer that died."""

_READ_TRIES = 3


class S3Store:
    """A write-once store below one prefix of one bucket; safe for many machines at a time."""

    def __init__(
        self,
        client: Any,
        bucket: str,
        prefix: str = "",
        *,
        effects: Effects = NO_EFFECTS,
        now: Clock = lambda: datetime.now(UTC),
        part_bytes: int = 16 << 20,
    ) -> None:
        """Open or create the store.

        Args:
            client: a boto3 S3 client. Its retries are welcome: every write is idempotent.
            bucket: an existing bucket.
            prefix: where in the bucket, without slashes at the ends.
            effects: hook around every durable write (``store.put``).
            now: tells which multipart uploads were abandoned.
            part_bytes: the size of one part; more than two of them go as a multipart upload.

        Raises:
            InputError: when the bucket cannot be used, or ignores ``If-None-Match``: then two
                writers could replace each other's objects.
            ArtifactError: when ``store.json`` is damaged.
        """
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = Bucket(client, bucket, self.url)
        self._prefix = f"{prefix}/" if prefix else ""
        self._effects, self._part_bytes = effects, part_bytes
        try:
            effects.at("store.open", "before")
            self.store_id = self._open_store_file()
            effects.at("store.open", "after")
        except (Unusable, Forbidden) as error:
            raise InputError(f"The artifact store cannot be used: {error}") from None
        with suppress(ArtifactError):
            # Housekeeping: a key that may not list uploads still may write.
            self._bucket.abort_abandoned(f"{self._prefix}{OBJECTS}/", now() - _ABANDONED)

    @classmethod
    def open(cls, bucket: str, prefix: str, *, effects: Effects = NO_EFFECTS) -> S3Store:
        """Open a store with a client from the environment.

        Raises:
            InputError: when there is no bucket, no credential, or the bucket cannot be used.
        """
        if not bucket:
            raise InputError("The artifact store names no bucket: write s3://bucket/prefix.")
        config = Config(
            connect_timeout=10,
            read_timeout=60,
            retries={"mode": "standard", "total_max_attempts": 5},
        )
        try:
            client = boto3.session.Session().client("s3", config=config)
        except (BotoCoreError, ValueError) as error:
            raise InputError(f"The artifact store s3://{bucket} cannot be used: {error}") from None
        return cls(client, bucket, prefix, effects=effects)

    def put(self, data: bytes) -> str:
        """Store bytes; gives their sha256 in hex."""
        digest = hashlib.sha256(data).hexdigest()
        self._effects.at("store.put", "before")
        self._put_whole(digest, data)
        self._effects.at("store.put", "after")
        return digest

    def put_file(self, path: Path) -> str:
        """Store a file's bytes, streaming."""
        with path.open("rb") as source, self.writer() as writer:
            while chunk := source.read(CHUNK):
                writer.write(chunk)
        return writer.digest

    def writer(self) -> ArtifactWriter:
        """Store bytes as they come; they wait in a local temp file, since the end names them."""
        return _S3Writer(self)

    def get(self, digest: str) -> bytes:
        """The object's bytes, verified."""
        pieces: list[bytes] = []

        def start() -> Callable[[bytes], object]:
            pieces.clear()
            return pieces.append

        self._read(digest, start)
        return b"".join(pieces)

    @contextmanager
    def fetch(self, digest: str) -> Iterator[Path]:
        """A verified temp copy, removed at the end of the block."""
        with tempfile.NamedTemporaryFile(prefix="llm-batch-") as copy:

            def start() -> Callable[[bytes], object]:
                copy.seek(0)
                copy.truncate()
                return copy.write

            self._read(digest, start)
            copy.flush()
            yield Path(copy.name)

    def has(self, digest: str) -> bool:
        """Whether the object exists."""
        return self._bucket.size(self._key(digest)) is not None

    def digests(self) -> Iterator[str]:
        """The name of every object."""
        for key in self._bucket.keys(f"{self._prefix}{OBJECTS}/"):
            name = key.rsplit("/", 1)[-1]
            if is_digest(name):
                yield name

    def _put_stream(self, source: IO[bytes], digest: str, size: int) -> None:
        self._effects.at("store.put", "before")
        if size <= 2 * self._part_bytes:
            self._put_whole(digest, source.read())
        elif not self._settled(digest, size):
            self._put_parts(source, digest, size)
        self._effects.at("store.put", "after")

    def _put_whole(self, digest: str, data: bytes) -> None:
        if not self._bucket.create(self._key(digest), data) and not self._settled(
            digest, len(data)
        ):
            raise ArtifactError(f"{self.url} says that {digest} exists, and does not have it.")

    def _put_parts(self, source: IO[bytes], digest: str, size: int) -> None:
        key = self._key(digest)
        upload = self._bucket.start_parts(key)
        created = False
        try:
            parts: list[dict[str, Any]] = []
            while data := source.read(self._part_bytes):
                parts.append(self._bucket.put_part(key, upload, len(parts) + 1, data))
            created = self._bucket.finish_parts(key, upload, parts)
        finally:
            if not created:
                self._bucket.abort_parts(key, upload)
        if not self._settled(digest, size):
            raise ArtifactError(f"{self.url} took {digest} and does not have it.")

    def _settled(self, digest: str, size: int) -> bool:
        """Whether the object is there, with the right length.

        Raises:
            ArtifactError: with another length; objects are never replaced.
        """
        found = self._bucket.size(self._key(digest))
        if found is not None and found != size:
            raise ArtifactError(
                f"The object {digest} in {self.url} is damaged: {found} of {size} bytes.",
                remedy="Restore that one object from a backup of the store.",
            )
        return found is not None

    def _read(self, digest: str, start: Callable[[], Callable[[bytes], object]]) -> None:
        """Stream an object, again when the connection breaks, and check its digest."""
        failure: ArtifactError | None = None
        for _ in range(_READ_TRIES):
            write, hasher = start(), hashlib.sha256()
            body = self._bucket.open(self._key(digest))
            if body is None:
                raise absent(digest, self.url)
            try:
                with body:
                    while chunk := self._bucket.read(body, CHUNK):
                        hasher.update(chunk)
                        write(chunk)
            except Unusable as error:
                failure = error
                continue
            if hasher.hexdigest() == digest:
                return
            failure = damaged(digest, self.url, hasher.hexdigest())
        if failure is not None:
            raise failure

    def _open_store_file(self) -> str:
        key = f"{self._prefix}{STORE_FILE}"
        content = self._small(key)
        if content is None:
            self._bucket.create(key, new_store_file())
            content = self._small(key)
        if content is None:
            raise Unusable(f"{self.url} does not keep what it is given.")
        store_id = read_store_file(content, f"{self.url}/{STORE_FILE}")
        try:
            # The same bytes, so that a store that ignores the condition loses nothing by it.
            replaced = self._bucket.create(key, content)
        except Forbidden:
            # A reader's credential: who cannot write cannot replace anything either.
            return store_id
        if replaced:
            raise InputError(
                f"{self.url} ignores If-None-Match: two writers could replace each other's "
                "objects. Use a store with conditional writes."
            )
        return store_id

    def _small(self, key: str) -> bytes | None:
        body = self._bucket.open(key)
        if body is None:
            return None
        with body:
            return self._bucket.read(body)

    def _key(self, digest: str) -> str:
        return self._prefix + object_key(digest)


class _S3Writer(SpoolWriter):
    """A local temp file that is uploaded on a clean exit."""

    def __init__(self, store: S3Store) -> None:
        super().__init__(tempfile.TemporaryFile(prefix="llm-batch-"))  # noqa: SIM115 - closed by the base
        self._store = store

    def _commit(self, digest: str) -> None:
        self._file.seek(0)
        self._store._put_stream(self._file, digest, self._size)

    def _discard(self) -> None:
        """The temp file had no name: closing it removed it."""
