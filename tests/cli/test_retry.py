"""`rescnet retry`: tries are limited, progress resets them, and signals are passed on."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import run
from distributed import LocalCluster

from rescnet_dist.cli import retry
from rescnet_dist.cli.clusters import cluster
from rescnet_dist.cli.progress_file import ProgressFile
from rescnet_dist.cli.retry import (
    MISSING_PATH,
    PROGRESS_VARIABLE,
    SMALL_MACHINE,
    WRONG_OPTIONS,
    Supervisor,
)
from rescnet_dist.errors import WorkersTooSmallError
from rescnet_dist.events import PassDone, PassStarted

# Appends a line to a file, and ends with the exit code of that try.
PROGRAM = """
import os, sys
path, codes, progress_at = sys.argv[1], sys.argv[2].split(","), sys.argv[3]
with open(path, "a+") as log:
    log.seek(0)
    number = len(log.readlines())
    log.write("try\\n")
if str(number) == progress_at:
    open(os.environ["RESCNET_PROGRESS_FILE"], "w").close()
code = int(codes[min(number, len(codes) - 1)])
os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)
"""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that a test can wait for."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.001)


def repeat(folder: Path, codes: str, tries: int, progress_at: str = "none") -> tuple[int, int]:
    """Repeat a program that ends with these codes; return the last code and the number of tries."""
    log = folder / "log"
    arguments = [sys.executable, "-S", "-c", PROGRAM, str(log), codes, progress_at]
    return Supervisor(arguments, tries, folder / "progress").run(), len(log.read_text().split())


@pytest.mark.parametrize(
    ("codes", "tries", "progress_at", "expected"),
    [
        ("0", 3, "none", (0, 1)),
        ("2", 3, "none", (2, 3)),  # a missing bucket
        ("75,-9,0", 3, "none", (0, 3)),
        ("-9", 1, "none", (137, 1)),
        ("75", 2, "1", (75, 3)),  # the second try finished a layer, and is the first of two
    ],
)
def test_tries_are_limited(
    codes: str, tries: int, progress_at: str, expected: tuple[int, int], tmp_path: Path
) -> None:
    """Those in a row without progress; the last exit code is returned."""
    assert repeat(tmp_path, codes, tries, progress_at) == expected


def test_signals_are_passed_on_and_end_the_tries(tmp_path: Path) -> None:
    """SIGTERM, as when a pod is deleted: the program ends by itself, and is not repeated."""
    started = tmp_path / "started"
    program = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); "
        f"print('x', end='', file=open({str(started)!r}, 'a'), flush=True); time.sleep(60)"
    )
    supervisor = Supervisor([sys.executable, "-S", "-c", program], 5, tmp_path / "progress")

    def terminate() -> None:
        while not (started.exists() and started.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate).start()
    handler = signal.getsignal(signal.SIGTERM)
    assert supervisor.run() == 75
    assert started.read_text() == "x"
    assert signal.getsignal(signal.SIGTERM) == handler


# Prints one character per SIGINT of the program, which ends half a second after the first.
INTERRUPTED = """
import signal, sys, time
got = []
def interrupt(*_):
    got.append(1)
    print("i", end="", flush=True)
signal.signal(signal.SIGINT, interrupt)
print("s", end="", flush=True)
while not got:
    time.sleep(0.05)
end = time.monotonic() + 0.5
while time.monotonic() < end:
    time.sleep(0.05)
sys.exit(130)
"""
SUPERVISED = """
import sys, tempfile
from pathlib import Path
from rescnet_dist.cli.retry import Supervisor
with tempfile.TemporaryDirectory() as folder:
    arguments = [sys.executable, "-S", "-c", sys.argv[1]]
    sys.exit(Supervisor(arguments, 5, Path(folder, "progress")).run())
"""


@pytest.mark.slow
@pytest.mark.parametrize("has_terminal", [True, False])
def test_the_program_gets_ctrl_c_once(has_terminal: bool) -> None:
    """From the terminal, or from `rescnet retry` if there is none."""
    terminal, other_end = pty.openpty()

    def take_terminal() -> None:
        if has_terminal:
            fcntl.ioctl(other_end, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISED, INTERRUPTED],
        start_new_session=True,
        stdin=other_end,
        stdout=subprocess.PIPE,
        preexec_fn=take_terminal,
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"s"
    if has_terminal:
        os.write(terminal, b"\x03")
    else:
        process.send_signal(signal.SIGINT)
    assert process.stdout.read() == b"i"
    assert process.wait() == 130
    process.stdout.close()
    os.close(terminal)
    os.close(other_end)


def test_a_finished_pass_is_progress(tmp_path: Path) -> None:
    """Its start is not."""
    path = tmp_path / "progress"
    listener = ProgressFile(str(path))
    listener(PassStarted("grow", 1))
    assert not path.exists()
    listener(PassDone("grow", 1, 1.0, None))
    assert path.exists()


@pytest.mark.parametrize("options", [["--block", "0"], ["--no-such-option"]])
def test_wrong_options_are_reported(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command to the process that would repeat it, which gives up; other errors are not.

    An empty folder may be filled until the next try.
    """
    progress = tmp_path / "progress"
    monkeypatch.setenv(PROGRESS_VARIABLE, str(progress))
    supervisor = Supervisor([sys.executable, "-S", "-c", "raise SystemExit(2)"], 3, progress)
    (tmp_path / "empty").mkdir()
    assert run("train", str(tmp_path / "empty")).exit_code == 2
    assert not supervisor.final_error.exists()
    assert run("train", *options).exit_code == 2
    assert supervisor.final_error.read_text() == WRONG_OPTIONS


