"""Errors in every place where a row may carry one."""

from __future__ import annotations

from typing import Any

import pytest

from llm_batch_assets_tests.wire import rowmaker as make


def test_low_credit_is_the_accounts_fault() -> None:
    for text in (
        "Your credit balance is too low to access the Anthropic API.",
        "You have reached your specified API usage limits.",
    ):
        row = make.only("anthropic", make.anthropic_error("a", "invalid_request_error", text))
        assert (row["cls"], row["hold"], row["charged"]) == ("retryable", "billing", False)
    other = make.anthropic_error("a", "invalid_request_error", "max_tokens: must be at most 8192")
    assert make.only("anthropic", other)["cls"] == "permanent_failure"


def test_a_disabled_organization_is_the_accounts_fault() -> None:
    text = "This organization has been disabled."
    row = make.only("anthropic", make.anthropic_error("a", "invalid_request_error", text))
    assert (row["cls"], row["hold"], row["charged"]) == ("retryable", "account", False)


@pytest.mark.parametrize(
    ("code", "kind", "cls"),
    [
        (400, "BadRequestError", "permanent_failure"),
        (500, "InternalServerError", "retryable"),
        (None, None, "retryable"),
    ],
)
def test_vllms_flat_error_under_http_200_is_an_error(code: Any, kind: Any, cls: str) -> None:
    body = {"object": "error", "message": "m", "type": kind, "code": code}
    row = make.only("openai", make.openai("a", body))
    assert (row["cls"], row["unqualified"]) == (cls, False)


@pytest.mark.parametrize(
    ("code", "cls", "hold"),
    [
        ("insufficient_quota", "retryable", "billing"),
        ("content_filter", "permanent_failure", None),
        ("batch_expired", "expired", None),
        ("other", "retryable", None),
    ],
)
@pytest.mark.parametrize("body", [None, {}, {"error": {"code": None, "type": "server_error"}}])
def test_an_error_beside_the_response_decides_too(
    body: Any, code: str, cls: str, hold: str | None
) -> None:
    row = make.only("openai", make.openai("a", body, 500, {"code": code}))
    assert (row["cls"], row["hold"]) == (cls, hold)


def test_vllm_writes_errors_beside_a_null_body() -> None:
    """Field report B88."""
    error = {"object": "error", "message": "m", "type": "BadRequestError", "code": 400}
    response = {"status_code": 400, "request_id": "r", "body": None}
    both = {"id": "v", "custom_id": "a", "response": response, "error": error}
    row = make.only("openai", make.line(both))
    assert (row["cls"], row["error_type"], row["error_code"]) == (
        "permanent_failure",
        "BadRequestError",
        "400",
    )
    alone = {"id": "v", "custom_id": "a", "response": None, "error": error}
    assert make.only("openai", make.line(alone))["cls"] == "permanent_failure"


@pytest.mark.parametrize(
    ("code", "status", "cls", "hold"),
    [
        ("BATCH_EXPIRED", None, "expired", None),
        ("Batch_Canceled", None, "cancelled", None),
        ("Insufficient_Quota", 429, "retryable", "billing"),
        ("quotaExceeded", 400, "retryable", "account"),
        ("Server_Error", None, "retryable", None),
        ("url_mismatch", None, "permanent_failure", None),
        ("invalid_brand_new", None, "permanent_failure", None),
        ("invalid_brand_new", 500, "retryable", None),
        ("brand_new", None, "retryable", None),
    ],
)
def test_openai_codes_in_another_case_and_unlisted_ones(
    code: str, status: int | None, cls: str, hold: str | None
) -> None:
    error = {"code": code, "message": "m"}
    beside = make.line({"custom_id": "a", "response": None, "error": error})
    row = make.only("openai", make.openai("a", {"error": error}, status) if status else beside)
    assert (row["cls"], row["hold"]) == (cls, hold)
