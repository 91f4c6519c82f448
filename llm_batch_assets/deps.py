"""What an engine works with, passed in: nothing here is global."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.ledger import Ledger
from llm_batch_assets.ledger.worker import Worker
from llm_batch_assets.providers.base import BatchProvider
from llm_batch_assets.settings import Settings
from llm_batch_assets.types import NO_EFFECTS, Effects

Progress = Callable[[str, str], None]
"""Told a kind of work and a shard or dataset; the default says nothing."""


def silent(what: str, detail: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Deps:
    """Ledger, store, providers, timing and the worker's own names.

    Attributes:
        provider: gives the account of a provider by its name; opened at first use.
        loopback: providers whose address is this machine, so that nothing real is at stake; none
            unless it is known.
        sleep: waits between the tries of a download; seconds. A test's clock passes its own.
    """

    ledger: Ledger
    store: ArtifactStore
    provider: Callable[[str], BatchProvider]
    settings: Settings
    worker: Worker
    effects: Effects = NO_EFFECTS
    progress: Progress = silent
    rng: Random = field(default_factory=Random)
    loopback: frozenset[str] = frozenset()
    sleep: Callable[[float], None] = time.sleep
