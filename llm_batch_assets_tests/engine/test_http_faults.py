"""Every fault of a call alone, on each route: what was lost on the way, and what was not sent.

The dataset always ends whole. What tells the faults apart is the number of creates, of batches
and of epochs: a create that was answered badly is looked for, and only a proven absence, or the
provider's own refusal, lets another one be sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import pytest

from llm_batch_assets.simulator import Simulator
from llm_batch_assets_tests.engine.bench import QUICK, Bench, make_workload

EVERYONE = set(range(24))


@dataclass(frozen=True)
class Create:
    """A fault of the first create of three.

    ``epoch`` and ``how`` are the first shard's in the end; ``creates`` POSTs that arrived.
    """

    fault: str
    given: dict[str, Any] = field(default_factory=dict)
    creates: int = 3
    epoch: int = 0
    how: str = "answer"


FOUND: dict[str, Any] = {"creates": 3, "epoch": 0, "how": "found"}
"""The batch exists: a look finds it under its key, and no second create is sent."""
ABSENT: dict[str, Any] = {"creates": 4, "epoch": 1, "how": "answer"}
"""Two looks prove that it does not: the next epoch is sent."""
REFUSED: dict[str, Any] = {"creates": 4, "epoch": 0, "how": "answer"}
"""The provider said itself that nothing was made: the same epoch is sent again, later."""

CREATES = [
    Create("drop_after", **FOUND),
    Create("status_after", {"status": 500}, **FOUND),
    Create("status_after", {"status": 502}, **FOUND),
    Create("delay_after", {"seconds": 5}, **FOUND),
    Create("html_after", **FOUND),
    Create("junk_json", **FOUND),
    Create("truncate_length", **FOUND),
    Create("truncate_close", **FOUND),
    Create("drop_before", **ABSENT),
    Create("status_before", {"status": 500}, **ABSENT),
    Create("status_before", {"status": 502}, **ABSENT),
    Create("status_before", {"status": 408}, **ABSENT),
    Create("status_before", {"status": 409}, **ABSENT),
    Create("delay_before", {"seconds": 5}, **ABSENT),
    Create("html_before", **ABSENT),
    Create("status_204", **ABSENT),
    Create("status_before", {"status": 429, "retry_after": "0.1"}, **REFUSED),
]


def _name(row: Any) -> str:
    return "-".join([row.fault, *(f"{v}" for v in row.given.values())])


@pytest.mark.parametrize("row", CREATES, ids=_name)
def test_create(row: Create, bench: Callable[..., Bench], sim: Simulator) -> None:
    b = bench(records=24, settings=QUICK)
    b.freeze()
    sim.faults({"route": "create", "fault": row.fault, **row.given})
    b.drive()

    assert sim.faults()["met"] == {f"create:{row.fault}": 1}
    first, *others = b.view.shards
    assert (first.epoch, first.bound_how) == (row.epoch, row.how)
    assert {s.epoch for s in others} == {0}
    assert b.states() == {"accepted": EVERYONE}
    assert b.view.attempt == 1
    if row.epoch:
        # Before the second create the first upload is deleted: a late POST finds no file.
        gone, created = b.calls("file_delete")[0]["seq"], b.calls("create")[-1]["seq"]
        assert gone < created
    b.assert_no_second_batch(creates=row.creates, batches=3)


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_create_refused_for_good_is_never_sent_again(
    status: int, bench: Callable[..., Bench], sim: Simulator
) -> None:
    b = bench(records=24)
    b.freeze()
    sim.faults({"route": "create", "fault": "status_before", "status": status})
    b.drive()

    first = b.shard(0)
    assert b.states() == {"accepted": EVERYONE - first, "permanent_failure": first}
    assert {row["charged"] for row in b.settled() if row["state"] == "permanent_failure"} == {0}
    assert b.view.attempt == 1
    b.assert_no_second_batch(creates=3, batches=2)


@pytest.mark.parametrize("route", ["create", "upload"])
@pytest.mark.parametrize("status", [401, 403])
def test_a_fault_of_the_account_holds_and_says_what_releases_it(
    route: str, status: int, bench: Callable[..., Bench], sim: Simulator
) -> None:
    b = bench(records=24, workload=make_workload(retry={"hold_deadline": "72h"}))
    b.freeze()
    sim.faults({"route": route, "fault": "status_before", "status": status})
    waiting = b.drive()

    first = b.view.shards[0]
    assert first.state in {"VALIDATED", "UPLOADED"}
    (held,) = [one for one in waiting if one["target"] == first.shard_key]
    assert held["why"].startswith("hold: account")
    assert f"release {first.shard_key}" in held["release"]
    assert b.view.row.closed_at is None
    b.assert_no_second_batch(creates=3 if route == "create" else 2, batches=2)

    b.release(first)
    b.drive()
    assert b.states() == {"accepted": EVERYONE}
    b.assert_no_second_batch(creates=4 if route == "create" else 3, batches=3)


def test_an_upload_refused_for_good_is_a_hold_too(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    """No create was refused, so no record has failed; asking again would not help either."""
    b = bench(records=24, workload=make_workload(retry={"hold_deadline": "72h"}))
    b.freeze()
    sim.faults({"route": "upload", "fault": "status_before", "status": 400})
    waiting = b.drive()

    first = b.view.shards[0]
    (held,) = [one for one in waiting if one["target"] == first.shard_key]
    assert held["why"].startswith("hold: upload refused")
    b.release(first)
    b.drive()
    assert b.states() == {"accepted": EVERYONE}
    b.assert_no_second_batch(creates=3)


def test_a_key_that_was_changed_after_the_upload_uploads_again(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    """The new key may not see the old one's file: a create that names it is refused for good."""
    b = bench(records=8)
    b.freeze()
    sim.faults({"route": "create", "fault": "status_before", "status": 429, "retry_after": "0.1"})
    b.drive(stop=lambda: len(b.calls("create")) == 1)
    assert b.view.shards[0].state == "UPLOADED"

    b.drive(b.worker("two", key="sk-another"))
    assert len(b.calls("upload")) == 2
    assert b.states() == {"accepted": set(range(8))}
    b.assert_no_second_batch(creates=2, batches=1)


