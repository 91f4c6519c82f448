"""Processes of Dagster's that can be killed, as ``main`` of a forked process.

``tick``: one sensor tick. ``run``: the first run that it asks for. ``turns``: the daemon's turns,
each run executed as it is asked for, until the dataset is published.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from llm_batch_assets.defs.sensors import llm_batch_tick
from llm_batch_assets_tests.defs.loop import Loop, rows, small_workload
from llm_batch_assets_tests.zygote import Forked, the_zygote

RECORDS = 20


def make_loop(instance: dg.DagsterInstance, make: type[Loop] = Loop) -> Loop:
    """The code location of every process: two shards."""
    return make(instance, small_workload(), lambda _dataset: rows(RECORDS))


class ToldLoop(Loop):
    """Says in a file what it is at, so that who kills it can count."""

    tell: Callable[[str], None]

    def evaluate(self, sensor: dg.SensorDefinition) -> Any:
        self.tell("tick")
        return super().evaluate(sensor)

    def click(self, *steps: str, **options: Any) -> dg.ExecuteInProcessResult:
        self.tell("run")
        try:
            return super().click(*steps, **options)
        finally:
            self.tell("tick")


def main(arguments: Sequence[str]) -> None:
    """Do one thing in the instance of a Dagster home."""
    home, what = arguments
    with dg.DagsterInstance.local_temp(home) as instance:
        if what == "turns":
            told = make_loop(instance, ToldLoop)
            assert isinstance(told, ToldLoop)
            told.tell = Path(home, "at").write_text
            told.until_published()
            told.tell("ended")
            return
        loop = make_loop(instance)
        if what == "tick":
            loop.evaluate(llm_batch_tick)
        else:
            (request,) = loop.requests()
            loop.start(loop.queued(request), request)


def start(home: Path, what: str, env: Mapping[str, str] | None = None) -> Forked:
    """Start such a process, in this one's environment."""
    return the_zygote().start(
        [str(home), what], {**os.environ, **(env or {})}, home, what, entry=__name__
    )
