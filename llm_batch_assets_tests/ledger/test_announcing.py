"""What an orchestrator has to be told: the newest fact of each partition, once."""

from __future__ import annotations

import sqlalchemy as sa

from llm_batch_assets.ledger import Ledger, schema
from llm_batch_assets.ledger.announcing import Fact, record_told, untold
from llm_batch_assets_tests.ledger.build import frozen

DATASET = "2026-11-30"
P0, P1 = f"{DATASET}/r1/a1/p00000", f"{DATASET}/r1/a1/p00001"


def _set(ledger: Ledger, table: sa.Table, where: sa.ColumnElement[bool], **values: object) -> None:
    with ledger.write("test") as connection:
        connection.execute(sa.update(table).where(where).values(**values))


def _due(ledger: Ledger, instance: str = "one", settled_for: float = 0.0) -> list[Fact]:
    return untold(ledger, instance, ["w"], settled_for=settled_for, at_most=100)


def _names(facts: list[Fact]) -> list[tuple[str, str, str]]:
    return [(fact.step, fact.partition, fact.fact_id) for fact in facts]


def test_facts_become_due_as_they_become_true_and_are_told_once(ledger: Ledger) -> None:
    revision = frozen(ledger)
    manifest = ("manifest", DATASET, f"sha256:{DATASET}-1")
    assert _names(_due(ledger)) == [manifest]
    assert untold(ledger, "one", ["other"], settled_for=0.0, at_most=100) == []
    assert untold(ledger, "one", [], settled_for=0.0, at_most=100) == []
    record_told(ledger, "one", _due(ledger))
    record_told(ledger, "one", [])
    assert _due(ledger) == []
    assert _names(_due(ledger, "another")) == [manifest]

    s, r = schema.submissions, schema.revisions
    now = ledger.time()
    first, second = s.c.submission_key == f"{DATASET}-1-0", s.c.submission_key == f"{DATASET}-1-1"
    _set(ledger, s, first, state="SUBMITTED", batch_id="b0", bound_at=now)
    _set(ledger, s, second, state="PROVISIONAL", batch_id="b1", bound_at=now)
    assert _names(_due(ledger)) == [("provider_job", P0, "b0")], "a candidate is no bound batch"
    assert _due(ledger, settled_for=60.0) == [], "its run tells it by itself"
    _set(ledger, s, second, state="ACCOUNTED", batch_id="b1", closure_digest="c1")
    _set(ledger, r, r.c.id == revision, closure_digest="rc1", settled_at=now)
    assert _names(_due(ledger)) == [
        ("provider_job", P0, "b0"),
        ("provider_job", P1, "b1"),
        ("raw_results", P1, "c1"),
        ("reconciled_records", DATASET, "rc1"),
        ("retry_shards", DATASET, f"sha256:{DATASET}-1"),
    ]
    record_told(ledger, "one", _due(ledger))
    _set(ledger, r, r.c.id == revision, closure_digest="rc2")
    assert _names(_due(ledger)) == [("reconciled_records", DATASET, "rc2")]
    record_told(ledger, "one", _due(ledger))
    assert _due(ledger) == []


def test_an_older_fact_is_never_told_after_a_newer_one(ledger: Ledger) -> None:
    """An earlier epoch's batch and an earlier revision's table are no news."""
    revision = frozen(ledger)
    record_told(ledger, "one", _due(ledger))
    s, r = schema.submissions, schema.revisions
    now = ledger.time()
    with ledger.write("test") as connection:
        row = connection.execute(
            sa.select(s).where(s.c.submission_key == f"{DATASET}-1-0")
        ).mappings()
        values = {k: v for k, v in dict(row.one()).items() if k != "id"}
        values |= {"epoch": 1, "submission_key": "next", "state": "SUBMITTED"}
        values |= {"batch_id": "b1", "bound_at": now}
        connection.execute(sa.insert(s).values(**values))
    first = s.c.submission_key == f"{DATASET}-1-0"
    _set(ledger, s, first, state="ABSENT", batch_id="late", bound_at=now)
    assert _names(_due(ledger)) == [("provider_job", P0, "b1")]
    record_told(ledger, "one", _due(ledger))

    published = {"closure_digest": "rc1", "settled_at": now, "published_version": 1}
    _set(ledger, r, r.c.id == revision, **published, published_at=now)
    with ledger.write("test") as connection:
        connection.execute(
            sa.insert(schema.publications).values(
                revision_id=revision,
                version=1,
                closure_digest="rc1",
                candidate_digest="t",
                rows_digest="rows",
                accepted=1,
                published_at=now,
                actor="cli",
            )
        )
    told = _names(_due(ledger))
    assert told[0] == ("accepted_results", DATASET, "rc1"), "what others wait for comes first"
    with ledger.write("test") as connection:
        row = connection.execute(sa.select(r).where(r.c.id == revision)).mappings()
        values = {k: v for k, v in dict(row.one()).items() if k != "id"}
        later = {"revision": 2, "closure_digest": "rc2", "published_version": None}
        connection.execute(sa.insert(r).values(**{**values, **later, "published_at": None}))
    facts = {step: fact for step, _, fact in _names(_due(ledger))}
    assert facts["accepted_results"] == "rc1", "published still"
    assert facts["reconciled_records"] == "rc2"
