"""One S3 bucket in our words: conditional writes, and boto3's errors as ours."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from llm_batch_assets.errors import ArtifactError

_RACE_TRIES = 5
_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
_EXISTS = frozenset({"412", "PreconditionFailed"})
_RACED = frozenset({"409", "ConditionalRequestConflict"})
_FORBIDDEN = frozenset({"403", "AccessDenied"})


class Forbidden(ArtifactError):
    """The credential may not do this."""


class Unusable(ArtifactError):
    """The store answered with an error, or not at all."""


class Bucket:
    """A boto3 client bound to one bucket. Keys are whole keys."""

    def __init__(self, client: Any, name: str, url: str) -> None:
        """``url`` is how messages name the place."""
        self._client, self._name, self.url = client, name, url

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that is not there; False when it is, made by whoever.

        The server compares the bytes with their sha256.
        """
        return self._conditional(
            self._client.put_object, Key=key, Body=data, ChecksumSHA256=checksum(data)
        )

    def size(self, key: str) -> int | None:
        """An object's length in bytes; None when it is absent."""
        head = self._present(self._client.head_object, Key=key)
        return None if head is None else int(head["ContentLength"])

    def open(self, key: str) -> Any | None:
        """An object's streaming body; None when it is absent."""
        reply = self._present(self._client.get_object, Key=key)
        return None if reply is None else reply["Body"]

    def read(self, body: Any, size: int | None = None) -> bytes:
        """The next bytes of an open body; all of them without a size."""
        try:
            return bytes(body.read(size))
        except (BotoCoreError, OSError) as error:
            raise self._unusable("read", error) from error

    def keys(self, prefix: str) -> Iterator[str]:
        """Every key below a prefix."""
        for page in self._pages(
            self._client.list_objects_v2, Prefix=prefix, next=("ContinuationToken",)
        ):
            yield from (item["Key"] for item in page.get("Contents", ()))

    def start_parts(self, key: str) -> str:
        """Begin a multipart upload; gives its id."""
        reply = self._call(
            self._client.create_multipart_upload, Key=key, ChecksumAlgorithm="SHA256"
        )
        return str(reply["UploadId"])

    def put_part(self, key: str, upload: str, number: int, data: bytes) -> dict[str, Any]:
        """Send one part, 1-based; gives what ``finish_parts`` wants to hear of it."""
        check = checksum(data)
        reply = self._call(
            self._client.upload_part,
            Key=key,
            UploadId=upload,
            PartNumber=number,
            Body=data,
            ChecksumSHA256=check,
        )
        return {"PartNumber": number, "ETag": reply["ETag"], "ChecksumSHA256": check}

    def finish_parts(self, key: str, upload: str, parts: list[dict[str, Any]]) -> bool:
        """Make the object of its parts; False when it is there already."""
        return self._conditional(
            self._client.complete_multipart_upload,
            Key=key,
            UploadId=upload,
            MultipartUpload={"Parts": parts},
        )

    def abort_parts(self, key: str, upload: str) -> None:
        """Give up a multipart upload; one that is gone is fine."""
        with suppress(ArtifactError):
            self._call(self._client.abort_multipart_upload, Key=key, UploadId=upload)

    def abort_abandoned(self, prefix: str, before: datetime) -> None:
        """Give up the multipart uploads below a prefix that began before an instant."""
        for page in self._pages(
            self._client.list_multipart_uploads,
            Prefix=prefix,
            next=("KeyMarker", "UploadIdMarker"),
        ):
            for upload in page.get("Uploads", ()):
                if upload["Initiated"] < before:
                    self.abort_parts(upload["Key"], upload["UploadId"])

    def _pages(
        self, method: Callable[..., Any], *, next: tuple[str, ...], **given: Any
    ) -> Iterator[Any]:
        while True:
            page = self._call(method, **given)
            yield page
            if not page.get("IsTruncated"):
                return
            given |= {name: page[f"Next{name}"] for name in next}

    def _conditional(self, method: Callable[..., Any], **given: Any) -> bool:
        for _ in range(_RACE_TRIES):
            try:
                self._call(method, IfNoneMatch="*", **given)
            except Unusable as error:
                code = _code(error.__cause__)
                if code in _EXISTS:
                    return False
                if code in _RACED:
                    # Another conditional write of the key is under way: ask again.
                    continue
                raise
            return True
        raise Unusable(f"{self.url} finds no end to a race for one key.")

    def _present(self, method: Callable[..., Any], **given: Any) -> Any | None:
        try:
            return self._call(method, **given)
        except Unusable as error:
            if _code(error.__cause__) in _MISSING:
                return None
            raise

    def _call(self, method: Callable[..., Any], **given: Any) -> Any:
        try:
            return method(Bucket=self._name, **given)
        except ClientError as error:
            code = _code(error)
            said = str(error.response.get("Error", {}).get("Message") or "")[:200]
            kind = Forbidden if code in _FORBIDDEN else Unusable
            raise kind(f"{self.url} refused {method.__name__}: {code} {said}".rstrip()) from error
        except NoCredentialsError as error:
            raise Unusable(
                f"There is no credential for {self.url}.",
                remedy="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile or role.",
            ) from error
        except (BotoCoreError, OSError) as error:
            raise self._unusable(method.__name__, error) from error

    def _unusable(self, doing: str, error: Exception) -> Unusable:
        return Unusable(f"{self.url} did not {doing}: {type(error).__name__} {error}"[:400])


def checksum(data: bytes) -> str:
    """A sha256 as S3 wants it: base64."""
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def _code(error: BaseException | None) -> str:
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))
