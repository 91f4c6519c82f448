"""The judge: what may never be, told from the provider's own batches and log.

Our ledger is read only for what we claim: which batch is bound, what is booked, what was accepted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import sqlalchemy as sa

from llm_batch_assets.ledger import Ledger, schema
from llm_batch_assets.reconcile.candidate import REVISION_CLOSURE
from llm_batch_assets.reconcile.digests import read_document
from llm_batch_assets.reconcile.tables import read_table
from llm_batch_assets_tests.deterministic.bench import ROWS
from llm_batch_assets_tests.deterministic.guards import ARCS
from llm_batch_assets_tests.deterministic.scenario import SETTLE, Scenario
from llm_batch_assets_tests.deterministic.server import Batch, Server, answer_to
from llm_batch_assets_tests.deterministic.store import MemoryStore

TERMINAL = {"accepted", "permanent_failure", "human_review", "cancelled"}


def faults_of(server: Server, ledger: Ledger, store: MemoryStore, scenario: Scenario) -> list[str]:
    """Everything that is wrong with a run that has come to its end; empty when nothing is."""
    books = _Books(ledger)
    return [
        *second_batches(server),
        *answered_again(server),
        *strangers(server, books),
        *unbooked(server, books),
        *terminal(server, books, store),
        *histories(ledger),
    ]


class _Books:
    """What our side says at the end."""

    def __init__(self, ledger: Ledger) -> None:
        s, d, f, r = (
            schema.submissions,
            schema.duplicate_batches,
            schema.raw_files,
            schema.revisions,
        )
        with ledger.engine.connect() as connection:
            self.bound = set(
                connection.execute(sa.select(s.c.batch_id).where(s.c.batch_id.is_not(None)))
                .scalars()
                .all()
            )
            rows = connection.execute(sa.select(d.c.batch_id, d.c.cancelled_at))
            self.duplicates = {row.batch_id: row.cancelled_at for row in rows}
            self.raw = set(connection.execute(sa.select(f.c.ref)).scalars())
            self.revision = connection.execute(sa.select(r)).one()


def second_batches(server: Server) -> Iterator[str]:
    """At most one batch of a shard that lives or has executed anything, but for the two excuses."""
    by_shard: dict[str, list[Batch]] = defaultdict(list)
    for batch in server.batches:
        if not batch.foreign:
            by_shard[batch.tag].append(batch)
    for batches in by_shard.values():
        counted = [b for b in batches if not b.unproven(SETTLE, server.labelled)]
        for number, first in enumerate(counted):
            for second in counted[number + 1 :]:
                nothing = first.end <= second.created and not _ran(first)
                if not nothing:
                    yield f"{second.id} is a second batch of {first.tag} beside {first.id}"


def _ran(batch: Batch) -> bool:
    return any(batch.executed_at(n) is not None for n in range(len(batch.lines)))


def answered_again(server: Server) -> Iterator[str]:
    """No record is executed again after a good answer that could be had."""
    good: dict[str, Batch] = {}
    for batch in server.batches:
        if batch.foreign or batch.unproven(SETTLE, server.labelled):
            continue
        for index, (wire_id, _) in enumerate(batch.lines):
            at, record = batch.executed_at(index), wire_id[17:]
            if at is None:
                continue
            if record in good:
                yield f"{record[:8]} ran in {batch.id} after its answer in {good[record].id}"
            elif batch.rows[index] in ("good", "twice") and batch.fate != "gone":
                good[record] = batch


def strangers(server: Server, books: _Books) -> Iterator[str]:
    """Nothing of anybody else is cancelled, deleted, bound or stored."""
    theirs = {b.id for b in server.batches if b.foreign}
    theirs |= {b.input_ref for b in server.batches if b.foreign and b.input_ref}
    for at, operation, target in server.log:
        if operation in ("cancelled", "deleted") and target in theirs:
            yield f"{target} of another was {operation} at {at}"
    for batch in books.bound & theirs:
        yield f"{batch} of another is bound"
    for ref in books.raw:
        if ref.partition("/")[0] in theirs:
            yield f"{ref} of another is stored"


def unbooked(server: Server, books: _Books) -> Iterator[str]:
    """Every batch of ours is bound, or booked as a second one and cancelled if it could be."""
    for batch in server.batches:
        if batch.foreign or batch.id in books.bound:
            continue
        if not server.labelled and not _tells(batch):
            continue
        if batch.id not in books.duplicates:
            yield f"{batch.id} ({batch.tag}) is neither bound nor booked"
        elif books.duplicates[batch.id] is None:
            yield f"{batch.id} is booked, but its cancel was never taken"
    for batch_id in set(books.duplicates) & books.bound:
        yield f"{batch_id} is bound and booked as a duplicate"


def _tells(batch: Batch) -> bool:
    """Whether a line can be read that tells whose a batch without a label is."""
    readable = ("good", "failed", "twice")
    return batch.fate != "gone" and any(
        batch.executed_at(n) is None or row in readable for n, row in enumerate(batch.rows)
    )


def terminal(server: Server, books: _Books, store: MemoryStore) -> Iterator[str]:
    """Every manifest id is in exactly one terminal state, and what is accepted was answered so."""
    revision = books.revision
    if revision.closed_at is None:
        yield "the revision is not closed"
        return
    document = read_document(store, revision.closure_digest, REVISION_CLOSURE)
    rows = read_table(store, document["table"]["object"]).to_pylist()
    names = sorted(row["business_key"] for row in rows)
    if names != sorted(row["name"] for row in ROWS):
        yield f"the closure names {names}"
    for row in rows:
        if row["state"] not in TERMINAL:
            yield f"{row['business_key']} is {row['state']}"
    accepted = {row["record_id"]: row for row in rows if row["state"] == "accepted"}
    candidate = read_table(store, revision.candidate_digest).to_pylist()
    if {row["record_id"] for row in candidate} != set(accepted):
        yield "the published table is not what was accepted"
    answered = _answered(server)
    for row in candidate:
        if row["answer"] != answer_to(row["business_key"]):
            yield f"{row['business_key']} has the answer {row['answer']}"
        if row["business_key"] not in answered:
            yield f"{row['business_key']} is accepted, but nothing answered it"
    if revision.cancel_requested_at is None:
        if revision.published_closure != revision.closure_digest:
            yield "it is closed and not published"
    elif revision.published_at is not None and revision.published_at > revision.cancel_requested_at:
        yield "it was published after it was cancelled"


def _answered(server: Server) -> set[str]:
    return {
        body
        for batch in server.batches
        if not batch.foreign
        for index, (_, body) in enumerate(batch.lines)
        if batch.executed_at(index) is not None and batch.rows[index] in ("good", "twice")
    }


def histories(ledger: Ledger) -> Iterator[str]:
    """Each submission's rows in ``transitions`` are one path along the table, to where it is."""
    s, t = schema.submissions, schema.transitions
    with ledger.engine.connect() as connection:
        states = dict(connection.execute(sa.select(s.c.id, s.c.state)).tuples().all())
        steps = connection.execute(sa.select(t).order_by(t.c.id)).all()
    now: dict[int, str] = {}
    for step in steps:
        before = now.get(step.submission_id)
        if step.from_state != before:
            yield f"{step.submission_id} left {step.from_state} while it was {before}"
        if before is not None and f"{before}>{step.to_state}" not in ARCS:
            yield f"{step.submission_id} went from {before} to {step.to_state}"
        now[step.submission_id] = step.to_state
    if now != states:
        yield f"states {states} are not where their histories end, {now}"
