"""Many seeds of the deterministic simulation: ``python -m benchmarks simulate --seeds 20000``.

Every failing seed is named with its faults; ``--trace SEED`` prints what happened in one. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run seeds in this process, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks simulate")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--trace", type=int, default=None, metavar="SEED")
    options = parser.parse_args(list(arguments))

    from llm_batch_assets_tests.deterministic.bench import Shared
    from llm_batch_assets_tests.deterministic.simulation import run_seed

    shared = Shared()
    try:
        if options.trace is not None:
            report = run_seed(options.trace, shared)
            print(report.trace)
            print("\n".join(report.faults) or "no fault", report.counts, report.digest)
            return 1 if report.faults else 0
        started = time.monotonic()
        failed: list[int] = []
        totals: Counter[str] = Counter()
        for seed in range(options.start, options.start + options.seeds):
            report = run_seed(seed, shared)
            totals.update(report.counts | {"steps": report.steps})
            if report.faults:
                failed.append(seed)
                print(f"seed {seed}: {report.faults}", flush=True)
            elif (seed + 1) % 50 == 0:
                print(f"{seed + 1 - options.start} seeds, {len(failed)} failed", flush=True)
        result = {
            "seeds": options.seeds,
            "failed": failed,
            "seconds": round(time.monotonic() - started, 1),
            **totals,
        }
        print(json.dumps(result))
        return 1 if failed else 0
    finally:
        shared.close()
