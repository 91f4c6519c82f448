"""The submission's states and arcs, as data (design, section 3). An arc not here raises."""

from __future__ import annotations

from typing import Literal

SubmissionState = Literal[
    "CREATED",
    "VALIDATED",
    "UPLOADED",
    "SUBMITTING",
    "UNCERTAIN",
    "PROVISIONAL",
    "SUBMITTED",
    "RUNNING",
    "RESULTS_AVAILABLE",
    "COLLECTED",
    "PROVIDER_FAILED",
    "REFUSED",
    "ABSENT",
    "RESULTS_GONE",
    "ACCOUNTED",
]

ARCS: dict[str, frozenset[str]] = {
    "CREATED": frozenset({"VALIDATED"}),
    "VALIDATED": frozenset({"UPLOADED", "SUBMITTING"}),
    # UPLOADED again: the provider keeps a request file for a while only.
    "UPLOADED": frozenset({"SUBMITTING", "UPLOADED"}),
    "SUBMITTING": frozenset({"SUBMITTED", "VALIDATED", "UPLOADED", "REFUSED", "UNCERTAIN"}),
    "UNCERTAIN": frozenset({"SUBMITTED", "PROVISIONAL", "ABSENT"}),
    "PROVISIONAL": frozenset({"UNCERTAIN", "RUNNING", "RESULTS_AVAILABLE", "PROVIDER_FAILED"}),
    "SUBMITTED": frozenset({"RUNNING", "RESULTS_AVAILABLE", "PROVIDER_FAILED"}),
    "RUNNING": frozenset({"RESULTS_AVAILABLE", "PROVIDER_FAILED"}),
    "PROVIDER_FAILED": frozenset({"ACCOUNTED"}),
    "REFUSED": frozenset({"ACCOUNTED"}),
    "RESULTS_AVAILABLE": frozenset({"COLLECTED", "RESULTS_GONE"}),
    "COLLECTED": frozenset({"ACCOUNTED"}),
    "ABSENT": frozenset(),
    "RESULTS_GONE": frozenset(),
    "ACCOUNTED": frozenset(),
}

SENDABLE = frozenset({"VALIDATED", "UPLOADED"})
"""Nothing exists at the provider yet: a claim may take these."""

LIVE = frozenset({"SUBMITTING", "UNCERTAIN", "PROVISIONAL", "SUBMITTED", "RUNNING"})
"""A batch exists, or may exist, and has not ended."""

POLLED = frozenset({"PROVISIONAL", "SUBMITTED", "RUNNING"})
"""A batch id is bound and the provider can be asked for its status."""

CANCELLABLE = POLLED - {"PROVISIONAL"}
"""What is bound is ours: a candidate that may be somebody else's is never cancelled."""

COLLECTABLE = frozenset({"RESULTS_AVAILABLE", "COLLECTED", "PROVIDER_FAILED", "REFUSED"})
"""Ended; what became of its records is not in evidence yet."""

JUDGED = frozenset({"COLLECTED", "PROVIDER_FAILED"})
"""Nothing is left to be fetched: what it says has to be judged."""

ENDED = frozenset({"ACCOUNTED", "ABSENT", "RESULTS_GONE"})
"""No further arc leaves these."""
