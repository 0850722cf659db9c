"""The command group: commands are loaded when they are called, errors told without a traceback."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from rescnet_dist.cli.options import SHOW
from rescnet_dist.cli.signals import Terminated
from rescnet_dist.errors import (
    ClaimLostError,
    ClusterLostError,
    RescnetError,
    StoreUnreachableError,
)

RESUMABLE = 75  # exit code of what was stopped from outside and can be resumed (EX_TEMPFAIL)

# What the list of commands says of each: to load all of them takes seconds.
COMMANDS = {
    "bench": "How fast this machine runs the passes, beside peers and beside...",
    "check": "Verify a run store against its commit records: chunks missing,...",
    "dashboard": "Show one or more runs in a browser: accuracy, time, memory,...",
    "data": "Data sets: import them, look at them, see what augmentation...",
    "deploy": "Manifests for Kubernetes, for the Dask operator, sized by the...",
    "estimate": "What a run would take on a cluster, of workers as fast as this...",
    "evaluate": "Accuracy of the network at RUN, a run or a saved network, on DATA.",
    "info": "What a run is and how far it got: spec, layers, accuracies, sizes.",
    "plan": "What `rescnet train` with the same options would take: memory,...",
    "predict": "Predict the labels of DATA with the network at RUN, a run or a...",
    "presets": "List the named networks, or print one as TOML to start a...",
    "report": "Write all that is known of a run, finished or not, into one...",
    "resume": "Go on with a run after its last finished layer.",
    "runs": "The runs in a folder or bucket: state, layers, accuracy, age...",
    "train": 'Train a network on DATA: "digits", or whatever `rescnet data...',
}
# than in the module commands: each in its own
ELSEWHERE = {"bench", "dashboard", "data", "deploy", "estimate", "report", "runs"}


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn what ends the body into a message and an exit code, and warnings into one line each."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _told_in_one_line
            yield
    except (ClaimLostError, ClusterLostError, StoreUnreachableError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(RESUMABLE)
    except RescnetError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except Terminated as stop:
        click.echo("; ".join(["terminated", *map(str, stop.args)]), err=True)
        sys.exit(RESUMABLE)
    except KeyboardInterrupt as interrupt:
        click.echo("; ".join(["interrupted", *map(str, _told(interrupt))]), err=True)
        sys.exit(130)


def _told_in_one_line(message: Warning | str, *_where: Any, **_more: Any) -> None:
    click.echo(f"warning: {message}", err=True)


def _told(interrupt: BaseException) -> tuple[Any, ...]:
    """What an interruption says, or the one before it that it came upon, as the second Ctrl-C of
    somebody who is impatient."""
    found: BaseException | None = interrupt
    while found is not None:
        if isinstance(found, KeyboardInterrupt) and found.args:
            return found.args
        found = found.__context__
    return ()


class Commands(click.Group):
    """Bad input ends with its message and exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name."""
        if cmd_name not in COMMANDS:
            return None
        where = cmd_name if cmd_name in ELSEWHERE else "commands"
        module = import_module(f"rescnet_dist.cli.{where}")
        found = getattr(module, f"{cmd_name}_command")
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with exit_codes():
            return super().invoke(ctx)


@click.group(cls=Commands, **SHOW)
@click.version_option(package_name="rescnet-dist")
def main() -> None:
    """Deep convolutional networks without backpropagation, on data larger than memory.

    \b
    Example:
      rescnet train                     train on the embedded digits
      rescnet info runs/digits-...      what came of it
    """
