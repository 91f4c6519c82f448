"""boto3 over our own transport: one attempt, a hard limit, and the reply as it came.

botocore signs a request and asks ``before-send`` handlers first; one that answers replaces its own
HTTP stack, whose timeouts are per read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import boto3
import httpx2
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from llm_batch_assets.errors import InputError
from llm_batch_assets.providers.common import READ_SECONDS, Reply
from llm_batch_assets.providers.sdk import reply_of
from llm_batch_assets.providers.transport import BoundTransport, Deadline, origin

_BLOCK = 1 << 18


class AwsWire:
    """Clients of one session whose requests go through ``BoundTransport``."""

    def __init__(self, env: Mapping[str, str], deadline: Deadline) -> None:
        """Find credentials; nothing is sent to a service.

        Raises:
            InputError: when there is no credential or region.
        """
        self._env, self._deadline = env, deadline
        self._local = threading.local()
        self._lock = threading.Lock()
        self._http: dict[tuple[str, str, int], httpx2.Client] = {}
        self.region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or ""
        try:
            self._session = boto3.session.Session(
                aws_access_key_id=env.get("AWS_ACCESS_KEY_ID") or None,
                aws_secret_access_key=env.get("AWS_SECRET_ACCESS_KEY") or None,
                aws_session_token=env.get("AWS_SESSION_TOKEN") or None,
                region_name=self.region or None,
                profile_name=env.get("AWS_PROFILE") or None,
            )
            credentials = self._session.get_credentials()
        except (BotoCoreError, ValueError) as error:
            raise InputError(f"AWS cannot be used: {error}.") from None
        self.region = self.region or self._session.region_name or ""
        if credentials is None or not self.region:
            raise InputError(
                "AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY (or a profile or role) and "
                "AWS_DEFAULT_REGION are needed for bedrock."
            )
        self.key_id: str = credentials.access_key
        self.secret: str = credentials.secret_key

    def client(self, service: str) -> Any:
        """A boto3 client that sends through us.

        Raises:
            InputError: when its endpoint is no address.
        """
        variable = f"AWS_ENDPOINT_URL_{service.upper()}"
        endpoint = self._env.get(variable) or self._env.get("AWS_ENDPOINT_URL") or None
        if endpoint is not None:
            origin(endpoint)
        config = Config(
            retries={"total_max_attempts": 1},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            made = self._session.client(service, endpoint_url=endpoint, config=config)
        except (BotoCoreError, ValueError) as error:
            raise InputError(f"AWS cannot be used: {error}.") from None
        made.meta.events.register("before-send", self._transmit)
        return made

    def send(self, call: Callable[[], Any]) -> Reply:
        """Run a boto3 call that answers at once; gives the reply from the wire, whatever it says.

        Raises:
            httpx2.HTTPError: when no whole reply came back.
        """
        self._local.kept, self._local.stream = None, False
        problem = self._run(call)
        kept: Reply | None = self._local.kept
        if kept is None:
            raise httpx2.TransportError(f"{type(problem).__name__}: {problem}")
        return kept

    def open(self, call: Callable[[], Any]) -> httpx2.Response:
        """Run a boto3 call whose body is to be streamed; gives the open reply.

        Raises:
            httpx2.HTTPError: when no reply came back.
        """
        self._local.kept, self._local.stream = None, True
        problem = self._run(call)
        kept: httpx2.Response | None = self._local.kept
        if kept is None:
            raise httpx2.TransportError(f"{type(problem).__name__}: {problem}")
        return kept

    def close(self) -> None:
        """Close sockets."""
        for client in self._http.values():
            client.close()

    def _run(self, call: Callable[[], Any]) -> Exception | None:
        try:
            call()
        except httpx2.HTTPError:
            raise
        except ParamValidationError as error:
            # botocore's own check, before anything is sent.
            raise InputError(
                f"AWS would refuse this call: {' '.join(str(error).split())}"
            ) from None
        except (ClientError, BotoCoreError, ValueError, KeyError, TypeError) as error:
            # The kept reply says it all; without one, botocore did not send anything.
            return error
        return None

    def _transmit(self, request: Any, **_: Any) -> AWSResponse:
        headers = [(name, _text(value)) for name, value in request.headers.items()]
        # The server's consent is awaited by nobody here, and the header is not signed.
        headers = [(name, value) for name, value in headers if name.lower() != "expect"]
        if not any(name.lower() == "accept-encoding" for name, _value in headers):
            headers.append(("Accept-Encoding", "identity"))
        sent = httpx2.Request(
            request.method, request.url, headers=headers, content=_content(request.body)
        )
        sent.extensions["timeout"] = httpx2.Timeout(READ_SECONDS).as_dict()
        stream = bool(self._local.stream)
        response = self._client_of(request.url).send(sent, stream=stream)
        if stream and response.status_code < 300:
            self._local.kept = response
            body = b""
        else:
            body = response.read()
            self._local.kept = response if stream else reply_of(response)
        return AWSResponse(request.url, response.status_code, response.headers, _Read(body))

    def _client_of(self, url: str) -> httpx2.Client:
        where = origin(url)
        with self._lock:
            if where not in self._http:
                self._http[where] = httpx2.Client(
                    transport=BoundTransport(url, self._env, self._deadline),
                    follow_redirects=False,
                    timeout=READ_SECONDS,
                )
            return self._http[where]


class _Read:
    """A body that was read already, as botocore wants to read it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self._body

    def read(self, *_: Any, **__: Any) -> bytes:
        body, self._body = self._body, b""
        return body


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _content(body: Any) -> bytes | Iterator[bytes] | None:
    if body is None or isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytearray):
        return bytes(body)
    return iter(lambda: body.read(_BLOCK), b"")