@dataclass(frozen=True)
class Call:
    """A fault of the first call of a route: what was asked is asked again, and nothing else is."""

    route: str
    fault: str
    given: dict[str, Any] = field(default_factory=dict)


_ANSWERS = [
    ("drop_before", {}),
    ("drop_after", {}),
    ("status_before", {"status": 429, "retry_after": "0.1"}),
    ("status_before", {"status": 500}),
    ("status_before", {"status": 502}),
    ("html_before", {}),
    ("html_after", {}),
    ("truncate_length", {}),
    ("truncate_close", {}),
    ("status_204", {}),
    ("junk_json", {}),
]
_WORSE = [("status_after", {"status": 503}), ("delay_after", {"seconds": 5})]

UPLOADS = [Call("upload", fault, given) for fault, given in [*_ANSWERS, *_WORSE]]
POLLS = [
    Call("poll", fault, given)
    for fault, given in [*_ANSWERS, ("status_before", {"status": 404}), ("status_206", {})]
]
DOWNLOADS = [
    Call("download", fault, given)
    for fault, given in [
        *_ANSWERS,
        ("truncate_line", {}),
        ("truncate_length", {"fraction": 0.0}),
        ("truncate_close", {"fraction": 0.99}),
        ("status_206", {}),
        ("status_before", {"status": 404}),
        ("status_before", {"status": 401}),
    ]
]
DESCRIBED = [
    Call("file_get", fault, given)
    for fault, given in [("drop_after", {}), ("status_before", {"status": 500}), ("junk_json", {})]
]


def _label(call: Call) -> str:
    return "-".join([call.route, call.fault, *(f"{v}" for v in call.given.values())])


CALLS = [*UPLOADS, *POLLS, *DOWNLOADS, *DESCRIBED]
_OFTEN = 3
"""Every third always; the providers' contract suite has all of them for the client alone."""


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(call, marks=() if number % _OFTEN == 0 else pytest.mark.soak)
        for number, call in enumerate(CALLS)
    ],
    ids=[_label(call) for call in CALLS],
)
def test_a_call_that_is_asked_again(
    call: Call, bench: Callable[..., Bench], sim: Simulator
) -> None:
    b = bench(records=24)
    b.freeze()
    sim.faults({"route": call.route, "fault": call.fault, **call.given})
    b.drive()

    assert sum(sim.faults()["met"].values()) == 1, "the fault was not met"
    assert b.classes(1) == {"succeeded": EVERYONE}
    assert b.states() == {"accepted": EVERYONE}
    assert [(s.epoch, s.bound_how) for s in b.view.shards] == [(0, "answer")] * 3
    b.assert_no_second_batch(creates=3)


LISTS = [
    *((made, "empty_page", {}) for made in (True, False)),
    *((made, fault, given) for (fault, given), made in zip(_ANSWERS, cycle([True, False]))),
]


