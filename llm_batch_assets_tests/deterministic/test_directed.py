"""What the seeds found, played by hand in the same world: one worker, and a script of fates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import sqlalchemy as sa

from llm_batch_assets.controller import WorkKind, of_kind
from llm_batch_assets.deps import Deps
from llm_batch_assets.engine import collecting, execute, plan
from llm_batch_assets.engine.people import abandon, adopt
from llm_batch_assets.engine.sweeping import Swept, sweep
from llm_batch_assets.errors import LLMBatchError
from llm_batch_assets.ledger import facts, schema, views
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.worker import Worker
from llm_batch_assets_tests.deterministic import bench
from llm_batch_assets_tests.deterministic.oracle import answered_again, second_batches
from llm_batch_assets_tests.deterministic.provider import SimProvider, lines_of
from llm_batch_assets_tests.deterministic.scenario import scenario
from llm_batch_assets_tests.deterministic.server import Batch, Server
from llm_batch_assets_tests.deterministic.world import SECOND, Chaos, World


class Play:
    """A frozen dataset, fair weather, and time that passes when a test says so."""

    def __init__(self, shared: bench.Shared, *, labelled: bool) -> None:
        fair = replace(
            scenario(0).weather,
            create={"ok": 1.0},
            lag=(0.0, 0.0),
            batch={"normal": 1.0},
            rows={"good": 1.0},
            fault=0.0,
            short=0.0,
            late=0.1,
        )
        self.world = World(0, Chaos())
        self.server = Server(self.world, labelled, fair)
        provider = "openai" if labelled else "anthropic"
        template = shared.template(provider, delete_remote=False)
        shared.restore(template, self.world)
        self.deps = Deps(
            shared.ledger,
            shared.store(self.world, template.objects),
            lambda _: SimProvider(self.server),
            bench.SETTINGS,
            Worker("hand", "test"),
            sleep=lambda _: None,
        )

    def fates(self, **create: float) -> None:
        """What becomes of creates from here on."""
        self.server.weather = replace(self.server.weather, create=create)

    def wait(self, seconds: float) -> None:
        self.world.advance(self.world.now + int(seconds * SECOND))

    def do(self, *kinds: WorkKind, most: int = 99) -> None:
        """What is due now of these kinds."""
        for work in of_kind(plan(self.deps), *kinds)[:most]:
            try:
                execute(work, self.deps)
            except LLMBatchError as error:
                self.world.say(str(error))

    def go_on(self, *kinds: WorkKind, rounds: int = 40, every: float = 30.0) -> None:
        for _ in range(rounds):
            self.do(*kinds)
            self.wait(every)

    def shard(self, ordinal: int = 0, attempt: int = 1) -> SubmissionRow:
        """The newest epoch of a shard."""
        view = views.view_by_id(self.deps.ledger, 1)
        return next(s for s in view.shards if (s.ordinal, s.attempt) == (ordinal, attempt))

    def sweep(self) -> Swept:
        return sweep(self.deps)

    def booked(self) -> set[str]:
        with self.deps.ledger.read() as connection:
            found = connection.execute(sa.select(schema.duplicate_batches.c.batch_id))
            return set(found.scalars())

    def theirs(self, fate: str) -> Batch:
        """Somebody else's batch of as many requests as ours."""
        lines = [(f"theirs-{n}", "theirs") for n in range(bench.PER_SHARD)]
        batch = self.server.accept(lines, {}, None, deadline=self.world.now, foreign=True)
        batch.fate = fate
        return batch

    def late_post(self, seconds: float) -> None:
        """The first shard's create is not answered, and arrives so long afterwards."""
        self.fates(never=1.0)
        self.do("submit", most=1)
        request = self.deps.store.get(self.shard().request_digest)
        lines = lines_of(request)
        at = self.world.now

        def arrive() -> None:
            self.server.accept(lines, {}, None, deadline=at + int(bench.POST * SECOND))

        self.world.after(seconds, arrive)
        self.fates(ok=1.0)


@pytest.fixture
def play(shared: bench.Shared) -> Callable[..., Play]:
    return lambda *, labelled: Play(shared, labelled=labelled)


def test_a_late_batch_without_a_label_is_booked_beside_the_one_that_replaced_it(
    play: Callable[..., Play],
) -> None:
    one = play(labelled=False)
    one.late_post(600.0)
    one.go_on("look", "submit", "poll", "collect", rounds=20)
    (bound,) = [b for b in one.server.batches if b.id == one.shard().batch_id]
    assert one.shard().epoch == 1
    one.go_on(rounds=20)
    (late,) = [b for b in one.server.batches if b.tag == bound.tag and b is not bound]
    assert [s.batch_id for s in one.sweep().duplicates] == [late.id]
    assert one.booked() == {late.id}
    before = len(one.server.log)
    assert one.sweep().duplicates == []
    assert len(one.server.log) == before  # what is booked is not read again


