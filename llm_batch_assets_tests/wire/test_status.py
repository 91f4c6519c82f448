"""Job objects of every provider: raw status -> ours, readiness, counts, what failed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from llm_batch_assets.reconcile.accounting import account
from llm_batch_assets.reconcile.model import Expected, Rules
from llm_batch_assets.reconcile.report import report
from llm_batch_assets.types import TERMINAL_STATUSES
from llm_batch_assets.wire.anthropic import status as anthropic
from llm_batch_assets.wire.bedrock import status as bedrock
from llm_batch_assets.wire.gemini import status as gemini
from llm_batch_assets.wire.openai import status as openai
from llm_batch_assets.wire.readers import wire_of

KEY = "ab" * 32


def gemini_job(state: str, **more: Any) -> dict[str, Any]:
    return {"name": "batches/1", "metadata": {"state": f"BATCH_STATE_{state}"}} | more


JOBS: dict[str, Any] = {
    "openai": (openai, lambda word: {"id": "b", "status": word}),
    "anthropic": (anthropic, lambda word: {"id": "b", "processing_status": word}),
    "gemini": (gemini, gemini_job),
    "bedrock": (bedrock, lambda word: {"jobArn": "arn:aws:bedrock:x:job/abc", "status": word}),
}


@pytest.mark.parametrize(
    ("provider", "word"),
    [(name, word) for name, (module, _) in JOBS.items() for word in module.STATUSES],
)
def test_every_status(provider: str, word: str) -> None:
    module, job = JOBS[provider]
    view = module.read_batch(job(word))
    assert view.status == module.STATUSES[word]
    assert view.batch_id and view.raw_status.endswith(word)
    assert view.results_ready <= (view.status in TERMINAL_STATUSES)
    assert wire_of(provider).read_batch(job(word)) == view


@pytest.mark.parametrize("provider", JOBS)
@pytest.mark.parametrize("word", ["", "paused", "COMPLETED", "Ended", None, 1, [], {}, "\ud800"])
def test_any_other_word_means_still_running(provider: str, word: Any) -> None:
    """An allow-list of terminal states (field report B41)."""
    module, job = JOBS[provider]
    view = module.read_batch(job(word))
    assert view.status == "unknown" and not view.results_ready


@pytest.mark.parametrize("provider", JOBS)
def test_an_empty_object_is_tolerated(provider: str) -> None:
    view = JOBS[provider][0].read_batch({})
    assert (view.status, view.batch_id, view.results, view.faults) == ("unknown", "", (), ())
    assert (view.counts.total, view.counts.completed, view.counts.failed) == (None, None, None)


def test_openai_fields() -> None:
    view = openai.read_batch(
        {
            "id": "batch_1",
            "status": "completed",
            "created_at": 1780000000,
            "completed_at": 1780003100,
            "expires_at": 1780086400,
            "input_file_id": "file-in",
            "output_file_id": "file-out",
            "error_file_id": "",
            "request_counts": {"total": 3, "completed": 2, "failed": 1},
            "metadata": {"deployment": "prod", "submission_key": KEY},
        }
    )
    assert view.created_at == datetime(2026, 5, 28, 20, 26, 40, tzinfo=UTC)
    assert view.ended_at is not None and view.expires_at is not None
    assert [(ref.kind, ref.ref) for ref in view.results] == [("results", "file-out")]
    assert (view.deployment, view.submission_key, view.input_ref) == ("prod", KEY, "file-in")
    assert (view.counts.total, view.counts.completed, view.counts.failed) == (3, 2, 1)
    assert view.results_ready and b"batch_1" in view.raw


@pytest.mark.parametrize(
    ("job", "ready"),
    [
        ({"status": "completed", "output_file_id": "o"}, True),
        ({"status": "completed", "error_file_id": "e"}, True),
        (
            {"status": "completed", "error_file_id": "e", "request_counts": {"completed": 2}},
            False,
        ),
        ({"status": "completed"}, False),
        ({"status": "completed", "output_file_id": "", "error_file_id": ""}, False),
        ({"status": "completed", "request_counts": {"completed": 2}}, False),
        ({"status": "expired"}, True),
        ({"status": "cancelled"}, True),
        ({"status": "expired", "request_counts": {"completed": 2}}, False),
        ({"status": "cancelled", "error_file_id": "e", "request_counts": {"completed": 2}}, False),
        ({"status": "failed"}, True),
        ({"status": "finalizing", "output_file_id": "o"}, False),
    ],
)
def test_openai_readiness(job: dict[str, Any], ready: bool) -> None:
    """Completed may be seen before the file's id is there (field report B32)."""
    assert openai.read_batch(job).results_ready == ready


