"""Claims on one PostgreSQL: ``python -m benchmarks claims --workers 16 --submissions 2000``.

Every worker is a process: it leases the next submission that is due (``take``, by FOR UPDATE SKIP
LOCKED) and commits the intent to send it (``claim``: gates, fence, deadline), as ``run`` does
before each POST, until nothing is left. The server is a real one with ``fsync`` and
``synchronous_commit`` on. The last line is JSON; ``twice`` must be 0. CPU is that of workers and
server together, from when all are connected: on a machine that does nothing else,
``cores / cpu_ms_per_claim`` is the ceiling.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class _Share:
    """What one worker claimed, and its wall-clock bounds and CPU seconds."""

    claimed: tuple[str, ...]
    started: float
    ended: float
    cpu: float


def main(arguments: Sequence[str]) -> int:
    """Run the workers and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks claims")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--submissions", type=int, default=2000)
    options = parser.parse_args(list(arguments))

    from llm_batch_assets_tests.postgres import Postgres

    with tempfile.TemporaryDirectory() as folder, Postgres(Path(folder)) as server:
        url = server.database()
        fill(url, options.submissions)
        print(f"{options.submissions} submissions wait, {options.workers} workers", flush=True)
        shares, server_cpu = _race(url, options.workers, server.pid)
    claimed = [key for share in shares for key in share.claimed]
    seconds = max(s.ended for s in shares) - min(s.started for s in shares)
    cpu = sum(share.cpu for share in shares)
    result = {
        "workers": options.workers,
        "submissions": options.submissions,
        "claimed": len(claimed),
        "twice": len(claimed) - len(set(claimed)),
        "seconds": round(seconds, 3),
        "claims_per_second": round(len(claimed) / seconds),
        "cpu_ms_per_claim": {
            "workers": round(cpu / len(claimed) * 1000, 2),
            "server": round(server_cpu / len(claimed) * 1000, 2),
        },
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(result))
    return 0 if len(set(claimed)) == len(claimed) == options.submissions else 1


def fill(url: str, submissions: int) -> None:
    """A ledger of deployment ``bench`` with so many submissions that are due."""
    from llm_batch_assets.ledger import Ledger, freezing
    from llm_batch_assets.ledger.worker import Worker

    ledger = Ledger(url, deployment="bench")
    ledger.upgrade()
    revision = freezing.RevisionSpec(
        tenant_id="bench",
        workload="bench",
        dataset="d1",
        revision=1,
        provider="openai",
        records=submissions * 5,
        open_datasets=3,
        min_accepted_ppm=950_000,
        cut_after=10**12,
        close_by=10**12,
        hold_deadline=10**12,
    )
    shards = [
        freezing.ShardRowSpec(n, f"d1/r1/a1/p{n:05}", "sha256:00", 5, 100, "tag", f"key-{n}")
        for n in range(submissions)
    ]
    job = freezing.JobSpec(1, "sha256:aa", None, "h", "m", "r", submissions * 5, 0, shards)
    freezing.open_revision(ledger, revision, job, [], Worker("filler", "bench"))
    ledger.close()


def _race(url: str, workers: int, server: int) -> tuple[list[_Share], float]:
    """Start the workers together; their shares and the server's CPU seconds meanwhile."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    start = context.Barrier(workers + 1)
    end = context.Barrier(workers + 1)
    processes = [
        context.Process(target=_work, args=(url, n, start, end, results)) for n in range(workers)
    ]
    for process in processes:
        process.start()
    start.wait()
    before = _server_cpu(server)
    shares = [results.get() for _ in processes]
    spent = _server_cpu(server) - before
    end.wait()
    for process in processes:
        process.join()
    return shares, spent


def _work(url: str, number: int, start: Any, end: Any, results: Any) -> None:
    from llm_batch_assets.ledger import Ledger, claims
    from llm_batch_assets.ledger.worker import Worker

    ledger = Ledger(url, deployment="bench")
    ledger.time()  # connected
    worker = Worker(f"worker-{number}", "bench")
    claimed: list[str] = []
    start.wait()
    started, cpu = time.time(), time.process_time()
    while (taken := claims.take(ledger, worker, ttl=600)) is not None:
        row, lease = taken
        claims.claim(
            ledger,
            row,
            lease=lease,
            worker=worker,
            account="bench",
            post_seconds=30,
        )
        claimed.append(row.submission_key)
    results.put(_Share(tuple(claimed), started, time.time(), time.process_time() - cpu))
    end.wait()  # the server's process of this connection is read while it lives
    ledger.close()


def _server_cpu(postmaster: int) -> float:
    """CPU seconds of a server and its processes so far, from ``/proc``; nan where there is none."""
    if not Path("/proc/self/stat").exists():
        return float("nan")
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(path.parent.name) == postmaster or int(fields[1]) == postmaster:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
