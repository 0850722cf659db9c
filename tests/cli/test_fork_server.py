"""Test the server that forks the workers of an embedded cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rescnet_dist.cli.common import CLUSTER_HELP, SCHEDULER_VARIABLE, names_cluster
from rescnet_dist.cli.fork_server import CAN_FORK, HASH_SEED

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="workers are forked on Linux only")

# Prints a line about each worker, then waits. The variable is set after the server was started.
SCRIPT = """
import gc, json, os, signal, sys, time
from rescnet_dist.cli.fork_server import start_fork_server

def describe():
    blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    heap = os.environ.get("MALLOC_TRIM_THRESHOLD_")
    frozen = gc.isenabled() and gc.get_freeze_count() > 0
    imported = frozen and "rescnet_dist.lifecycle" in sys.modules
    seed = hash("a string")
    return os.getpid(), os.getppid(), os.environ.get("LATE"), heap, imported, blocked, seed

if __name__ == "__main__":
    start_fork_server()
    os.environ["LATE"] = "known"
    from rescnet_dist.cli.clusters import cluster
    with cluster({}) as client:
        if sys.argv[1:]:
            lost, (server, *_) = [*client.run(os.getpid).values()], client.run(os.getppid).values()
            if sys.argv[1:] == ["--lose-a-worker"]:
                lost = lost[:1]
            os.kill(server if sys.argv[1:] == ["--lose-the-server"] else lost[0], signal.SIGKILL)
            while {*lost} & {*(found := client.run(os.getpid, on_error="ignore").values())} or (
                len(found) < len(os.sched_getaffinity(0))
            ):
                time.sleep(0.1)
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
        for _, _, *found, _ in workers:
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


def test_environment_of_the_server_is_not_that_of_the_driver() -> None:
    """It has the defaults of libraries unless the user has set others, and the seed of Dask."""
    code = (
        "import json, os; from rescnet_dist.cli.fork_server import _environment\n"
        "from rescnet_dist.cli.fork_server import _server_environment\n"
        "before = dict(os.environ)\n"
        "with _environment(_server_environment()): print(json.dumps(dict(os.environ)))\n"
        "assert dict(os.environ) == before"
    )
    given = {**os.environ, "OMP_NUM_THREADS": "3", "PYTHONHASHSEED": "1"}
    given.pop("MKL_NUM_THREADS", None)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"]) == ("3", "1")
    assert found["PYTHONHASHSEED"] == HASH_SEED


@pytest.mark.slow
def test_strings_have_one_hash_in_forked_workers_and_their_replacements(script: Path) -> None:
    """The latter are new processes of Dask, which sets the seed; see `distributed.Nanny`."""
    done = _run_script(script, "--lose-a-worker")
    assert len({parent for _, parent, *_ in done}) == 2  # the server, and the driver
    assert len({seed for *_, seed in done}) == 1


@pytest.mark.slow
def test_workers_are_replaced_if_the_server_is_lost(script: Path) -> None:
    """By new processes, as nothing reports the end of those that it has forked."""
    workers = _run_script(script, "--lose-the-server")
    assert len({parent for _, parent, *_ in workers}) == 1
    for *_, imported, _, _ in workers:
        assert not imported


@pytest.mark.slow
def test_workers_ignore_modules_of_the_working_directory(script: Path) -> None:
    """As the driver does: a user's click.py is none of its business."""
    folder = script.parent / "working"
    folder.mkdir()
    (folder / "click.py").write_text("raise RuntimeError('the wrong click')")
    for _, parent, *_, imported, _, _ in _run_script(script, cwd=folder):
        assert parent
        assert imported


@pytest.mark.slow
def test_workers_are_new_processes_if_no_server_can_start(script: Path) -> None:
    """As with a folder for temporary files whose name is too long for a socket."""
    folder = script.parent / ("x" * 120)
    folder.mkdir()
    workers = _run_script(script, env={**os.environ, "TMPDIR": str(folder)})
    assert len({parent for _, parent, *_ in workers}) == 1
    for *_, imported, _, _ in workers:
        assert not imported


@pytest.mark.slow
def test_kernels_that_cannot_be_read_do_not_end_the_server(tmp_path: Path) -> None:
    """Workers raise the error where it is reported."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def run(code: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    run("from rescnet_dist.kernels.cpu import loading; loading.kernel('gather_sums')")
    (index,) = tmp_path.rglob("*.nbi")
    index.write_bytes(b"")
    assert "EOFError" in run("from rescnet_dist.kernels.cpu.loading import *; load_cached()").stderr
    assert run("import rescnet_dist.cli.preload").returncode == 0


def _run_script(script: Path, *arguments: str, **options: Any) -> list[list[Any]]:
    """Run the script until its end, and return what it prints of each worker."""
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_server_imports_what_tasks_need() -> None:
    """Those of passes and of the test accuracy; dask.array takes a second, and no task needs it."""
    code = """
import sys
import rescnet_dist.cli.preload
needed = {"rescnet_dist.network.scoring", "rescnet_dist.train.passes"}
slow = {"dask.array", "pandas", "sklearn", "xarray"}
sys.exit(str((needed - sys.modules.keys(), slow & sys.modules.keys())))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "(set(), set())\n"


@pytest.mark.parametrize("name", CLUSTER_HELP)
def test_no_server_for_a_named_cluster(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers run elsewhere."""
    monkeypatch.delenv(SCHEDULER_VARIABLE, raising=False)
    assert not names_cluster(dict.fromkeys(CLUSTER_HELP))
    assert names_cluster(dict.fromkeys(CLUSTER_HELP) | {name: "x"})
    monkeypatch.setenv(SCHEDULER_VARIABLE, "tcp://127.0.0.1:8786")
    assert names_cluster({})


def test_server_ends_with_a_command_that_fails_early() -> None:
    """It holds the pipe that a command is read from, and would end after its imports only."""
    code = (
        "import sys; from rescnet_dist.cli.fork_server import start_fork_server\n"
        "assert start_fork_server(); sys.exit(2)"
    )
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import rescnet_dist.cli.preload"], check=True)
    imports = time.monotonic() - start
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert time.monotonic() - start < 0.7 * imports
