"""Test the server that forks the workers of an embedded cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rescnet_dist.cli.common import CLUSTER_HELP, SCHEDULER_VARIABLE, names_cluster
from rescnet_dist.cli.fork_server import CAN_FORK

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="workers are forked on Linux only")

# Prints a line about each worker, then waits. The variable is set after the server was started.
SCRIPT = """
import json, os, sys, time
from rescnet_dist.cli.fork_server import start_fork_server

def describe():
    import signal
    blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    heap = os.environ.get("MALLOC_TRIM_THRESHOLD_")
    imported = "rescnet_dist.lifecycle" in sys.modules
    return os.getpid(), os.getppid(), os.environ.get("LATE"), heap, imported, blocked

if __name__ == "__main__":
    start_fork_server()
    os.environ["LATE"] = "known"
    from rescnet_dist.cli.clusters import cluster
    with cluster({}) as client:
        print(json.dumps(list(client.run(describe).values())), flush=True)
        sys.stdin.readline()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Write the script to a file, as worker processes import it."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_workers_are_forks_that_end_with_the_driver(script: Path) -> None:
    """They have the imports of the server, the environment of the driver, and outlive neither."""
    driver = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        workers = json.loads(driver.stdout.readline())
        assert len(workers) == len(os.sched_getaffinity(0))
        servers = {parent for _, parent, *_ in workers}
        (server,) = servers
        assert psutil.Process(server).ppid() == driver.pid
        assert "multiprocessing.forkserver" in " ".join(psutil.Process(server).cmdline())
        for _, _, *found in workers:
            assert found == ["known", "65536", True, True]
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        driver.stdin.close()
        driver.stdout.close()
    deadline = time.monotonic() + 60
    processes = {server, *(pid for pid, *_ in workers)}
    while processes := {pid for pid in processes if psutil.pid_exists(pid)}:
        assert time.monotonic() < deadline, f"{processes} outlive the driver"
        time.sleep(0.1)


def test_environment_of_this_process_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables for the server are not left behind, and those of the user win."""
    code = (
        "import os; from rescnet_dist.cli.fork_server import _environment\n"
        "with _environment({'A': '1', 'B': '2'}): print(os.environ['A'], os.environ['B'])\n"
        "print(os.environ.get('A'), os.environ['B'])"
    )
    monkeypatch.setenv("B", "mine")
    monkeypatch.delenv("A", raising=False)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1 mine\nNone mine\n"


@pytest.mark.parametrize("name", CLUSTER_HELP)
def test_no_server_for_a_named_cluster(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers run elsewhere."""
    monkeypatch.delenv(SCHEDULER_VARIABLE, raising=False)
    assert not names_cluster(dict.fromkeys(CLUSTER_HELP))
    assert names_cluster(dict.fromkeys(CLUSTER_HELP) | {name: "x"})
    monkeypatch.setenv(SCHEDULER_VARIABLE, "tcp://127.0.0.1:8786")
    assert names_cluster({})
