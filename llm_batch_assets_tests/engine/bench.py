"""One dataset against a simulator, in process, with quick clocks, and what both sides say of it."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from llm_batch_assets.cli.loop import drive
from llm_batch_assets.deps import Deps
from llm_batch_assets.engine import Outcome, freeze, open_deps
from llm_batch_assets.ledger import Ledger, schema, submissions, views
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.views import RevisionView
from llm_batch_assets.ledger.worker import Worker
from llm_batch_assets.manifest import read_records
from llm_batch_assets.reconcile.candidate import REVISION_CLOSURE
from llm_batch_assets.reconcile.digests import read_document
from llm_batch_assets.reconcile.evidence import read_evidence
from llm_batch_assets.reconcile.tables import read_table
from llm_batch_assets.settings import Settings, open_home
from llm_batch_assets.simulator import Simulator
from llm_batch_assets.types import NO_EFFECTS, Effects
from llm_batch_assets.workload import Workload

DATASET = "d1"
DAY = 1.0
"""Real seconds that the simulator's day takes: a batch expires after it, result files after 30."""

SCHEMA = {
    "type": "object",
    "required": ["summary", "topic"],
    "additionalProperties": False,
    "properties": {"summary": {"type": "string"}, "topic": {"type": "string"}},
}

QUICK = Settings(settle_interval=0.3, post_seconds=0.6, poll_interval=0.05, lease_ttl=20.0)
"""For lost creates: their deadline is what a test waits for. On a busy machine it may be too short
for a create that is not lost."""
STEADY = replace(QUICK, post_seconds=5.0)
"""For everything else: no create of a healthy simulator takes as long."""
CALM = Settings(settle_interval=0.3, post_seconds=15.0, poll_interval=0.05, lease_ttl=20.0)
"""For tests that wait for no deadline of a create: a busy machine does not miss it either."""
PATIENT = replace(CALM, post_seconds=3.0, settle_interval=0.4)
"""Between the two: replies are lost, and others must not be lost by mistake."""
NAP, LONGEST_NAP = 0.02, 0.25


class TookTooLong(AssertionError):
    """The loop went on longer than a test can wait."""


def start_simulator(**options: Any) -> Simulator:
    """A simulator whose ordinary batch takes a twentieth of a second."""
    return Simulator(
        **{"scale": 86_400 / DAY, "batch_seconds": 86_400 / 20, "cancel_seconds": 600.0} | options
    )


def make_workload(*, records_per_shard: int = 8, **fields: Any) -> Workload:
    """A workload over rows of ``make_rows``; ``retry`` and ``limits`` are merged."""
    retry = {"backoff": {"initial": "0.05s", "factor": 1, "max": "0.05s"}, "hold_deadline": "1s"}
    base: dict[str, Any] = {
        "name": "notes",
        "tenant_id": "lab",
        "provider": "openai",
        "model": "gpt-5-mini-2025-08-07",
        "business_key": "name",
        "prompt": {"version": "v1", "system": "Summarise.", "user": "{{ name }}: {{ text }}"},
        "generation": {"max_output_tokens": 200},
        "output": {"version": "v1", "schema": SCHEMA},
        "limits": {"records_per_shard": records_per_shard} | fields.pop("limits", {}),
        "retry": retry | fields.pop("retry", {}),
    }
    return Workload.from_mapping(base | fields)


def name_of(number: int) -> str:
    """The business key of a record."""
    return f"r{number:03d}"


def make_rows(count: int, word: str = "note") -> list[dict[str, str]]:
    """Distinct records."""
    return [{"name": name_of(n), "text": f"{word} {n} about thing {n % 7}"} for n in range(count)]


def environment(sim: Simulator, home: Path, key: str = "sk-test") -> dict[str, str]:
    """What a worker of this deployment sees."""
    return {
        "OPENAI_BASE_URL": sim.base_url,
        "OPENAI_API_KEY": key,
        "LLM_BATCH_HOME": str(home),
    }


