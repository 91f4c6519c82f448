"""Error bodies of the OpenAI API."""

from __future__ import annotations

from typing import Any


class BodyError(Exception):
    """The body is one that the endpoint refuses with a 400."""

    def __init__(self, message: str, param: str | None, code: str | None = None) -> None:
        super().__init__(message)
        self.payload = error_payload(message, "invalid_request_error", param, code)


def error_payload(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    """The error body of any non-2xx."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