@pytest.mark.parametrize(("made", "fault", "given"), LISTS)
def test_a_list_that_does_not_come_to_its_end_proves_nothing(
    made: bool, fault: str, given: dict[str, Any], bench: Callable[..., Bench], sim: Simulator
) -> None:
    b = bench(records=24, settings=QUICK)
    b.freeze()
    lost = "drop_after" if made else "drop_before"
    sim.faults(
        {"route": "create", "fault": lost}, {"route": "list", "fault": fault, "times": 2, **given}
    )
    b.drive()

    assert sim.faults()["met"][f"list:{fault}"] == 2
    looks = b.looks()
    assert looks[:2] == [False, False]
    assert sum(looks) >= (1 if made else 2)
    assert b.view.shards[0].epoch == (0 if made else 1)
    assert b.states() == {"accepted": EVERYONE}
    b.assert_no_second_batch(creates=3 if made else 4, batches=3)


def test_a_batch_that_the_list_shows_late_is_no_absence(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    """Not in the list at the first look: found at the next, no second create."""
    b = bench(records=24, settings=QUICK)
    b.freeze()
    sim.faults({"route": "create", "fault": "drop_after"}, {"kind": "late_list", "looks": 1})
    b.drive()

    assert len(b.calls("list")) == 2
    assert (b.view.shards[0].epoch, b.view.shards[0].bound_how) == (0, "found")
    assert b.states() == {"accepted": EVERYONE}
    b.assert_no_second_batch(creates=3)


def test_a_post_that_arrives_after_its_deadline_finds_no_upload(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    """The first clean look deletes the upload, so what comes later cannot become a batch."""
    settings = replace(QUICK, settle_interval=2.0, post_seconds=0.4)
    b = bench(records=24, settings=settings)
    b.freeze()
    # Deadline 0.4 s, first clean look 2.4 s, second 4.4 s after the POST left.
    sim.faults({"route": "create", "fault": "late_effect", "seconds": 3.9})
    b.drive()

    late = b.calls("create")[0]
    assert late["notes"]["late_answer"] == 404
    assert b.view.shards[0].epoch == 1
    assert b.states() == {"accepted": EVERYONE}
    b.assert_no_second_batch(creates=4, batches=3)


def test_a_post_that_arrives_late_and_becomes_a_batch_is_found(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    settings = replace(QUICK, settle_interval=1.5, post_seconds=0.4)
    b = bench(records=24, settings=settings)
    b.freeze()
    sim.faults({"route": "create", "fault": "late_effect", "seconds": 0.9})
    b.drive()

    assert b.calls("create")[0]["notes"]["late_answer"] == 200
    assert (b.view.shards[0].epoch, b.view.shards[0].bound_how) == (0, "found")
    assert b.states() == {"accepted": EVERYONE}
    b.assert_no_second_batch(creates=3)


def test_an_upload_that_cannot_be_deleted_keeps_the_second_create_back(
    bench: Callable[..., Bench], sim: Simulator
) -> None:
    b = bench(records=24, settings=QUICK)
    b.freeze()
    sim.faults(
        {"route": "create", "fault": "drop_before"},
        {"route": "file_delete", "fault": "status_before", "status": 500, "times": 3},
    )
    b.drive()

    deletes = b.calls("file_delete")
    assert [entry["status"] for entry in deletes[:4]] == [500, 500, 500, 200]
    assert b.calls("create")[-1]["seq"] > deletes[3]["seq"]
    assert b.view.shards[0].epoch == 1
    assert b.states() == {"accepted": EVERYONE}
    b.assert_no_second_batch(creates=4, batches=3)


@pytest.mark.parametrize("kept", [True, False], ids=["found", "absent"])
def test_another_credential_concludes_nothing(
    kept: bool, bench: Callable[..., Bench], sim: Simulator
) -> None:
    """Another key cannot see the batch, so its empty list says nothing about it."""
    b = bench(records=8, settings=QUICK)
    b.freeze()
    sim.faults({"route": "create", "fault": "drop_after" if kept else "drop_before"})
    b.drive(stop=lambda: len(b.calls("create")) == 1)
    assert b.view.shards[0].state == "UNCERTAIN"

    other = b.worker("two", key="sk-another", settings=QUICK)
    until = time.monotonic() + 2.0
    b.drive(other, stop=lambda: time.monotonic() > until)
    assert b.view.shards[0].state == "UNCERTAIN"
    assert len(b.calls("create")) == 1

    b.drive()
    assert b.states() == {"accepted": set(range(8))}
    b.assert_no_second_batch(creates=1 if kept else 2, batches=1)
