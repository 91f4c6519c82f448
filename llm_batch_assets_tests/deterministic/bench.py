"""What seeds share: a migrated ledger file, a store's first objects, one engine per provider.

A fresh SQLAlchemy engine compiles every statement again, which costs more than a whole seed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.deps import Deps
from llm_batch_assets.engine import freeze
from llm_batch_assets.ledger import Ledger
from llm_batch_assets.ledger.database import to_micros
from llm_batch_assets.ledger.worker import Worker
from llm_batch_assets.settings import Settings
from llm_batch_assets.workload import Workload
from llm_batch_assets_tests.deterministic import guards
from llm_batch_assets_tests.deterministic.scenario import (
    LEASE,
    PER_SHARD,
    POLL,
    POST,
    RECORDS,
    SETTLE,
)
from llm_batch_assets_tests.deterministic.store import MemoryStore
from llm_batch_assets_tests.deterministic.world import Chaos, World

DEPLOYMENT = "d-simulated"
DATASET = "d1"
ROWS = [{"name": f"r{n:02d}"} for n in range(RECORDS)]
MODELS = {"openai": "gpt-5-mini-2025-08-07", "anthropic": "claude-haiku-4-5-20251001"}

LOOPBACK = frozenset(MODELS)
"""Nothing real is at stake: an untested cell of the capability table is admitted."""

SETTINGS = Settings(
    settle_interval=SETTLE,
    post_seconds=POST,
    poll_interval=POLL,
    lease_ttl=LEASE,
    heartbeat=False,
)


class StepLedger(Ledger):
    """A ledger at whose transactions' beginnings another worker may come first."""

    world: World | None = None

    def _clock_now(self) -> datetime:
        return datetime(2026, 11, 30, 12, tzinfo=UTC) if self.world is None else self.world.clock()

    def __init__(self, url: str) -> None:
        super().__init__(url, deployment=DEPLOYMENT, clock=self._clock_now)
        # A simulated machine loses no power: what counts is the order of commits.
        sa.event.listen(self.engine, "connect", _unsafe)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        if self.world is not None:
            self.world.step("read")
        with super().read() as connection:
            yield connection

    @contextmanager
    def write(self, name: str) -> Iterator[Connection]:
        if self.world is not None:
            self.world.step(f"begin.{name}")
        with super().write(name) as connection:
            yield connection

    def now(self, connection: Connection, *, first: str | None = None) -> int:
        """The same as through SQL, without a round trip for each."""
        del connection, first
        return to_micros(self._clock_now()) or 0

    def time(self) -> int:
        if self.world is not None:
            self.world.step("read")
        return to_micros(self._clock_now()) or 0


def _unsafe(dbapi: Any, _record: Any) -> None:
    dbapi.execute("PRAGMA synchronous=OFF")


def make_workload(provider: str, *, delete_remote: bool) -> Workload:
    """Plain text answers: what is asked and answered can be compared by eye."""
    return Workload.from_mapping(
        {
            "name": f"notes_{provider}",
            "tenant_id": "lab",
            "provider": provider,
            "model": MODELS[provider],
            "business_key": "name",
            "prompt": {"version": "v1", "system": "S", "user": "{{ name }}"},
            "generation": {"max_output_tokens": 50},
            "output": {"version": "v1", "answer": "text"},
            "limits": {"records_per_shard": PER_SHARD},
            "retry": {
                "backoff": {"initial": "5s", "factor": 1, "max": "5s"},
                "hold_deadline": "10m",
                "cut_after": "20m",
            },
            "publish": {"min_accepted": 0},
            "retention": {"delete_remote": "after_delivery" if delete_remote else "keep"},
        }
    )


@dataclass(frozen=True)
class Template:
    """A ledger and a store with the dataset frozen in them."""

    database: bytes
    objects: dict[str, bytes]


class Shared:
    """Everything that outlives a seed, in one folder; not for two seeds at a time."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")  # a RAM disk, where there is one
        self.folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        (self.folder / "objects").mkdir()
        self._database = self.folder / "ledger.db"
        self.ledger = StepLedger(f"sqlite:///{self._database}")
        self.ledger.upgrade()
        self.ledger.bind_store(MemoryStore.store_id)
        with self.ledger.write("guards") as connection:
            guards.install(connection)
        self._empty = self._copy()
        self._frozen: dict[tuple[str, bool], Template] = {}

    def close(self) -> None:
        """Remove the folder."""
        self.ledger.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def store(self, world: World, objects: dict[str, bytes]) -> MemoryStore:
        """A store with these objects."""
        return MemoryStore(world, self.folder / "objects", objects)

    def template(self, provider: str, *, delete_remote: bool) -> Template:
        """The frozen dataset of a provider."""
        name = (provider, delete_remote)
        if name not in self._frozen:
            world = World(0, Chaos())
            self.restore(Template(self._empty, {}), world)
            store = self.store(world, {})
            worker = Worker("template", "test")
            deps = Deps(self.ledger, store, no_provider, SETTINGS, worker, loopback=LOOPBACK)
            freeze_dataset(make_workload(provider, delete_remote=delete_remote), deps)
            self._frozen[name] = Template(self._copy(), store.objects)
        return self._frozen[name]

    def empty(self) -> Template:
        """Nothing is frozen yet."""
        return Template(self._empty, {})

    def restore(self, template: Template, world: World) -> None:
        """Begin again from a template, under another world's clock."""
        self.ledger.world = None
        self.ledger.engine.dispose()
        for suffix in ("-wal", "-shm"):
            self._database.with_name(self._database.name + suffix).unlink(missing_ok=True)
        self._database.write_bytes(template.database)
        self.ledger.world = world
        self.ledger.effects = world

    def _copy(self) -> bytes:
        with self.ledger.engine.connect() as connection:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        self.ledger.engine.dispose()
        return self._database.read_bytes()


def no_provider(name: str) -> Any:
    """For work that needs none."""
    raise AssertionError(f"{name} is not asked here")


def freeze_dataset(workload: Workload, deps: Deps) -> None:
    """Freeze the rows; the same rows again are a no-op."""
    batches = pa.Table.from_pylist(ROWS).to_batches()
    freeze(workload, batches, dataset=DATASET, deps=deps, submitter="simulation")
