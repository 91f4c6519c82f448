from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import boto3
import pytest
from botocore.config import Config

from llm_batch_assets.artifacts import open_store
from llm_batch_assets.artifacts.s3 import S3Store
from llm_batch_assets.errors import ArtifactError, InputError
from llm_batch_assets_tests.scripted_server import ScriptedServer

PART = 5 << 20  # the smallest part that S3 allows


@pytest.fixture
def env(s3_server, monkeypatch):
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in s3_server.env.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def client(env):
    return boto3.client("s3")


@pytest.fixture
def bucket(client):
    name = f"bucket-{secrets.token_hex(6)}"
    client.create_bucket(Bucket=name)
    return name


def keys(client, bucket):
    return [o["Key"] for o in client.list_objects_v2(Bucket=bucket).get("Contents", [])]


def test_put_and_get_round_trip_under_the_layout_of_the_contract(client, bucket):
    store = open_store(f"s3://{bucket}/a #?ü/b/")
    digest = store.put(b"hello")
    assert digest == hashlib.sha256(b"hello").hexdigest()
    assert keys(client, bucket) == [
        f"a #?ü/b/objects/{digest[:2]}/{digest}",
        "a #?ü/b/store.json",
    ]
    assert store.get(digest) == b"hello"
    with store.fetch(digest) as path:
        assert path.read_bytes() == b"hello"
    assert not path.exists()
    assert store.has(digest)
    assert not store.has("0" * 64)
    assert list(store.digests()) == [digest]
    assert store.url == f"s3://{bucket}/a #?ü/b"


def test_the_store_id_is_made_once_per_prefix(bucket):
    first = open_store(f"s3://{bucket}")
    assert open_store(f"s3://{bucket}/").store_id == first.store_id
    assert open_store(f"s3://{bucket}/other").store_id != first.store_id


def test_many_processes_agree_on_one_store_id(bucket):
    code = (
        "import sys; from llm_batch_assets.artifacts import open_store; "
        "print(open_store(sys.argv[1]).store_id)"
    )
    command = [sys.executable, "-c", code, f"s3://{bucket}/race"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert len({p.communicate(timeout=60)[0] for p in running}) == 1
    assert all(p.returncode == 0 for p in running)


def test_a_second_put_writes_nothing(client, bucket):
    store = open_store(f"s3://{bucket}")
    digest = store.put(b"x" * 1000)
    key = f"objects/{digest[:2]}/{digest}"
    before = client.head_object(Bucket=bucket, Key=key)["LastModified"]
    assert store.put(b"x" * 1000) == digest
    assert client.head_object(Bucket=bucket, Key=key)["LastModified"] == before


def test_other_bytes_under_a_name_are_refused(client, bucket):
    store = open_store(f"s3://{bucket}")
    digest = store.put(b"hello")
    key = f"objects/{digest[:2]}/{digest}"
    client.put_object(Bucket=bucket, Key=key, Body=b"hullo")
    with pytest.raises(ArtifactError, match="damaged"):
        store.get(digest)
    with pytest.raises(ArtifactError, match="damaged"), store.fetch(digest):
        pass
    client.put_object(Bucket=bucket, Key=key, Body=b"hell")
    with pytest.raises(ArtifactError, match="damaged"):
        store.put(b"hello")
    assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == b"hell"


def test_an_absent_object_is_an_error(bucket):
    store = open_store(f"s3://{bucket}")
    with pytest.raises(ArtifactError, match="not in"):
        store.get("0" * 64)
    with pytest.raises(ArtifactError, match="not in"), store.fetch("0" * 64):
        pass


def test_a_large_object_goes_in_parts_and_comes_back(client, bucket, tmp_path):
    source = tmp_path / "big"
    source.write_bytes(os.urandom(3 * PART + 17))
    store = S3Store(client, bucket, "p", part_bytes=PART)
    digest = store.put_file(source)
    etag = client.head_object(Bucket=bucket, Key=f"p/objects/{digest[:2]}/{digest}")["ETag"]
    assert etag.strip('"').endswith("-4"), "four parts"
    with store.fetch(digest) as path:
        assert path.read_bytes() == source.read_bytes()
    assert store.put_file(source) == digest
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)


