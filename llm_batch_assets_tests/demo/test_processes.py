"""The supervisor with real processes: what it starts, it also ends, even grandchildren."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm_batch_assets.demo.processes import (
    NotUpError,
    Service,
    ServiceEndedError,
    Supervisor,
    connects,
    free_ports,
)

# Starts a grandchild that ignores SIGTERM, says both ids, and serves on a port.
TREE = """
import os, signal, socket, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True);"
    "time.sleep(600)"], stdout=subprocess.PIPE)
child.stdout.readline()
server = socket.socket()
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def _service(tmp_path: Path, code: str, *argv: str, name: str = "server") -> Service:
    return Service(
        name=name,
        argv=[sys.executable, "-S", "-c", code, *argv],
        env=dict(os.environ),
        cwd=tmp_path,
        log=tmp_path / f"{name}.log",
    )


def _alive(pid: int) -> bool:
    """A zombie that nobody reaps (a container without init) is not alive."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _gone(pids: list[int], within: float = 10.0) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _pids(log: Path) -> list[int]:
    return [int(word) for word in log.read_text().split()]


def test_everything_started_is_ended_with_the_block(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with Supervisor(grace=1.0) as supervisor:
        supervisor.start(_service(tmp_path, TREE, str(port)))
        supervisor.wait_for("server", lambda: connects(port), timeout=20, every=0.05)
        pids = supervisor.wait_for("ids", lambda: _pids(tmp_path / "server.log") or None, timeout=5)
        assert len(pids) == 2
        assert all(_alive(pid) for pid in pids)
    assert _gone(pids)


def test_an_error_in_the_block_ends_them_too(tmp_path: Path) -> None:
    pids = []
    with pytest.raises(ZeroDivisionError), Supervisor(grace=1.0) as supervisor:
        pids.append(supervisor.start(_service(tmp_path, "import time; time.sleep(600)")))
        _ = 1 / 0
    assert _gone(pids)


def test_a_service_that_ends_by_itself_is_reported_with_its_log(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        supervisor.start(_service(tmp_path, "print('the reason'); raise SystemExit(3)", name="web"))
        with pytest.raises(ServiceEndedError, match=r"(?s)web ended with code 3.*the reason"):
            supervisor.wait_for("web", lambda: None, timeout=20, every=0.05)


def test_waiting_is_bounded(tmp_path: Path) -> None:
    with Supervisor() as supervisor, pytest.raises(NotUpError, match="the moon: not within 0 s"):
        supervisor.wait_for("the moon", lambda: None, timeout=0.1, every=0.02)


def test_free_ports_differ() -> None:
    assert len(set(free_ports(8))) == 8


SUPERVISED = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from llm_batch_assets.demo.processes import Supervisor, connects
from llm_batch_assets_tests.demo.test_processes import TREE, _service
home, port = Path(sys.argv[1]), int(sys.argv[2])
with Supervisor(grace=1.0) as supervisor:
    supervisor.start(_service(home, TREE, str(port)))
    supervisor.wait_for("server", lambda: connects(port), timeout=20, every=0.05)
    supervisor.wait_for("stop", lambda: None, timeout=60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_supervisor_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    """SIGKILL leaves it to the guard; SIGINT works though a shell's ``&`` made it ignored."""
    (port,) = free_ports(1)
    supervisor = subprocess.Popen(
        ["/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", SUPERVISED,
         str(tmp_path), str(port), str(Path(__file__).parents[2])],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    log = tmp_path / "server.log"
    end = time.monotonic() + 30
    while not (log.exists() and len(log.read_text().split()) == 2):
        assert time.monotonic() < end, "the service did not come up"
        assert supervisor.poll() is None
        time.sleep(0.05)
    pids = _pids(log)
    supervisor.send_signal(number)
    supervisor.wait(20)
    assert _gone(pids)
