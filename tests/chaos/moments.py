"""Tells the reaper of the chaos tests what this process is about to do, and waits for its leave.

Loaded into Dask workers by `--preload`, and run as a script in place of `rescnet`: the functions of
the package that make up the phases of a run are wrapped, and changed in no other way. A process
that is to die here is killed from outside, while it waits or works.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

ADDRESS = "RESCNET_CHAOS_REAPER"  # environment variable: host:port of the reaper


class Line(threading.local):
    """A thread's connection to the reaper, made when there is first something to tell."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.socket: socket.socket | None = None

    def tell(self, *words: str) -> None:
        """Say what is about to happen, and wait until it may; without a reaper, it may."""
        with contextlib.suppress(OSError):
            if self.socket is None:
                host, _, port = os.environ[ADDRESS].rpartition(":")
                self.socket = socket.create_connection((host, int(port)))
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.socket.sendall(f"{self.role} {os.getpid()}\n".encode())
            self.socket.sendall((" ".join(words) + "\n").encode())
            self.socket.recv(1)


def report(line: Line, phase: str, owner: Any, *names: str) -> None:
    """Have functions of a module or a class report when they are entered and left."""
    for name in names:
        setattr(owner, name, _reporting(line, phase, inspect.getattr_static(owner, name)))


def _reporting(line: Line, phase: str, function: Any) -> Any:
    if isinstance(function, classmethod):
        return classmethod(_reporting(line, phase, function.__func__))

    @functools.wraps(function)
    def reporting(*args: Any, **kwargs: Any) -> Any:
        line.tell("enter", phase)
        try:
            return function(*args, **kwargs)
        finally:
            line.tell("leave", phase)

    return reporting


def watch_worker() -> None:
    """Report what the tasks of a pass do."""
    from rescnet_dist.train import chunks, passes, tiled

    line = Line("worker")
    report(line, "read", chunks, "read_region")
    report(line, "read", tiled, "read_block")
    report(line, "write", chunks, "write_region", "write_block")
    report(line, "write", tiled, "write_block")
    report(line, "reduce", passes.Checked, "merge")
    report(line, "solve", passes, "fit_image_scale", "fit_bank", "fit_classifier")
    report(line, "solve", tiled, "factor_tile", "fit_bank", "fit_classifier")
    report(line, "keep", passes, "write_image_scale", "write_bank", "write_classifier")


def watch_driver() -> None:
    """Report what the driver does, and which step it is at."""
    from rescnet_dist.store import Claim, RunStore
    from rescnet_dist.train import loop

    line = Line("driver")
    report(line, "begin", lifecycle, "prepare_run")
    report(line, "resume", lifecycle, "prepare_resume")
    report(line, "claim", Claim, "take")
    report(line, "room", RunStore, "create_layer", "create_work")
    report(line, "commit", RunStore, "commit")
    report(line, "clear", RunStore, "remove_maps_except", "remove_work")
    report(line, "result", RunStore, "write_result")
    actions = {"survey": lambda: 0, "grow": lambda layer: layer, "score": lambda layer: layer + 1}
    for name, step in actions.items():
        _telling_step(line, loop._Driver, name, step)


def _telling_step(line: Line, driver: Any, name: str, step: Callable[..., int]) -> None:
    function = getattr(driver, name)

    @functools.wraps(function)
    def telling(self: Any, *args: Any) -> Any:
        line.tell("step", str(step(*args)))
        return function(self, *args)

    setattr(driver, name, telling)


def dask_setup(_worker: Any) -> None:
    """What Dask calls in a worker that it has loaded this into."""
    watch_worker()


if __name__ == "__main__":
    from rescnet_dist.cli import main

    watch_driver()
    sys.argv[0] = "rescnet"
    main()
