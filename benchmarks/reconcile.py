"""Speed of reconciliation: digest, strict parse, join, class, schema, evidence Parquet.

``python -m benchmarks reconcile --records 1000000``. OpenAI rows of about 1 KB in shards of at most
50,000 (what one batch holds), timed against a bare loop over the same files in the same run: sha256
plus ``orjson.loads`` per line. One row is corrupted and has to show; the run ends by comparing set
digests with the slow reference at 10,000 rows. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import mmap
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from benchmarks.rows import MODEL, SCHEMA, lines, wire_ids
from llm_batch_assets.artifacts import ArtifactStore, open_store
from llm_batch_assets.reconcile.accounting import account
from llm_batch_assets.reconcile.model import Account, Expected, RawFile, Rules
from llm_batch_assets.reconcile.tables import put_table

TAG = "abcdefghijklmnop"
SHARD = 50_000
_AHEAD = 3
Shard = tuple[Path, Path]
"""A result file and the file of its expected ids."""

RULES = Rules(
    provider="openai", endpoint="/v1/responses", answer="json", schema=SCHEMA, model=MODEL
)


def main(argv: list[str]) -> int:
    """Measure; exit code 1 when something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks reconcile", description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where to write files (default: temporary)")
    parser.add_argument("--threads", type=int, choices=(1, 2), default=2)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = measure(options.records, Path(folder), options.threads)
    print(json.dumps(result))
    return 0 if result["corrupted_shown"] and result["reference_equal"] else 1


def measure(records: int, folder: Path, threads: int) -> dict[str, object]:
    """Write the files, time both ways shard by shard, compare."""
    shards: list[Shard] = []
    corrupted = records // 2
    for number, first in enumerate(range(0, records, SHARD)):
        count = min(SHARD, records - first)
        path = folder / f"output-{number:05d}.jsonl"
        ids = wire_ids(TAG, first, count)
        broken = corrupted - first if first <= corrupted < first + count else None
        _write(path, ids, number, broken)
        path.with_suffix(".ids").write_text("\n".join(ids))
        shards.append((path, path.with_suffix(".ids")))
    size = sum(path.stat().st_size for path, _ in shards)
    half = len(shards) // 2
    _warm_up()
    # Half of the floor before, half after: a machine that slows down slows both.
    floor_cpu = time.process_time()
    floor = sum(_floor(path) for path, _ in shards[:half])
    floor_cpu = time.process_time() - floor_cpu
    base_mb = _peak_mb()
    begin, cpu = time.perf_counter(), time.process_time()
    counts, unreadable = _full(shards, folder, threads)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    peak_mb = _peak_mb()
    again = time.process_time()
    floor += sum(_floor(path) for path, _ in shards[half:])
    floor_cpu += time.process_time() - again
    return {
        "records": records,
        "threads": threads,
        "bytes_per_row": round(size / records),
        "seconds": round(seconds, 3),
        "floor_seconds": round(floor, 3),
        "ratio": round(seconds / floor, 3),
        "cpu_ratio": round(cpu / floor_cpu, 3),
        "rows_per_second": round(records / seconds),
        "microseconds_per_row": round(seconds / records * 1e6, 2),
        "peak_mb": round(peak_mb),
        "peak_mb_before": round(base_mb),
        "counts": dict(counts),
        "corrupted_shown": unreadable == 1 and counts["missing"] == 1,
        "reference_equal": _reference_equal(folder),
    }


def _warm_up() -> None:
    """Pay once for what is imported at first use (pyarrow loads pandas for its first array)."""
    ids = wire_ids(TAG, 0, 1)
    account(Expected(ids), RULES, [RawFile.of("o", "results", b"".join(lines(ids, 0)))])


def _write(path: Path, ids: list[str], seed: int, broken: int | None) -> None:
    with path.open("wb") as out:
        for number, line in enumerate(lines(ids, seed)):
            if number == broken:
                line = line.replace(b'"custom_id"', b'"custom_id', 1)
            out.write(line)


def _floor(path: Path) -> float:
    """A bare loop: the digest, and one parse per line."""
    begin = time.perf_counter()
    with path.open("rb") as data:
        hashlib.file_digest(data, "sha256").hexdigest()
    loads = orjson.loads
    with path.open("rb") as data:
        for line in data:
            try:
                loads(line)
            except ValueError:
                continue
    return time.perf_counter() - begin


def _full(shards: list[Shard], folder: Path, threads: int) -> tuple[Counter[str], int]:
    """The whole path for all shards: (records by class, unreadable lines).

    With a second thread the next file's digest and the last shard's evidence are made while one
    shard is read; hashing and Parquet leave the interpreter free.
    """
    counts: Counter[str] = Counter()
    unreadable = 0
    store = open_store(str(folder / "store"))
    with _Beside(threads) as beside:
        digests = [beside(_digest, path) for path, _ in shards[:1]]
        for (path, listed), following in zip(shards, [*shards[1:], None], strict=True):
            if following is not None:
                digests.append(beside(_digest, following[0]))
            ids = listed.read_text().split("\n")
            with (
                path.open("rb") as handle,
                mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                raw = RawFile(path.name, "results", digests.pop(0).result(), data)
                found = account(Expected(ids, tag=TAG), RULES, [raw])
            beside(_write_evidence, found, store)
            for entry in found.table["cls"].value_counts().to_pylist():
                counts[entry["values"]] += entry["counts"]
            unreadable += sum(a.kind == "unreadable" for a in found.anomalies)
    return counts, unreadable


class _Beside:
    """Calls made on one other thread, or at once where there is none; at the end all are done."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(1) if threads > 1 else None
        self._calls: list[Future[Any]] = []

    def __enter__(self) -> _Beside:
        return self

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self._pool is not None:
            call = self._pool.submit(function, *arguments)
        else:
            call = Future()
            call.set_result(function(*arguments))
        self._calls.append(call)
        if len(self._calls) > _AHEAD:
            self._calls.pop(0).result()  # bounded: no shard waits in memory behind another
        return call

    def __exit__(self, *_: object) -> None:
        for call in self._calls:
            call.result()
        if self._pool is not None:
            self._pool.shutdown()


def _digest(path: Path) -> str:
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _write_evidence(found: Account, store: ArtifactStore) -> None:
    """As the engine stores it: durable, named by its digest, the product's own Parquet settings."""
    put_table(store, found.table)
    put_table(store, pa.table({"answer": found.answers}))


def _reference_equal(folder: Path) -> bool:
    """Set digests of 10,000 rows by ``account`` and by the independent reference."""
    from llm_batch_assets.reconcile.digests import set_digest
    from llm_batch_assets_tests.reconcile.oracle import reference

    ids = wire_ids(TAG, 0, 10_000)
    path = folder / "reference.jsonl"
    _write(path, ids, 7, 5_000)
    data = path.read_bytes()
    found = account(Expected(ids, tag=TAG), RULES, [RawFile.of("o", "results", data)]).sets()
    wanted, _, _ = reference(set(ids), [data], SCHEMA)
    return all(set_digest(found[name]) == set_digest(wanted[name]) for name in found)


def _peak_mb() -> float:
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
