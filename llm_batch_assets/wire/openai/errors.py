"""OpenAI's errors: what their codes and types make of a record, wherever they stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llm_batch_assets.wire.classes import (
    HELD,
    PERMANENT,
    TRANSIENT,
    UNKNOWN_ERROR,
    Rule,
    http_rule,
    status_of,
    table,
)
from llm_batch_assets.wire.strict import map_of

CODES = table(
    "openai.code",
    (
        # Never executed: the error file's own codes (response is null).
        ("batch_expired", "expired", "batch_expired"),
        ("batch_cancelled", "cancelled", "batch_cancelled"),
        ("batch_canceled", "cancelled", "batch_cancelled"),
        ("request_timeout", TRANSIENT, "timeout"),
        # The account, whatever the status: 429 insufficient_quota is no rate limit (B98).
        ("insufficient_quota", HELD, "billing"),
        ("billing_hard_limit_reached", HELD, "billing"),
        ("billing_limit_user_error", HELD, "billing"),
        ("billing_not_active", HELD, "billing"),
        ("quota_exceeded", HELD, "billing"),
        # Azure's quota of files (B28): nothing is wrong with the request.
        ("quotaExceeded", HELD, "account"),
        ("invalid_api_key", HELD, "account"),
        ("account_deactivated", HELD, "account"),
        ("permission_denied", HELD, "account"),
        ("insufficient_permissions", HELD, "account"),
        ("invalid_organization", HELD, "account"),
        ("unsupported_country_region_territory", HELD, "account"),
        # Policy, whatever the status (B91).
        ("content_filter", PERMANENT, "content_filter"),
        ("content_policy_violation", PERMANENT, "content_filter"),
        ("ResponsibleAIPolicyViolation", PERMANENT, "content_filter"),
        ("moderation_blocked", PERMANENT, "content_filter"),
        ("cyber_policy_violation", PERMANENT, "content_filter"),
    ),
)
"""Codes that decide before the status does."""

KINDS = table(
    "openai.type",
    (
        ("server_error", TRANSIENT, "server_error"),
        ("internal_error", TRANSIENT, "server_error"),
        ("internal_server_error", TRANSIENT, "server_error"),
        ("InternalServerError", TRANSIENT, "server_error"),
        ("api_error", TRANSIENT, "server_error"),
        ("rate_limit_exceeded", TRANSIENT, "rate_limit"),
        ("rate_limit_error", TRANSIENT, "rate_limit"),
        ("tokens", TRANSIENT, "rate_limit"),
        ("requests", TRANSIENT, "rate_limit"),
        ("timeout", TRANSIENT, "timeout"),
        ("overloaded", TRANSIENT, "overloaded"),
        ("overloaded_error", TRANSIENT, "overloaded"),
        ("service_unavailable", TRANSIENT, "unavailable"),
        ("engine_overloaded", TRANSIENT, "overloaded"),
        ("conflict", TRANSIENT, "conflict"),
        ("vector_store_timeout", TRANSIENT, "timeout"),
        ("authentication_error", HELD, "account"),
        ("permission_error", HELD, "account"),
        ("billing_error", HELD, "billing"),
        ("invalid_request", PERMANENT, "invalid_request"),
        ("invalid_request_error", PERMANENT, "invalid_request"),
        ("BadRequestError", PERMANENT, "invalid_request"),
        ("invalid_prompt", PERMANENT, "invalid_request"),
        ("invalid_value", PERMANENT, "invalid_request"),
        ("invalid_type", PERMANENT, "invalid_request"),
        ("invalid_image", PERMANENT, "invalid_request"),
        ("invalid_image_format", PERMANENT, "invalid_request"),
        ("invalid_base64_image", PERMANENT, "invalid_request"),
        ("invalid_image_url", PERMANENT, "invalid_request"),
        ("image_too_large", PERMANENT, "invalid_request"),
        ("image_too_small", PERMANENT, "invalid_request"),
        ("image_parse_error", PERMANENT, "invalid_request"),
        ("image_content_policy_violation", PERMANENT, "content_filter"),
        ("invalid_image_mode", PERMANENT, "invalid_request"),
        ("image_file_too_large", PERMANENT, "invalid_request"),
        ("unsupported_image_media_type", PERMANENT, "invalid_request"),
        ("empty_image_file", PERMANENT, "invalid_request"),
        ("failed_to_download_image", PERMANENT, "invalid_request"),
        ("image_file_not_found", PERMANENT, "invalid_request"),
        ("duplicate_custom_id", PERMANENT, "invalid_request"),
        ("url_mismatch", PERMANENT, "invalid_request"),
        ("model_mismatch", PERMANENT, "invalid_request"),
        ("mismatched_model", PERMANENT, "invalid_request"),
        ("unsupported_parameter", PERMANENT, "invalid_request"),
        ("unsupported_value", PERMANENT, "invalid_request"),
        ("missing_required_parameter", PERMANENT, "invalid_request"),
        ("string_above_max_length", PERMANENT, "request_too_large"),
        ("context_length_exceeded", PERMANENT, "request_too_large"),
        ("request_too_large", PERMANENT, "request_too_large"),
        ("model_not_found", PERMANENT, "not_found"),
        ("not_found", PERMANENT, "not_found"),
        ("not_found_error", PERMANENT, "not_found"),
        ("NotFoundError", PERMANENT, "not_found"),
    ),
)
"""Codes and types that decide where no HTTP status does (response null, 200 with an error)."""


INVALID = Rule("openai.type.invalid", "permanent_failure", "invalid_request")
"""Any other ``invalid_…``: a fault of the line's fields [1.6]."""


def _known(rules: Mapping[str | int, Rule], *names: Any) -> Rule | None:
    """The rule of the first name that a table has, also in another case."""
    for name in names:
        if isinstance(name, str):
            rule = rules.get(name) or rules.get(name.lower())
            if rule is not None:
                return rule
    return None


def error_rule(code: Any, kind: Any, status: int | None) -> Rule:
    """The rule for an error: decisive codes, then the status, then code and type by name."""
    decisive = _known(CODES, code, kind)
    if decisive is not None:
        return decisive
    # vLLM writes the HTTP status as the code.
    number = status if status is not None and not 200 <= status < 300 else status_of(code)
    if number is not None and not 200 <= number < 300:
        return http_rule(number)
    known = _known(KINDS, code, kind)
    if known is not None:
        return known
    invalid = isinstance(code, str) and code.lower().startswith("invalid_")
    return INVALID if invalid else UNKNOWN_ERROR


def decisive_rule(errors: Iterable[Any]) -> Rule | None:
    """The first code that decides whatever the status says, of several errors of one row.

    A row may carry one error in its body, another inside it (Azure's ``innererror``) and one beside
    its response.
    """
    for error in errors:
        known = map_of(error)
        rule = _known(CODES, known.get("code"), known.get("type"))
        if rule is not None:
            return rule
    return None
