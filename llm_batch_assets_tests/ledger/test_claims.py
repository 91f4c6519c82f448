"""Many workers over one ledger: each claims something else, and none slips past a closing gate."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import pytest

from benchmarks import claims as benchmark
from llm_batch_assets.errors import GateClosed
from llm_batch_assets.ledger import Ledger, accounting, claims, gates, people, schema, views
from llm_batch_assets.ledger.states import SENDABLE
from llm_batch_assets_tests.ledger.build import WORKER, frozen
from llm_batch_assets_tests.postgres import Postgres


@pytest.mark.parametrize(
    ("workers", "submissions"), [(6, 150), pytest.param(16, 2000, marks=pytest.mark.soak)]
)
def test_processes_claim_each_submission_once(
    workers: int, submissions: int, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["--workers", str(workers), "--submissions", str(submissions)]
    assert benchmark.main(asked) == 0
    result = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (result["claimed"], result["twice"]) == (submissions, 0)


def test_what_has_been_due_longest_is_taken_first(ledger: Ledger) -> None:
    frozen(ledger)
    late, early = "2026-11-30-1-0", "2026-11-30-1-1"
    with ledger.write("test") as connection:
        for key, due in ((late, 2), (early, 1)):
            connection.execute(
                schema.submissions.update()
                .where(schema.submissions.c.submission_key == key)
                .values(due_at=due)
            )
    taken = [claims.take(ledger, replace(WORKER, holder=f"h{n}"), ttl=60) for n in range(2)]
    assert [found[0].submission_key for found in taken if found is not None] == [early, late]


def test_a_backlog_that_the_statistics_do_not_know_is_not_read_whole(
    postgres: Postgres,
) -> None:
    """PostgreSQL last counted when nothing waited, as it does after every quiet night."""
    url = postgres.database()
    benchmark.fill(url, 600)
    ledger = Ledger(url, deployment="bench")

    def all_are(state: str) -> None:
        with ledger.write("test") as connection:
            connection.execute(schema.submissions.update().values(state=state))

    def shards_read() -> int:
        with ledger.read() as connection:
            connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
        with ledger.read() as connection:
            query = "SELECT idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'shards'"
            return int(connection.exec_driver_sql(query).scalar_one())

    all_are("ACCOUNTED")
    with ledger.write("test") as connection:
        connection.exec_driver_sql("ANALYZE")
    all_are("VALIDATED")
    before = shards_read()
    for _ in range(20):
        assert claims.take(ledger, WORKER, ttl=60) is not None
    # What others hold is passed over: each take reads one row more than the last.
    assert shards_read() - before <= 20 * 21
    ledger.close()


def test_the_index_of_what_waits_names_the_sendable_states() -> None:
    assert set(re.findall("'(.*?)'", schema.TO_SEND)) == SENDABLE


@pytest.mark.parametrize("gate", ["cancel", "hold dataset", "hold submission", "abandon"])
def test_a_gate_closes_after_the_claims_that_saw_it_open(ledger: Ledger, gate: str) -> None:
    """Once the person's word has returned, nothing is claimed that had not heard it."""
    frozen(ledger)
    (revision,) = [view.row for view in views.snapshot(ledger).revisions]
    found = claims.take(ledger, WORKER, ttl=60)
    assert found is not None
    row, lease = found

    def close() -> None:
        if gate == "cancel":
            accounting.request_cancel(ledger, revision, WORKER, "wrong month")
        elif gate == "hold dataset":
            people.hold_dataset(ledger, revision, WORKER, "wrong month")
        elif gate == "hold submission":
            people.hold_submission(ledger, row, WORKER, "wrong month")
        else:
            people.abandon(ledger, row, WORKER, "wrong month")

    with ThreadPoolExecutor(1) as person:
        with ledger.write("a claim in flight") as connection:
            gates.pass_through(connection, ledger)
            closing = person.submit(close)
            assert not wait([closing], timeout=0.3).done
        closing.result(timeout=20)
    with pytest.raises(GateClosed):
        claims.claim(ledger, row, lease=lease, worker=WORKER, account="a", post_seconds=2)