@cache
def _new_ledger() -> bytes:
    """A ledger file as the migrations make it; other tests are about them."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "ledger.db"
        ledger = Ledger(f"sqlite:///{file}", deployment="d-new")
        ledger.upgrade()
        ledger.close()  # SQLite moves what is in the log into the file
        return file.read_bytes()


def make_home(folder: Path) -> None:
    """A deployment of its own name with a ledger of the newest schema, unless it has one."""
    home = open_home({"LLM_BATCH_HOME": str(folder)})
    file = folder / "ledger.db"
    if file.exists():
        return
    file.write_bytes(_new_ledger())
    with closing(sqlite3.connect(file)) as connection, connection:
        meta = schema.meta.name
        sql = f"UPDATE {meta} SET value = ? WHERE key = 'deployment'"
        assert connection.execute(sql, (home.deployment,)).rowcount == 1


class Bench:
    """A deployment with one dataset, in its own folder."""

    def __init__(
        self,
        sim: Simulator,
        home: Path,
        *,
        workload: Workload | None = None,
        records: int = 24,
        settings: Settings = STEADY,
        effects: Effects = NO_EFFECTS,
        key: str = "sk-test",
        dataset: str = DATASET,
    ) -> None:
        self.sim, self.home, self.dataset = sim, home, dataset
        make_home(home)
        self.workload = make_workload() if workload is None else workload
        self.rows = make_rows(records)
        self.said: list[tuple[str, str]] = []
        self.deps = self.worker("one", key=key, settings=settings, effects=effects)

    def worker(
        self,
        name: str,
        *,
        key: str = "sk-test",
        settings: Settings = STEADY,
        effects: Effects = NO_EFFECTS,
    ) -> Deps:
        """Another worker of the same deployment, under a holder of its own."""
        return open_deps(
            Worker(f"test:{name}", "test"),
            env=environment(self.sim, self.home, key),
            settings=settings,
            effects=effects,
            progress=lambda what, detail: self.said.append((what, detail)),
        )

    def freeze(self) -> Outcome:
        """Freeze the dataset."""
        table = pa.Table.from_pylist(self.rows)
        return freeze(
            self.workload,
            table.to_batches(),
            dataset=self.dataset,
            deps=self.deps,
            submitter="test",
        )

    def drive(
        self,
        deps: Deps | None = None,
        *,
        seconds: float = 30.0,
        until: str = "closed",
        stop: Callable[[], bool] = lambda: False,
    ) -> list[dict[str, Any]]:
        """Run the command line's loop, with shorter naps, for a bounded time."""
        deadline = time.monotonic() + seconds
        said, since = -1, 0.0

        def nap(wanted: float) -> None:
            nonlocal said, since
            if stop():
                raise Stopped
            now = time.monotonic()
            if now > deadline:
                raise TookTooLong(f"{self.states()} after {seconds} s: {self.said[-12:]}")
            if len(self.said) != said:
                said, since = len(self.said), now
            # The longer nothing has happened, the longer nothing will: looking costs, too.
            time.sleep(min(wanted, max(NAP, (now - since) / 10), LONGEST_NAP))

        try:
            return drive(self.workload, self.dataset, deps or self.deps, until=until, sleep=nap)
        except Stopped:
            return []

    # --- what our own side says -----------------------------------------------------------------

    @property
    def view(self) -> RevisionView:
        """The newest revision."""
        found = views.revision_view(
            self.deps.ledger, self.workload.tenant_id, self.workload.name, self.dataset
        )
        assert found is not None
        return found

    def wire_ids(self, numbers: Iterable[int], attempt: int = 1) -> list[str]:
        """The ids under which the provider sees records of an attempt."""
        job = self.view.jobs[attempt - 1]
        table = read_records(self.deps.store, job.records_digest).to_pylist()
        by_name = {row["business_key"]: row["wire_id"] for row in table}
        return [by_name[name_of(number)] for number in numbers]

    def shard(self, ordinal: int, attempt: int = 1) -> set[int]:
        """The record numbers of a shard: the manifest's order is not the table's."""
        job = self.view.jobs[attempt - 1]
        rows = read_records(self.deps.store, job.records_digest).to_pylist()
        return {int(row["business_key"][1:]) for row in rows if row["shard"] == ordinal}

    def number(self, wire_id: str) -> int:
        """The record number behind an id that the provider saw, of any attempt."""
        for job in self.view.jobs:
            for row in read_records(self.deps.store, job.records_digest).to_pylist():
                if row["wire_id"] == wire_id:
                    return int(row["business_key"][1:])
        raise KeyError(wire_id)

    def evidence(self, attempt: int = 1) -> list[dict[str, Any]]:
        """The evidence rows of an attempt's accounted shards."""
        rows: list[dict[str, Any]] = []
        for shard in self.view.shards:
            if shard.attempt == attempt and shard.closure_digest is not None:
                rows += read_evidence(self.deps.store, shard.closure_digest)[1].to_pylist()
        return rows

    def anomalies(self, attempt: int = 1) -> dict[str, int]:
        """Kind -> rows that are no record's answer, of an attempt's accounted shards."""
        found: Counter[str] = Counter()
        for shard in self.view.shards:
            if shard.attempt == attempt and shard.closure_digest is not None:
                document, _ = read_evidence(self.deps.store, shard.closure_digest)
                found.update(document["anomalies"]["counts"])
        return dict(found)

    def lineage(self, attempt: int) -> dict[int, tuple[str, str]]:
        """Record number -> (parent job, why it goes again)."""
        job = self.view.jobs[attempt - 1]
        return {
            int(row["business_key"][1:]): (row["parent_job_key"], row["retry_reason"])
            for row in read_records(self.deps.store, job.records_digest).to_pylist()
        }

    def classes(self, attempt: int = 1) -> dict[str, set[int]]:
        """Class -> record numbers, of an attempt's accounted shards."""
        return _grouped(self.evidence(attempt), "cls")

    def settled(self) -> list[dict[str, Any]]:
        """One row per record of the revision, as its latest closure says."""
        digest = self.view.row.closure_digest
        if digest is None:
            return []
        document = read_document(self.deps.store, digest, REVISION_CLOSURE)
        return read_table(self.deps.store, document["table"]["object"]).to_pylist()

    def states(self) -> dict[str, set[int]]:
        """State -> record numbers."""
        return _grouped(self.settled(), "state")

    def reasons(self) -> dict[int, str]:
        """Record number -> why it stands where it does, for those not accepted."""
        return {
            int(row["business_key"][1:]): row["reason"]
            for row in self.settled()
            if row["state"] != "accepted"
        }

    def duplicates(self) -> set[str]:
        """Second batches of our submissions that were booked."""
        table = schema.duplicate_batches
        with self.deps.ledger.read() as connection:
            return set(connection.execute(sa.select(table.c.batch_id)).scalars())

    def looks(self) -> list[bool]:
        """Walks over the provider's list, oldest first: whether each proves anything."""
        table = schema.looks
        with self.deps.ledger.read() as connection:
            rows = connection.execute(sa.select(table.c.counts).order_by(table.c.id))
            return [bool(counts) for counts in rows.scalars()]

    def release(self, shard: SubmissionRow) -> None:
        """What a person does once the account is mended."""
        submissions.set_hold(self.deps.ledger, shard, None, None)

    # --- what the simulator says ----------------------------------------------------------------

    def calls(self, route: str) -> list[dict[str, Any]]:
        """Calls of one route, in order of arrival."""
        return [entry for entry in self.sim.log() if entry["route"] == route]

    def planned(self, kind: str) -> set[int]:
        """The records that the simulator chose for a fault."""
        return {
            self.number(wire_id)
            for batch in self.own_batches()
            for wire_id, fault in batch["planned"].items()
            if fault == kind
        }

    def met(self, *kinds: str) -> set[int]:
        """The records that were executed under one of these faults."""
        ran = self.sim.executions()
        return {self.number(one["custom_id"]) for one in ran if one["fault"] in kinds}

    def never_run(self, nth: int) -> set[int]:
        """Records of the nth batch that the simulator never executed."""
        batch = self.own_batches()[nth - 1]
        ran = {one["custom_id"] for one in self.sim.executions(batch["id"])}
        shard = next(s for s in self.view.shards if s.batch_id == batch["id"])
        return {
            number
            for number in self.shard(shard.ordinal, shard.attempt)
            if self.wire_ids([number], shard.attempt)[0] not in ran
        }

    def own_batches(self) -> list[dict[str, Any]]:
        """Batches that are not somebody else's."""
        return [one for one in self.sim.state()["batches"] if not one["foreign"]]

    def assert_no_second_batch(self, *, creates: int, batches: int | None = None) -> None:
        """The simulator's own log, list and meter: no batch too many, nothing paid twice.

        Args:
            creates: POSTs of a create that the simulator logged.
            batches: batches that it made of them; as many, unless given.
        """
        meter = self.sim.meter()
        assert meter["paid_twice"] == 0
        assert len(self.calls("create")) == creates
        assert meter["provider_batches"] == (creates if batches is None else batches)
        assert meter["live_batches"] == 0
        assert {key: len(ids) for key, ids in self.batches_of().items() if len(ids) > 1} == {}

    def batches_of(self) -> dict[str, list[str]]:
        """Submission key -> the provider's batches that carry it, whatever became of them."""
        found: dict[str, list[str]] = defaultdict(list)
        for one in self.own_batches():
            found[(one.get("metadata") or {}).get("submission_key", "?")].append(one["id"])
        return dict(found)


class Stopped(Exception):
    """The test has seen enough."""


def _grouped(rows: Iterable[Mapping[str, Any]], column: str) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        found[row[column]].add(int(row["business_key"][1:]))
    return dict(found)
