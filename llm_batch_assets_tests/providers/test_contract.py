"""What each provider module promises, judged by the simulator's own log and meter."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace

import pytest

from llm_batch_assets.download import download
from llm_batch_assets.errors import DownloadError, ProviderError, ResultsGone
from llm_batch_assets.providers.bedrock import job_name
from llm_batch_assets_tests.providers.faulty_s3 import FaultyS3
from llm_batch_assets_tests.providers.harness import (
    DEPLOYMENT,
    DIALECTS,
    KEY,
    bedrock,
    world_of,
)


@pytest.fixture(params=[*sorted(DIALECTS), "bedrock"])
def dialect(request):
    if request.param != "bedrock":
        yield DIALECTS[request.param]
        return
    server = request.getfixturevalue("s3_server")
    bucket = request.getfixturevalue("s3_bucket")
    with FaultyS3(server.endpoint).running() as proxy:
        yield bedrock(server, bucket, proxy)


@pytest.fixture(scope="session")
def s3_bucket(s3_server):
    s3_server.client().create_bucket(Bucket="contract")
    return "contract"


@pytest.fixture
def world(dialect, tmp_path):
    with world_of(dialect, tmp_path) as world:
        yield world


def create(world, timeout=20.0):
    path = world.file()
    request = world.request(path)
    return world.provider.create(request, path, timeout=timeout)


def test_a_whole_life(world):
    view = world.submit()
    assert view.status in ("queued", "running")
    assert not view.results_ready
    assert world.provider.get(view.batch_id).batch_id == view.batch_id
    done = world.finish(view.batch_id)
    assert done.status == "done"
    rows = world.rows(done)
    assert sorted(map(world.dialect.row_id, rows)) == world.ids()
    assert len(world.log("create")) == 1
    meter = world.sim.meter()
    assert (meter["total_executions"], meter["paid_twice"]) == (world.dialect.records, 0)


def test_what_is_sent_is_the_stored_bytes(world):
    view = world.submit()
    world.finish(view.batch_id)
    path = world.file()
    sent = [hashlib.sha256(line).hexdigest() for line in path.read_bytes().split(b"\n")[:-1]]
    assert len(set(sent)) == world.dialect.records
    assert {e["custom_id"] for e in world.sim.executions()} == set(world.ids())


def test_our_labels_come_back(world):
    view = world.submit()
    (listed,) = world.listed()
    for seen in (world.provider.get(view.batch_id), listed):
        assert seen.batch_id == view.batch_id
        if world.provider.settles_by_label:
            assert (seen.submission_key, seen.deployment) == (KEY, DEPLOYMENT)
        else:
            assert (seen.submission_key, seen.deployment) == (None, None)


LOST = [
    {"fault": "drop_after"},
    {"fault": "status_after", "status": 500},
    {"fault": "status_after", "status": 502},
    {"fault": "status_after", "status": 503},
    {"fault": "status_after", "status": 529},
    {"fault": "status_after", "status": 409},
    {"fault": "html_after"},
    {"fault": "delay_after", "seconds": 15},
]
NEVER = [
    {"fault": "drop_before"},
    {"fault": "status_before", "status": 500},
    {"fault": "status_before", "status": 408},
    {"fault": "html_before"},
    {"fault": "delay_before", "seconds": 15},
    {"fault": "junk_json"},
]


def _name(fault):
    return "-".join(str(v) for v in fault.values())


@pytest.mark.parametrize("fault", LOST, ids=_name)
def test_a_lost_reply_is_uncertain_after_one_post_and_the_batch_is_found(world, fault):
    world.sim.faults({"route": "create", **fault})
    begun = time.monotonic()
    with pytest.raises(ProviderError) as caught:
        create(world, timeout=2.0 if "seconds" in fault else 20.0)
    assert time.monotonic() - begun < 10
    assert caught.value.effect == "unknown"
    assert len(world.log("create")) == 1
    assert world.live() == 1
    (found,) = world.listed()
    if world.provider.settles_by_label:
        assert (found.submission_key, found.deployment) == (KEY, DEPLOYMENT)
    done = world.finish(found.batch_id)
    assert len(world.rows(done)) == world.dialect.records


@pytest.mark.parametrize("fault", NEVER, ids=_name)
def test_what_never_arrived_is_just_as_uncertain(world, fault):
    world.sim.faults({"route": "create", **fault})
    with pytest.raises(ProviderError) as caught:
        create(world, timeout=2.0 if "seconds" in fault else 20.0)
    assert caught.value.effect == "unknown"
    assert len(world.log("create")) == 1


@pytest.mark.parametrize("retry_after", [None, "3", "100000", "soon"])
def test_a_429_is_a_certain_refusal_for_now(world, retry_after):
    fault = {"route": "create", "fault": "status_before", "status": 429}
    world.sim.faults({**fault, "retry_after": retry_after} if retry_after else fault)
    with pytest.raises(ProviderError) as caught:
        create(world)
    error = caught.value
    assert (error.effect, error.fault, error.http_status) == ("none", "refused_now", 429)
    expected = {"3": 3.0, "100000": 100_000.0}.get(retry_after)
    assert error.retry_after == expected
    assert len(world.log("create")) == 1
    assert world.listed() == []


def test_a_request_that_is_wrong_is_refused_for_good(world):
    world.sim.faults({"route": "create", "fault": "status_before", "status": 400})
    with pytest.raises(ProviderError) as caught:
        create(world)
    assert (caught.value.effect, caught.value.fault) == ("none", "refused")
    assert caught.value.code
    assert world.listed() == []


@pytest.mark.parametrize("status", [401, 403])
def test_a_credential_that_is_refused_is_the_accounts_fault(world, status):
    world.sim.faults({"route": "create", "fault": "status_before", "status": status})
    with pytest.raises(ProviderError) as caught:
        create(world)
    assert (caught.value.effect, caught.value.fault) == ("none", "account")


def test_a_late_post_finds_no_file_once_the_upload_is_deleted(world):
    if not world.provider.has_upload:
        return
    path = world.file()
    request = world.request(path)
    world.provider.delete_input(request.input_ref)
    world.provider.delete_input(request.input_ref)
    with pytest.raises(ProviderError) as caught:
        world.provider.create(request, path, timeout=10)
    assert caught.value.effect == "none"
    assert world.live() == 0


def test_every_batch_is_listed_over_many_pages(dialect, tmp_path):
    with world_of(dialect, tmp_path) as world:
        path = world.file(records=1)
        request = world.request(path)
        made = set()
        for number in range(105 if dialect.name == "openai" else 7):
            key = f"{number:064x}"
            view = world.provider.create(replace(request, submission_key=key), path, timeout=20)
            made.add(view.batch_id)
        views = world.listed()
    assert {v.batch_id for v in views} == made
    assert len(views) == len(made)


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "empty_page"},
        {"fault": "junk_json"},
        {"fault": "status_before", "status": 500},
        {"fault": "status_before", "status": 429},
        {"fault": "drop_before"},
        {"fault": "html_before"},
        {"fault": "truncate_length"},
        {"fault": "truncate_close"},
        {"fault": "status_204"},
    ],
    ids=_name,
)
def test_a_list_that_fails_proves_nothing(world, fault):
    view = world.submit()
    world.sim.faults({"route": "list", **fault})
    if fault["fault"] == "empty_page" and world.dialect.list_by_token:
        # Such a page is no end, and its token leads on.
        assert [v.batch_id for v in world.listed()] == [view.batch_id]
        assert len(world.log("list")) >= 2
        return
    with pytest.raises(ProviderError) as caught:
        world.listed()
    assert caught.value.effect == "none"
    assert len(world.listed()) == 1


def test_a_foreign_look_alike_carries_none_of_our_labels(world):
    view = world.submit()
    # Gemini's names are not unique: the look-alike has ours, under another deployment.
    names = {"gemini": f"dep-2/{KEY}", "bedrock": job_name("dep-2", KEY)}
    name = {"metadata": names[world.dialect.name]} if world.dialect.name in names else {}
    other = world.sim.clone_batch(foreign=True, **name)
    views = {v.batch_id: v for v in world.listed()}
    seen = views[other["id"]]
    assert (seen.submission_key, seen.deployment) != (KEY, DEPLOYMENT)
    ours = [v for v in views.values() if (v.submission_key, v.deployment) == (KEY, DEPLOYMENT)]
    if world.provider.settles_by_label:
        assert [v.batch_id for v in ours] == [view.batch_id]


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "status_before", "status": 429, "retry_after": "1"},
        {"fault": "status_before", "status": 500},
        {"fault": "status_before", "status": 404},
        {"fault": "drop_before"},
        {"fault": "html_before"},
        {"fault": "junk_json"},
        {"fault": "truncate_length"},
        {"fault": "truncate_close"},
    ],
    ids=_name,
)
def test_a_look_that_fails_changes_nothing(world, fault):
    view = world.submit()
    world.sim.faults({"route": "poll", **fault})
    with pytest.raises(ProviderError) as caught:
        world.provider.get(view.batch_id)
    assert caught.value.effect == "none"
    assert world.provider.get(view.batch_id).batch_id == view.batch_id
    assert len(world.log("create")) == 1


def test_an_unknown_status_is_no_end(dialect, tmp_path):
    with world_of(dialect, tmp_path, {"kind": "unknown_status", "looks": 1}) as world:
        view = world.submit()
        world.sim.advance(86_400)
        seen = world.provider.get(view.batch_id)
        assert (seen.status, seen.results_ready) == ("unknown", False)
        assert world.provider.get(view.batch_id).results_ready


def test_results_that_are_late_are_looked_for_again(dialect, tmp_path):
    with world_of(dialect, tmp_path, {"kind": "late_files", "looks": 2}) as world:
        view = world.submit()
        world.sim.advance(86_400)
        looks = [world.provider.get(view.batch_id).results_ready for _ in range(3)]
        assert looks == [False, False, True]


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "truncate_length"},
        {"fault": "truncate_close"},
        {"fault": "truncate_line"},
        {"fault": "status_206"},
        {"fault": "status_204"},
        {"fault": "html_before"},
        {"fault": "drop_before"},
        {"fault": "status_before", "status": 500},
        {"fault": "status_before", "status": 429},
        {"fault": "status_before", "status": 404},
    ],
    ids=_name,
)
def test_a_broken_download_is_made_whole(world, fault):
    view = world.submit()
    done = world.finish(view.batch_id)
    world.break_downloads(fault)
    rows = world.rows(done)
    assert sorted(map(world.dialect.row_id, rows)) == world.ids()
    assert world.downloads() >= 2


def test_a_download_that_stays_broken_stores_nothing(world):
    view = world.submit()
    done = world.finish(view.batch_id)
    world.break_downloads({"fault": "truncate_close", "times": 1000})
    with pytest.raises(DownloadError):
        world.rows(done, max_tries=2)
    assert list(world.store.digests()) == []


def test_a_result_that_is_gone_says_so(dialect, tmp_path):
    faults = [] if dialect.s3 else [{"kind": "lost_result"}]
    with world_of(dialect, tmp_path, *faults) as world:
        view = world.submit()
        done = world.finish(view.batch_id)
        if dialect.s3:
            world.provider.delete_remote(view.batch_id, tuple(r.ref for r in done.results))
        with pytest.raises(ResultsGone):
            world.rows(done, max_tries=2)


def test_cancel_and_what_is_already_over(world):
    view = world.submit()
    seen = world.provider.cancel(view.batch_id)
    assert seen is None or seen.status in ("stopping", "running", "queued", "cancelled")
    world.provider.cancel(view.batch_id)
    over = world.finish(view.batch_id)
    assert over.status in ("cancelled", "done")
    assert world.provider.cancel(view.batch_id) is None
    assert world.live() == 0


def test_an_expired_batch_gives_what_it_has(dialect, tmp_path):
    with world_of(dialect, tmp_path, {"kind": "expire", "fraction": 0.5}) as world:
        view = world.submit()
        over = world.finish(view.batch_id, 3 * 86_400)
        assert over.status in ("expired", "done")
        ids = set(map(world.dialect.row_id, world.rows(over)))
        assert ids <= set(world.ids())


def test_another_account_sees_nothing_and_concludes_nothing(world):
    view = world.submit()
    other = world.as_account("sk-two")
    assert other.account() != world.provider.account()
    assert list(other.list_batches()) == []
    with pytest.raises(ProviderError) as caught:
        other.get(view.batch_id)
    assert caught.value.fault == "not_found"


def test_a_wrong_key_is_the_accounts_fault_everywhere(dialect, tmp_path):
    with world_of(dialect, tmp_path) as world:
        other = world.as_account("invalid-key")
        for call in (lambda: other.get(dialect.absent_id), lambda: list(other.list_batches())):
            with pytest.raises(ProviderError) as caught:
                call()
            assert caught.value.fault == "account"
            assert "invalid-key" not in str(caught.value)


def test_deleting_leaves_nothing_behind(world):
    view = world.submit()
    done = world.finish(view.batch_id)
    for _ in range(2):
        world.provider.delete_remote(view.batch_id, tuple(r.ref for r in done.results))
        if done.input_ref:
            world.provider.delete_input(done.input_ref)
    left = [file.get("name") or file["id"] for file in world.sim.state()["files"]]
    never = world.dialect.undeletable
    assert [name for name in left if never is None or not name.startswith(never)] == []


@pytest.mark.parametrize("fault", ["bom", "crlf", "blank_lines", "no_final_newline"])
def test_bytes_arrive_as_they_are(dialect, tmp_path, fault):
    marks = {"bom": b"\xef\xbb\xbf", "crlf": b"\r\n"}
    with world_of(dialect, tmp_path, {"kind": fault}) as world:
        view = world.submit()
        done = world.finish(view.batch_id)
        receipt = download(world.provider, done.results[0], world.store)
        data = world.store.get(receipt.digest)
    assert marks.get(fault, b"") in data
    blank = [line for line in data.split(b"\n")[:-1] if not line.strip()]
    assert bool(blank) == (fault == "blank_lines")
    assert data.endswith(b"\n") == (fault != "no_final_newline")