def test_a_late_batch_without_a_label_is_adopted_while_its_shard_is_unsent(
    play: Callable[..., Play],
) -> None:
    one = play(labelled=False)
    one.late_post(400.0)
    one.go_on("look", rounds=10)
    assert (one.shard().epoch, one.shard().state) == (1, "VALIDATED")
    one.wait(600.0)
    one.sweep()  # its results may be named at a later look only
    one.sweep()
    one.sweep()
    row = one.shard()
    assert (row.state, row.batch_id) == ("SUBMITTED", one.server.batches[0].id)
    one.go_on("submit", "poll", "collect", "account", "publish", rounds=30)
    assert list(second_batches(one.server)) == list(answered_again(one.server)) == []
    assert views.view_by_id(one.deps.ledger, 1).row.accepted == bench.RECORDS


def test_a_candidate_that_nobody_can_tell_waits_for_a_person_and_is_never_cancelled(
    play: Callable[..., Play],
) -> None:
    one = play(labelled=False)
    one.late_post(0.1)
    one.wait(1.0)
    ours = one.server.batches[0]
    ours.fate = "gone"
    one.go_on("look", rounds=2)
    assert (one.shard().state, one.shard().batch_id) == ("PROVISIONAL", ours.id)
    one.go_on("poll", rounds=30, every=700.0)
    held = one.shard()
    assert held.hold is not None and ours.id in held.hold
    assert held.hold_release is not None and "adopt" in held.hold_release
    abandon(one.deps, held.shard_key, "nobody can tell")
    one.go_on("poll", "cancel", "look", rounds=3, every=700.0)
    assert one.shard().state == "UNCERTAIN"
    assert not [entry for entry in one.server.log if entry[1] == "cancelled"]


def test_a_person_can_tell_whose_an_unproven_candidate_is(play: Callable[..., Play]) -> None:
    one = play(labelled=False)
    one.late_post(0.1)
    one.wait(1.0)
    theirs, ours = one.theirs("gone"), one.server.batches[0]
    ours.listed = theirs.created + 400 * SECOND
    one.go_on("look", rounds=2)
    assert (one.shard().state, one.shard().batch_id) == ("PROVISIONAL", theirs.id)
    one.wait(900.0)
    adopt(one.deps, one.shard().shard_key, ours.id, "seen in the console")
    assert (one.shard().state, one.shard().batch_id) == ("SUBMITTED", ours.id)


def test_a_candidate_whose_results_are_gone_keeps_no_other_from_being_judged(
    play: Callable[..., Play],
) -> None:
    one = play(labelled=False)
    one.late_post(0.1)
    one.wait(1.0)
    one.theirs("gone")
    one.wait(400.0)
    one.go_on("look", rounds=3)
    assert one.shard().batch_id == one.server.batches[0].id
    assert one.shard().bound_how == "proven"


def test_a_late_answer_settles_what_a_candidate_cannot(play: Callable[..., Play]) -> None:
    one = play(labelled=False)
    one.late_post(0.1)
    one.wait(1.0)
    theirs, ours = one.theirs("gone"), one.server.batches[0]
    ours.listed = theirs.created + 400 * SECOND
    one.go_on("look", rounds=2)
    row = one.shard()
    assert (row.state, row.batch_id) == ("PROVISIONAL", theirs.id)
    view = SimProvider(one.server).get(ours.id)
    facts.record_batch(one.deps.ledger, row.account or "", view, row.submission_key, "create")
    one.go_on("poll", "look", rounds=4)
    assert (one.shard().batch_id, one.shard().bound_how) == (ours.id, "found")


def test_a_shard_without_files_that_is_collected_in_two_goes_is_confirmed(
    play: Callable[..., Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = play(labelled=True)
    one.do("submit", most=1)
    one.wait(2.0)
    batch = one.server.batches[0]
    batch.unnamed, batch.rows = 10**6, ["missing"] * len(batch.lines)
    one.go_on("poll", rounds=60)
    assert one.shard().state == "RESULTS_AVAILABLE"
    real = collecting._write
    monkeypatch.setattr(collecting, "_write", _dies)
    with pytest.raises(Dead):
        execute(of_kind(plan(one.deps), "collect")[0], one.deps)
    assert one.shard().state == "COLLECTED"
    monkeypatch.setattr(collecting, "_write", real)
    one.wait(100.0)
    one.go_on("submit", "poll", "collect", "account", "publish", rounds=60)
    row = views.view_by_id(one.deps.ledger, 1).row
    assert (row.closed_at is not None, row.accepted) == (True, bench.RECORDS)


class Dead(BaseException):
    """The worker is gone at this point."""


def _dies(*_: object) -> None:
    raise Dead
