"""Virtual time and a seeded scheduler: many workers in threads, of which exactly one runs.

A worker hands the baton on only at a step: around every commit, provider call and object write,
before every transaction, and wherever it would wait. What it does there (go on, let another go,
stand still for long, die) is drawn from one generator, so that a run is a function of its seed.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Literal

START = int(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()) * 1_000_000
SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Killed(BaseException):
    """The worker is gone: nothing that follows in it takes effect, no clean-up either."""


class Stuck(AssertionError):
    """The run does not come to its end."""


@dataclass
class Chaos:
    """What may befall workers, and how often at most.

    Attributes:
        kill, stall, switch: chance at each step to die, to stand still for long, to be overtaken.
        stall_create: chance to stand still between the last check and a create's first byte.
        longest: seconds of the longest standstill.
        kills, stalls: how many there may be.
    """

    kill: float = 0.0
    stall: float = 0.0
    switch: float = 0.2
    stall_create: float = 0.0
    longest: float = 300.0
    kills: int = 0
    stalls: int = 0


@dataclass(eq=False)
class Actor:
    """A worker of the simulation; ``holder`` is what its leases are under."""

    name: str
    holder: str
    body: Callable[[], None]
    wake: int
    calm: bool = False
    dead: bool = False
    ended: bool = False
    error: BaseException | None = None
    thread: threading.Thread | None = None
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class World:
    """Virtual microseconds, workers, and events of the network that happen without any worker."""

    def __init__(self, seed: int, chaos: Chaos) -> None:
        self.rng = Random(seed)
        self.chaos = chaos
        self.now = START
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.trace: list[tuple[int, str, str]] = []
        self.steps = 0
        self._main = threading.Semaphore(0)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0

    def clock(self) -> datetime:
        """The ledger's clock."""
        return _EPOCH + timedelta(microseconds=self.now)

    def say(self, what: str) -> None:
        """A line of the trace."""
        name = self.current.name if self.current is not None else "-"
        self.trace.append((self.now, name, what))

    def digest(self) -> str:
        """Of the whole trace: two runs of one seed have the same."""
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()

    def text(self, last: int = 0) -> str:
        """The trace for people: seconds since the start, who, what."""
        return "\n".join(
            f"{(at - START) / SECOND:12.3f} {who:<10} {what}"
            for at, who, what in self.trace[-last:]
        )

    def seconds(self, low: float, high: float) -> float:
        """A drawn duration."""
        return low + (high - low) * self.rng.random()

    # --- the network ------------------------------------------------------------------------------

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        """Something that takes place by itself, whatever becomes of who caused it."""
        self._numbers += 1
        at = self.now + int(seconds * SECOND)
        heapq.heappush(self._events, (at, self._numbers, happen))

    @property
    def pending(self) -> int:
        """Events that have not taken place yet."""
        return len(self._events)

    def advance(self, to: int) -> None:
        """Let time pass, with what happens in it."""
        while self._events and self._events[0][0] <= to:
            at, _, happen = heapq.heappop(self._events)
            self.now = max(self.now, at)
            happen()
        self.now = max(self.now, to)

    # --- workers ----------------------------------------------------------------------------------

    def spawn(self, name: str, holder: str, body: Callable[[], None], delay: float) -> Actor:
        """A worker that begins after ``delay`` seconds."""
        actor = Actor(name, holder, body, self.now + int(delay * SECOND))
        self.actors.append(actor)
        return actor

    def run(self, until: Callable[[], bool], ended: Callable[[Actor], None], limit: int) -> None:
        """Schedule until a condition holds, telling ``ended`` of each worker that is gone.

        Raises:
            Stuck: more than ``limit`` turns.
        """
        turns = 0
        while not until():
            turns += 1
            if turns > limit or not self.actors:
                raise Stuck(f"not at its end after {turns} turns, {self.steps} steps")
            ready = [actor for actor in self.actors if actor.wake <= self.now]
            if not ready:
                self.advance(min(actor.wake for actor in self.actors))
                continue
            actor = ready[self.rng.randrange(len(ready))] if len(ready) > 1 else ready[0]
            self._turn(actor)
            if actor.ended:
                self.actors.remove(actor)
                ended(actor)

    def _turn(self, actor: Actor) -> None:
        self.current = actor
        if actor.thread is None:
            actor.thread = threading.Thread(target=self._body, args=(actor,), daemon=True)
            actor.thread.start()
        actor.baton.release()
        self._main.acquire()
        self.current = None

    def _body(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            if not actor.dead:
                actor.body()
        except BaseException as error:
            actor.error = error
        actor.ended = True
        self._main.release()

    def end(self) -> None:
        """Every worker that is left vanishes."""
        for actor in self.actors:
            actor.dead = True
            if actor.thread is not None:
                self._turn(actor)
                actor.thread.join()
        self.actors.clear()

    # --- what workers call ------------------------------------------------------------------------

    def step(self, label: str, *, may_switch: bool = True) -> None:
        """A boundary: the worker may go on, be overtaken, stand still, or be gone.

        Raises:
            Killed: it is gone.
        """
        actor = self.current
        if actor is None:
            return
        if actor.dead:
            raise Killed
        self.steps += 1
        self.trace.append((self.now, actor.name, label))
        draw = self.rng.random()
        chaos = self.chaos
        if not actor.calm:
            if draw < chaos.kill and chaos.kills > 0:
                chaos.kills -= 1
                actor.dead = True
                self.say("KILLED")
                raise Killed
            draw -= chaos.kill
            stall = chaos.stall_create if label == "provider.create before" else chaos.stall
            if may_switch and 0 <= draw < stall and chaos.stalls > 0:
                chaos.stalls -= 1
                long = self.seconds(0.5, chaos.longest)
                self.say(f"STALLS {long:.1f} s")
                self.sleep(long)
                return
            draw -= stall
        if may_switch:
            if draw < chaos.switch:
                self.sleep(self.seconds(0.0, 0.05))
            else:
                self.advance(self.now + 200)

    def sleep(self, seconds: float) -> None:
        """Let others go until so many seconds have passed; without workers they just pass.

        Raises:
            Killed: the worker is gone.
        """
        actor = self.current
        if actor is None:
            self.advance(self.now + int(seconds * SECOND))
            return
        if actor.dead:
            raise Killed
        actor.wake = self.now + max(1, int(seconds * SECOND))
        self._main.release()
        actor.baton.acquire()
        if actor.dead:
            raise Killed

    def at(self, name: str, when: Literal["before", "after"]) -> None:
        """The hook of ``Effects``. Inside a transaction nobody else could go on."""
        self.step(
            f"{name} {when}", may_switch=not (name.startswith("commit.") and when == "before")
        )
