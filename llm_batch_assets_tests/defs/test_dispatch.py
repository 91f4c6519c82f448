"""From due work to runs: pure tables of work in, run requests' data out."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from llm_batch_assets.controller import Work, WorkKind
from llm_batch_assets.defs.dispatch import RUN_KINDS, Dispatch, asks, need_of, needs_of_run
from llm_batch_assets.defs.sensors import POLL_KINDS

ORDER = {"w": [f"d/r1/a1/p{n:05d}" for n in range(30)]}


def _work(kind: Any, shard: int | None = None, *, workload: str = "w", **more: Any) -> Work:
    key = None if shard is None else f"d/r1/a1/p{shard:05d}"
    fields: dict[str, Any] = {
        "kind": kind,
        "work_id": f"{kind}:{workload}:{key or 'd'}",
        "key": key or "1",
        "tenant_id": "t",
        "workload": workload,
        "dataset": "d",
        "revision": 1,
        "attempt": 1,
        "shard_key": key,
        "revision_id": 1,
        "job_key": "sha256:00",
        "due_at": 0,
    }
    return Work(**{**fields, **more})


def _asks(work: list[Work], **more: Any) -> list[Any]:
    options: dict[str, Any] = {"order": ORDER, "live": set(), "dispatched": {}, "now": 10**9}
    return asks(work, **{**options, **more})


def test_neighbours_share_a_run_of_at_most_twenty() -> None:
    found = _asks([_work("submit", n) for n in range(25)])
    assert [len(ask.work) for ask in found] == [20, 5]
    assert found[0].tags("dep")["dagster/asset_partition_range_start"] == "d/r1/a1/p00000"
    assert found[0].tags("dep")["dagster/asset_partition_range_end"] == "d/r1/a1/p00019"
    assert found[0].steps == ("provider_job",)


def test_a_gap_starts_another_run_and_one_key_needs_no_range() -> None:
    found = _asks([_work("collect", n) for n in (1, 2, 5)])
    assert [ask.partitions for ask in found] == [
        ["d/r1/a1/p00001", "d/r1/a1/p00002"],
        ["d/r1/a1/p00005"],
    ]
    tags = found[1].tags("dep")
    assert "dagster/asset_partition_range_start" not in tags
    assert tags["llm_batch/work_id"] == "collect:w:d/r1/a1/p00005"
    assert tags["llm_batch/shard"] == "d/r1/a1/p00005"


def test_a_range_never_grows_past_its_bytes() -> None:
    found = _asks([_work("collect", n, bytes=900_000_000) for n in range(4)])
    assert [len(ask.work) for ask in found] == [2, 2]


def test_kinds_and_workloads_never_share_a_run() -> None:
    order = {**ORDER, "v": ORDER["w"]}
    work = [_work("submit", 0), _work("collect", 1), _work("submit", 1, workload="v")]
    found = _asks(work, order=order)
    assert {(ask.kind, ask.workload, len(ask.work)) for ask in found} == {
        ("submit", "w", 1),
        ("collect", "w", 1),
        ("submit", "v", 1),
    }


def test_datasets_get_a_run_each() -> None:
    work = [_work("account"), _work("account", dataset="e", work_id="account:e")]
    found = _asks(work)
    assert [ask.partitions for ask in found] == [["d"], ["e"]]
    assert found[0].steps == ("reconciled_records", "retry_shards")


def test_every_kind_of_work_is_done_by_somebody() -> None:
    assert set(get_args(WorkKind)) == RUN_KINDS.keys() | set(POLL_KINDS)
    assert not RUN_KINDS.keys() & set(POLL_KINDS)


def test_polls_looks_and_foreign_workloads_are_no_runs() -> None:
    assert _asks([_work("poll", 1), _work("look"), _work("submit", 1, workload="gone")]) == []


def test_what_a_live_run_is_about_is_left_out() -> None:
    work = [_work("submit", n) for n in range(4)]
    live = needs_of_run(_asks(work[1:3])[0].tags("dep"), ORDER)
    assert live == {need_of(work[1]), need_of(work[2])}
    assert [ask.partitions for ask in _asks(work, live=live)] == [
        ["d/r1/a1/p00000"],
        ["d/r1/a1/p00003"],
    ]
    assert needs_of_run({}, ORDER) == set()


def test_a_repeat_waits_longer_each_time_under_a_new_key() -> None:
    work = _work("account")
    second = 1_000_000
    waits = []
    for number in range(1, 12):
        known = {work.work_id: Dispatch(number, 0)}
        wait = known[work.work_id].ready_at()
        assert _asks([work], dispatched=known, now=wait - 1) == []
        (ask,) = _asks([work], dispatched=known, now=wait)
        assert ask.run_key == f"{work.work_id}#{number + 1}"
        waits.append(wait // second)
    assert waits[:4] == [5, 10, 20, 40]
    assert waits == sorted(waits)
    assert waits[-1] == 600


def test_a_tick_is_bounded() -> None:
    order = {"w": [f"d/r1/a1/p{n:05d}" for n in range(0, 200, 2)]}
    work = [_work("submit", n) for n in range(0, 200, 2)]
    gaps = {"w": [key for k in order["w"] for key in (k, k + "x")]}
    assert len(_asks(work, order=gaps)) == 40


@pytest.mark.parametrize("attempts", [(1, 1), (1, 2)])
def test_tags_name_only_what_all_members_share(attempts: tuple[int, int]) -> None:
    work = [_work("submit", n, attempt=a, job_key=f"k{a}") for n, a in enumerate(attempts)]
    (ask,) = _asks(work)
    tags = ask.tags("dep")
    assert ("llm_batch/attempt" in tags) == (attempts[0] == attempts[1])
    assert ("llm_batch/job_key" in tags) == (attempts[0] == attempts[1])
    assert ask.run_key.endswith("#1")
