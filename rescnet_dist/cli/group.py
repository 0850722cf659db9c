"""The command group: lazy import of commands, and errors as messages with exit codes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from rescnet_dist.cli.common import HELP_SETTINGS, SuggestingGroup
from rescnet_dist.cli.retry import MISSING_PATH, WRONG_OPTIONS, report_final_error
from rescnet_dist.cli.signals import Terminated, raise_on_signal
from rescnet_dist.errors import (
    ClaimLostError,
    ClusterLostError,
    ClusterUnreachableError,
    RescnetError,
    SpecError,
    StoreFullError,
    StoreUnreachableError,
)

RESUMABLE_EXIT_CODE = 75  # EX_TEMPFAIL: the same command may succeed later
RESUMABLE_ERRORS = (
    ClaimLostError,
    ClusterLostError,
    ClusterUnreachableError,
    StoreFullError,
    StoreUnreachableError,
)

# Short help of each command, so that `rescnet --help` need not import them, which takes seconds.
COMMANDS = {
    "ablate": "Train networks that differ in one option, as in the paper.",
    "bench": "Benchmark training and prediction on this machine.",
    "check": "Verify a run: find chunks that are missing, altered or stale.",
    "dashboard": "Show runs in a browser: accuracy, time, memory, store traffic.",
    "data": "Datasets: import and inspect them, and preview augmentation.",
    "deploy": "Write Kubernetes manifests, or values for a JupyterHub.",
    "estimate": "Estimate the time and memory of a run on a cluster.",
    "evaluate": "Evaluate the network at RUN, a run or a saved network, on DATA.",
    "export": "Write the network at RUN as an ONNX file, such as net.onnx.",
    "fuse": "Average networks, by weights fitted on held-out images.",
    "info": "Describe a run or a saved network.",
    "plan": "Estimate the memory, tasks, bytes and time of `rescnet train`.",
    "predict": "Predict the labels of photos or of a dataset.",
    "presets": "List the presets, or print one as TOML.",
    "report": "Write a report of a run as one self-contained page.",
    "resume": "Resume a run after its last finished layer.",
    "retry": "Repeat a command of rescnet until it succeeds.",
    "runs": "List the runs in a folder or bucket.",
    "train": "Train a network on a dataset.",
}


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn errors of the body into a message and an exit code, and warnings into one line each."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            yield
    except RESUMABLE_ERRORS as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(RESUMABLE_EXIT_CODE)
    except RescnetError as error:
        if isinstance(error, SpecError):
            report_final_error(WRONG_OPTIONS)
        elif error.missing_path:
            report_final_error(MISSING_PATH)
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except click.UsageError:
        report_final_error(WRONG_OPTIONS)
        raise
    except Terminated as stop:
        click.echo("; ".join(["terminated", *map(str, stop.args)]), err=True)
        sys.exit(RESUMABLE_EXIT_CODE)
    except KeyboardInterrupt as interrupt:
        click.echo("; ".join(["interrupted", *map(str, _find_message(interrupt))]), err=True)
        sys.exit(130)


def _print_warning(message: Warning | str, *_location: Any, **_options: Any) -> None:
    """Print a warning as one line."""
    click.echo(f"warning: {message}", err=True)


def _find_message(interrupt: BaseException) -> tuple[Any, ...]:
    """Return the message of an interruption, or of one that it interrupted by a second Ctrl-C."""
    error: BaseException | None = interrupt
    while error is not None:
        if isinstance(error, KeyboardInterrupt) and error.args:
            return error.args
        error = error.__context__
    return ()


class Commands(SuggestingGroup):
    """A group that imports commands when they are called; bad input ends with exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command by its name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"rescnet_dist.cli.{cmd_name}")
        command = getattr(module, f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; end with its exit code, also if it is terminated while it waits."""
        with exit_codes(), raise_on_signal():
            return super().invoke(ctx)


@click.group(cls=Commands, **HELP_SETTINGS)
@click.version_option(package_name="rescnet-dist")
def main() -> None:
    """Deep convolutional networks without backpropagation, on data larger than memory.

    \b
    Example:
      rescnet train                              train on the embedded digits
      rescnet info runs/digits-...               print the result
      rescnet predict runs/digits-... photo.png  print the label of a photo
    """
