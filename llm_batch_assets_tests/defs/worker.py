"""A process of Dagster's that can be killed: one sensor tick, or one run.

``python -m llm_batch_assets_tests.defs.worker <dagster home> tick|run``; a run is the first that
the tick asks for.
"""

import sys

import dagster as dg

from llm_batch_assets.defs.sensors import llm_batch_tick
from llm_batch_assets_tests.defs.loop import Loop, rows, small_workload


def main(home: str, what: str) -> None:
    with dg.DagsterInstance.local_temp(home) as instance:
        loop = Loop(instance, small_workload(), lambda _dataset: rows(20))
        if what == "tick":
            loop.evaluate(llm_batch_tick)
        else:
            (request,) = loop.requests()
            loop.start(loop.queued(request), request)


if __name__ == "__main__":
    main(*sys.argv[1:])
