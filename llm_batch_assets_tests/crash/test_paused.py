"""A worker that is paused between its lease check and the first byte, and wakes after a takeover.

SIGSTOP at the boundary right before the create leaves the call, another process waits the lease
out, proves the absence and goes on; then the first one wakes and sends. Where the upload is gone
or the client token known, its POST makes nothing. Anthropic has neither: the second batch is
found, cancelled and booked.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from llm_batch_assets.ledger import Ledger, schema
from llm_batch_assets_tests.crash.scene import ACCOUNTS, LOCAL, Account, Scene, simulator

SECONDS = 60.0


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def is_stopped(pid: int) -> bool:
    """Whether a process is in the state that SIGSTOP leaves."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return stat.rsplit(")", 1)[1].split()[0] == "T"


def pause_and_take_over(scene: Scene, point: str, wake: Callable[[], bool] | None) -> None:
    """The first worker stops at a point; a second one runs the dataset; the first one wakes.

    Args:
        scene: a fresh one.
        point: where the first worker stops itself.
        wake: when it is woken, while the second one runs; None: after the second is done.
    """
    pid = scene.start({"LLM_BATCH_CRASH_AT": f"{point}:stop"})
    wait_until(lambda: is_stopped(pid), "it stops")
    second = scene.command.start()
    try:
        if wake is None:
            out, err = second.communicate(timeout=SECONDS)
            assert second.returncode == 0, (out, err)
        else:
            wait_until(wake, "it may wake")
        os.kill(pid, signal.SIGCONT)
        assert scene.wait() == 0, scene.said()
        out, err = second.communicate(timeout=SECONDS)
        assert second.returncode == 0, (out, err)
    finally:
        if second.poll() is None:
            second.kill()
        second.communicate()


def booked_duplicates(scene: Scene) -> set[str]:
    """Batches that the ledger has booked as second ones."""
    table = schema.duplicate_batches
    ledger = Ledger(f"sqlite:///{scene.folder / 'home' / 'ledger.db'}", deployment="d-crash")
    try:
        with ledger.read() as connection:
            return set(connection.execute(sa.select(table.c.batch_id)).scalars())
    finally:
        ledger.close()


@pytest.mark.long
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_it_wakes_when_the_other_is_done(provider: str, tmp_path: Path) -> None:
    """One provider that can be fenced by the upload, and the one that cannot."""
    _wakes_last(ACCOUNTS[provider], tmp_path)


@pytest.mark.soak
def test_it_wakes_when_the_other_is_done_on_each(account: Account, tmp_path: Path) -> None:
    _wakes_last(account, tmp_path)


def _wakes_last(account: Account, tmp_path: Path) -> None:
    with simulator(account) as sim:
        scene = Scene(tmp_path / "scene", sim, account, LOCAL, "plain")
        pause_and_take_over(scene, "provider.create:before:1", None)
        if account.provider != "anthropic":
            scene.assert_sound()
            assert booked_duplicates(scene) == set()
            return
        (second,) = booked_duplicates(scene)
        cancels = [entry["path"] for entry in sim.log() if entry["route"] == "cancel"]
        assert len(cancels) == 1 and second in cancels[0]
        wait_until(lambda: sim.meter()["live_batches"] == 0, "the second batch has ended")
        assert scene.result()["closed"]


@pytest.mark.soak
def test_it_wakes_before_its_lease_check(account: Account, tmp_path: Path) -> None:
    """Stopped between the claim and the check: the check finds the lease gone, nothing is sent."""
    with simulator(account) as sim:
        scene = Scene(tmp_path / "scene", sim, account, LOCAL, "plain")
        pause_and_take_over(scene, "commit.claim:after:1", None)
        scene.assert_sound()
        assert booked_duplicates(scene) == set()


@pytest.mark.soak
@pytest.mark.parametrize("provider", ["openai", "gemini"])
def test_it_wakes_when_the_upload_is_deleted(provider: str, tmp_path: Path) -> None:
    """The earliest instant at which a second create may follow."""
    with simulator(ACCOUNTS[provider]) as sim:
        scene = Scene(tmp_path / "scene", sim, ACCOUNTS[provider], LOCAL, "plain")
        pause_and_take_over(
            scene,
            "provider.create:before:1",
            lambda: any(entry["route"] == "file_delete" for entry in sim.log()),
        )
        scene.assert_sound()
        assert booked_duplicates(scene) == set()
