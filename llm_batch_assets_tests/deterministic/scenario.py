"""What a seed means: who works, what befalls them, and what the provider's weather is."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from llm_batch_assets_tests.deterministic.server import Weather
from llm_batch_assets_tests.deterministic.world import Chaos

SETTLE = 60.0
POST = 5.0
LEASE = 20.0
POLL = 25.0
RECORDS = 8
"""Records of the dataset; ``PER_SHARD`` of them in a shard."""

PER_SHARD = 3


@dataclass(frozen=True)
class Scenario:
    """One run.

    Attributes:
        workers: kinds, in order: ``loop`` (the command line's) and ``engine`` (as Dagster calls).
        frozen: whether the dataset is frozen before anybody begins.
        twins: whether two workers have one name: a run taken for dead that goes on beside the one
            that followed it.
        cancel_at: seconds after which a person cancels the dataset, or None.
        abandon_at: seconds after which a person gives one of its submissions up, or None.
        store: chance that an object write or read fails.
        reuse_names: a dead worker's successor has its name, so that it takes its leases at once.
        sweep: seconds between two orphan sweeps that may cancel.
        delete_remote: whether the provider's copies go after publication.
    """

    labelled: bool
    workers: tuple[str, ...]
    frozen: bool
    twins: bool
    cancel_at: float | None
    abandon_at: float | None
    store: float
    reuse_names: bool
    sweep: float
    delete_remote: bool
    chaos: Chaos
    weather: Weather


def scenario(seed: int) -> Scenario:
    """A seed's scenario: each kind of trouble is on in some seeds and off in others."""
    rng = Random(f"scenario {seed}")

    def some(chance: float, low: float, high: float) -> float:
        return low + (high - low) * rng.random() if rng.random() < chance else 0.0

    labelled = rng.random() < 0.5
    count = rng.choice((2, 2, 3, 4))
    kinds = ["loop", "engine", *(rng.choice(("loop", "engine")) for _ in range(count - 2))]
    rng.shuffle(kinds)
    create = {
        "ok": 1.0,
        "lost": some(0.5, 0.1, 0.8),
        "slow": some(0.4, 0.1, 0.5),
        "late": some(0.4, 0.1, 0.8),
        "never": some(0.3, 0.1, 0.4),
        "500_after": some(0.4, 0.1, 0.5),
        "500_before": some(0.3, 0.1, 0.4),
        "refused_now": some(0.3, 0.1, 0.4),
        "refused": some(0.1, 0.05, 0.3),
        "account": some(0.1, 0.05, 0.2),
    }
    batch = {
        "normal": 1.0,
        "expires": some(0.25, 0.1, 0.6),
        "fails": some(0.25, 0.1, 0.5) if labelled else 0.0,
        "gone": some(0.05, 0.1, 0.3),
    }
    weather = Weather(
        create=create,
        settle=SETTLE,
        lag=(some(0.4, 0.1, 0.6), some(0.25, 0.1, 0.5)),
        late=rng.choice((0.5, 1.0, 4.0)) * SETTLE,
        batch=batch,
        rows={
            "good": 1.0,
            "failed": some(0.3, 0.05, 0.3),
            "missing": some(0.3, 0.05, 0.3),
            "cut": some(0.15, 0.02, 0.1),
            "twice": some(0.15, 0.05, 0.3),
        },
        fault=some(0.4, 0.01, 0.12),
        short=some(0.3, 0.05, 0.4),
        skew=rng.choice((0.0, 7200.0, -7200.0)),
        foreign=rng.choice((0, 1, 2)),
    )
    chaos = Chaos(
        kill=some(0.6, 0.001, 0.012),
        stall=some(0.4, 0.001, 0.006),
        stall_create=some(0.4, 0.05, 0.5),
        switch=rng.choice((0.05, 0.2, 0.4)),
        longest=rng.choice((30.0, 120.0, 400.0)),
        kills=rng.randint(1, 5),
        stalls=rng.randint(1, 5),
    )
    return Scenario(
        labelled=labelled,
        workers=tuple(kinds),
        frozen=rng.random() < 0.9,
        twins=rng.random() < 0.15,
        cancel_at=rng.uniform(5, 300) if rng.random() < 0.08 else None,
        abandon_at=rng.uniform(5, 300) if rng.random() < 0.08 else None,
        store=some(0.2, 0.002, 0.02),
        reuse_names=rng.random() < 0.5,
        sweep=rng.choice((150.0, 400.0)),
        delete_remote=rng.random() < 0.15,
        chaos=chaos,
        weather=weather,
    )