def test_a_multipart_upload_that_loses_the_race_replaces_nothing(client, bucket, monkeypatch):
    store = S3Store(client, bucket, part_bytes=PART)
    data = os.urandom(2 * PART + 1)
    digest = hashlib.sha256(data).hexdigest()
    key = f"objects/{digest[:2]}/{digest}"
    real = client.upload_part

    def upload_part(**kw):
        if kw["PartNumber"] == 3:  # another writer is done while we are at our last part
            client.put_object(Bucket=bucket, Key=key, Body=data)
        return real(**kw)

    monkeypatch.setattr(client, "upload_part", upload_part)
    with store.writer() as writer:
        writer.write(data)
    assert writer.digest == digest
    etag = client.head_object(Bucket=bucket, Key=key)["ETag"]
    assert "-" not in etag, "the first one stays"
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)
    assert store.get(digest) == data


def test_an_upload_that_breaks_leaves_no_parts_behind(client, bucket, monkeypatch):
    store = S3Store(client, bucket, part_bytes=PART)
    real = client.upload_part

    def upload_part(**kw):
        if kw["PartNumber"] == 2:
            raise KeyboardInterrupt
        return real(**kw)

    monkeypatch.setattr(client, "upload_part", upload_part)
    with pytest.raises(KeyboardInterrupt), store.writer() as writer:
        writer.write(b"x" * (3 * PART))
    assert list(store.digests()) == []
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)


def test_abandoned_uploads_are_given_up_a_day_later_and_not_before(client, bucket):
    S3Store(client, bucket)
    key = "objects/00/" + "0" * 64
    client.create_multipart_upload(Bucket=bucket, Key=key)
    client.create_multipart_upload(Bucket=bucket, Key="somebody/elses")
    at = client.list_multipart_uploads(Bucket=bucket)["Uploads"][0]["Initiated"]
    S3Store(client, bucket, now=lambda: at + timedelta(hours=23, minutes=59))
    assert len(client.list_multipart_uploads(Bucket=bucket)["Uploads"]) == 2
    S3Store(client, bucket, now=lambda: at.astimezone(UTC) + timedelta(hours=24, minutes=1))
    left = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [u["Key"] for u in left] == ["somebody/elses"]


def test_a_block_that_raises_stores_nothing(bucket):
    store = open_store(f"s3://{bucket}")
    with pytest.raises(RuntimeError), store.writer() as writer:
        writer.write(b"never")
        raise RuntimeError
    assert list(store.digests()) == []
    with store.writer() as writer:
        writer.write(b"ab")
        writer.reset()
        writer.write(b"c")
    assert store.get(writer.digest) == b"c"


def test_effects_surround_each_durable_write(client, bucket):
    seen = []

    class Record:
        def at(self, name, when):
            count = sum("objects/" in key for key in keys(client, bucket))
            seen.append((name, when, count))

    store = S3Store(client, bucket, effects=Record())
    store.put(b"a")
    with store.writer() as writer:
        writer.write(b"b")
    assert seen == [
        ("store.open", "before", 0),
        ("store.open", "after", 0),
        ("store.put", "before", 0),
        ("store.put", "after", 1),
        ("store.put", "before", 1),
        ("store.put", "after", 2),
    ]


