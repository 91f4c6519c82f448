from __future__ import annotations

import secrets
import traceback
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import unquote

import pytest

from llm_batch_assets.artifacts import open_store
from llm_batch_assets.download import download
from llm_batch_assets.errors import InputError, ProviderError, ResultsGone
from llm_batch_assets.providers.bedrock import job_name
from llm_batch_assets.providers.factory import open_provider
from llm_batch_assets.types import CreateRequest, ResultRef
from llm_batch_assets.wire.labels import client_token_fault, job_name_fault
from llm_batch_assets_tests.scripted_server import ScriptedServer

KEY = "a1" * 32
ARN = "arn:aws:bedrock:us-east-1:123456789012:model-invocation-job/abcdef123456"
ROLE = "arn:aws:iam::123456789012:role/BatchRole"
SECRET = "secret-0123456789"


def error(kind, message="no"):
    return {"message": message}, {"x-amzn-ErrorType": f"{kind}:http://internal/"}


def job(arn=ARN, status="InProgress", key=KEY, deployment="dep", **kw):
    return {
        "jobArn": arn,
        "jobName": job_name(deployment, key),
        "clientRequestToken": key,
        "modelId": "m",
        "roleArn": ROLE,
        "status": status,
        "submitTime": "2026-11-30T10:00:00Z",
        "inputDataConfig": {"s3InputDataConfig": {"s3Uri": "s3://bbb/p/in/x.jsonl"}},
        "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": "s3://bbb/p/out/k/"}},
        **kw,
    }


@pytest.fixture
def bucket(s3_server):
    name = f"bedrock-{secrets.token_hex(6)}"
    client = s3_server.client()
    client.create_bucket(Bucket=name)
    client.bucket = name
    return client


@contextmanager
def talking_to(handler, s3=None, bucket="bbb", **env):
    with ScriptedServer(handler) as server:
        env = {
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "LLM_BATCH_BEDROCK_ROLE_ARN": ROLE,
            "LLM_BATCH_BEDROCK_S3": f"s3://{bucket}/p",
            "AWS_ENDPOINT_URL_S3": server.url,
            **(s3.env if s3 else {}),
            "AWS_ENDPOINT_URL_BEDROCK": server.url,
            **env,
        }
        provider = open_provider("bedrock", env=env, deployment="dep")
        try:
            yield provider, server
        finally:
            provider.close()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "request"
    path.write_bytes(b'{"recordId":"\xe2\x80\xa8","modelInput":{}}\n' * 3)
    return path


def request_for(ref="s3://bbb/p/in/x.jsonl"):
    return CreateRequest(
        endpoint="Converse",
        model="anthropic.claude-haiku-4-5-20251001-v1:0",
        input_ref=ref,
        request_file_digest="0" * 64,
        records=3,
        deployment="dep",
        submission_key=KEY,
        job_key="sha256:" + "1" * 64,
        shard_key="d*/r1/a1/p00000",
    )


def test_upload_puts_exactly_the_stored_bytes(path, s3_server, bucket):
    with talking_to(lambda r, w: w.close(), s3_server, bucket.bucket) as (provider, _):
        uploaded = provider.upload(path, name=f"{KEY}.jsonl", timeout=10)
        assert uploaded.ref == f"s3://{bucket.bucket}/p/in/{KEY}.jsonl"
        assert uploaded.bytes == path.stat().st_size
        found = bucket.get_object(Bucket=bucket.bucket, Key=f"p/in/{KEY}.jsonl")["Body"].read()
        assert found == path.read_bytes()
        provider.delete_input(uploaded.ref)
        provider.delete_input(uploaded.ref)
    assert "Contents" not in bucket.list_objects_v2(Bucket=bucket.bucket)


def test_an_upload_with_a_wrong_credential_is_the_accounts_fault(path, s3_server, bucket):
    with (
        talking_to(
            lambda r, w: w.close(), s3_server, bucket.bucket, AWS_SECRET_ACCESS_KEY="wrong"
        ) as (provider, _),
        pytest.raises(ProviderError) as caught,
    ):
        provider.upload(path, name="x", timeout=10)
    assert (caught.value.fault, caught.value.effect) == ("account", "none")


def test_create_is_one_post_with_token_and_name(path):
    with talking_to(lambda r, w: w.reply(200, {"jobArn": ARN})) as (provider, server):
        view = provider.create(request_for(), path, timeout=5)
    assert (view.batch_id, view.status) == (ARN, "queued")
    assert (view.submission_key, view.deployment) == (KEY, "dep")
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/model-invocation-job")
    assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256")
    sent = request.json()
    tags = {tag["key"]: tag["value"] for tag in sent.pop("tags")}
    assert tags == {
        "deployment": "dep",
        "submission_key": KEY,
        "job_key": "sha256:" + "1" * 64,
        "shard": "d_/r1/a1/p00000",
    }
    assert sent == {
        "jobName": job_name("dep", KEY),
        "clientRequestToken": KEY,
        "roleArn": ROLE,
        "modelId": "anthropic.claude-haiku-4-5-20251001-v1:0",
        "modelInvocationType": "Converse",
        "inputDataConfig": {
            "s3InputDataConfig": {"s3Uri": "s3://bbb/p/in/x.jsonl", "s3InputFormat": "JSONL"}
        },
        "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": f"s3://bbb/p/out/{KEY}/"}},
        "timeoutDurationInHours": 24,
    }


