"""Settlement: where every record of a revision stands after all of its attempts. Pure.

The order is (attempt, shard, line): the first accepted answer wins and a late row never overwrites
it. Records are array indices in here; names come back only in the resulting table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.errors import LLMBatchError
from llm_batch_assets.reconcile.book import Accounted, Attempt, Book, flags, one
from llm_batch_assets.reconcile.disposal import (
    CLASSES,
    NEXT,
    STATES,
    Circumstances,
    Mask,
    Policy,
    Ruling,
    Standing,
    rule,
)

__all__ = ["Accounted", "Attempt", "Facts", "Policy", "Settlement", "settle"]

_WITHOUT_ROW = ("in_flight", "abandoned", "held_too_long", "results_gone", "preflight", "decision")

_TEXTS = ("cls", "reason", "rule", "file", "served_model")
_PLACES = ("line", "offset", "length")


@dataclass(frozen=True, slots=True)
class Facts:
    """What no evidence says. Shards are named (attempt index from 1, ordinal).

    Attributes:
        cancel_requested: a person cancelled the revision.
        released: shards whose holds a person released.
        deadline_over: shards whose holds have waited past ``retry.hold_deadline``.
        gone: shards whose results can no longer be fetched.
        abandoned: shards that a person gave up, or with ``deadline_over`` that were held too long
            without it; evidence that comes all the same counts.
        close_by_passed: ``publish.close_by`` is over; what is in flight stays in flight, because
            an answer that is being paid for has to be collected.
        budget_used_up: no money or tokens are left for another attempt.
        decisions: record_id, state, reason, decision (its id): what people decided.
        carried: record_id, business_key, source_version, evidence, served_model:
            answers that an older revision accepted; none of them is in attempt 1.
    """

    cancel_requested: bool = False
    released: frozenset[tuple[int, int]] = frozenset()
    deadline_over: frozenset[tuple[int, int]] = frozenset()
    gone: frozenset[tuple[int, int]] = frozenset()
    abandoned: frozenset[tuple[int, int]] = frozenset()
    close_by_passed: bool = False
    budget_used_up: bool = False
    decisions: pa.Table | None = None
    carried: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """One row per manifest id of the revision, and what follows from them.

    ``table``: ordinal, record_id, business_key, source_version, state, next, reason, rule (of
    settlement), cls, evidence_rule, retry_reason, attempt (that decided), shard, evidence (digest
    of the closure or manifest, or a decision's id), sent_job_key and sent_shard (last send),
    charged (by evidence), unqualified, file, line, offset, length, served_model.
    ``selection`` is what ``freeze_retry`` asks for: record_id, parent_job_key, parent_shard,
    retry_reason.
    """

    table: pa.Table = field(repr=False)
    selection: pa.Table = field(repr=False)
    summary: dict[str, Any]
    closed: bool


def settle(attempts: Sequence[Attempt], policy: Policy, facts: Facts) -> Settlement:
    """Settle a revision.

    Args:
        attempts: every job of the revision, oldest first; the first names the manifest ids.
        policy: from the frozen manifest.
        facts: see ``Facts``.

    Raises:
        LLMBatchError: when evidence does not cover exactly the records of its shard, when a later
            attempt asks for a record that attempt 1 does not have, when an id repeats, or when the
            states do not cover the manifest: nothing may be published from such input.
    """
    book = Book(attempts)
    ruling = rule(
        _standing(book, facts),
        policy,
        Circumstances(facts.close_by_passed, facts.budget_used_up),
    )
    table = _table(book, ruling, facts)
    if facts.carried is not None and facts.carried.num_rows:
        table = pa.concat_tables([table, _carried(facts.carried, book, table.schema)])
    return _conclude(table, book)


def _standing(book: Book, facts: Facts) -> Standing:
    unqualified = flags(book.evidence["unqualified"])
    charged = _may_be_paid(book)
    held = np.asarray(one(book.evidence["hold"]).is_valid())
    attempt_of_slot = np.array([number for number, _ in book.shards], np.int64)
    accounted = book.per_record(attempt_of_slot[book.slot], -1) == book.sent_attempt
    sent = book.sent_shard >= 0
    gone = book.sent_in(facts.gone) & ~accounted

    def by_shard(name: str) -> Mask:
        flags = np.array([getattr(s, name) for _, s in book.shards], bool)
        return np.asarray(book.per_record(flags[book.slot], False), bool)

    decided = np.full(book.count, -1, np.int64)
    if facts.decisions is not None and facts.decisions.num_rows:
        where = pc.index_in(facts.decisions["record_id"], book.ids)
        states = pc.index_in(facts.decisions["state"], pa.array(STATES[1:4]))
        if where.null_count or states.null_count:
            raise LLMBatchError(
                "A decision names a record of another revision, or a state that a person cannot "
                f"decide here ({', '.join(STATES[1:4])})."
            )
        decided[np.asarray(where)] = np.asarray(states) + 1
    return Standing(
        accepted=book.first >= 0,
        preflight=~sent & (book.sent_attempt == 0),
        decided=decided,
        in_flight=sent & ~accounted,
        gone=gone,
        cls=book.per_record(book.cls, -1),
        unqualified_now=book.per_record(unqualified, False),
        confirmed=by_shard("confirmed"),
        foreign=by_shard("foreign"),
        person_cancel=by_shard("person_cancel") | facts.cancel_requested,
        held=book.per_record(held, False) & ~book.sent_in(facts.released),
        deadline_over=book.sent_in(facts.deadline_over),
        charged=book.total(charged),
        uncharged=book.total(~charged),
        unqualified=book.total(unqualified),
        released=book.sent_in(facts.released),
        reshape=book.per_record(_is(book.evidence["reason"], "reshape"), False),
        abandoned=book.sent_in(facts.abandoned),
    )


def _may_be_paid(book: Book) -> Mask:
    """Rows that use an attempt up: what a provider dropped may be on its bill all the same."""
    return flags(book.evidence["charged"]) | (book.cls == CLASSES.index("missing"))


def _is(column: Any, word: str) -> Mask:
    """Where a text column has a word; nulls are elsewhere."""
    values = one(column)
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    code = pc.index(values.dictionary, word).as_py()
    return np.asarray(values.indices.fill_null(-2)) == code


def _table(book: Book, ruling: Ruling, facts: Facts) -> pa.Table:
    records, words = book.attempts[0].records, ruling.words
    row = np.where(book.first >= 0, book.first, book.last)
    name = np.array(words)[ruling.rule] if len(ruling.rule) else np.zeros(0, str)
    # A record that was sent again, kept back or decided by a person does not rest on its old row.
    row = np.where(np.isin(name, _WITHOUT_ROW), -1, row)
    taken = pa.array(np.maximum(row, 0), mask=row < 0)
    evidence = {name: book.text(name, taken) for name in _TEXTS}
    slots = pa.array(book.slot).take(taken) if len(book.slot) else pa.nulls(book.count, pa.int64())
    attempt = pa.array([n + 1 for n, _ in book.shards], pa.int32()).take(slots)
    shard = pa.array([s.shard for _, s in book.shards], pa.int32()).take(slots)
    closure = pa.array([s.closure_digest for _, s in book.shards], pa.string()).take(slots)
    rules = _words(ruling.rule, words)
    reason = pc.coalesce(evidence["reason"], rules)
    # Where settlement itself decided, its rule is the reason that a person wants to read.
    own = np.isin(name, ["accepted", "permanent_failure", "retry", "hold"])
    reason = pc.if_else(pa.array(own), reason, rules)
    kept = name == "preflight"
    if kept.any():
        why = pc.binary_join_element_wise("preflight", one(records["preflight_rule"]), ":")
        reason = pc.if_else(pa.array(kept), why, reason)
        manifest = pa.scalar(book.attempts[0].manifest_digest)
        closure = pc.if_else(pa.array(kept), manifest, closure)
        attempt = pc.if_else(pa.array(kept), pa.scalar(1, pa.int32()), attempt)
    decided = name == "decision"
    if facts.decisions is not None and decided.any():
        at = pc.index_in(book.ids, one(facts.decisions["record_id"]))
        reason = pc.if_else(pa.array(decided), one(facts.decisions["reason"]).take(at), reason)
        closure = pc.if_else(pa.array(decided), one(facts.decisions["decision"]).take(at), closure)
    jobs = _words(book.sent_attempt, [a.job_key for a in book.attempts])
    sent = pa.array(book.sent_shard >= 0)
    return pa.table(
        {
            "ordinal": pa.array(np.arange(book.count, dtype=np.int64)),
            "record_id": book.ids,
            "business_key": one(records["business_key"]),
            "source_version": one(records["source_version"]).cast(pa.string()),
            "state": _words(ruling.state, STATES),
            "next": _words(ruling.next, NEXT),
            "reason": reason,
            "rule": rules,
            "cls": evidence["cls"],
            "evidence_rule": evidence["rule"],
            "retry_reason": _words(ruling.retry, words),
            "attempt": attempt,
            "shard": shard,
            "evidence": closure,
            "sent_job_key": pc.if_else(sent, jobs, pa.scalar(None, pa.string())),
            "sent_shard": pa.array(book.sent_shard.astype(np.int32), mask=book.sent_shard < 0),
            "charged": pa.array(book.total(flags(book.evidence["charged"])).astype(np.int32)),
            "unqualified": pa.array(
                book.total(flags(book.evidence["unqualified"])).astype(np.int32)
            ),
            "file": evidence["file"],
            **{name: one(book.evidence[name]).take(taken) for name in _PLACES},
            "served_model": evidence["served_model"],
        }
    )


def _carried(carried: pa.Table, book: Book, schema: pa.Schema) -> pa.Table:
    ids = one(carried["record_id"])
    if pc.count_distinct(ids).as_py() != len(ids) or pc.any(pc.is_in(ids, book.ids)).as_py():
        raise LLMBatchError("A carried-over record repeats, or was asked again in attempt 1.")
    given = {name: one(carried[name]) for name in carried.schema.names if name in schema.names}
    rows = len(ids)
    given |= {
        "ordinal": pa.array(np.arange(book.count, book.count + rows, dtype=np.int64)),
        "state": pa.repeat("accepted", rows),
        "reason": pa.repeat("carried", rows),
        "rule": pa.repeat("carried", rows),
        "charged": pa.repeat(pa.scalar(0, pa.int32()), rows),
        "unqualified": pa.repeat(pa.scalar(0, pa.int32()), rows),
    }
    columns = [given.get(f.name, pa.nulls(rows, f.type)).cast(f.type) for f in schema]
    return pa.table(columns, schema=schema)


def _conclude(table: pa.Table, book: Book) -> Settlement:
    counts = {v["values"]: v["counts"] for v in table["state"].value_counts().to_pylist()}
    states = {state: counts.pop(state, 0) for state in STATES}
    if counts or sum(states.values()) != table.num_rows:
        raise LLMBatchError(f"The states {states} do not cover {table.num_rows} records.")
    reasons: dict[str, dict[str, int]] = {}
    grouped = table.group_by(["state", "reason"]).aggregate([([], "count_all")])
    for row in sorted(grouped.to_pylist(), key=lambda r: (r["state"], r["reason"])):
        reasons.setdefault(row["state"], {})[row["reason"]] = row["count_all"]
    steps = {v["values"]: v["counts"] for v in table["next"].value_counts().to_pylist()}
    late = (book.first[book.record] >= 0) & (np.arange(len(book.record)) > book.first[book.record])
    again = table.filter(pc.fill_null(pc.equal(table["next"], "retry"), False))
    selection = again.select(["record_id", "sent_job_key", "sent_shard", "retry_reason"])
    return Settlement(
        table=table.combine_chunks(),
        selection=selection.rename_columns(
            ["record_id", "parent_job_key", "parent_shard", "retry_reason"]
        ),
        summary={
            "records": table.num_rows,
            "states": states,
            "next": {step: steps.get(step, 0) for step in NEXT},
            "reasons": reasons,
            "attempts": len(book.attempts),
            "late_rows": int(late.sum()),
            "accepted_fraction": states["accepted"] / table.num_rows if table.num_rows else 1.0,
        },
        closed=states["open"] == 0,
    )


def _words(codes: Any, words: Sequence[str]) -> pa.Array:
    """Codes as text; -1 is null."""
    indices = pa.array(np.maximum(codes, 0).astype(np.int32), mask=codes < 0)
    return pa.array(list(words), pa.string()).take(indices)