def test_many_objects_are_all_listed(client, bucket, monkeypatch):
    store = S3Store(client, bucket)
    put = {store.put(str(n).encode()) for n in range(7)}
    real = client.list_objects_v2
    monkeypatch.setattr(client, "list_objects_v2", lambda **kw: real(MaxKeys=3, **kw))
    assert set(store.digests()) == put


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bucket": "no-such-bucket"}, "NoSuchBucket"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "credential"),
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}, "127.0.0.1:9"),
        ({"AWS_ENDPOINT_URL_S3": "nonsense"}, "nonsense"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_sentence(bucket, monkeypatch, change, words, tmp_path):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    change = dict(change)
    name = change.pop("bucket", bucket)
    for key, value in change.items():
        if value is None:
            monkeypatch.delenv(key)
        else:
            monkeypatch.setenv(key, value)
    with pytest.raises(InputError) as caught:
        open_store(f"s3://{name}/x")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "wrong" not in str(caught.value)


def test_a_url_without_a_bucket_is_wrong_use():
    with pytest.raises(InputError, match="bucket"):
        open_store("s3://")


def _plain_s3(objects, *, conditional):
    """The least of S3: objects by path, with or without ``If-None-Match``."""

    def handler(request, wire):
        path = request.path
        if request.method == "PUT":
            if conditional and path in objects:
                wire.reply(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            else:
                objects[path] = request.body
                wire.reply(200, b"", {"ETag": '"x"'})
        elif path in objects:
            wire.reply(200, objects[path], {"ETag": '"x"'})
        else:
            wire.reply(404, b"<Error><Code>NoSuchKey</Code></Error>")

    return handler


def _client_of(url):
    return boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id="a",
        aws_secret_access_key="b",
        region_name="us-east-1",
        config=Config(
            retries={"total_max_attempts": 1},
            request_checksum_calculation="when_required",
            s3={"addressing_style": "path", "payload_signing_enabled": True},
        ),
    )


def test_a_store_that_ignores_the_condition_is_refused_and_keeps_its_store_id():
    objects = {"/bbb/store.json": json.dumps({"store_id": "first"}).encode()}
    with (
        ScriptedServer(_plain_s3(objects, conditional=False)) as server,
        pytest.raises(InputError, match="If-None-Match"),
    ):
        S3Store(_client_of(server.url), "bbb")
    assert json.loads(objects["/bbb/store.json"])["store_id"] == "first"


def test_a_race_for_one_key_is_asked_again():
    objects: dict[str, bytes] = {}
    plain = _plain_s3(objects, conditional=True)
    raced: list[bool] = []

    def handler(request, wire):
        if request.method == "PUT" and not raced:
            raced.append(True)
            body = b"<Error><Code>ConditionalRequestConflict</Code></Error>"
            wire.reply(409, body)
        else:
            plain(request, wire)

    with ScriptedServer(handler) as server:
        assert S3Store(_client_of(server.url), "bbb").store_id
    assert raced


def test_the_server_is_told_the_digest_of_what_it_gets():
    objects: dict[str, bytes] = {}
    with ScriptedServer(_plain_s3(objects, conditional=True)) as server:
        digest = S3Store(_client_of(server.url), "bbb").put(b"hello")
        put = next(r for r in server.requests if digest in r.path and r.method == "PUT")
    told = base64.b64decode(put.headers["x-amz-checksum-sha256"])
    assert told.hex() == digest


def test_a_read_that_breaks_off_is_read_again():
    data = os.urandom(3000)
    digest = hashlib.sha256(data).hexdigest()
    objects = {
        "/bbb/store.json": b'{"store_id": "s"}',
        f"/bbb/objects/{digest[:2]}/{digest}": data,
    }
    plain = _plain_s3(objects, conditional=True)
    cut: list[bool] = []

    def handler(request, wire):
        if request.method == "GET" and "/objects/" in request.path and len(cut) < 2:
            cut.append(True)
            wire.reply(200, data[:100], {"ETag": '"x"'}, length=len(data))
        else:
            plain(request, wire)

    with ScriptedServer(handler) as server:
        store = S3Store(_client_of(server.url), "bbb", now=lambda: datetime.now(UTC))
        assert store.get(digest) == data
    assert len(cut) == 2
