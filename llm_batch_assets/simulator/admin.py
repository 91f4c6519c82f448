"""``/_sim/``: what tests and demos ask the simulator about itself, and change in it."""

from __future__ import annotations

from typing import Any, NoReturn

import orjson

from llm_batch_assets.simulator.app import Call, Refusal, Route, json_reply, route
from llm_batch_assets.simulator.faults import (
    BATCH_KINDS,
    HTTP_KINDS,
    RECORD_KINDS,
    ROUTES,
    FaultError,
)
from llm_batch_assets.simulator.jobs import ENDS, Job
from llm_batch_assets.simulator.profiles import PROFILES
from llm_batch_assets.simulator.transport import Reply
from llm_batch_assets.simulator.world import World


class Admin:
    """The admin routes."""

    def __init__(self, world: World) -> None:
        self._world = world

    def routes(self) -> list[Route]:
        """All of them."""
        table = (
            ("GET", "health", self.health),
            ("GET", "meter", self.meter),
            ("GET", "executions", self.executions),
            ("GET", "log", self.log),
            ("GET", "state", self.state),
            ("GET", "menu", self.menu),
            ("GET", "faults", self.faults),
            ("POST", "faults", self.set_faults),
            ("GET", "clock", self.clock),
            ("POST", "clock", self.set_clock),
            ("POST", "batches", self.batches),
        )
        return [route("_sim", name, m, f"/_sim/{name}", handler) for m, name, handler in table]

    async def health(self, call: Call) -> Reply:
        """Alive."""
        del call
        return json_reply({"ok": True, "seed": self._world.seed, **self._clock()})

    async def meter(self, call: Call) -> Reply:
        """What was executed, and what was paid twice."""
        del call
        await self._world.settle()
        now = self._world.clock.now()
        live = sum(
            1
            for job in self._world.jobs.values()
            if not job.foreign and not job.deleted and job.phase(now) not in ENDS
        )
        return json_reply({**self._world.meter.summary(), "live_batches": live})

    async def executions(self, call: Call) -> Reply:
        """Each execution, in order; ``?batch=`` for those of one batch."""
        await self._world.settle()
        return json_reply(self._world.meter.listing(call.query.get("batch")))

    async def log(self, call: Call) -> Reply:
        """Requests after ``?since=``."""
        return json_reply(self._world.log.since(int(call.query.get("since", "0"))))

    async def state(self, call: Call) -> Reply:
        """Batches and files that are alive, per account."""
        del call
        await self._world.settle()
        batches = [self._job(job) for job in self._world.jobs.values() if not job.deleted]
        files = [
            {"account": one.account, "provider": name.split(".")[0], **one.view()}
            for name, store in self._world.stores.items()
            if name.endswith(".files")
            for one in store.files.values()
        ]
        return json_reply({"batches": batches, "files": files, **self._clock()})

    def _job(self, job: Job) -> dict[str, Any]:
        return {
            "id": job.id,
            "provider": job.provider,
            "account": job.account,
            "ordinal": job.ordinal,
            "phase": job.phase(self._world.clock.now()),
            "created": job.created,
            "expires": job.expires,
            "lines": len(job.lines),
            "executed": job.executed,
            "foreign": job.foreign,
            "behind": job.behind,
            "faults": [fault.kind for fault in job.faults],
            "planned": {job.lines[index].id: fault.kind for index, fault in job.plan.items()},
            **{name: value for name, value in job.extra.items() if _is_plain(value)},
        }

    async def menu(self, call: Call) -> Reply:
        """Every fault that can be asked for, in one line each."""
        del call
        return json_reply(
            {
                "records": RECORD_KINDS,
                "batches": BATCH_KINDS,
                "http": HTTP_KINDS,
                "routes": ROUTES,
                "profiles": list(PROFILES),
            }
        )

    async def faults(self, call: Call) -> Reply:
        """What is in force."""
        del call
        return json_reply(self._world.book.describe())

    async def set_faults(self, call: Call) -> Reply:
        """Add faults: ``{"faults": [...], "profile": name, "clear": bool, "shuffle": bool}``."""
        body = _object(call)
        unknown = set(body) - {"faults", "profile", "clear", "shuffle"}
        if unknown:
            _refuse(f"unknown: {', '.join(sorted(unknown))}")
        profile = body.get("profile")
        if profile is not None and profile not in PROFILES:
            _refuse(f"unknown profile {profile!r}: one of {', '.join(PROFILES)}")
        if body.get("clear"):
            self._world.book.clear()
        try:
            self._world.book.add([*PROFILES.get(profile or "none", []), *body.get("faults", [])])
        except (FaultError, TypeError, AttributeError) as error:
            _refuse(str(error))
        if "shuffle" in body:
            self._world.book.shuffle = bool(body["shuffle"])
        return json_reply(self._world.book.describe())

    async def clock(self, call: Call) -> Reply:
        """The virtual time."""
        del call
        return json_reply(self._clock())

    async def set_clock(self, call: Call) -> Reply:
        """``{"advance": seconds}`` and/or ``{"scale": x}``."""
        body = _object(call)
        try:
            if "scale" in body:
                self._world.clock.set_scale(float(body["scale"]))
            if "advance" in body:
                self._world.clock.advance(float(body["advance"]))
        except (TypeError, ValueError) as error:
            _refuse(str(error))
        await self._world.settle()
        return json_reply(self._clock())

    def _clock(self) -> dict[str, float]:
        clock = self._world.clock
        return {"now": clock.now(), "scale": clock.scale}

    async def batches(self, call: Call) -> Reply:
        """Make a batch behind everybody's back.

        ``{"clone": id}`` (or ``"latest"``) runs the same input again, as a client would that has
        lost its memory: what it executes is paid twice. With ``"foreign": true`` the new batch is
        a look-alike of somebody else: same size, window, model and endpoint, other ids, bodies and
        labels. ``"metadata"`` replaces the labels, ``"account"`` the account.
        """
        body = _object(call)
        jobs = self._world.jobs
        wanted = body.get("clone", "latest")
        own = [job for job in jobs.values() if not job.foreign and not job.behind]
        source = jobs.get(wanted) if wanted != "latest" else (own[-1] if own else None)
        if source is None:
            _refuse(f"no batch {wanted!r} to clone")
        dialect = self._world.dialects[source.provider]
        made = dialect.clone(source, foreign=bool(body.get("foreign")), labels=body.get("metadata"))
        if body.get("account"):
            made.account = str(body["account"])
        return json_reply({"id": made.id, "account": made.account, "lines": len(made.lines)})


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, dict))


def _object(call: Call) -> dict[str, Any]:
    try:
        body = orjson.loads(call.body or b"{}")
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        _refuse("a JSON object is expected")
    return body


def _refuse(message: str) -> NoReturn:
    raise Refusal(json_reply({"error": message}, 400))
