"""The fuzz target over raw bytes per provider, long mode.

``python -m benchmarks fuzz --inputs 200000``. Every input goes through reader, status, account and
report; the first that crashes or breaks the identity is printed with its seed. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import json
import time

from llm_batch_assets_tests.reconcile.fuzz import PROVIDERS, Corpus, check


def main(argv: list[str]) -> int:
    """Run; exit code 1 when some input failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=200_000, help="over all providers")
    parser.add_argument("--start", type=int, default=10_000, help="first seed")
    options = parser.parse_args(argv)
    corpus = Corpus()
    each = -(-options.inputs // len(PROVIDERS))
    done: dict[str, int] = {}
    slowest, begin = 0.0, time.perf_counter()
    for provider in PROVIDERS:
        for seed in range(options.start, options.start + each):
            at = time.process_time()
            try:
                check(provider, seed, corpus)
            except BaseException:
                print(f"{provider}: seed {seed} fails")
                raise
            slowest = max(slowest, time.process_time() - at)
        done[provider] = each
        print(f"{provider}: {each} inputs")
    seconds = round(time.perf_counter() - begin, 1)
    total = sum(done.values())
    print(json.dumps({"inputs": total, "seconds": seconds, "slowest_ms": round(slowest * 1e3, 1)}))
    return 0
