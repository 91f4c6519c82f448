"""Leases, claims, transitions and facts through the ledger's public functions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from llm_batch_assets.errors import (
    GateClosed,
    LabelConflict,
    LeaseLost,
    NotReady,
    SchemaMismatch,
    TransitionRefused,
    WrongStore,
)
from llm_batch_assets.ledger import (
    Ledger,
    claims,
    facts,
    freezing,
    leases,
    people,
    schema,
    submissions,
    views,
)
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.states import ARCS
from llm_batch_assets.types import BatchView
from llm_batch_assets_tests.clocks import ManualClock
from llm_batch_assets_tests.ledger.build import WORKER, frozen, job_spec, revision_spec

KEY = "2026-11-30-1-0"


def _claim(ledger: Ledger, key: str = KEY, holder: str = "holder-1") -> tuple:
    lease = leases.acquire(ledger, f"submission:{key}", holder, 60)
    assert lease is not None
    row = claims.claim(
        ledger, _row(ledger, key), lease=lease, worker=WORKER, account="acc", post_seconds=2
    )
    return row, lease


def _row(ledger: Ledger, key: str) -> SubmissionRow:
    with ledger.read() as connection:
        return submissions.load(connection, key)


def test_freezing_twice_writes_one_revision(ledger: Ledger) -> None:
    first = frozen(ledger)
    row, job, wrote = freezing.open_revision(ledger, revision_spec(), job_spec(), [], WORKER)
    assert (row.id, job.attempt, wrote) == (first, 1, False)
    assert views.shard_keys(ledger, "w") == ["2026-11-30/r1/a1/p00000", "2026-11-30/r1/a1/p00001"]


def test_a_known_label_with_other_content_is_refused_naming_both(ledger: Ledger) -> None:
    label = freezing.Label("prompt", "v1", "aaa")
    freezing.open_revision(ledger, revision_spec("d1"), job_spec("d1"), [label], WORKER)
    with pytest.raises(LabelConflict, match=r"aaa.*bbb"):
        freezing.open_revision(
            ledger,
            revision_spec("d2"),
            job_spec("d2"),
            [freezing.Label("prompt", "v1", "bbb")],
            WORKER,
        )
    assert views.revision_view(ledger, "t", "w", "d2") is None


def test_only_one_holder_has_a_lease_and_tokens_grow(ledger: Ledger, clock: ManualClock) -> None:
    first = leases.acquire(ledger, "x", "a", 10)
    assert first is not None
    assert leases.acquire(ledger, "x", "b", 10) is None
    clock.advance(10)
    second = leases.acquire(ledger, "x", "b", 10)
    assert second is not None
    assert second.token > first.token
    with pytest.raises(LeaseLost):
        leases.renew(ledger, first, 10)
    with pytest.raises(LeaseLost):
        leases.still_held(ledger, first)
    leases.release(ledger, first)  # a stale release gives nothing back
    assert leases.acquire(ledger, "x", "c", 10) is None


def test_the_same_holder_takes_over_its_own_lease(ledger: Ledger) -> None:
    first = leases.acquire(ledger, "x", "a", 10)
    again = leases.acquire(ledger, "x", "a", 10)
    assert first is not None
    assert again is not None
    assert again.token == first.token + 1


@pytest.mark.parametrize("seconds, held", [(9.0, True), (10.0, False), (11.0, False)])
def test_a_lease_ends_at_its_second(
    ledger: Ledger, clock: ManualClock, seconds: float, held: bool
) -> None:
    lease = leases.acquire(ledger, "x", "a", 10)
    assert lease is not None
    clock.advance(seconds)
    if held:
        assert leases.still_held(ledger, lease) > 0
    else:
        with pytest.raises(LeaseLost):
            leases.still_held(ledger, lease)


def test_a_claim_commits_intent_and_a_second_one_is_refused(ledger: Ledger) -> None:
    frozen(ledger)
    row, lease = _claim(ledger)
    assert row.state == "SUBMITTING"
    assert row.account == "acc"
    assert row.post_deadline == row.posted_at + 2_000_000
    with pytest.raises(TransitionRefused, match="SUBMITTING"):
        claims.claim(ledger, row, lease=lease, worker=WORKER, account="acc", post_seconds=2)


def test_a_stale_token_decides_nothing(ledger: Ledger, clock: ManualClock) -> None:
    frozen(ledger)
    row, lease = _claim(ledger)
    clock.advance(61)
    taken = leases.acquire(ledger, row.target, "other", 60)
    assert taken is not None
    with pytest.raises(LeaseLost):
        submissions.transition(ledger, row, "SUBMITTED", lease=lease, worker=WORKER, reason="x")
    with ledger.read() as connection:
        assert submissions.load(connection, KEY).state == "SUBMITTING"
    assert [t.to_state for t in views.transitions_of(ledger, row.id)] == [
        "CREATED",
        "VALIDATED",
        "SUBMITTING",
    ]


def test_every_arc_outside_the_table_raises(ledger: Ledger) -> None:
    frozen(ledger)
    lease = leases.acquire(ledger, f"submission:{KEY}", "holder-1", 60)
    assert lease is not None
    with ledger.read() as connection:
        row = submissions.load(connection, KEY)
    for state in ARCS:
        if state not in ARCS["VALIDATED"]:
            with pytest.raises(TransitionRefused, match="no arc"):
                submissions.transition(ledger, row, state, lease=lease, worker=WORKER, reason="")


def test_a_known_batch_of_the_submission_stops_a_claim(ledger: Ledger) -> None:
    frozen(ledger)
    view = BatchView("batch_1", "validating", "queued")
    assert facts.record_batch(ledger, "acc", view, KEY, "list")
    assert not facts.record_batch(ledger, "acc", view, KEY, "list")
    with pytest.raises(GateClosed, match="already has a batch"):
        _claim(ledger)


def test_open_datasets_is_decided_by_the_claim(ledger: Ledger) -> None:
    for dataset in ("d1", "d2"):
        frozen(ledger, dataset)
    with pytest.raises(GateClosed, match="open_datasets"):
        frozen(ledger, "d3")  # refused early
    with ledger.write("test") as connection:
        connection.execute(sa.update(schema.revisions).values(open_datasets=1))
    _claim(ledger, "d1-1-0")
    _claim(ledger, "d1-1-1")  # the same dataset goes on
    with pytest.raises(GateClosed, match="closes"):
        _claim(ledger, "d2-1-0")


@pytest.mark.parametrize(
    "column, value, says",
    [
        ("hold", "account: 401", "on hold: account: 401"),
        ("cancel_requested_at", 1, "cancelled"),
        ("superseded_at", 1, "superseded"),
    ],
)
def test_gates_of_a_revision_refuse_the_claim(
    ledger: Ledger, column: str, value: object, says: str
) -> None:
    frozen(ledger)
    with ledger.write("test") as connection:
        connection.execute(sa.update(schema.revisions).values({column: value}))
    with pytest.raises(GateClosed, match=says):
        _claim(ledger)


def test_a_held_submission_is_not_claimed_until_it_is_released(ledger: Ledger) -> None:
    frozen(ledger)
    with ledger.read() as connection:
        row = submissions.load(connection, KEY)
    submissions.set_hold(ledger, row, "account: 401", "Mend the key.")
    with pytest.raises(GateClosed, match=r"Mend the key\."):
        _claim(ledger)
    submissions.set_hold(ledger, row, None, None)
    assert _claim(ledger)[0].state == "SUBMITTING"


def test_held_releases_after_an_error_and_says_who_waits(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError), leases.held(ledger, "x", "a", 60):
        1 / 0  # noqa: B018
    with (
        leases.held(ledger, "x", "b", 60),
        pytest.raises(NotReady),
        leases.held(ledger, "x", "c", 60),
    ):
        pass


def test_another_store_or_deployment_or_a_newer_schema_is_refused(ledger: Ledger, url: str) -> None:
    ledger.bind_store("s1")
    ledger.bind_store("s1")
    with pytest.raises(WrongStore, match=r"s1.*s2"):
        ledger.bind_store("s2")
    other = Ledger(url, deployment="d-other")
    with pytest.raises(SchemaMismatch, match="deployment"):
        other.check()
    with ledger.write("test") as connection:
        connection.execute(
            sa.update(schema.meta).where(schema.meta.c.key == "schema_major").values(value="2")
        )
    with pytest.raises(SchemaMismatch, match="newer"):
        ledger.check()


def test_a_ledger_without_tables_says_what_to_run(url: str) -> None:
    with pytest.raises(SchemaMismatch, match="ledger upgrade"):
        Ledger(url, deployment="d").check()


def test_migrations_give_exactly_the_tables_of_the_schema(ledger: Ledger) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with ledger.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"version_table": "llm_batch_alembic_version", "compare_type": True},
        )
        assert compare_metadata(context, schema.metadata) == []


def test_a_batch_that_nothing_is_bound_to_is_a_stray_until_its_cancel_is_booked(
    ledger: Ledger,
) -> None:
    frozen(ledger)
    row, lease = _claim(ledger)
    for name in ("batch_1", "batch_2"):
        facts.record_batch(ledger, "acc", BatchView(name, "validating", "queued"), KEY, "list")
    assert views.snapshot(ledger).strays == ()  # nothing is bound yet: guessing could cancel both
    submissions.transition(
        ledger, row, "SUBMITTED", lease=lease, worker=WORKER, reason="", batch_id="batch_1"
    )
    assert [batch for _, batch in views.snapshot(ledger).strays] == ["batch_2"]
    facts.record_duplicate(ledger, "acc", "batch_2", KEY, "second")
    assert [batch for _, batch in views.snapshot(ledger).strays] == ["batch_2"]  # not cancelled
    facts.mark_duplicate_cancelled(ledger, "acc", "batch_2")
    assert views.snapshot(ledger).strays == ()


def _exclusive(ledger: Ledger, account: str) -> str:
    """The state of the second shard after a claim of a provider without labels."""
    lease = leases.acquire(ledger, "submission:2026-11-30-1-1", "holder-1", 60)
    assert lease is not None
    return claims.claim(
        ledger,
        _row(ledger, "2026-11-30-1-1"),
        lease=lease,
        worker=WORKER,
        account=account,
        post_seconds=2,
        exclusive=True,
    ).state


def test_only_one_create_of_an_account_may_be_unacknowledged_where_batches_have_no_label(
    ledger: Ledger,
) -> None:
    frozen(ledger)
    _claim(ledger)
    with pytest.raises(GateClosed, match="not acknowledged"):
        _exclusive(ledger, "acc")
    assert _exclusive(ledger, "another account") == "SUBMITTING"


def test_an_unacknowledged_create_that_a_person_gave_up_blocks_nothing_once_it_is_over(
    ledger: Ledger,
) -> None:
    frozen(ledger)
    _, lease = _claim(ledger)
    people.abandon(ledger, _row(ledger, KEY), WORKER, "nobody can tell")
    with pytest.raises(GateClosed, match="not acknowledged"):
        _exclusive(ledger, "acc")  # it may still be on the way
    submissions.transition(
        ledger, _row(ledger, KEY), "UNCERTAIN", lease=lease, worker=WORKER, reason="no answer"
    )
    assert _exclusive(ledger, "acc") == "SUBMITTING"


def test_many_workers_each_take_another_submission(ledger: Ledger) -> None:
    frozen(ledger)
    taken = [claims.take(ledger, replace(WORKER, holder=f"h{n}"), ttl=60) for n in range(3)]
    keys = [found[0].submission_key for found in taken if found is not None]
    assert keys == ["2026-11-30-1-0", "2026-11-30-1-1"]
    assert taken[2] is None
