"""The demo: its folder and lines in process, and twice as a user runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from llm_batch_assets.cli.main import group
from llm_batch_assets.demo import watch
from llm_batch_assets.demo.stack import DemoOptions, environment, prepare_home
from llm_batch_assets.simulator import Simulator
from llm_batch_assets.workload import Workload
from llm_batch_assets_tests.defs.loop import Loop

LINE = re.compile(
    r"closed=(true|false) records=\d+ accepted=\d+ human_review=\d+ permanent_failure=\d+ "
    r"cancelled=\d+ attempts=\d+ provider_batches=(\d+|null) paid_twice=(\d+|null)"
)


@pytest.mark.parametrize(("records", "size"), [(600, 120), (5, 1), (None, 2000), (10**6, 2000)])
def test_the_home_has_at_least_five_shards_and_a_short_backoff(
    tmp_path: Path, records: int | None, size: int
) -> None:
    prepare_home(tmp_path, DemoOptions(records))
    workload = Workload.from_yaml(tmp_path / "docstring_summaries.yaml")
    assert workload.limits.records_per_shard == size
    assert workload.retry.backoff.max.total_seconds() == 1
    assert (tmp_path / "dagster.yaml").read_text() == (
        Path(__file__).parents[2] / "dagster.yaml"
    ).read_text()


def test_an_installed_package_has_what_the_demo_needs(tmp_path: Path) -> None:
    """From a wheel, away from any clone."""
    root = Path(__file__).parents[2]
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=root, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    home = tmp_path / "home"
    home.mkdir()
    prepare = (
        "import sys; from pathlib import Path; from llm_batch_assets.demo import stack; "
        "assert stack.__file__.startswith(sys.argv[1]), stack.__file__; "
        "stack.prepare_home(Path(sys.argv[2]), stack.DemoOptions(5))"
    )
    subprocess.run(
        [sys.executable, "-c", prepare, str(site), str(home)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        check=True,
        timeout=120,
    )
    assert (home / "dagster.yaml").read_bytes() == (root / "dagster.yaml").read_bytes()
    assert (home / "docstring_summaries.yaml").is_file()


def test_services_see_no_key_no_proxy_and_no_older_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {
        "OPENAI_API_KEY": "sk-real",
        "OPENAI_ORG_ID": "org",
        "AWS_PROFILE": "p",
        "HTTPS_PROXY": "http://proxy.example",
        "https_proxy": "http://proxy.example",
        "LLM_BATCH_LEDGER_URL": "postgresql://elsewhere",
        "DAGSTER_HOME": "/elsewhere",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    env = environment(tmp_path, "http://127.0.0.1:1", DemoOptions())
    for name, value in theirs.items():
        assert env.get(name) != value, name
    assert env["OPENAI_BASE_URL"] == "http://127.0.0.1:1/v1"
    assert env["LLM_BATCH_EXAMPLE_RECORDS"] == "600"
    assert env["DAGSTER_HOME"] == str(tmp_path)
    everything = environment(tmp_path, "", DemoOptions(None))
    assert "LLM_BATCH_EXAMPLE_RECORDS" not in everything


def test_an_extra_batch_behind_our_back_shows_in_the_last_line(
    start: Callable[..., Loop],
    simulator: Simulator,
) -> None:
    """The judge is the provider's meter: our own ledger knows of nothing."""
    loop = start()
    assert loop.click("manifest").success
    view = loop.until_published()
    honest = watch.result(view, watch.meter(simulator.origin))
    assert honest.line() == (
        "closed=true records=40 accepted=40 human_review=0 permanent_failure=0 cancelled=0 "
        "attempts=1 provider_batches=4 paid_twice=0"
    )
    assert honest.ok
    simulator.clone_batch()
    simulator.advance(86_400)
    paid = watch.result(view, watch.meter(simulator.origin))
    assert paid.paid_twice == 10
    assert LINE.fullmatch(paid.line())
    assert watch.result(view, None).line().endswith("provider_batches=null paid_twice=null")
    table = honest.table().splitlines()
    assert [line.split() for line in table if "---" not in line] == [
        ["accepted", "40"],
        ["human_review", "0"],
        ["permanent_failure", "0"],
        ["cancelled", "0"],
        ["sum", "40"],
        ["manifest", "40"],
    ]


