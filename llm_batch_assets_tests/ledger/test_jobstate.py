"""The words of a job's state, from hand-written rows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from llm_batch_assets.ledger.jobstate import job_state
from llm_batch_assets.ledger.rows import JobRow, RevisionRow, SubmissionRow
from llm_batch_assets.ledger.views import RevisionView


def _blank(cls: type, **values: Any) -> Any:
    return cls(**{f.name: values.get(f.name) for f in fields(cls)})


def _state(states: list[str], *, jobs: int = 1, outcome: str | None = None, **row: Any) -> str:
    shards = tuple(
        _blank(SubmissionRow, id=n, job_id=1, state=state, outcome=outcome)
        for n, state in enumerate(states)
    )
    all_jobs = tuple(_blank(JobRow, id=n, attempt=n) for n in range(1, jobs + 1))
    revision = _blank(RevisionRow, **{"records": 10, **row})
    return job_state(RevisionView(revision, all_jobs, shards), all_jobs[0])


CLOSED = {"settlement_basis": "b", "closed_at": 1, "open": 0}


@pytest.mark.parametrize(
    "states, expected",
    [
        (["VALIDATED", "VALIDATED"], "VALIDATED"),
        (["VALIDATED", "SUBMITTED"], "SUBMITTING"),
        (["UNCERTAIN"], "SUBMITTING"),
        (["SUBMITTED", "SUBMITTED"], "SUBMITTED"),
        (["SUBMITTED", "RUNNING"], "RUNNING"),
        (["PROVISIONAL"], "RUNNING"),
        (["ACCOUNTED", "RESULTS_AVAILABLE"], "RECONCILING"),
        (["ACCOUNTED", "COLLECTED"], "RECONCILING"),
        (["ACCOUNTED"], "RECONCILING"),  # accounted, and nobody has settled the revision yet
    ],
)
def test_a_job_in_flight(states: list[str], expected: str) -> None:
    assert _state(states) == expected


@pytest.mark.parametrize(
    "row, expected",
    [
        ({"settlement_basis": "b", "open": 3}, "PARTIAL"),
        ({**CLOSED, "accepted": 10}, "COMPLETED"),
        ({**CLOSED, "accepted": 9}, "COMPLETED_WITH_ERRORS"),
        ({**CLOSED, "accepted": 0}, "COMPLETED_WITH_ERRORS"),
        ({**CLOSED, "accepted": 9, "cancel_requested_at": 1}, "CANCELLED"),
        ({**CLOSED, "accepted": 10, "jobs": 2}, "PARTIAL"),
        ({**CLOSED, "accepted": 0, "outcome": "expired"}, "EXPIRED"),
        ({**CLOSED, "accepted": 0, "outcome": "refused:400:bad"}, "FAILED"),
        ({**CLOSED, "accepted": 0, "outcome": "failed"}, "FAILED"),
    ],
)
def test_a_job_that_has_ended(row: dict[str, Any], expected: str) -> None:
    assert _state(["ACCOUNTED", "ACCOUNTED"], **row) == expected


def test_a_cancelled_job_waits_for_what_was_sent_only() -> None:
    assert _state(["VALIDATED", "RUNNING"], cancel_requested_at=1) == "RUNNING"
    assert _state(["VALIDATED", "ACCOUNTED"], cancel_requested_at=1) == "CANCELLED"