@pytest.mark.parametrize(
    ("errors", "faults"),
    [
        (None, []),
        ({"data": None}, []),
        ("text", []),
        ({"object": "list", "data": [{"code": "c", "message": "m", "line": 2}]}, [("c", 2)]),
        ([{"code": "c", "line": None}], [("c", None)]),
        (
            {"data": [None, {"code": 7, "line": "2"}, {"line": 0}]},
            [(None, None), ("7", 2), (None, None)],
        ),
        ([{"line": 2.0}, {"line": 2.5}, {"line": True}], [(None, 2), (None, None), (None, None)]),
    ],
)
def test_openai_faults(errors: Any, faults: list[Any]) -> None:
    view = openai.read_batch({"id": "b", "status": "failed", "errors": errors})
    assert [(fault.code, fault.line) for fault in view.faults] == faults


@pytest.mark.parametrize(
    ("counts", "cancel", "status"),
    [
        ({"succeeded": 2}, None, "done"),
        ({"succeeded": 1, "canceled": 1}, "2026-11-18T12:40:00Z", "cancelled"),
        ({"succeeded": 2, "canceled": 0}, "2026-11-18T12:40:00Z", "done"),
        ({"succeeded": 1, "expired": 1}, None, "expired"),
        ({"errored": 2}, None, "done"),
        (None, None, "done"),
    ],
)
def test_anthropic_outcomes_are_inferred(counts: Any, cancel: Any, status: str) -> None:
    job = {"id": "b", "processing_status": "ended", "request_counts": counts}
    job |= {"cancel_initiated_at": cancel, "results_url": "https://x/results"}
    view = anthropic.read_batch(job)
    assert (view.status, view.results_ready) == (status, True)
    assert view.results[0].ref == "https://x/results"
    if counts:
        assert view.counts.total == sum(counts.values())


def test_anthropic_without_a_results_url_is_not_ready() -> None:
    for url in (None, ""):
        view = anthropic.read_batch({"processing_status": "ended", "results_url": url})
        assert view.status == "done" and not view.results_ready


def test_an_archived_batch_has_nothing_to_wait_for() -> None:
    """Its results are gone and were paid for: missing, and a person's affair (field report B56)."""
    job = {"id": "b", "processing_status": "ended", "archived_at": "2026-12-18T12:26:40Z"}
    view = anthropic.read_batch(job)
    assert view.results_ready and view.results == ()
    facts = report(account(Expected(["a"]), Rules("anthropic"), [], [view]))
    assert (facts["sets"]["missing"], facts["closed"]) == (["a"], False)
    assert (facts["retry_shard"], facts["retry_shard_if_refetch_same"]) == ([], None)
    assert facts["next"] == ["hold:operator"]
    assert not anthropic.read_batch(job | {"processing_status": "in_progress"}).results_ready


def test_gemini_fields() -> None:
    job = gemini_job(
        "SUCCEEDED",
        done=True,
        response={"responsesFile": "files/out"},
    )
    job["metadata"] |= {
        "displayName": f"prod.{KEY}",
        "createTime": "2026-11-30T10:00:00.123456789Z",
        "inputConfig": {"fileName": "files/in"},
        "batchStats": {"requestCount": "5", "successfulRequestCount": "4"},
    }
    view = gemini.read_batch(job)
    assert view.created_at == datetime(2026, 11, 30, 10, 0, 0, 123456, tzinfo=UTC)
    assert (view.deployment, view.submission_key, view.input_ref) == ("prod", KEY, "files/in")
    assert (view.counts.total, view.counts.completed, view.counts.failed) == (5, 4, 0)
    assert view.results[0].ref == "files/out" and view.results_ready


def test_gemini_results_are_looked_for_in_all_places() -> None:
    """Field report B86: small file jobs answer inline."""
    rows = {"inlinedResponses": [{"metadata": {"key": "a"}, "error": {"code": 13}}]}
    for more in ({"response": {"inlinedResponses": rows}}, {"response": rows}):
        view = gemini.read_batch(gemini_job("SUCCEEDED", **more))
        assert view.results[0].ref == gemini.INLINE and view.results_ready
    job = gemini_job("SUCCEEDED")
    assert not gemini.read_batch(job).results_ready
    job["metadata"]["output"] = {"responsesFile": "files/o"}
    assert gemini.read_batch(job).results[0].ref == "files/o"
    vertex = {
        "name": "p",
        "state": "JOB_STATE_SUCCEEDED",
        "completionStats": {"successfulCount": "2"},
    }
    assert gemini.read_batch(vertex).results_ready
    assert gemini.read_batch(vertex).counts.completed == 2


