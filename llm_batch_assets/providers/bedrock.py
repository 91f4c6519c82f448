"""Amazon Bedrock batch inference through boto3: ``bedrock`` for the jobs, S3 for the files.

A job carries the submission key as its client token, which makes a repeated create harmless
[botocore], and the beginning of it in its name, by which the list can be filtered.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2

from llm_batch_assets.errors import InputError, ProviderError
from llm_batch_assets.providers.aws import AwsWire
from llm_batch_assets.providers.base import Body, Uploaded
from llm_batch_assets.providers.common import (
    CALL_SECONDS,
    Refusal,
    Reply,
    account_digest,
    required,
)
from llm_batch_assets.providers.content import body_of
from llm_batch_assets.providers.sdk import Page, SdkProvider
from llm_batch_assets.types import NO_EFFECTS, BatchView, CreateRequest, Effects, ResultRef
from llm_batch_assets.wire.bedrock.status import UNPROMISED, read_batch

_ROLE = re.compile(r"arn:[\w-]+:iam::(\d{12}):role/\S+")
_ARN = re.compile(r"arn:[\w-]+:bedrock:[\w-]*:\d*:model-invocation-job/[a-z0-9]{12}")
_KEY = re.compile(r"[0-9a-f]{64}")
_NOT_IN_TAGS = re.compile(r"[^\w .:/=+@-]")
_XML_CODE = re.compile(rb"<Code>([^<]{1,100})</Code>")
_XML_MESSAGE = re.compile(rb"<Message>([^<]{1,500})</Message>")
_NAME = "lba-"
_PAGE = 1000


class BedrockProvider(SdkProvider):
    """One AWS account in one region, as the environment names it."""

    name = "bedrock"
    has_upload = True
    settles_by_label = True
    label_proves = True
    account_codes = frozenset(
        {
            "accessdeniedexception",
            "accessdenied",
            "unrecognizedclientexception",
            "invalidsignatureexception",
            "signaturedoesnotmatch",
            "invalidaccesskeyid",
            "expiredtokenexception",
            "expiredtoken",
            "incompletesignatureexception",
        }
    )
    capacity_codes = frozenset({"servicequotaexceededexception", "throttlingexception"})
    request_id_header = "x-amzn-requestid"

    def __init__(
        self, *, env: Mapping[str, str], deployment: str, effects: Effects = NO_EFFECTS
    ) -> None:
        """Prepare clients; no service is asked.

        Args:
            env: the usual ``AWS_*`` variables, and ours: ``LLM_BATCH_BEDROCK_ROLE_ARN`` (the role
                that Bedrock takes to read and write the bucket), ``LLM_BATCH_BEDROCK_S3``
                (``s3://bucket/prefix`` for requests and results) and, optionally,
                ``LLM_BATCH_BEDROCK_TIMEOUT_HOURS`` (24 to 168, default 24).
            deployment: the ledger's name.
            effects: hook around every call.

        Raises:
            InputError: when something is missing or unreadable.
        """
        self._role = required(env, "LLM_BATCH_BEDROCK_ROLE_ARN")
        place = required(env, "LLM_BATCH_BEDROCK_S3")
        found = _ROLE.fullmatch(self._role)
        if found is None:
            raise InputError("LLM_BATCH_BEDROCK_ROLE_ARN is not the ARN of an IAM role.")
        self._aws_account = found[1]
        self._bucket, prefix = _s3(place)
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        hours = env.get("LLM_BATCH_BEDROCK_TIMEOUT_HOURS", "").strip() or "24"
        if not hours.isdigit() or not 24 <= int(hours) <= 168:
            raise InputError("LLM_BATCH_BEDROCK_TIMEOUT_HOURS is not 24 to 168.")
        self._hours = int(hours)
        super().__init__(deployment=deployment, effects=effects, secrets=())
        self._wire = AwsWire(env, self._deadline)
        self._secrets = (self._wire.secret,)
        self._jobs = self._wire.client("bedrock")
        self._s3 = self._wire.client("s3")

    def account(self) -> str:
        """A keyed digest of AWS account, region and access key.

        A temporary key (``ASIA…``) changes every hour and is left out.
        """
        key = "" if self._wire.key_id.startswith("ASIA") else self._wire.key_id
        return account_digest(self.name, self._aws_account, self._wire.region, key)

    def upload(self, path: Path, *, name: str, timeout: float) -> Uploaded:
        """Put a request file into the bucket; the server compares it with its sha256."""
        key = f"{self._prefix}in/{name}"
        with path.open("rb") as handle:
            digest = hashlib.file_digest(handle, "sha256").digest()
            handle.seek(0)
            self._call(
                "upload",
                timeout,
                lambda: self._s3.put_object(
                    Bucket=self._bucket,
                    Key=key,
                    Body=handle,
                    ChecksumSHA256=base64.b64encode(digest).decode(),
                ),
            )
        return Uploaded(ref=f"s3://{self._bucket}/{key}", bytes=path.stat().st_size)

    def create(self, request: CreateRequest, path: Path, *, timeout: float) -> BatchView:
        """Create one job with one POST. ``request.endpoint`` is the invocation type.

        Raises:
            ProviderError: with effect ``none`` only for the provider's own refusal; a conflict
                of names or tokens may be our own earlier job, so it is ``unknown``.
        """
        key = request.submission_key
        labels = {
            "deployment": request.deployment,
            "submission_key": key,
            "job_key": request.job_key,
            "shard": request.shard_key,
        }
        try:
            reply = self._call(
                "create",
                timeout,
                lambda: self._jobs.create_model_invocation_job(
                    jobName=job_name(request.deployment, key),
                    clientRequestToken=key,
                    roleArn=self._role,
                    modelId=request.model,
                    modelInvocationType=request.endpoint,
                    inputDataConfig={
                        "s3InputDataConfig": {
                            "s3Uri": request.input_ref or "",
                            "s3InputFormat": "JSONL",
                        }
                    },
                    outputDataConfig={
                        "s3OutputDataConfig": {
                            "s3Uri": f"s3://{self._bucket}/{self._prefix}out/{key}/"
                        }
                    },
                    timeoutDurationInHours=self._hours,
                    tags=[
                        {"key": name, "value": _NOT_IN_TAGS.sub("_", value)[:256]}
                        for name, value in labels.items()
                    ],
                ),
            )
        except ProviderError as error:
            if error.code == "ConflictException" or "currently in use" in str(error):
                error.effect, error.fault = "unknown", "unknown"
            raise
        arn = (reply.json_object() or {}).get("jobArn")
        if not isinstance(arn, str) or not _ARN.fullmatch(arn):
            raise self._error("create", reply, detail="the reply names no job")
        return BatchView(
            batch_id=arn,
            raw_status="Submitted",
            status="queued",
            input_ref=request.input_ref,
            submission_key=key,
            deployment=request.deployment,
            raw=reply.content,
        )

    def list_batches(self) -> Iterator[BatchView]:
        """Every job of the account and region whose name is one of ours, to the end.

        Raises:
            ProviderError: also when pages go on without bringing anything.
        """
        return self._walk(self._page)

    def get(self, batch_id: str) -> BatchView:
        """One look at one job and, at its end, at what lies under its output prefix."""
        reply = self._call(
            "get",
            CALL_SECONDS,
            lambda: self._jobs.get_model_invocation_job(jobIdentifier=batch_id),
        )
        view = self._view_of("get", reply, batch_id)
        if not view.results:
            return view
        found = tuple(ref for place in view.results for ref in self._objects(place.ref))
        answered = any(ref.kind == "results" for ref in found)
        return replace(
            view,
            results=found,
            results_ready=view.results_ready and (answered or view.status in UNPROMISED),
        )

    @contextmanager
    def open_result(
        self, ref: ResultRef, *, offset: int = 0, etag: str | None = None
    ) -> Iterator[Body]:
        """Open an object of the output prefix."""
        bucket, key = self._own(ref.ref)
        given = {"Bucket": bucket, "Key": key}
        if offset:
            given["Range"] = f"bytes={offset}-"
            if etag:
                given["IfMatch"] = etag

        def opened() -> httpx2.Response:
            return self._wire.open(lambda: self._s3.get_object(**given))

        with self._opened(opened) as http:
            yield body_of(http, None, offset, self._broken)

    def cancel(self, batch_id: str) -> BatchView | None:
        """Ask to stop; None when the job was already over. The reply is empty [botocore]."""
        return self._cancel(
            batch_id, lambda: self._jobs.stop_model_invocation_job(jobIdentifier=batch_id)
        )

    def delete_input(self, ref: str) -> None:
        """Delete an uploaded request file; absent is fine."""
        bucket, key = self._own(ref)
        self._delete(lambda: self._s3.delete_object(Bucket=bucket, Key=key))

    def delete_remote(self, batch_id: str, refs: tuple[str, ...]) -> None:
        """Delete result objects. A job itself cannot be deleted [botocore]."""
        for ref in refs:
            self.delete_input(ref)

    def close(self) -> None:
        """Close sockets."""
        self._wire.close()

    def _own(self, address: str) -> tuple[str, str]:
        """Bucket and key of an address in our own bucket; another is never opened."""
        bucket, key = _s3(address)
        if bucket != self._bucket:
            raise self._error("download", None, detail=f"{address[:200]} is not our bucket")
        return bucket, key

    def _objects(self, place: str) -> list[ResultRef]:
        bucket, prefix = self._own(place)
        refs: list[ResultRef] = []
        token: dict[str, str] = {}
        while True:
            page: dict[str, Any] = {}

            def call(given: dict[str, str] = token, into: dict[str, Any] = page) -> None:
                into.update(self._s3.list_objects_v2(Bucket=bucket, Prefix=prefix, **given))

            self._call("get", CALL_SECONDS, call)
            for item in page.get("Contents", ()):
                address = f"s3://{bucket}/{item['Key']}"
                if address.endswith("/manifest.json.out"):
                    refs.append(ResultRef("bedrock_manifest", address))
                elif address.endswith(".out"):
                    refs.append(ResultRef("results", address))
            if not page.get("IsTruncated"):
                return refs
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _page(self, token: str | None) -> Page:
        more = {"nextToken": token} if token else {}
        reply = self._call(
            "list",
            CALL_SECONDS,
            lambda: self._jobs.list_model_invocation_jobs(
                maxResults=_PAGE,
                nameContains=_NAME,
                sortBy="CreationTime",
                sortOrder="Descending",
                **more,
            ),
        )
        page = reply.json_object() or {}
        items, following = page.get("invocationJobSummaries"), page.get("nextToken") or None
        if not isinstance(items, list) or not isinstance(following, str | None):
            raise self._error("list", reply, detail="the page is no list")
        return Page(items, following, reply, by_token=True)

    def _send(self, call: Callable[[], Any]) -> Reply:
        return self._wire.send(call)

    def _refusal(self, reply: Reply) -> Refusal | None:
        """The error type travels in a header or ``__type``, S3's in XML [botocore]."""
        body = reply.json_object()
        kind = reply.headers.get("x-amzn-errortype") or (body or {}).get("__type")
        if body is not None and isinstance(kind, str) and kind:
            said = body.get("message") or body.get("Message") or kind
            return Refusal(str(said), kind.split(":")[0].rsplit("#", 1)[-1])
        code = _XML_CODE.search(reply.content) if b"<Error>" in reply.content[:500] else None
        if code is None:
            return None
        message = _XML_MESSAGE.search(reply.content)
        text = (message[1] if message else code[1]).decode("utf-8", "replace")
        return Refusal(text, code[1].decode("utf-8", "replace"))

    def _is_batch(self, raw: Mapping[str, Any]) -> bool:
        arn, status = raw.get("jobArn"), raw.get("status")
        return isinstance(arn, str) and bool(_ARN.fullmatch(arn)) and isinstance(status, str)

    def _read(self, raw: Mapping[str, Any]) -> BatchView:
        view = read_batch(raw)
        key, name = view.submission_key or "", raw.get("jobName")
        if not _KEY.fullmatch(key) or not isinstance(name, str):
            return replace(view, submission_key=None, deployment=None)
        if name == job_name(self._deployment, key):
            return replace(view, deployment=self._deployment)
        head = f"{_NAME}{key[:20]}-"
        if name.startswith(head):
            # Ours under another deployment, of which the name has only the digest.
            return replace(view, deployment=f"#{name.removeprefix(head)}")
        return replace(view, submission_key=None, deployment=None)


def job_name(deployment: str, submission_key: str) -> str:
    """A job's name: at most 63 characters of what Bedrock allows, whatever the deployment is."""
    digest = hashlib.sha256(deployment.encode()).hexdigest()
    return f"{_NAME}{submission_key[:20]}-{digest[:12]}"


def _s3(address: str) -> tuple[str, str]:
    """Bucket and key; a key may hold what a URL's path may not, so that it is only cut."""
    scheme, _, rest = address.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise InputError(f"{address[:200]!r} is not an S3 address: write s3://bucket/prefix.")
    return bucket, key
