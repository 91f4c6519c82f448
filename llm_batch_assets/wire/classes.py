"""Rules: what one piece of evidence makes of a record, and the tables they stand in.

A rule has a stable id; evidence names the rule that decided. ``cases/README.md`` and the field
notes pin the classes: a record's class says what happened to it, the hold says that only a person
can change the outcome (an account fault fails no record), ``unqualified`` says that it was answered
but not acceptably.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llm_batch_assets.types import RecordClass


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One line of a classification table.

    Attributes:
        id: stable name, ``<table>.<value>``.
        cls: the record's class.
        reason: what evidence calls it.
        hold: which hold keeps the record from being sent again, or None.
        unqualified: answered, but not acceptably.
        charged: the record was answered or paid for, so the attempt counts against it.
    """

    id: str
    cls: RecordClass
    reason: str
    hold: str | None = None
    unqualified: bool = False
    charged: bool = True


def answered_badly(reason: str) -> Rule:
    """A 2xx answer that is not acceptable: retryable, unqualified, charged."""
    return Rule(f"quality.{reason}", "retryable", reason, unqualified=True)


TRANSIENT, PERMANENT, HELD = "retryable", "permanent_failure", "held"


def table(
    name: str, rows: Iterable[tuple[str | int, str, str]], *, executed: bool = True
) -> Mapping[str | int, Rule]:
    """Build a table from rows (value, class, reason).

    The class ``held`` means retryable, with the reason as the hold's name: billing or account.
    ``executed`` is False for the faults of a whole batch that never ran: they charge nobody.
    """
    out: dict[str | int, Rule] = {}
    for value, cls, reason in rows:
        rule_id = f"{name}.{value}"
        if cls == HELD:
            out[value] = Rule(rule_id, "retryable", reason, hold=reason, charged=False)
        elif cls == "unqualified":
            out[value] = Rule(rule_id, "retryable", reason, unqualified=True)
        else:
            charged = executed and cls not in ("expired", "cancelled")
            out[value] = Rule(rule_id, cls, reason, charged=charged)  # type: ignore[arg-type]
    return out


ACCEPTED = Rule("answer.accepted", "succeeded", "accepted")
"""Stop reason, strict JSON, schema and gate all passed. Readers use it for "judge the answer"."""

MISSING = Rule("row.missing", "missing", "no_row", charged=False)
IN_FLIGHT = Rule("batch.in_flight", "in_flight", "in_flight", charged=False)
DUPLICATE = Rule("row.duplicate", "duplicate", "conflicting_rows")
NEVER_STARTED = Rule("batch.expired", "expired", "batch_never_started", charged=False)
NOT_REACHED = Rule("batch.innocent", "retryable", "batch_failed_validation", charged=False)
"""The batch failed because of other lines: this one never ran."""

HTTP = table(
    "http",
    (
        (0, TRANSIENT, "transport"),
        (400, PERMANENT, "invalid_request"),
        (401, HELD, "account"),
        (402, HELD, "billing"),
        (403, HELD, "account"),
        (404, PERMANENT, "not_found"),
        (408, TRANSIENT, "timeout"),
        (409, TRANSIENT, "conflict"),
        (413, PERMANENT, "request_too_large"),
        (415, PERMANENT, "invalid_request"),
        (422, PERMANENT, "invalid_request"),
        (424, TRANSIENT, "dependency"),
        (425, TRANSIENT, "too_early"),
        (429, TRANSIENT, "rate_limit"),
        (498, HELD, "account"),
        (499, TRANSIENT, "client_closed"),
        (500, TRANSIENT, "server_error"),
        (502, TRANSIENT, "server_error"),
        (503, TRANSIENT, "unavailable"),
        (504, TRANSIENT, "timeout"),
        (529, TRANSIENT, "overloaded"),
    ),
)
"""HTTP status -> rule, for every provider that reports one."""

HTTP_4XX = Rule("http.4xx", "permanent_failure", "invalid_request")
HTTP_5XX = Rule("http.5xx", "retryable", "server_error")
HTTP_OTHER = Rule("http.other", "retryable", "unexpected_status")
"""Statuses that no table knows: a redirect or 1xx is a transport's business."""

UNKNOWN_ERROR = Rule("error.unknown", "retryable", "unknown_error")
"""The default for an error whose code and type no table knows: retryable, bounded by attempts."""

MALFORMED = answered_badly("malformed_body")
EMPTY = answered_badly("empty_answer")
SEVERAL = answered_badly("several_candidates")
WRONG_KIND = answered_badly("wrong_answer_kind")
UNKNOWN_STOP = answered_badly("unknown_stop_reason")
"""The default for a stop reason that no table knows: never a success."""

REFUSAL = Rule("stop.refusal", "permanent_failure", "refusal")
"""A model's refusal: never sent again unchanged."""


def http_rule(status: int) -> Rule:
    """The rule for a status outside 2xx."""
    known = HTTP.get(status)
    if known is not None:
        return known
    if 400 <= status < 500:
        return HTTP_4XX
    if 500 <= status < 600:
        return HTTP_5XX
    return HTTP_OTHER


def status_of(value: object) -> int | None:
    """An HTTP status from a number or its decimal text; a bool is none."""
    if type(value) is int:
        return value
    if isinstance(value, str) and len(value) <= 3 and value.isascii() and value.isdigit():
        return int(value)
    return None
