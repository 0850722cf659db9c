"""The command `rescnet retry`, which repeats another command a limited number of times.

It stays in memory next to the command, which runs in a process of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from rescnet_dist.cli.common import HELP_SETTINGS, LOG_FORMAT_OPTION
from rescnet_dist.logs import use_json_logs

# Variable with the path of a file that the command creates once it has finished a layer.
PROGRESS_VARIABLE = "RESCNET_PROGRESS_FILE"
PROGRAM_VARIABLE = "RESCNET_PROGRAM"  # how the command is called in its messages
FINAL_SUFFIX = ".final"  # of the file that it creates if no other try can succeed, with the reason
WRONG_OPTIONS = "its options are wrong"
MISSING_PATH = "there is nothing at a path that it names"
SMALL_MACHINE = "the workers of this machine stay as small as they are"
FIRST_PAUSE_SECONDS = 10.0
MAX_PAUSE_SECONDS = 300.0
CHECK_SECONDS = 0.2  # between two checks in a pause whether a signal has arrived
PASSED_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SIGNAL_EXIT_BASE = 128  # shells report a death by signal n as this plus n


@click.command(
    "retry",
    context_settings={
        **HELP_SETTINGS["context_settings"],
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    },
)
@click.option(
    "--tries",
    type=click.IntRange(1),
    default=6,
    show_default=True,
    help="tries in a row without a finished layer, after which to give up",
)
@LOG_FORMAT_OPTION
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def retry_command(
    ctx: click.Context, tries: int, log_format: str, command: tuple[str, ...]
) -> None:
    """Repeat a command of rescnet until it succeeds.

    It is repeated after pauses of 10 s, 20 s and so on, up to 5 minutes. Tries are counted again
    from one after a try that has finished a layer. If all fail, the exit code is that of the last.
    A command whose options are wrong, that names a path of this machine where nothing is, or that
    needs larger workers than this machine has, is not repeated.
    SIGTERM and Ctrl-C are passed on, and end the tries. Its options precede the command; the
    command has a --log-format of its own.

    \b
    Example:
      rescnet retry --tries 6 train s3://bucket/cifar10.zarr --preset cifar10 \\
          --store s3://bucket/runs/1 --or-resume
    """
    if log_format == "json":
        use_json_logs()
    arguments = [sys.executable, "-m", "rescnet_dist", *command]
    program = ctx.find_root().info_name or "rescnet"
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(Supervisor(arguments, tries, Path(folder, "progress"), program).run())


class Supervisor:
    """Runs a program with arguments, again and again until it succeeds."""

    def __init__(
        self, arguments: list[str], tries: int, progress: Path, program: str = "rescnet"
    ) -> None:
        self.arguments, self.tries, self.progress = arguments, tries, progress
        self.program = program
        self.final_error = progress.with_suffix(FINAL_SUFFIX)
        self.process: subprocess.Popen[bytes] | None = None
        self.is_stopped = False

    def run(self) -> int:
        """Return the exit code of the last try."""
        handlers = {number: signal.signal(number, self._stop) for number in PASSED_SIGNALS}
        try:
            return self._repeat()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _repeat(self) -> int:
        """Try until it succeeds, or as often as allowed; return the last exit code."""
        failures, pause = 0, FIRST_PAUSE_SECONDS
        while True:
            code = self._try()
            if code == 0 or self.is_stopped:
                return code
            failures += 1
            if self.progress.exists():
                failures, pause = 1, FIRST_PAUSE_SECONDS
            failed = f"try {failures} of {self.tries} ended with exit code {code}"
            if failures >= self.tries:
                click.echo(f"error: {failed}; giving up", err=True)
                return code
            if self.final_error.exists():
                reason = self.final_error.read_text()
                click.echo(f"error: {failed}; giving up, as {reason}", err=True)
                return code
            click.echo(f"warning: {failed}; the next starts in {pause:.0f} s", err=True)
            self._wait(pause)
            if self.is_stopped:
                return code
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    def _wait(self, seconds: float) -> None:
        """Wait, unless a signal arrives; its handler must not use an Event, which has a lock."""
        end = time.monotonic() + seconds
        while not self.is_stopped and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, CHECK_SECONDS))

    def _try(self) -> int:
        """Run the program once; return its exit code."""
        self.progress.unlink(missing_ok=True)
        variables = {PROGRESS_VARIABLE: str(self.progress), PROGRAM_VARIABLE: self.program}
        environment = os.environ | variables
        self.process = subprocess.Popen(self.arguments, env=environment)
        if self.is_stopped:  # before there was a process to pass the signal on to
            self.process.terminate()
        code = self.process.wait()
        return code if code >= 0 else SIGNAL_EXIT_BASE - code

    def _stop(self, number: int, _frame: Any) -> None:
        """Pass a signal on to the program, and start it no more.

        A terminal sends Ctrl-C to the program itself, which would not clean up after a second one.
        """
        self.is_stopped = True
        has_signal = number == signal.SIGINT and _is_in_foreground()
        if self.process is not None and not has_signal:
            self.process.send_signal(number)


def report_final_error(reason: str) -> None:
    """Tell `rescnet retry`, if it runs this command, that no other try can succeed, and why."""
    if path := os.environ.get(PROGRESS_VARIABLE):
        Path(path).with_suffix(FINAL_SUFFIX).write_text(reason)


def _is_in_foreground() -> bool:
    """Return whether this process is one of those that a terminal sends Ctrl-C to."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # There is no terminal.
        return False