def test_progress_says_each_change_once(start: Callable[..., Loop]) -> None:
    loop = start()
    assert loop.click("manifest").success
    seen: dict[str, str] = {}
    view = loop.view()
    assert view is not None
    assert watch.changes(seen, view)[0] == "a1/p00000 VALIDATED"
    assert watch.changes(seen, view) == []
    lines = watch.changes(seen, loop.until_published())
    assert "a1/p00000 ACCOUNTED 10/10" in lines
    assert lines[-2:] == ["accounted: 40 accepted, 0 open", "published as version 1"]


@pytest.mark.parametrize("records", ["4", "-1", "many", ""])
def test_a_wrong_number_of_records_is_one_sentence(records: str) -> None:
    done = CliRunner().invoke(group, ["demo", "--records", records])
    assert done.exit_code == 2
    assert "write a number of at least 5, or all" in done.output


@contextmanager
def _demo(tmp_path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The command as a user runs it, with its talk in a file."""
    said = tmp_path / "stderr"
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "llm_batch_assets.cli", "demo", *options]
    with said.open("w") as err:
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=err, text=True)
    try:
        yield process, said
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def _wait_for(process: subprocess.Popen[str], said: Path, pattern: str, within: float) -> str:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if found := re.search(pattern, said.read_text()):
            return found[1]
        assert process.poll() is None, said.read_text()
        time.sleep(0.2)
    raise AssertionError(f"{pattern} not within {within} s:\n{said.read_text()}")


def _left_over(tmp_path: Path) -> list[str]:
    """Processes whose command line or environment names the demo's folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(tmp_path).encode() in command and int(entry.name) != os.getpid():
            found.append(command[:200].decode(errors="replace"))
    return found


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_the_demo_as_a_user_runs_it_with_an_extra_batch(tmp_path: Path) -> None:
    """From source to published by sensors alone; the extra batch is paid twice and shows."""
    with _demo(tmp_path, "--records", "60", "--faults", "none", "--timeout", "300") as (
        process,
        said,
    ):
        origin = _wait_for(process, said, r"simulator: (http://\S+)", 120)
        _wait_for(process, said, r"(SUBMITTED|RESULTS_AVAILABLE)", 120)
        request = urllib.request.Request(
            f"{origin}/_sim/batches", json.dumps({"clone": "latest"}).encode()
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            lines = json.load(reply)["lines"]
        out, _ = process.communicate(timeout=330)
    talk = said.read_text()
    assert process.returncode == 0, talk
    last = out.splitlines()[-1]
    assert LINE.fullmatch(last), last
    fields = dict(pair.split("=") for pair in last.split())
    assert fields["closed"] == "true"
    assert fields["records"] == "60"
    assert 0 < int(fields["paid_twice"]) <= lines
    asked = re.search(r"(\d+) runs: 1 launched here, (\d+) asked for by (.*)\.", talk)
    assert asked, talk
    assert int(asked[1]) == int(asked[2]) + 1
    assert asked[3] == "llm_batch_automation, llm_batch_tick"
    assert _left_over(tmp_path) == []
    assert not list(tmp_path.glob("llm-batch-demo-*")), "a demo that went well leaves nothing"


@pytest.mark.long
@pytest.mark.timeout(200)
def test_ctrl_c_stops_everything_that_it_started(tmp_path: Path) -> None:
    with _demo(tmp_path, "--dev") as (process, said):
        web = _wait_for(process, said, r"UI: (http://\S+)", 150)
        _wait_for(process, said, r"(/manifest\?view=partitions)", 60)
        with urllib.request.urlopen(f"{web}/server_info", timeout=30) as reply:
            assert "dagster_version" in json.load(reply)
        assert len(_left_over(tmp_path)) >= 4
        process.send_signal(2)
        assert process.wait(30) == 0
    end = time.monotonic() + 10
    while _left_over(tmp_path) and time.monotonic() < end:
        time.sleep(0.1)
    assert _left_over(tmp_path) == []
