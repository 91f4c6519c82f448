"""The Bedrock part: through boto3 and a real S3 server, and by raw HTTP where boto3 hides it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import boto3
import httpx2
import jsonschema_rs
import pytest
from anthropic.types import Message
from botocore.config import Config
from botocore.exceptions import ClientError, ParamValidationError
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from llm_batch_assets.simulator import Simulator
from llm_batch_assets.simulator.faults import RECORD_KINDS
from llm_batch_assets_tests.s3_server import S3Server
from llm_batch_assets_tests.simulator.raw import SCHEMA, read_rows

MODEL = "us.anthropic.claude-haiku-4-5-20251001-v1:0"
ROLE = "arn:aws:iam::123456789012:role/Batch"
SIGNED = {
    "authorization": "AWS4-HMAC-SHA256 Credential=AKTEST/20261130/us-east-1/bedrock/aws4_request"
}
_roots = itertools.count()


def claude(text: str, **more: Any) -> dict[str, Any]:
    return {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 300,
        "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        **more,
    }


def converse(text: str, **more: Any) -> dict[str, Any]:
    schema = {"jsonSchema": {"schema": json.dumps(SCHEMA), "name": "answer"}}
    return {
        "messages": [{"role": "user", "content": [{"text": text}]}],
        "inferenceConfig": {"maxTokens": 300},
        "outputConfig": {"textFormat": {"type": "json_schema", "structure": schema}},
        **more,
    }


def lines(count: int, prefix: str = "r", body: Callable[..., Any] = claude) -> bytes:
    made = [
        {"recordId": f"{prefix}-{n}", "modelInput": body(f"Thing number {n}")} for n in range(count)
    ]
    return ("\n".join(map(json.dumps, made)) + "\n").encode()


class Raw:
    """A prefix of its own and both clients."""

    def __init__(self, sim: Simulator, server: S3Server) -> None:
        self.sim = sim
        keys = {"aws_access_key_id": server.access_key, "aws_secret_access_key": server.secret_key,
                "region_name": "us-east-1"}  # fmt: skip
        once = Config(retries={"total_max_attempts": 1})
        self.s3 = boto3.client("s3", endpoint_url=server.endpoint, config=once, **keys)
        self.bedrock = boto3.client("bedrock", endpoint_url=sim.bedrock_url, config=once, **keys)
        self.bucket = "simulator"
        with suppress(self.s3.exceptions.BucketAlreadyOwnedByYou):
            self.s3.create_bucket(Bucket=self.bucket)
        self.root = f"t{next(_roots)}"
        self.serial = itertools.count()

    def args(self, data: bytes | None = None, **more: Any) -> dict[str, Any]:
        number = next(self.serial)
        key = f"{self.root}/in/{number}/input.jsonl"
        if data is not None:
            self.s3.put_object(Bucket=self.bucket, Key=key, Body=data)
        return {
            "jobName": f"job-{number}",
            "roleArn": ROLE,
            "modelId": MODEL,
            "clientRequestToken": f"token{number}",
            "inputDataConfig": {"s3InputDataConfig": {"s3Uri": f"s3://{self.bucket}/{key}",
                                                      "s3InputFormat": "JSONL"}},
            "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": f"s3://{self.bucket}/{self.root}/out/"}},
            "timeoutDurationInHours": 24,
            **more,
        }  # fmt: skip

    def submit(self, data: bytes, **more: Any) -> str:
        return str(self.bedrock.create_model_invocation_job(**self.args(data, **more))["jobArn"])

    def get(self, arn: str) -> dict[str, Any]:
        found: dict[str, Any] = self.bedrock.get_model_invocation_job(jobIdentifier=arn)
        return found

    def finish(self, data: bytes, **more: Any) -> dict[str, Any]:
        arn = self.submit(data, **more)
        self.sim.advance(90_000)
        return self.get(arn)

    def objects(self, job: dict[str, Any]) -> dict[str, bytes]:
        prefix = f"{self.root}/out/{job['jobArn'].rsplit('/', 1)[1]}/"
        listed = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=prefix).get("Contents", [])
        return {
            one["Key"].removeprefix(prefix): self.s3.get_object(Bucket=self.bucket, Key=one["Key"])[
                "Body"
            ].read()
            for one in listed
        }

    def rows(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        return read_rows(self.objects(job)["input.jsonl.out"])


@pytest.fixture
def begin(s3_server: S3Server) -> Iterator[Callable[..., Raw]]:
    with ExitStack() as stack:

        def make(*faults: dict[str, Any], **options: Any) -> Raw:
            sim = stack.enter_context(
                Simulator(
                    **{
                        "seed": 7,
                        "scale": 0,
                        "bedrock_minimum": 1,
                        "s3_endpoint": s3_server.endpoint,
                        "s3_access_key": s3_server.access_key,
                        "s3_secret_key": s3_server.secret_key,
                        **options,
                    }
                )
            )
            if faults:
                sim.faults(*faults)
            raw = Raw(sim, s3_server)
            stack.callback(raw.bedrock.close)
            stack.callback(raw.s3.close)
            return raw

        yield make


def code_of(caught: pytest.ExceptionInfo[ClientError]) -> str:
    return str(caught.value.response["Error"]["Code"])


def text_of(row: dict[str, Any]) -> str:
    output = row["modelOutput"]
    if "output" in output:
        return str(output["output"]["message"]["content"][0]["text"])
    return str(output["content"][0]["text"])


@pytest.mark.parametrize("kind", ["InvokeModel", "Converse"])
def test_a_job_from_start_to_end(begin: Callable[..., Raw], kind: str) -> None:
    raw = begin(batch_seconds=1000)
    body = claude if kind == "InvokeModel" else converse
    arn = raw.submit(lines(20, body=body), modelInvocationType=kind)
    seen = []
    for _ in range(5):
        job = raw.get(arn)
        seen.append((job["status"], job["totalRecordCount"], job["processedRecordCount"]))
        raw.sim.advance(50 if len(seen) < 4 else 450)
    assert seen == [
        ("Submitted", 0, 0), ("Validating", 0, 0), ("Validating", 0, 0), ("InProgress", 20, 0),
        ("InProgress", 20, 11),
    ]  # fmt: skip
    job = raw.get(arn)
    assert (job["status"], job["successRecordCount"], job["errorRecordCount"]) == (
        "Completed", 20, 0)  # fmt: skip
    assert job["clientRequestToken"] == "token0"
    assert job["jobExpirationTime"] - job["submitTime"] == timedelta(hours=24)
    objects = raw.objects(job)
    assert set(objects) == {"input.jsonl.out", "manifest.json.out"}
    manifest = json.loads(objects["manifest.json.out"])
    assert (manifest["totalRecordCount"], manifest["successRecordCount"]) == (20, 20)
    rows = raw.rows(job)
    order = [row["recordId"] for row in rows]
    assert sorted(order) == sorted(f"r-{n}" for n in range(20))
    assert order != [f"r-{n}" for n in range(20)]
    given = {json.loads(one)["recordId"]: json.loads(one)["modelInput"]
             for one in lines(20, body=body).split(b"\n") if one}  # fmt: skip
    service = ServiceModel(Loader().load_service_model("bedrock-runtime", "service-2"))
    shape = service.operation_model("Converse").output_shape
    for row in rows:
        assert row["modelInput"] == given[row["recordId"]]
        jsonschema_rs.validate(SCHEMA, json.loads(text_of(row)))
        if kind == "Converse":
            assert not ParamValidator().validate(row["modelOutput"], shape).has_errors()
        else:
            assert Message.model_validate(row["modelOutput"]).model == "claude-haiku-4-5-20251001"


def test_responses_fit_botocores_own_shapes(begin: Callable[..., Raw]) -> None:
    raw = begin()
    job = raw.finish(lines(2), tags=[{"key": "job_key", "value": "v"}])
    page = raw.bedrock.list_model_invocation_jobs(nameContains="job-")
    service = ServiceModel(Loader().load_service_model("bedrock", "service-2"))
    for operation, reply in (("GetModelInvocationJob", job), ("ListModelInvocationJobs", page)):
        shape = service.operation_model(operation).output_shape
        plain = {name: value for name, value in reply.items() if name != "ResponseMetadata"}
        report = ParamValidator().validate(plain, shape)
        assert not report.has_errors(), report.generate_report()
    (status,) = [service.shape_for("ModelInvocationJobStatus").enum]
    assert job["status"] in status
    assert raw.bedrock.list_tags_for_resource(resourceARN=job["jobArn"])["tags"] == [
        {"key": "job_key", "value": "v"}]  # fmt: skip
    raw.bedrock.tag_resource(resourceARN=job["jobArn"], tags=[{"key": "b", "value": "w"}])
    raw.bedrock.untag_resource(resourceARN=job["jobArn"], tagKeys=["job_key"])
    assert raw.bedrock.list_tags_for_resource(resourceARN=job["jobArn"])["tags"] == [
        {"key": "b", "value": "w"}]  # fmt: skip


def test_a_token_replays_its_first_answer(begin: Callable[..., Raw]) -> None:
    raw = begin()
    args = raw.args(lines(2))
    first = raw.bedrock.create_model_invocation_job(**args)["jobArn"]
    assert raw.bedrock.create_model_invocation_job(**args)["jobArn"] == first
    changed = {**args, "jobName": "other"}
    assert raw.bedrock.create_model_invocation_job(**changed)["jobArn"] == first
    assert raw.sim.meter()["provider_batches"] == 1
    other = {**args, "clientRequestToken": "another"}
    assert raw.bedrock.create_model_invocation_job(**other)["jobArn"] != first
    raw = begin(bedrock_token_mismatch_conflict=True)
    args = raw.args(lines(2))
    raw.bedrock.create_model_invocation_job(**args)
    with pytest.raises(ClientError) as caught:
        raw.bedrock.create_model_invocation_job(**{**args, "jobName": "other"})
    assert code_of(caught) == "ConflictException"


@pytest.mark.parametrize(
    "change",
    [
        {"jobName": "has space"},
        {"jobName": "j" * 64},
        {"clientRequestToken": "sha256:abc"},
        {"roleArn": "role"},
        {"modelId": "llama-7b"},
        {"timeoutDurationInHours": 169},
        {"modelInvocationType": "Other"},
        {"inputDataConfig": {"s3InputDataConfig": {"s3Uri": "http://x/y"}}},
        {"inputDataConfig": {"s3InputDataConfig": {"s3Uri": "s3://no-such-bucket-here/y.jsonl"}}},
        {"tags": [{"key": "k" * 129, "value": "v"}]},
    ],
)
def test_refused_creates(begin: Callable[..., Raw], change: dict[str, Any]) -> None:
    raw = begin()
    body = {**raw.args(lines(2)), **change}
    reply = httpx2.post(f"{raw.sim.bedrock_url}/model-invocation-job", json=body, headers=SIGNED)
    assert reply.status_code == 400
    assert reply.headers["x-amzn-errortype"] == "ValidationException"
    assert set(reply.json()) == {"message"}
    assert raw.sim.meter()["provider_batches"] == 0
    with pytest.raises((ClientError, ParamValidationError)):
        raw.bedrock.create_model_invocation_job(**body)


def test_signatures_and_accounts(begin: Callable[..., Raw]) -> None:
    raw = begin()
    arn = raw.submit(lines(1))
    url = f"{raw.sim.bedrock_url}/model-invocation-job"
    short = arn.rsplit("/", 1)[1]
    assert httpx2.get(f"{url}/{short}").status_code == 403
    other = httpx2.get(f"{url}/{quote(arn, safe='')}", headers=SIGNED)
    assert (other.status_code, other.headers["x-amzn-errortype"]) == (
        404, "ResourceNotFoundException")  # fmt: skip
    bad = {"authorization": SIGNED["authorization"].replace("AKTEST", "invalid")}
    reply = httpx2.get(f"{url}/{short}", headers=bad)
    assert reply.headers["x-amzn-errortype"] == "UnrecognizedClientException"
    assert raw.get(short)["jobArn"] == arn
    raw.get(arn)
    assert raw.sim.log()[-1]["path"].endswith(quote(arn, safe=""))
    plain = httpx2.get(f"{url}/{arn}", headers=SIGNED)
    assert plain.status_code == 404, "an unencoded ARN reaches the same route"
    assert "message" in plain.json()


def test_too_few_records(begin: Callable[..., Raw]) -> None:
    raw = begin(bedrock_minimum=100)
    job = raw.finish(lines(99))
    assert (job["status"], "less records (99)" in job["message"]) == ("Failed", True)
    assert raw.objects(job) == {}
    assert raw.finish(lines(100))["status"] == "Completed"
    raw = begin(bedrock_minimum=100, bedrock_minimum_at_create=True)
    with pytest.raises(ClientError, match="less records"):
        raw.submit(lines(99))


@pytest.mark.parametrize(
    "data", [lines(1) + b"{oops\n", b'{"recordId":"a"}\n', lines(1) * 2, b"\n"]
)
def test_a_bad_file_fails_the_job(begin: Callable[..., Raw], data: bytes) -> None:
    raw = begin()
    job = raw.finish(data)
    assert job["status"] == "Failed"
    assert job["message"]
    assert raw.sim.meter()["total_executions"] == 0


def test_a_prefix_with_several_files_and_ids_filled_in(begin: Callable[..., Raw]) -> None:
    raw = begin()
    bare = json.dumps({"modelInput": claude("no id")}).encode()
    for name, data in (("a.jsonl", lines(3, "a")), ("sub/b.jsonl", bare), ("c.txt", b"no")):
        raw.s3.put_object(Bucket=raw.bucket, Key=f"{raw.root}/many/{name}", Body=data)
    source = {"s3InputDataConfig": {"s3Uri": f"s3://{raw.bucket}/{raw.root}/many/"}}
    job = raw.finish(b"", inputDataConfig=source)
    objects = raw.objects(job)
    assert set(objects) == {"a.jsonl.out", "sub/b.jsonl.out", "manifest.json.out"}
    assert {row["recordId"] for row in read_rows(objects["a.jsonl.out"])} == {"a-0", "a-1", "a-2"}
    (row,) = read_rows(objects["sub/b.jsonl.out"])
    assert row["recordId"] == "RECORD0000003"


def test_out_of_time_and_stopped(begin: Callable[..., Raw]) -> None:
    raw = begin({"kind": "expire", "fraction": 0.5}, {"kind": "expire", "nth": 2, "fraction": 0})
    job = raw.finish(lines(10))
    assert (job["status"], job["processedRecordCount"]) == ("PartiallyCompleted", 5)
    assert len(raw.rows(job)) == 5
    job = raw.finish(lines(10, "x"))
    assert (job["status"], raw.objects(job)) == ("Expired", {})

    raw = begin({"kind": "expire", "fraction": 0.5}, bedrock_expired_rows=True)
    rows = raw.rows(raw.finish(lines(10)))
    assert sum(1 for row in rows if row.get("error", {}).get("expired")) == 5

    raw = begin(batch_seconds=1000)
    arn = raw.submit(lines(10))
    raw.sim.advance(550)
    raw.bedrock.stop_model_invocation_job(jobIdentifier=arn)
    assert raw.get(arn)["status"] == "Stopping"
    raw.sim.advance(600)
    job = raw.get(arn)
    assert (job["status"], len(raw.rows(job))) == ("Stopped", 5)
    with pytest.raises(ClientError) as caught:
        raw.bedrock.stop_model_invocation_job(jobIdentifier=arn)
    assert code_of(caught) == "ConflictException"


def test_list_filters_and_pages(begin: Callable[..., Raw]) -> None:
    raw = begin()
    made = []
    for n in range(5):
        made.append(
            raw.submit(lines(1, f"b{n}"), jobName=f"job-{'even' if n % 2 == 0 else 'odd'}{n}")
        )
        raw.sim.advance(100)
    first = raw.get(made[0])["submitTime"]

    def found(**query: Any) -> list[str]:
        pages = raw.bedrock.get_paginator("list_model_invocation_jobs").paginate(
            PaginationConfig={"PageSize": 2}, **query
        )
        return [one["jobArn"] for page in pages for one in page["invocationJobSummaries"]]

    assert found() == made[::-1]
    assert found(sortBy="CreationTime", sortOrder="Ascending") == made
    assert found(nameContains="even") == made[::-2]
    assert found(submitTimeAfter=first + timedelta(seconds=150)) == made[:1:-1]
    assert found(submitTimeBefore=first + timedelta(seconds=150)) == made[1::-1]
    assert found(statusEquals="Completed") == []
    raw.sim.advance(90_000)
    assert found(statusEquals="Completed") == made[::-1]
    listed = raw.bedrock.list_model_invocation_jobs(maxResults=1)
    assert listed["invocationJobSummaries"][0]["clientRequestToken"] == "token4"
    url = f"{raw.sim.bedrock_url}/model-invocation-jobs"
    for query in ("maxResults=0", "maxResults=1001", "nextToken=x", "submitTimeAfter=x"):
        assert httpx2.get(f"{url}?{query}", headers=SIGNED).status_code == 400


@pytest.mark.parametrize("kind", RECORD_KINDS)
def test_every_record_fault(begin: Callable[..., Raw], kind: str) -> None:
    raw = begin({"kind": kind})
    job = raw.finish(lines(8, body=converse), modelInvocationType="Converse")
    (hit,) = [one for one in raw.sim.executions() if one["fault"]]
    rows = []
    for line in raw.objects(job)["input.jsonl.out"].split(b"\n")[:-1]:
        try:
            rows.append(json.loads(line))
        except ValueError:
            assert kind == "unreadable"
    assert all(("modelOutput" in row) != ("error" in row) for row in rows)
    mine = [row for row in rows if row["recordId"] == hit["custom_id"]]
    gone = ("missing", "mangled_id", "unreadable")
    assert len(mine) == (0 if kind in gone else 2 if kind.startswith("duplicate") else 1)
    codes = {"error_429": 429, "error_500": 500, "error_400": 400, "error_quota": 403,
             "response_failed": 503}  # fmt: skip
    if kind in codes:
        assert mine[0]["error"]["errorCode"] == codes[kind]
        assert job["errorRecordCount"] == 1
    reasons = {"refusal": "content_filtered", "cut": "max_tokens"}
    if kind in reasons:
        assert mine[0]["modelOutput"]["stopReason"] == reasons[kind]
    assert raw.sim.meter()["paid_twice"] == 0
    data = lines(8, body=converse).split(b"\n")
    wanted = [one for one in data if f'"{hit["custom_id"]}"'.encode() in one]
    raw.finish(wanted[0], modelInvocationType="Converse")
    assert raw.sim.meter()["paid_twice"] == (1 if hit["label"] == "good" else 0)


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("Converse", converse("x", modelId=MODEL), "Extra inputs"),
        ("Converse", converse("x", toolConfig={"tools": []}), "toolConfig"),
        ("Converse", converse("x", system=[{"cachePoint": {"type": "default"}}]), "cachePoint"),
        ("Converse", {}, "messages"),
        ("InvokeModel", claude("x", anthropic_version=None), "anthropic_version"),
        ("InvokeModel", claude("x", model="claude"), "Extra inputs"),
        ("InvokeModel", claude("x", max_tokens=None), "max_tokens"),
    ],
)
def test_a_job_completes_though_its_records_are_refused(
    begin: Callable[..., Raw], kind: str, body: dict[str, Any], words: str
) -> None:
    raw = begin()
    data = json.dumps({"recordId": "a", "modelInput": body}).encode()
    job = raw.finish(data, modelInvocationType=kind)
    assert (job["status"], job["errorRecordCount"]) == ("Completed", 1)
    (row,) = raw.rows(job)
    assert row["error"]["errorCode"] == 400
    assert words in row["error"]["errorMessage"]


def test_embeddings_and_nulls(begin: Callable[..., Raw]) -> None:
    raw = begin(bedrock_nulls=True)
    titan = {"inputText": "some text", "dimensions": 256}
    cohere = {"texts": ["a", "b"], "input_type": "search_document"}
    for model, body in (
        ("amazon.titan-embed-text-v2:0", titan),
        ("cohere.embed-english-v3", cohere),
    ):
        data = json.dumps({"recordId": "a", "modelInput": body}).encode()
        (row,) = raw.rows(raw.finish(data, modelId=model))
        output = row["modelOutput"]
        assert len(output.get("embedding") or output["embeddings"]) in (256, 2)
    data = lines(1, body=converse)
    (row,) = raw.rows(
        raw.finish(data, modelInvocationType="Converse", modelId="amazon.nova-lite-v1:0")
    )
    assert row["modelOutput"]["output"]["message"]["content"][0]["toolUse"] is None


def test_faults_of_jobs_and_calls(begin: Callable[..., Raw]) -> None:
    raw = begin(
        {"kind": "late_files", "nth": 1, "looks": 1},
        {"kind": "lost_result", "nth": 2},
        {"kind": "fail", "nth": 3},
        {"kind": "unknown_status", "nth": 4, "looks": 1},
        {"kind": "unknown_row", "nth": 4},
        {"kind": "bom", "nth": 4},
    )
    job = raw.finish(lines(2, "a"))
    assert (job["status"], raw.objects(job)) == ("Completed", {})
    raw.get(job["jobArn"])
    assert len(raw.rows(job)) == 2
    assert raw.objects(raw.finish(lines(2, "b"))) == {}
    assert raw.finish(lines(2, "c"))["status"] == "Failed"
    job = raw.finish(lines(2, "d"))
    assert job["status"] == "Reticulating"
    data = raw.objects(raw.get(job["jobArn"]))["input.jsonl.out"]
    assert data.startswith(b"\xef\xbb\xbf")
    assert len(data.split(b"\n")) == 4
    raw.sim.faults(
        {"route": "create", "fault": "drop_after"},
        {"route": "create", "nth": 2, "fault": "status_before"},
        {"route": "list", "fault": "empty_page"},
    )
    args = raw.args(lines(2, "e"))
    with pytest.raises(Exception, match="Connection"):
        raw.bedrock.create_model_invocation_job(**args)
    with pytest.raises(ClientError) as caught:
        raw.bedrock.create_model_invocation_job(**args)
    assert code_of(caught) == "ThrottlingException"
    raw.bedrock.create_model_invocation_job(**args)
    assert raw.sim.meter()["provider_batches"] == 5
    page = raw.bedrock.list_model_invocation_jobs()
    assert (page["invocationJobSummaries"], page["nextToken"]) == ([], "page-0")


def test_a_look_alike_and_a_clone(begin: Callable[..., Raw]) -> None:
    raw = begin()
    arn = raw.submit(lines(4))
    raw.sim.clone_batch(arn, foreign=True, metadata="job-0-foreign")
    raw.sim.advance(90_000)
    page = raw.bedrock.list_model_invocation_jobs(nameContains="job-0")
    first, second = page["invocationJobSummaries"]
    assert first["clientRequestToken"] != second["clientRequestToken"]
    assert first["totalRecordCount"] == second["totalRecordCount"] == 4
    assert raw.sim.meter()["paid_twice"] == 0
    raw.sim.clone_batch(arn)
    raw.sim.advance(90_000)
    assert raw.sim.meter()["paid_twice"] == 4


def test_without_an_s3_endpoint_create_says_so() -> None:
    with Simulator(scale=0) as sim:
        body = {
            "jobName": "j", "roleArn": ROLE, "modelId": MODEL,
            "inputDataConfig": {"s3InputDataConfig": {"s3Uri": "s3://bucket/in.jsonl"}},
            "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": "s3://bucket/out/"}},
        }  # fmt: skip
        reply = httpx2.post(f"{sim.bedrock_url}/model-invocation-job", json=body, headers=SIGNED)
        assert (reply.status_code, "S3 endpoint" in reply.json()["message"]) == (400, True)


def test_a_stop_reason_nobody_has_heard_of(begin: Callable[..., Raw]) -> None:
    raw = begin({"kind": "unknown_type"})
    rows = raw.rows(raw.finish(lines(3)))
    reasons = sorted(row["modelOutput"]["stop_reason"] for row in rows)
    assert reasons == ["end_turn", "end_turn", "reticulated"]
