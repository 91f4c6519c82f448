"""Merged evidence, the candidate, and the closure of a revision."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from llm_batch_assets.artifacts import ArtifactStore, open_store
from llm_batch_assets.errors import ArtifactError
from llm_batch_assets.reconcile.candidate import REVISION_CLOSURE, candidate_schema
from llm_batch_assets.reconcile.digests import read_document, rows_digest, set_digest
from llm_batch_assets.reconcile.merge import (
    JOB_CLOSURE,
    JobRef,
    load_attempt,
    write_job_evidence,
)
from llm_batch_assets.reconcile.revision import (
    RevisionContext,
    candidate_digest,
    load_revision,
    read_context,
    write_revision,
)
from llm_batch_assets.reconcile.settle import Facts, Policy, Settlement, settle
from llm_batch_assets.reconcile.tables import read_table
from llm_batch_assets_tests.reconcile.tables_for_tests import Foreign, record_id, stored_job

POLICY = Policy(3)
SCHEMA = {
    "type": "object",
    "properties": {
        "topic": {"type": "string"},
        "score": {"type": ["number", "null"]},
        "n": {"type": "integer"},
        "answer": {"type": "boolean"},
        "tags": {"type": "array"},
        "either": {"type": ["string", "integer"]},
    },
}


@pytest.fixture
def store(tmp_path) -> ArtifactStore:
    return open_store(str(tmp_path / "store"))


def text(key: str) -> str:
    return json.dumps({"topic": key, "score": 1, "n": 2**70 if key == "c" else 3, "answer": True})


def jobs(store: ArtifactStore) -> tuple[JobRef, ...]:
    return (
        stored_job(store, 1, {0: "abc", 1: "de", -1: "z"}, {0: "srs", 1: "rp"}, text),
        stored_job(store, 2, {0: "bd"}, {0: "ss"}, text),
    )


def settled(store: ArtifactStore, refs: tuple[JobRef, ...], facts: Facts) -> Settlement:
    return settle([load_attempt(store, ref) for ref in refs], POLICY, facts)


def context(refs: tuple[JobRef, ...], facts: Facts) -> RevisionContext:
    return RevisionContext("w", "day", 1, refs, POLICY, facts, output_schema=SCHEMA)


def test_a_job_is_merged_in_order_with_what_preflight_kept(store) -> None:
    (job, _) = jobs(store)
    merged = write_job_evidence(store, job, attempt=1)
    table = read_table(store, merged.table_digest)
    assert table["business_key"].to_pylist() == list("abcdez")
    assert table["reason"].to_pylist()[-1] == "preflight:line_too_long"
    assert rows_digest(table) == merged.rows_digest
    document = read_document(store, merged.closure_digest, JOB_CLOSURE)
    assert document["counts"]["succeeded"] == 2
    assert document["counts"]["permanent_failure"] == 2
    assert document["sets"]["succeeded"] == set_digest([record_id("a"), record_id("c")])
    assert merged.accounted and document["rules_versions"] == ["7"]
    before = sorted(store.digests())
    assert write_job_evidence(store, job, attempt=1) == merged
    assert sorted(store.digests()) == before


@pytest.mark.parametrize(("rows", "accounted"), [({0: "ss"}, False), ({0: "ss", 1: "m"}, False)])
def test_a_job_with_an_open_shard_is_not_accounted(store, rows, accounted) -> None:
    job = stored_job(store, 1, {0: "ab", 1: "c"}, rows, text)
    assert write_job_evidence(store, job, attempt=1).accounted == accounted


def test_foreign_rows_reach_settlement(store) -> None:
    job = stored_job(store, 1, {0: "ab"}, {0: "sm"}, text, {0: [Foreign()]})
    (shard,) = load_attempt(store, job).shards
    assert shard.foreign and not shard.confirmed


def test_a_closure_of_another_shard_is_refused(store) -> None:
    job = stored_job(store, 1, {0: "ab", 1: "cd"}, {0: "ss", 1: "ss"}, text)
    swapped = replace(job, shards={0: job.shards[1], 1: job.shards[0]})
    with pytest.raises(ArtifactError, match="not of shard 0"):
        load_attempt(store, swapped)


def test_the_candidate_has_the_accepted_rows_in_manifest_order(store) -> None:
    refs = jobs(store)
    settlement = settled(store, refs, Facts())
    written = write_revision(store, settlement, context(refs, Facts()))
    rows = read_table(store, written.candidate_digest)
    assert rows["business_key"].to_pylist() == list("abcd")
    assert rows["attempt"].to_pylist() == [1, 2, 1, 2]
    assert rows["answer"].to_pylist() == [text(k) for k in "abcd"]
    assert rows["topic"].to_pylist() == list("abcd")
    assert rows["score"].to_pylist() == [1.0] * 4
    # What does not fit an int64 is null here and exact in the answer's text.
    assert rows["n"].to_pylist() == [3, 3, None, 3]
    assert rows["answer.answer"].to_pylist() == [True] * 4
    assert "tags" not in rows.schema.names and "either" not in rows.schema.names
    assert rows_digest(rows) == written.candidate_rows_digest
    assert candidate_digest(store, settlement.table, context(refs, Facts())) == (
        written.candidate_rows_digest,
        4,
    )


def test_the_closure_says_what_it_rests_on_and_can_be_read_back(store) -> None:
    refs = jobs(store)
    decisions = pa.table(
        {
            "record_id": [record_id("e")],
            "state": ["human_review"],
            "reason": ["look"],
            "decision": ["d1"],
        }
    )
    facts = Facts(released=frozenset({(1, 1), (1, 0)}), decisions=decisions)
    settlement = settled(store, refs, facts)
    given = context(refs, facts)
    written = write_revision(store, settlement, given)
    assert written.closed and written.states == {
        "accepted": 4,
        "permanent_failure": 1,
        "human_review": 1,
        "cancelled": 0,
        "open": 0,
    }
    assert written.accepted_fraction == 4 / 6
    document = read_document(store, written.closure_digest, REVISION_CLOSURE)
    assert document["sets"]["human_review"] == set_digest([record_id("e")])
    assert [s["closure"] for s in document["attempts"][0]["shards"]] == list(
        refs[0].shards.values()
    )
    again = read_context(store, document)
    assert again.facts.decisions.equals(decisions)
    assert replace(again, facts=facts) == given
    assert settled(store, again.jobs, again.facts).table.equals(settlement.table)
    before = sorted(store.digests())
    assert write_revision(store, settlement, given) == written
    assert load_revision(store, written.closure_digest) == written
    assert sorted(store.digests()) == before


def test_the_order_in_which_shards_were_accounted_changes_no_digest(store) -> None:
    refs = jobs(store)
    turned = tuple(replace(r, shards=dict(reversed(list(r.shards.items())))) for r in refs)
    one, other = (
        (
            [write_job_evidence(store, job, attempt=n) for n, job in enumerate(order, 1)],
            write_revision(store, settled(store, order, Facts()), context(order, Facts())),
        )
        for order in (refs, turned)
    )
    assert one == other


def test_a_carried_answer_comes_from_the_older_candidate(store) -> None:
    refs = jobs(store)
    old = write_revision(store, settled(store, refs, Facts()), context(refs, Facts()))
    carried = pa.table(
        {
            "record_id": [record_id("b")],
            "business_key": ["b"],
            "source_version": ["v1"],
            "evidence": [old.closure_digest],
            "served_model": ["m"],
        }
    )
    facts = Facts(carried=carried)
    new = (stored_job(store, 1, {0: "x"}, {0: "s"}, text),)
    written = write_revision(store, settled(store, new, facts), context(new, facts))
    rows = read_table(store, written.candidate_digest)
    assert rows["answer"].to_pylist() == [text("x"), text("b")]


def test_an_accepted_record_without_its_answer_is_an_error(store) -> None:
    refs = jobs(store)
    settlement = settled(store, refs, Facts())
    ids = settlement.table["record_id"].to_pylist()
    ids[0] = record_id("somebody else")
    forged = replace(settlement, table=settlement.table.set_column(1, "record_id", [ids]))
    with pytest.raises(ArtifactError, match="no answer"):
        write_revision(store, forged, context(refs, Facts()))


@pytest.mark.parametrize(
    ("answer", "schema"),
    [("text", SCHEMA), ("embedding", None), ("json", None), ("json", {"properties": 3})],
)
def test_without_scalar_properties_there_are_only_the_fixed_columns(answer, schema) -> None:
    assert candidate_schema(answer, schema).names[-1] == "answer"
