"""What a command does, imported when it is called: its imports take seconds, `--help` none."""

from __future__ import annotations

import atexit
import functools
import gc
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from rescnet_dist.cli.common import names_cluster
from rescnet_dist.cli.fork_server import start_fork_server
from rescnet_dist.cli.garbage import pause_gc


def defer(action: str, *, starts_workers: bool = False) -> Callable[[Any], Any]:
    """Return a decorator that makes a function of `cli.actions` what a command does.

    It is imported when the command is called. "data.preview" is the function `preview` of the
    module `data`, and "fuse" the function `fuse` of `fuse`. A command that starts workers unless
    its options name a cluster starts the server that forks them before that import.
    """
    module, _, name = action.rpartition(".")

    def load() -> Callable[..., None]:
        with pause_gc():
            found = import_module(f"rescnet_dist.cli.actions.{module or name}")
        atexit.register(gc.freeze)  # else the end of the process collects all that was imported
        return cast(Callable[..., None], getattr(found, name))

    def decorate(declaration: Callable[[], None]) -> Callable[..., None]:
        @functools.wraps(declaration)
        def call(**options: Any) -> None:
            if starts_workers and not names_cluster(options):
                start_fork_server()
            load()(**options)

        call.action = load  # type: ignore[attr-defined]
        return call

    return decorate
