"""Evidence of shards that no batch ran for, and what settlement makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_batch_assets.artifacts import open_store
from llm_batch_assets.errors import ArtifactError, ProviderError
from llm_batch_assets.reconcile.book import Accounted, Attempt
from llm_batch_assets.reconcile.evidence import ShardContext, write_shard_evidence
from llm_batch_assets.reconcile.settle import Facts, Policy, settle
from llm_batch_assets.reconcile.unanswered import refusal_of, unanswered
from llm_batch_assets_tests.reconcile.tables_for_tests import record_id, records

REFUSAL = refusal_of(
    ProviderError(
        "no such model",
        provider="openai",
        operation="create",
        fault="refused",
        effect="none",
        http_status=404,
        code="model_not_found",
        request_id="req-1",
    )
)
CONTEXT = ShardContext(
    manifest_digest="a" * 64,
    job_key="j",
    shard=1,
    attempt=1,
    epoch=2,
    submission_key="k",
    provider_batch_id=None,
    rules_version="1",
    basis="refused",
    refusal=REFUSAL,
)
TABLE = records({0: "ab", 1: "cd", -1: "z"})


def states(context: ShardContext) -> dict[str, tuple[str, str]]:
    result = unanswered(TABLE, context)
    shard = Accounted(1, "closure", result.table, person_cancel=context.person_cancel)
    settled = settle([Attempt("j", "m", TABLE, (shard,))], Policy(3), Facts()).table.to_pylist()
    return {r["business_key"]: (r["state"], r["reason"]) for r in settled if r["sent_shard"] == 1}


def test_a_refused_create_fails_the_records_of_its_shard_only() -> None:
    rows = unanswered(TABLE, CONTEXT).table.to_pylist()
    assert [row["record_id"] for row in rows] == [record_id("c"), record_id("d")]
    for row in rows:
        assert (row["cls"], row["reason"]) == ("permanent_failure", "create_refused")
        assert (row["http_status"], row["error_code"]) == (404, "model_not_found")
        assert (row["epoch"], row["charged"], row["file"]) == (2, False, None)
    assert states(CONTEXT) == dict.fromkeys("cd", ("permanent_failure", "create_refused"))


def test_what_was_cancelled_before_any_create_is_cancelled() -> None:
    context = replace(CONTEXT, basis="never_sent", refusal=None, person_cancel=True)
    rows = unanswered(TABLE, context).table.to_pylist()
    assert {(row["cls"], row["reason"], row["error_code"]) for row in rows} == {
        ("cancelled", "never_sent", None)
    }
    assert states(context) == dict.fromkeys("cd", ("cancelled", "person_cancel"))


def test_such_evidence_is_closed_and_keeps_the_provider_s_words(tmp_path) -> None:
    store = open_store(str(tmp_path / "store"))
    evidence = write_shard_evidence(store, unanswered(TABLE, CONTEXT), CONTEXT)
    assert evidence.closed and evidence.counts["permanent_failure"] == 2
    assert b"no such model" in store.get(evidence.closure_digest)


def test_result_files_need_the_real_account() -> None:
    with pytest.raises(ArtifactError, match="result files"):
        unanswered(TABLE, replace(CONTEXT, basis="results"))
