"""Whether the address that the environment names answers at all, before anything is written."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from llm_batch_assets.cli.meter import BASE_URL
from llm_batch_assets.errors import InputError
from llm_batch_assets.settings import is_loopback

_SECONDS = 10.0
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def check_reachable(provider: str, env: Mapping[str, str]) -> None:
    """Open and close one connection to a given address; no request is made.

    Without an address of our own there is no typing error to find, and behind a proxy only the
    proxy knows what it reaches: then nothing is tried.

    Raises:
        InputError: nobody listens there, or the name does not resolve.
    """
    name = BASE_URL[provider]
    parts = urlsplit(env.get(name) or "")
    if not parts.hostname or parts.scheme not in {"http", "https"}:
        return
    proxied = any(env.get(word) or env.get(word.upper()) for word in _PROXIES)
    if proxied and not is_loopback(env[name]):
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=_SECONDS).close()
    except OSError as error:
        raise InputError(
            f"{name} cannot be reached: {parts.hostname}:{port} says {error.strerror or error}."
        ) from None