@pytest.mark.parametrize("deployment", ["d", "x" * 500, "ü/*-", ""])
def test_names_and_tokens_are_what_bedrock_allows(deployment):
    assert job_name_fault(job_name(deployment, KEY)) is None
    assert client_token_fault(KEY) is None


@pytest.mark.parametrize(
    ("status", "kind", "fault"),
    [
        (429, "ThrottlingException", "refused_now"),
        (400, "ServiceQuotaExceededException", "refused_now"),
        (403, "AccessDeniedException", "account"),
        (403, "UnrecognizedClientException", "account"),
        (400, "ExpiredTokenException", "account"),
        (400, "ValidationException", "refused"),
        (404, "ResourceNotFoundException", "refused"),
    ],
)
def test_only_the_providers_own_refusal_of_a_create_is_certain(path, status, kind, fault):
    with (
        talking_to(lambda r, w: w.reply(status, *error(kind))) as (provider, server),
        pytest.raises(ProviderError) as caught,
    ):
        provider.create(request_for(), path, timeout=5)
    found = caught.value
    assert (found.effect, found.fault, found.code) == ("none", fault, kind)
    assert len(server.requests) == 1
    assert SECRET not in "".join(traceback.format_exception(found))


UNCERTAIN = {
    "conflict": lambda w: w.reply(400, *error("ConflictException")),
    "name in use": lambda w: w.reply(
        400, *error("ValidationException", "The job name is currently in use")
    ),
    "500": lambda w: w.reply(500, *error("InternalServerException")),
    "503": lambda w: w.reply(503, *error("ServiceUnavailableException")),
    "400 without a type": lambda w: w.reply(400, {"message": "no"}),
    "403 html": lambda w: w.reply(403, b"<html>", {"Content-Type": "text/html"}),
    "200 html": lambda w: w.reply(200, b"<html>", {"Content-Type": "text/html"}),
    "200 no arn": lambda w: w.reply(200, {}),
    "200 odd arn": lambda w: w.reply(200, {"jobArn": "arn:x"}),
    "200 cut": lambda w: w.reply(200, b'{"jobArn": "arn', length=400),
    "dropped": lambda w: w.close(),
    "hangs": lambda w: w.hang(),
}


@pytest.mark.parametrize("name", UNCERTAIN)
def test_anything_else_leaves_a_create_uncertain_after_one_post(path, name):
    with (
        talking_to(lambda r, w: UNCERTAIN[name](w)) as (provider, server),
        pytest.raises(ProviderError) as caught,
    ):
        provider.create(request_for(), path, timeout=1.0 if name == "hangs" else 20)
    assert caught.value.effect == "unknown"
    assert len(server.requests) == 1


def test_a_list_finds_our_jobs_by_token_and_name():
    other_key = "c3" * 32
    pages = {
        None: {
            "invocationJobSummaries": [
                job(ARN),
                job(ARN[:-1] + "1", key=other_key, deployment="elsewhere"),
            ],
            "nextToken": "t1",
        },
        "t1": {"invocationJobSummaries": [], "nextToken": "t2"},
        "t2": {
            "invocationJobSummaries": [
                {**job(ARN[:-1] + "2"), "jobName": "lba-somebody", "clientRequestToken": "x"},
                {**job(ARN[:-1] + "3"), "jobName": "lba-somebody"},
            ]
        },
    }

    def handler(request, wire):
        assert request.path == "/model-invocation-jobs"
        assert request.query["nameContains"] == "lba-"
        wire.reply(200, pages[request.query.get("nextToken")])

    with talking_to(handler) as (provider, _):
        views = list(provider.list_batches())
    assert [v.submission_key for v in views] == [KEY, other_key, None, None]
    assert views[0].deployment == "dep"
    assert views[1].deployment not in ("dep", None)


@pytest.mark.parametrize(
    "answer", [{}, {"invocationJobSummaries": [], "nextToken": "same"}, {"message": "no"}]
)
def test_a_list_that_does_not_prove_its_end_is_no_end(answer):
    with (
        talking_to(lambda r, w: w.reply(200, answer)) as (provider, _),
        pytest.raises(ProviderError),
    ):
        list(provider.list_batches())


def results_of(bucket, names, place="p/out/k/abcdef123456/"):
    for name, data in names.items():
        bucket.put_object(Bucket=bucket.bucket, Key=place + name, Body=data)


def looking_at(status, bucket):
    def handler(request, wire):
        assert unquote(request.target) == f"/model-invocation-job/{ARN}"
        assert "%3A" in request.target
        assert "%2F" in request.target
        place = {"s3OutputDataConfig": {"s3Uri": f"s3://{bucket.bucket}/p/out/k/"}}
        wire.reply(200, job(status=status, outputDataConfig=place))

    return handler


