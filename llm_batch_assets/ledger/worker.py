"""Who is working: written beside every transition."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker's names.

    Attributes:
        holder: unique per process or run: leases are held under it.
        actor: what kind of worker, for people: ``cli``, ``dagster``, a person's name.
        run_id: the Dagster run, if there is one.
    """

    holder: str
    actor: str
    run_id: str | None = None
