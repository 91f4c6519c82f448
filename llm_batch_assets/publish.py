"""Whether a closed revision may be published, and what its published table is."""

from __future__ import annotations

from llm_batch_assets.errors import GateClosed, NotReady
from llm_batch_assets.ledger.rows import RevisionRow

PPM = 1_000_000


def require_publishable(revision: RevisionRow, *, wait_for_review: bool = False) -> None:
    """Refuse anything but a closed, live revision with enough accepted records.

    Raises:
        NotReady: the revision is open; the message names what is.
        GateClosed: it is closed but withheld; the message says what would release it.
    """
    name = f"{revision.workload} {revision.dataset} r{revision.revision}"
    if revision.closed_at is None:
        raise NotReady(
            f"{name} is open: {_open_text(revision)}.",
            remedy="The sensors go on; it is published when its set closes.",
        )
    if revision.superseded_at is not None:
        raise GateClosed(f"{name} is superseded by a newer revision.")
    if person_said_so(revision):
        return
    if revision.cancel_requested_at is not None:
        raise GateClosed(
            f"{name} was cancelled: {revision.cancel_reason}.",
            remedy="`publish --even-cancelled --reason` publishes what was accepted before.",
        )
    if not enough_accepted(revision):
        raise GateClosed(
            f"{name} is closed, but only {revision.accepted} of {revision.records} records "
            f"({accepted_fraction(revision):.4f}) are accepted and publish.min_accepted is "
            f"{revision.min_accepted_ppm / PPM:g}.",
            remedy="Review its human_review records, or `publish --even-below-minimum --reason`.",
        )
    if wait_for_review and revision.human_review:
        raise GateClosed(
            f"{name} is closed, but {revision.human_review} records wait for a person and "
            "publish.wait_for_review is set.",
            remedy="`publish --even-below-minimum --reason` publishes what is accepted.",
        )


def person_said_so(revision: RevisionRow) -> bool:
    """Whether a person gave a word for exactly this closure; a new one needs a new word."""
    return revision.word_closure is not None and revision.word_closure == revision.closure_digest


def accepted_fraction(revision: RevisionRow) -> float:
    """Accepted records over all records; 1.0 for an empty revision."""
    if not revision.records:
        return 1.0
    return (revision.accepted or 0) / revision.records


def enough_accepted(revision: RevisionRow) -> bool:
    """Compared in whole parts per million, so that no rounding opens a gate."""
    return (revision.accepted or 0) * PPM >= revision.min_accepted_ppm * revision.records


def _open_text(revision: RevisionRow) -> str:
    if revision.settled_at is None:
        return f"none of its {revision.records} records is accounted yet"
    return f"{revision.open} of {revision.records} records have no terminal state yet"