def test_the_end_names_the_objects_and_they_are_downloaded(s3_server, bucket, tmp_path):
    rows = b'{"recordId":"a"}\n' * 1000
    results_of(bucket, {"x.jsonl.out": rows, "manifest.json.out": b"{}", "x.tmp": b""})
    handler = looking_at("Completed", bucket)
    with talking_to(handler, s3_server, bucket.bucket) as (provider, _):
        view = provider.get(ARN)
        assert view.status == "done"
        assert view.results_ready
        assert {r.kind for r in view.results} == {"results", "bedrock_manifest"}
        store = open_store(str(tmp_path / "s"))
        (ref,) = [r for r in view.results if r.kind == "results"]
        receipt = download(provider, ref, store)
        assert store.get(receipt.digest) == rows
        assert receipt.announced_bytes == len(rows)
        with provider.open_result(ref, offset=100) as body:
            assert (body.status, body.offset) == (206, 100)
            assert b"".join(body.chunks) == rows[100:]
        with pytest.raises(ResultsGone):
            download(provider, ResultRef("results", ref.ref + "x"), store, sleep=lambda s: None)
        provider.delete_remote(ARN, tuple(r.ref for r in view.results))
    left = bucket.list_objects_v2(Bucket=bucket.bucket)["Contents"]
    assert [o["Key"].rsplit("/", 1)[1] for o in left] == ["x.tmp"]


@pytest.mark.parametrize(
    ("status", "ready"),
    [("Completed", False), ("PartiallyCompleted", False), ("Stopped", True), ("Expired", True)],
)
def test_results_that_are_not_there_yet_are_not_ready(s3_server, bucket, status, ready):
    handler = looking_at(status, bucket)
    with talking_to(handler, s3_server, bucket.bucket) as (provider, _):
        view = provider.get(ARN)
    assert (view.results, view.results_ready) == ((), ready)


def test_another_bucket_is_never_opened(s3_server, bucket):
    with talking_to(lambda r, w: w.close(), s3_server, bucket.bucket) as (provider, _):
        ref = ResultRef("results", "s3://somebody-elses/x")
        with pytest.raises(ProviderError), provider.open_result(ref):
            pass
        with pytest.raises(ProviderError):
            provider.delete_input("s3://somebody-elses/x")


@pytest.mark.parametrize("kind", ["ConflictException", "ValidationException"])
def test_stopping_what_is_over_looks_again(kind):
    def handler(request, wire):
        if request.method == "POST":
            assert unquote(request.target) == f"/model-invocation-job/{ARN}/stop"
            wire.reply(400, *error(kind))
        else:
            wire.reply(200, job(status="Failed", message="no"))

    with talking_to(handler) as (provider, _):
        assert provider.cancel(ARN) is None


@pytest.mark.parametrize(
    "env",
    [
        {"LLM_BATCH_BEDROCK_ROLE_ARN": ""},
        {"LLM_BATCH_BEDROCK_ROLE_ARN": "role"},
        {"LLM_BATCH_BEDROCK_S3": "/tmp"},
        {"LLM_BATCH_BEDROCK_TIMEOUT_HOURS": "12"},
        {"AWS_DEFAULT_REGION": ""},
        {"AWS_ENDPOINT_URL_BEDROCK": "nonsense"},
        {"AWS_PROFILE": "no-such-profile"},
    ],
)
def test_what_is_missing_is_wrong_use(env, monkeypatch, tmp_path):
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError), talking_to(lambda r, w: w.close(), **env):
        pass


def test_the_account_is_known_by_account_region_and_key():
    def account(**env):
        with talking_to(lambda r, w: w.close(), **env) as (provider, _):
            return provider.account()

    base = account()
    assert account(AWS_SECRET_ACCESS_KEY="rotated") == base
    temporary = account(AWS_ACCESS_KEY_ID="ASIA1")
    assert account(AWS_ACCESS_KEY_ID="ASIA2") == temporary
    others = [
        account(AWS_ACCESS_KEY_ID="other"),
        account(AWS_DEFAULT_REGION="eu-west-1"),
        account(LLM_BATCH_BEDROCK_ROLE_ARN=ROLE.replace("123456789012", "210987654321")),
    ]
    assert len({base, temporary, *others}) == 5
    assert len(base) == 32


def test_a_job_that_botocore_would_refuse_is_wrong_use(path):
    with talking_to(lambda r, w: w.close()) as (provider, server), pytest.raises(InputError):
        provider.create(replace(request_for(), model=""), path, timeout=5)
    assert server.requests == []


def test_signatures_hold_for_names_that_need_escaping(path, s3_server, bucket, tmp_path):
    place = f"s3://{bucket.bucket}/a b+c=ü/d"
    handler = looking_at("Completed", bucket)
    with talking_to(handler, s3_server, bucket.bucket, LLM_BATCH_BEDROCK_S3=place) as (provider, _):
        ref = provider.upload(path, name="e f#?.jsonl", timeout=10).ref
        receipt = download(provider, ResultRef("results", ref), open_store(str(tmp_path / "s")))
        assert receipt.received_bytes == path.stat().st_size
        provider.delete_input(ref)
    assert "Contents" not in bucket.list_objects_v2(Bucket=bucket.bucket)
