"""Reading a job's input from S3 and writing its output there, through boto3."""

from __future__ import annotations

import asyncio
from typing import Any

from llm_batch_assets.simulator.options import Options


class StorageError(Exception):
    """S3 did not give or take an object; the text says which and why."""


def split_uri(uri: str) -> tuple[str, str]:
    """(bucket, key or prefix) of an ``s3://`` address."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


class Storage:
    """Objects at the endpoint that the options name. Calls run in a thread: boto3 blocks."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._made: Any = None

    def _client(self) -> Any:
        if self._made is None:
            import boto3
            from botocore.config import Config

            if not self._options.s3_endpoint:
                raise StorageError("the simulator was started without an S3 endpoint")
            self._made = boto3.session.Session().client(
                "s3",
                endpoint_url=self._options.s3_endpoint,
                aws_access_key_id=self._options.s3_access_key,
                aws_secret_access_key=self._options.s3_secret_key,
                region_name="us-east-1",
                config=Config(s3={"addressing_style": "path"}),
            )
        return self._made

    async def read_input(self, uri: str) -> list[tuple[str, bytes]]:
        """(name relative to the prefix, bytes) of one object or of every ``.jsonl`` below it."""
        return await asyncio.to_thread(self._read_input, uri)

    def _read_input(self, uri: str) -> list[tuple[str, bytes]]:
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, key = split_uri(uri)
        client = self._client()
        try:
            if key and not key.endswith("/"):
                body = client.get_object(Bucket=bucket, Key=key)["Body"].read()
                return [(key.rsplit("/", 1)[-1], body)]
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
            keys = [one["Key"] for page in pages for one in page.get("Contents", [])]
            return [
                (one.removeprefix(key), client.get_object(Bucket=bucket, Key=one)["Body"].read())
                for one in sorted(keys)
                if one.endswith(".jsonl")
            ]
        except (BotoCoreError, ClientError) as error:
            raise StorageError(f"{uri}: {error}") from error

    async def write(self, prefix: str, objects: dict[str, bytes]) -> None:
        """Write objects below an ``s3://`` prefix."""
        await asyncio.to_thread(self._write, prefix, objects)

    def _write(self, prefix: str, objects: dict[str, bytes]) -> None:
        bucket, key = split_uri(prefix)
        base = key if not key or key.endswith("/") else f"{key}/"
        for name, data in objects.items():
            self._client().put_object(Bucket=bucket, Key=f"{base}{name}", Body=data)