def test_gemini_inline_rows_are_cut_from_their_own_bytes() -> None:
    operation = b"""{"response": {"inlinedResponses": {"inlinedResponses": [
        {"metadata": {"key": "a"},
         "response": {"x": 1.50}},
        {"error": {"code": 13}}
    ]}}}"""
    lines = gemini.inline_lines(operation)
    assert lines is not None
    first, second, end = lines.split(b"\n")
    assert b'{"x": 1.50}' in first and second == b'{"error": {"code": 13}}' and end == b""
    assert gemini.inline_rows(b"[{}, " + operation + b"]", 1) == lines
    assert gemini.inline_rows(b"[{}, " + operation + b"]", 0) is None
    assert gemini.inline_rows(operation, 0) == lines
    for none in (b"{}", b"[]", b"not json", b'{"response": {"inlinedResponses": 7}}'):
        assert gemini.inline_rows(none, 0) is None


@pytest.mark.parametrize(
    ("job", "status"),
    [
        ({"done": True, "error": {"code": 13}}, "failed"),
        ({"done": True, "error": {"code": 1}}, "cancelled"),
        ({"done": True, "response": {"responsesFile": "files/o"}}, "done"),
        ({"done": True}, "unknown"),
        ({"done": False, "error": {"code": 13}}, "unknown"),
        ({"done": True, "error": {"code": 13}, "metadata": {"state": "NEW"}}, "unknown"),
    ],
)
def test_a_gemini_operation_without_a_state_says_itself_that_it_is_over(
    job: dict[str, Any], status: str
) -> None:
    assert gemini.read_batch({"name": "batches/1", **job}).status == status


@pytest.mark.parametrize(
    "odd", [b"9" * 5000, b'"\\ud83d"', b"NaN", b"[" * 300 + b"]" * 300, b'{"k":1,"k":2}']
)
def test_one_odd_inline_row_does_not_take_the_others_with_it(odd: bytes) -> None:
    """Field report B73."""
    rows = b'{"metadata": {"key": "a"}, "response": ' + odd + b'}, {"x": "]}"}'
    operation = b'{"response": {"inlinedResponses": {"inlinedResponses": [' + rows + b"]}}}"
    lines = gemini.inline_rows(b"\xef\xbb\xbf[" + operation + b"]", 0)
    assert lines is not None
    first, second, _ = lines.split(b"\n")
    assert odd in first and second == b'{"x": "]}"}'


def test_bedrock_fields() -> None:
    view = bedrock.read_batch(
        {
            "jobArn": "arn:aws:bedrock:us-east-1:1:model-invocation-job/abcdefghijkl",
            "jobName": "x",
            "clientRequestToken": KEY,
            "status": "PartiallyCompleted",
            "submitTime": datetime(2026, 11, 18, 12, 26, 40, tzinfo=UTC),
            "endTime": "2026-11-18T15:26:40+02:00",
            "inputDataConfig": {"s3InputDataConfig": {"s3Uri": "s3://in/x.jsonl"}},
            "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": "s3://out/p/"}},
            "totalRecordCount": 4,
            "successRecordCount": 2,
            "errorRecordCount": 0,
        }
    )
    assert view.results[0].ref == "s3://out/p/abcdefghijkl/"
    assert view.submission_key == KEY and view.input_ref == "s3://in/x.jsonl"
    assert view.ended_at == datetime(2026, 11, 18, 13, 26, 40, tzinfo=UTC)
    assert (view.counts.total, view.counts.completed, view.counts.failed) == (4, 2, 0)
    assert view.raw_status in bedrock.UNREACHED


def test_a_time_without_a_zone_is_utc() -> None:
    view = anthropic.read_batch({"created_at": "2026-11-18T12:26:40"})
    assert view.created_at == datetime(2026, 11, 18, 12, 26, 40, tzinfo=UTC)
    for odd in ("yesterday", 7, None, [], "2026-99-99"):
        assert anthropic.read_batch({"created_at": odd}).created_at is None
    for odd in (-1, 2**80, "1", None, True, float("nan")):
        assert openai.read_batch({"created_at": odd}).created_at is None
