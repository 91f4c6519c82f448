"""One seed: workers of both kinds over one ledger, until the dataset is closed, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import sqlalchemy as sa

from llm_batch_assets.cli.loop import drive
from llm_batch_assets.deps import Deps
from llm_batch_assets.engine import execute, plan
from llm_batch_assets.engine.cancelling import cancel
from llm_batch_assets.engine.gathering import collect_all
from llm_batch_assets.engine.people import abandon, release
from llm_batch_assets.engine.sweeping import sweep
from llm_batch_assets.errors import LLMBatchError
from llm_batch_assets.ledger import leases, schema
from llm_batch_assets.ledger.rows import SubmissionRow, as_row
from llm_batch_assets.ledger.states import LIVE
from llm_batch_assets.ledger.submissions import joined
from llm_batch_assets.ledger.worker import Worker
from llm_batch_assets_tests.deterministic import bench
from llm_batch_assets_tests.deterministic.oracle import faults_of
from llm_batch_assets_tests.deterministic.provider import SimProvider
from llm_batch_assets_tests.deterministic.scenario import PER_SHARD, POLL, Scenario, scenario
from llm_batch_assets_tests.deterministic.server import Server
from llm_batch_assets_tests.deterministic.world import (
    SECOND,
    START,
    Actor,
    Killed,
    Stuck,
    World,
)

TURNS = 40_000
QUIET_ROUNDS = 40
CHECK_EVERY = 20
PATIENCE = 3_600_000_000
"""Microseconds after which a person gives an uncertain submission up."""


_R = schema.revisions.c
_ENDS = sa.select(_R.closed_at, _R.published_at, _R.cancel_requested_at)


@dataclass
class Report:
    """What came of a seed: no faults, or what is wrong and how it came to be."""

    seed: int
    faults: list[str]
    digest: str
    trace: str
    steps: int
    counts: dict[str, int] = field(default_factory=dict)


class Simulation:
    """The world of one seed."""

    def __init__(self, seed: int, shared: bench.Shared) -> None:
        self.seed, self.shared = seed, shared
        self.scenario: Scenario = scenario(seed)
        self.world = World(seed, self.scenario.chaos)
        self.server = Server(self.world, self.scenario.labelled, self.scenario.weather)
        self.provider = "openai" if self.scenario.labelled else "anthropic"
        self.workload = bench.make_workload(
            self.provider, delete_remote=self.scenario.delete_remote
        )
        template = (
            shared.template(self.provider, delete_remote=self.scenario.delete_remote)
            if self.scenario.frozen
            else shared.empty()
        )
        shared.restore(template, self.world)
        self.ledger = shared.ledger
        self.store = shared.store(self.world, template.objects)
        self.counts = {"kills": 0, "crashes": 0, "restarts": 0}
        self.crashes: list[BaseException] = []
        self._turn = 0

    def deps(self, name: str, holder: str) -> Deps:
        """A worker's own."""
        return Deps(
            self.ledger,
            self.store,
            lambda _: SimProvider(self.server),
            bench.SETTINGS,
            Worker(holder, name.partition("-")[0]),
            effects=self.world,
            rng=Random(f"{self.seed} {name}"),
            sleep=self.world.sleep,
            loopback=bench.LOOPBACK,
        )

    def run(self) -> Report:
        """Play the seed; what goes wrong is in the report."""
        faults: list[str] = []
        try:
            self._play()
        except Stuck as error:
            faults.append(f"stuck: {error}; {self._states()}")
        finally:
            self.world.end()
        if not faults:
            try:
                self._quiet()
            except Stuck as error:
                faults.append(f"stuck after the end: {error}; {self._states()}")
            finally:
                self.world.end()
        faults += [f"guard: {error}" for error in self.crashes if "guard:" in str(error)]
        self.ledger.world = None
        if not faults:
            faults += faults_of(self.server, self.ledger, self.store, self.scenario)
        odd = [e for e in self.crashes if not isinstance(e, LLMBatchError | OSError)]
        faults += [f"crash: {type(error).__name__}: {error}" for error in odd]
        counts = self.counts | {"batches": len(self.server.batches)}
        return Report(
            self.seed,
            list(dict.fromkeys(faults)),
            self.world.digest(),
            self.world.text(),
            self.world.steps,
            counts,
        )

    # --- the play ---------------------------------------------------------------------------------

    def _play(self) -> None:
        world = self.world
        self.store.fault = self.scenario.store
        for number, kind in enumerate(self.scenario.workers):
            holder = "twin" if self.scenario.twins else f"{kind}:{number}"
            self._start(kind, f"{kind}-{number}", holder, world.seconds(0, 3))
        self._start("sweep", "sweep", "sweep", self.scenario.sweep)
        self._start("person", "person", "person", 0.0)
        for _ in range(self.scenario.weather.foreign):
            world.after(world.seconds(0, 150), self._foreign)
        world.run(self._over, self._ended, TURNS)

    def _start(self, kind: str, name: str, holder: str, delay: float) -> None:
        bodies: dict[str, Callable[[Deps], None]] = {
            "loop": self._loop,
            "engine": self._engine,
            "sweep": self._sweep,
            "person": self._person,
        }
        deps = self.deps(name, holder)
        actor = self.world.spawn(name, holder, lambda: bodies[kind](deps), delay)
        actor.calm = kind == "person"

    def _over(self) -> bool:
        self._turn += 1
        if self._turn % CHECK_EVERY:
            return False
        with self.ledger.engine.connect() as connection:
            row = connection.execute(_ENDS).first()
        if row is None or row.closed_at is None:
            return False
        return row.published_at is not None or row.cancel_requested_at is not None

    def _ended(self, actor: Actor) -> None:
        """A worker that is gone is followed by another, as a supervisor would have it."""
        kind = actor.name.partition("-")[0]
        world = self.world
        died = isinstance(actor.error, Killed)
        self.counts["kills" if died else "crashes"] += 1
        if actor.error is not None and not died:
            self.crashes.append(actor.error)
            world.say(f"{actor.name} ENDED: {type(actor.error).__name__}: {actor.error}")
        self.counts["restarts"] += 1
        name = f"{kind}-{len(self.scenario.workers) + self.counts['restarts']}"
        holder = actor.holder if self.scenario.reuse_names else f"{kind}:{name}"
        if died and not self.scenario.twins and world.rng.random() < 0.3:
            # As the command does at its start for processes of this machine that are gone.
            world.current = None
            leases.release_holder(self.ledger, actor.holder)
        self._start(kind, name, holder, world.seconds(0.1, 20))

    def _foreign(self) -> None:
        """Somebody else's batch in the same account, as like ours as it may be."""
        server, world = self.server, self.world
        ours = [b for b in server.batches if not b.foreign]
        like = ours[-1] if ours else None
        count = len(like.lines) if like else PER_SHARD
        number = len(server.batches)
        lines = [(f"theirs-{number}-{n}", "theirs") for n in range(count)]
        labels = {"deployment": "d-another"}
        if like is not None and self.scenario.labelled and world.rng.random() < 0.3:
            labels["submission_key"] = like.labels["submission_key"]
        server.accept(
            lines,
            labels if self.scenario.labelled else {},
            f"theirs_{number}" if self.scenario.labelled else None,
            deadline=world.now,
            foreign=True,
        )

    def _states(self) -> str:
        """Where everything stands, for people."""
        with self.ledger.engine.connect() as connection:
            rows = [as_row(SubmissionRow, row) for row in connection.execute(joined())]
            columns = schema.revisions.c
            names = ("open", "closed_at", "cancel_requested_at", "hold", "published_at")
            revision = connection.execute(sa.select(*(columns[name] for name in names))).first()
        shards = [
            f"{r.shard_key} e{r.epoch} {r.state} {r.batch_id} hold={r.hold} {r.last_error}"
            for r in rows
            if r.state not in ("ACCOUNTED", "ABSENT")
        ]
        return f"{revision} {shards}"

    def _undecided(self) -> bool:
        """Whether a batch is still waited for, though nothing of it is due at this moment."""
        s = schema.submissions
        query = sa.select(s.c.id).where(s.c.state.in_(sorted(LIVE - {"UNCERTAIN"})))
        with self.ledger.engine.connect() as connection:
            return connection.execute(query).first() is not None

    # --- workers ----------------------------------------------------------------------------------

    def _loop(self, deps: Deps) -> None:
        """The command line's loop, started again and again."""
        slow = 1.0 + 2.0 * deps.rng.random()
        while True:
            if not self.scenario.frozen:
                bench.freeze_dataset(self.workload, deps)
            drive(
                self.workload,
                bench.DATASET,
                deps,
                sleep=lambda seconds: self.world.sleep(max(seconds, 3.0) * slow),
            )
            self.world.sleep(self.world.seconds(20, 60))

    def _engine(self, deps: Deps) -> None:
        """As Dagster calls: a plan, and exact pieces of it done later, in any order, or never."""
        world = self.world
        if not self.scenario.frozen:
            with suppress(LLMBatchError):
                bench.freeze_dataset(self.workload, deps)
        while True:
            work = plan(deps)
            if world.rng.random() < 0.3:
                world.rng.shuffle(work)
            for item in work[: world.rng.randint(1, 8)]:
                if world.rng.random() < 0.4:
                    world.sleep(world.seconds(0.05, 15.0))
                world.say(f"does {item.kind} {item.shard_key or ''}")
                try:
                    execute(item, deps)
                except LLMBatchError as error:
                    world.say(f"  {type(error).__name__}: {error}"[:160])
            if world.rng.random() < 0.02:
                collect_all(deps)
            world.sleep(world.seconds(0.5, POLL))

    def _sweep(self, deps: Deps) -> None:
        while True:
            sweep(deps, cancel=True)
            self.world.sleep(self.scenario.sweep)

    def _person(self, deps: Deps) -> None:
        """Cancels and gives up, where the scenario says so; lets go what is on hold."""
        s = schema.submissions
        said = self.scenario
        todo = [(said.cancel_at, self._cancel), (said.abandon_at, self._give_up)]
        for at, do in sorted(((at, do) for at, do in todo if at is not None), key=lambda x: x[0]):
            self.world.sleep(max(0.0, at - (self.world.now - START) / SECOND))
            with suppress(LLMBatchError):
                do(deps)
        while True:
            self.world.sleep(120.0)
            with deps.ledger.read() as connection:
                lost = sa.and_(s.c.state == "UNCERTAIN", s.c.state_at < self.world.now - PATIENCE)
                query = sa.select(s.c.submission_key, s.c.state).where(
                    s.c.abandoned_at.is_(None), sa.or_(s.c.hold.is_not(None), lost)
                )
                held = connection.execute(query.order_by(s.c.id)).all()
            for key, state in held:
                with suppress(LLMBatchError):
                    if state in ("PROVISIONAL", "UNCERTAIN"):
                        abandon(deps, key, "nobody can tell whose it is")
                    else:
                        release(deps, key, "mended")

    def _cancel(self, deps: Deps) -> None:
        cancel(deps, dataset=bench.DATASET, reason="a person's")

    def _give_up(self, deps: Deps) -> None:
        """Whatever the last submission is doing at this moment."""
        s = schema.submissions
        with deps.ledger.read() as connection:
            key = connection.execute(sa.select(s.c.submission_key).order_by(s.c.id.desc())).scalar()
        if key is not None:
            abandon(deps, key, "a person's")

    # --- afterwards -------------------------------------------------------------------------------

    def _quiet(self) -> None:
        """No more trouble: what is left over is found, cancelled, booked, cleaned."""
        world = self.world
        self.store.fault = 0.0
        done: list[bool] = []

        def finish() -> None:
            deps = self.deps("last", "last")
            idle = 0
            for round_ in range(QUIET_ROUNDS):
                world.sleep(90.0 if round_ < 10 else 700.0)
                swept = sweep(deps, cancel=True)
                work = plan(deps)
                for item in work:
                    with suppress(LLMBatchError):
                        execute(item, deps)
                horizon = max((max(b.listed, b.end) for b in self.server.batches), default=0)
                running = any(one.running and not one.cancelled for one in swept.duplicates)
                over = world.now > horizon + 120e6 and not world.pending
                # Three rounds: a batch that has ended may name its results at a later look.
                quiet = not work and not running and not self._undecided()
                idle = idle + 1 if over and quiet else 0
                if idle == 3:
                    done.append(True)
                    return
            raise Stuck(f"still to do: {[(w.kind, w.key[:20]) for w in work]}")

        actor = world.spawn("last", "last", finish, 1.0)
        actor.calm = True
        ended: list[Actor] = []
        world.run(lambda: bool(ended), ended.append, TURNS)
        if not done:
            error = ended[0].error
            raise error if isinstance(error, Stuck) else Stuck(repr(error))


def run_seed(seed: int, shared: bench.Shared) -> Report:
    """Play one seed."""
    return Simulation(seed, shared).run()