@pytest.mark.parametrize(
    "words",
    [
        ("train", "PATH"),
        ("predict", "PATH", "digits"),
        ("resume", "PATH"),
        ("info", "PATH"),
        ("check", "PATH"),
        ("runs", "PATH"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("is_path", [True, False])
def test_missing_paths_are_reported(
    words: tuple[str, ...], is_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path of this machine is mistyped; a store elsewhere may be created until the next try."""
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "progress"))
    place = str(tmp_path / "missing") if is_path else "memory://missing"
    result = run(*(word.replace("PATH", place) for word in words))
    assert result.exit_code == 2
    assert f"Check the {'path' if is_path else 'URL'}" in result.output
    final_error = Supervisor([], 1, tmp_path / "progress").final_error
    assert final_error.exists() == is_path
    if is_path:
        assert final_error.read_text() == MISSING_PATH


def test_workers_that_are_too_small_are_not_wrong_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is repeated, as larger workers may join."""
    progress = tmp_path / "progress"
    monkeypatch.setenv(PROGRESS_VARIABLE, str(progress))
    supervisor = Supervisor([sys.executable, "-S", "-c", "raise SystemExit(2)"], 3, progress)
    options = ("--classes", "10", "--preset", "cifar10", "--workers", "2")
    result = run("estimate", "50000x32x32x3", *options, "--memory", "600MiB")
    assert result.exit_code == 2
    assert "Use workers of at least" in result.output.replace("use", "Use")
    assert not supervisor.final_error.exists()


@pytest.mark.parametrize("is_final", [True, False])
def test_command_that_cannot_succeed_is_not_repeated(
    is_final: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A command that has reported why ends the tries."""
    program = (
        "import os; open(os.environ['RESCNET_PROGRESS_FILE'] + '.final', 'w').write('it rains')"
    )
    code = f"{program if is_final else 'pass'}; raise SystemExit(2)"
    supervisor = Supervisor([sys.executable, "-S", "-c", code], 2, tmp_path / "progress")
    assert supervisor.run() == 2
    last = "1 of 2 ended with exit code 2; giving up, as it rains\n"
    if not is_final:
        last = "2 of 2 ended with exit code 2; giving up\n"
    assert capfd.readouterr().err.endswith(f"error: try {last}")


@pytest.mark.parametrize("is_local", [True, False])
def test_small_workers_are_final_on_a_local_cluster_only(
    is_local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger ones may join a cluster that the command has not started."""
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "progress"))
    supervisor = Supervisor([], 1, tmp_path / "progress")
    with ExitStack() as stack:
        options = {}
        if not is_local:
            other = LocalCluster(
                n_workers=1, processes=False, dashboard_address="127.0.0.1:0", protocol="tcp"
            )
            options = {"scheduler": stack.enter_context(other).scheduler_address}
        stack.enter_context(pytest.raises(WorkersTooSmallError))
        stack.enter_context(cluster(options, quiet=True))
        raise WorkersTooSmallError("Each worker has 1 GiB.")
    assert supervisor.final_error.exists() == is_local
    if is_local:
        assert supervisor.final_error.read_text() == SMALL_MACHINE


@pytest.mark.slow
def test_train_that_cannot_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the real command: two tries, and the exit code of the last."""
    monkeypatch.delenv(PROGRESS_VARIABLE, raising=False)
    (tmp_path / "empty").mkdir()
    done = run("retry", "--tries", "2", "train", str(tmp_path / "empty"), "--filters", "4")
    assert done.exit_code == 2
    assert "try 1 of 2 ended with exit code 2; the next starts in" in done.output
    assert "try 2 of 2 ended with exit code 2; giving up" in done.output


@pytest.mark.parametrize("program", ["rescnet", "python -m rescnet_dist"])
def test_command_is_called_as_its_supervisor(program: str) -> None:
    """In its usage, though it is another process; one with wrong options is tried once."""
    script = Path(sys.executable).with_name("rescnet")
    called = [script] if program == "rescnet" else [sys.executable, "-m", "rescnet_dist"]
    done = subprocess.run(
        [*called, "retry", "info", "--no-such-option"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"Usage: {program} info [OPTIONS] RUN\n")
    assert f"Try '{program} info --help' for help." in done.stderr
    assert "error: try 1 of 6 ended with exit code 2; giving up, as its options" in done.stderr
