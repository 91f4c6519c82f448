"""Settlement: every record of a revision in exactly one state, by rule."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from llm_batch_assets.errors import LLMBatchError
from llm_batch_assets.reconcile.book import Accounted, Attempt
from llm_batch_assets.reconcile.disposal import STATES
from llm_batch_assets.reconcile.settle import Facts, Policy, Settlement, settle
from llm_batch_assets.reconcile.tables import EVIDENCE_SCHEMA
from llm_batch_assets_tests.reconcile.tables_for_tests import attempt, record_id, records

POLICY = Policy(max_attempts=3)
SURE: dict[str, Any] = {"confirmed": True}


def where(settlement: Settlement) -> dict[str, tuple[str, str | None, str]]:
    rows = settlement.table.select(["business_key", "state", "next", "reason"]).to_pylist()
    return {r["business_key"]: (r["state"], r["next"], r["reason"]) for r in rows}


def one(letter: str, *, policy: Policy = POLICY, facts: Facts | None = None, **flags: Any) -> Any:
    """Where one record stands after one attempt."""
    result = settle([attempt(1, {0: "a"}, {0: letter}, **flags)], policy, facts or Facts())
    assert result.closed == (result.table["state"][0].as_py() != "open")
    return where(result)["a"]


@pytest.mark.parametrize(
    ("letter", "flags", "expected"),
    [
        ("s", {}, ("accepted", None, "accepted")),
        ("p", {}, ("permanent_failure", None, "refusal")),
        ("r", {}, ("open", "retry", "rate_limited")),
        ("e", {}, ("open", "retry", "batch_expired")),
        ("u", {}, ("open", "retry", "schema")),
        ("c", {}, ("open", "retry", "batch_cancelled")),
        ("h", {}, ("open", "hold", "billing")),
        ("m", {}, ("open", "refetch", "unconfirmed")),
        ("d", {}, ("open", "refetch", "unconfirmed")),
        ("m", SURE, ("open", "retry", "no_row")),
        ("d", SURE, ("human_review", None, "conflicting_duplicate")),
        ("m", SURE | {"foreign": True}, ("human_review", None, "mangled_ids")),
        ("m", {"foreign": True}, ("open", "refetch", "unconfirmed")),
        ("r", SURE | {"foreign": True}, ("open", "retry", "rate_limited")),
        # A person's cancel: nothing is sent again, and nothing paid for is thrown away.
        ("c", {"person_cancel": True}, ("cancelled", None, "person_cancel")),
        ("m", {"person_cancel": True}, ("open", "refetch", "unconfirmed")),
        ("m", SURE | {"person_cancel": True}, ("cancelled", None, "person_cancel")),
        ("r", {"person_cancel": True}, ("cancelled", None, "person_cancel")),
        ("u", {"person_cancel": True}, ("cancelled", None, "person_cancel")),
        ("e", {"person_cancel": True}, ("cancelled", None, "person_cancel")),
        ("h", {"person_cancel": True}, ("cancelled", None, "person_cancel")),
        ("s", {"person_cancel": True}, ("accepted", None, "accepted")),
        ("p", {"person_cancel": True}, ("permanent_failure", None, "refusal")),
    ],
)
def test_one_attempt(letter: str, flags: dict[str, Any], expected: Any) -> None:
    assert one(letter, **flags) == expected


@pytest.mark.parametrize(
    ("letter", "facts", "expected"),
    [
        ("r", Facts(cancel_requested=True), ("cancelled", None, "person_cancel")),
        ("h", Facts(deadline_over=frozenset({(1, 0)})), ("human_review", None, "hold_deadline")),
        ("h", Facts(deadline_over=frozenset({(1, 1)})), ("open", "hold", "billing")),
        ("h", Facts(released=frozenset({(1, 0)})), ("open", "retry", "billing")),
        ("r", Facts(deadline_over=frozenset({(1, 0)})), ("open", "retry", "rate_limited")),
        ("r", Facts(close_by_passed=True), ("human_review", None, "close_by")),
        ("h", Facts(close_by_passed=True), ("human_review", None, "close_by")),
        ("m", Facts(close_by_passed=True), ("open", "refetch", "unconfirmed")),
        ("r", Facts(budget_used_up=True), ("human_review", None, "budget")),
        ("h", Facts(budget_used_up=True), ("open", "hold", "billing")),
        ("s", Facts(budget_used_up=True, close_by_passed=True), ("accepted", None, "accepted")),
    ],
)
def test_facts(letter: str, facts: Facts, expected: Any) -> None:
    assert one(letter, facts=facts) == expected


def history(letters: str, policy: Policy = POLICY, facts: Facts | None = None) -> Settlement:
    """One record, sent once per letter; ``.`` is in flight."""
    attempts = [
        attempt(n, {0: "a"}, {} if letter == "." else {0: letter}, confirmed=True)
        for n, letter in enumerate(letters, 1)
    ]
    return settle(attempts, policy, facts or Facts())


@pytest.mark.parametrize(
    ("letters", "max_attempts", "deterministic", "expected"),
    [
        ("u", 3, True, ("human_review", None, "unqualified_deterministic")),
        ("uu", 3, False, ("human_review", None, "unqualified_twice")),
        ("uru", 9, False, ("human_review", None, "unqualified_twice")),
        ("ur", 3, False, ("open", "retry", "rate_limited")),
        ("ur", 3, True, ("open", "retry", "rate_limited")),
        ("us", 3, False, ("accepted", None, "accepted")),
        ("x", 1, False, ("human_review", None, "exhausted")),
        ("xx", 3, False, ("open", "retry", "server_error")),
        ("xxx", 3, False, ("human_review", None, "exhausted")),
        # An attempt that executed nothing charges nobody, but not for ever.
        ("rrr", 3, False, ("open", "retry", "rate_limited")),
        ("rrrxrx", 3, False, ("open", "retry", "server_error")),
        ("rrrxrxx", 3, False, ("human_review", None, "exhausted")),
        ("r" * 19, 3, False, ("open", "retry", "rate_limited")),
        ("r" * 20, 3, False, ("human_review", None, "uncharged_attempts")),
        ("h" * 20, 3, False, ("human_review", None, "uncharged_attempts")),
        # What is missing may be paid for: it uses attempts up like what was answered.
        ("m", 1, False, ("human_review", None, "exhausted")),
        ("mm", 3, False, ("open", "retry", "no_row")),
        ("mmm", 3, False, ("human_review", None, "exhausted")),
        ("mxm", 3, False, ("human_review", None, "exhausted")),
        ("rmrmr", 3, False, ("open", "retry", "rate_limited")),
        ("mms", 3, False, ("accepted", None, "accepted")),
        ("xxs", 3, False, ("accepted", None, "accepted")),
        ("xp", 3, False, ("permanent_failure", None, "refusal")),
        ("x.", 3, False, ("open", "wait", "in_flight")),
        (".", 3, False, ("open", "wait", "in_flight")),
        # The first accepted answer stands.
        ("ss", 3, False, ("accepted", None, "accepted")),
        ("sp", 3, False, ("accepted", None, "accepted")),
        ("sd", 3, False, ("accepted", None, "accepted")),
        ("s.", 3, False, ("accepted", None, "accepted")),
    ],
)
def test_several_attempts(letters: str, max_attempts: int, deterministic: bool, expected) -> None:
    result = history(letters, Policy(max_attempts, deterministic))
    assert where(result)["a"] == expected


def test_the_first_accepted_answer_is_the_recorded_one() -> None:
    result = history("rss")
    row = result.table.to_pylist()[0]
    assert (row["attempt"], row["evidence"]) == (2, "closure-2-0")
    assert result.summary["late_rows"] == 1


def test_in_flight_does_not_close_at_the_deadline() -> None:
    assert where(history("x.", facts=Facts(close_by_passed=True, cancel_requested=True)))["a"] == (
        "open", "wait", "in_flight",
    )  # fmt: skip


def test_results_that_are_gone_are_held_until_the_deadline() -> None:
    gone = frozenset({(1, 0)})
    assert where(history(".", facts=Facts(gone=gone)))["a"] == ("open", "hold", "results_gone")
    over = Facts(gone=gone, deadline_over=gone)
    assert where(history(".", facts=over))["a"] == ("human_review", None, "results_gone")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ("open", "retry", "retry")),
        # A cancel comes after the release: nothing is sent again, and its deadline ends it.
        ({"cancel_requested": True}, ("open", "hold", "results_gone")),
        ({"cancel_requested": True, "over": True}, ("human_review", None, "results_gone")),
        # After close_by nothing goes again, whoever released it.
        ({"close_by_passed": True}, ("human_review", None, "results_gone")),
        (
            {"close_by_passed": True, "cancel_requested": True},
            ("human_review", None, "results_gone"),
        ),
    ],
)
def test_gone_results_that_a_person_released(facts: dict[str, Any], expected: Any) -> None:
    gone = frozenset({(1, 0)})
    over = {"deadline_over": gone} if facts.pop("over", False) else {}
    assert where(history(".", facts=Facts(gone=gone, released=gone, **over, **facts)))["a"] == (
        expected
    )


def test_the_selection_names_where_each_record_was_last_sent() -> None:
    first = attempt(1, {0: "abc", 1: "de", -1: "z"}, {0: "srm", 1: "xe"}, confirmed=True)
    second = attempt(2, {0: "b", 1: "cd"}, {1: "uc"}, confirmed=True)
    result = settle([first, second], POLICY, Facts())
    assert where(result) == {
        "a": ("accepted", None, "accepted"),
        "b": ("open", "wait", "in_flight"),
        "c": ("open", "retry", "schema"),
        "d": ("open", "retry", "batch_cancelled"),
        "e": ("open", "retry", "batch_expired"),
        "z": ("permanent_failure", None, "preflight:line_too_long"),
    }
    assert result.selection.to_pylist() == [
        {
            "record_id": record_id(key),
            "parent_job_key": job,
            "parent_shard": shard,
            "retry_reason": why,
        }
        for key, job, shard, why in [
            ("c", "sha256:job2", 1, "unqualified"),
            ("d", "sha256:job2", 1, "batch_cancelled"),
            ("e", "sha256:job1", 1, "expired"),
        ]
    ]
    assert result.summary["next"] == {"retry": 3, "hold": 0, "refetch": 0, "wait": 1}
    kept = result.table.to_pylist()[-1]
    assert (kept["evidence"], kept["attempt"], kept["sent_job_key"]) == ("manifest1", 1, None)
    charged = {r["business_key"]: r["charged"] for r in result.table.to_pylist()}
    assert charged == {"a": 1, "b": 0, "c": 1, "d": 1, "e": 0, "z": 0}


def test_people_decide_what_no_evidence_accepted() -> None:
    decisions = pa.table(
        {
            "record_id": [record_id("a"), record_id("b")],
            "state": ["permanent_failure", "cancelled"],
            "reason": ["withdrawn", "not needed"],
            "decision": ["d1", "d2"],
        }
    )
    result = settle([attempt(1, {0: "ab"}, {0: "sr"})], POLICY, Facts(decisions=decisions))
    assert where(result) == {
        "a": ("accepted", None, "accepted"),
        "b": ("cancelled", None, "not needed"),
    }
    assert result.table["evidence"].to_pylist() == ["closure-1-0", "d2"]


@pytest.mark.parametrize(("key", "state"), [("q", "cancelled"), ("a", "accepted"), ("a", "open")])
def test_a_decision_that_nobody_can_make_is_refused(key: str, state: str) -> None:
    decisions = pa.table(
        {"record_id": [record_id(key)], "state": [state], "reason": ["x"], "decision": ["d"]}
    )
    with pytest.raises(LLMBatchError, match="decision"):
        settle([attempt(1, {0: "a"}, {0: "r"})], POLICY, Facts(decisions=decisions))


def test_carried_answers_are_accepted_and_not_sent() -> None:
    carried = pa.table(
        {
            "record_id": [record_id("k")],
            "business_key": ["k"],
            "source_version": ["v1"],
            "evidence": ["old-revision"],
            "served_model": ["m"],
        }
    )
    result = settle([attempt(1, {0: "a"}, {0: "s"})], POLICY, Facts(carried=carried))
    assert where(result)["k"] == ("accepted", None, "carried")
    assert result.summary["states"]["accepted"] == 2
    with pytest.raises(LLMBatchError, match="carried-over"):
        settle([attempt(1, {0: "k"}, {0: "s"})], POLICY, Facts(carried=carried))


@pytest.mark.parametrize(
    ("attempts", "message"),
    [
        ([attempt(1, {0: "aa"}, {})], "repeats"),
        ([attempt(1, {0: "ab"}, {0: "rr"}), attempt(2, {0: "c"}, {})], "not in attempt 1"),
        ([attempt(1, {0: "ab"}, {0: "rr"}), attempt(2, {0: "aa"}, {})], "repeats"),
    ],
)
def test_tables_that_do_not_fit_are_refused(attempts: list[Attempt], message: str) -> None:
    with pytest.raises(LLMBatchError, match=message):
        settle(attempts, POLICY, Facts())


@pytest.mark.parametrize("keys", ["a", "ba", "abc", "ac"])
def test_evidence_covers_exactly_its_shard(keys: str) -> None:
    shard = attempt(1, {0: keys}, {0: "s" * len(keys)}).shards[0]
    given = Attempt("j", "m", records({0: "ab"}), (shard,))
    with pytest.raises(LLMBatchError, match="does not cover exactly"):
        settle([given], POLICY, Facts())


def reference(history: list[tuple[str, bool]], policy: Policy) -> tuple[str, str | None]:
    """The rules again, one record at a time; ``history`` is (letter, foreign), all confirmed."""
    if any(letter == "s" for letter, _ in history):
        return "accepted", None
    letter, foreign = history[-1]
    charged = sum(x in "suxpdm" for x, _ in history)
    unqualified = sum(x == "u" for x, _ in history)
    if letter == "p":
        return "permanent_failure", None
    if letter == "d" or (letter == "m" and foreign):
        return "human_review", None
    if letter == "u" and (unqualified > 1 or policy.deterministic):
        return "human_review", None
    if charged >= policy.max_attempts or len(history) - charged >= policy.max_uncharged:
        return "human_review", None
    return ("open", "hold") if letter == "h" else ("open", "retry")


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_agree_with_rules_one_record_at_a_time(seed: int) -> None:
    rng = random.Random(seed)
    keys = "abcdefghijklmnopqrstuvwxyz"
    policy = Policy(rng.randint(1, 4), rng.random() < 0.3)
    attempts: list[Attempt] = []
    rows: dict[str, list[tuple[str, bool]]] = {key: [] for key in keys}
    open_keys = keys
    for number in range(1, 6):
        cut = rng.randint(0, len(open_keys))
        shards = {0: open_keys[:cut], 1: open_keys[cut:]}
        foreign = rng.random() < 0.3
        letters = {s: "".join(rng.choice("srrruxhpcemdd") for _ in k) for s, k in shards.items()}
        for shard, members in shards.items():
            for key, letter in zip(members, letters[shard], strict=True):
                rows[key].append((letter, foreign))
        attempts.append(attempt(number, shards, letters, confirmed=True, foreign=foreign))
        result = settle(attempts, policy, Facts())
        expected = {key: reference(past, policy) for key, past in rows.items()}
        assert {k: v[:2] for k, v in where(result).items()} == expected
        assert sum(result.summary["states"].values()) == len(keys)
        again = result.selection["record_id"].to_pylist()
        open_keys = "".join(k for k in keys if record_id(k) in again)
        if not open_keys:
            break


def test_order_of_shards_in_memory_does_not_matter() -> None:
    given = attempt(1, {0: "ab", 1: "cd"}, {0: "sr", 1: "me"}, confirmed=True)
    turned = Attempt(given.job_key, given.manifest_digest, given.records, given.shards[::-1])
    assert settle([given], POLICY, Facts()).table.equals(settle([turned], POLICY, Facts()).table)


def test_large_revisions_settle_in_microseconds_a_record() -> None:
    count, per_shard = 200_000, 50_000
    rng = np.random.default_rng(7)
    ids = pa.array([f"{n:064x}" for n in rng.permutation(count)])
    shard = np.arange(count, dtype=np.int32) // per_shard
    table = pa.table(
        {
            "ordinal": np.arange(count),
            "record_id": ids,
            "business_key": ids,
            "source_version": ids,
            "shard": shard,
            "line": np.arange(count, dtype=np.int32) % per_shard,
            "preflight_rule": pa.nulls(count, pa.string()),
        }
    )
    cls = np.array(["succeeded", "retryable", "permanent_failure"])[rng.integers(0, 3, count)]
    columns = {name: pa.nulls(count, EVIDENCE_SCHEMA.field(name).type) for name in
               EVIDENCE_SCHEMA.names} | {
        "record_id": ids, "cls": pa.array(cls.tolist()), "reason": pa.array(cls.tolist()),
        "file": pa.array(["f" * 64] * count), "unqualified": pa.array([False] * count),
        "charged": pa.array([True] * count), "line": pa.array(np.arange(count)),
    }  # fmt: skip
    rows = pa.table(columns)
    shards = tuple(
        Accounted(n, f"c{n}", rows.slice(n * per_shard, per_shard))
        for n in range(count // per_shard)
    )
    took = []
    for _ in range(3):  # the quickest: this is about the work, not about a busy machine
        start = time.process_time()
        result = settle([Attempt("j", "m", table, shards)], POLICY, Facts())
        took.append(time.process_time() - start)
    found = Counter(cls.tolist())
    assert result.summary["states"] == dict.fromkeys(STATES, 0) | {
        "accepted": found["succeeded"],
        "permanent_failure": found["permanent_failure"],
        "open": found["retryable"],
    }
    # 5 µs of a processor a record; measured 1 µs.
    assert min(took) < count * 5e-6 + 0.5
