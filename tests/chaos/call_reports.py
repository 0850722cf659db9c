"""Reports the calls of this process to the fault injector of the chaos tests, and waits for it.

Loaded into Dask workers by `--preload`, and run as a script in place of `rescnet`: the functions of
the package that make up the phases of a run are wrapped, and changed in no other way. A process is
killed from outside, while it waits or works.
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

ADDRESS = "RESCNET_CHAOS_INJECTOR"  # environment variable: host:port of the fault injector


class Connection(threading.local):
    """A thread's connection to the fault injector, opened with the first report."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.socket: socket.socket | None = None

    def report(self, *words: str) -> None:
        """Report a call, and wait for the answer; without a fault injector, return at once."""
        with contextlib.suppress(OSError):
            if self.socket is None:
                host, _, port = os.environ[ADDRESS].rpartition(":")
                self.socket = socket.create_connection((host, int(port)))
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.socket.sendall(f"{self.role} {os.getpid()}\n".encode())
            self.socket.sendall((" ".join(words) + "\n").encode())
            self.socket.recv(1)


def instrument(connection: Connection, phase: str, owner: Any, *names: str) -> None:
    """Make functions of a module or a class report when they are entered and left."""
    for name in names:
        setattr(owner, name, _wrap(connection, phase, inspect.getattr_static(owner, name)))


def _wrap(connection: Connection, phase: str, function: Any) -> Any:
    """Wrap a function or a class method so that it reports its calls."""
    if isinstance(function, classmethod):
        return classmethod(_wrap(connection, phase, function.__func__))

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        connection.report("enter", phase)
        try:
            return function(*args, **kwargs)
        finally:
            connection.report("leave", phase)

    return wrapper


def instrument_worker() -> None:
    """Report what the tasks of a pass do."""
    from rescnet_dist.train import chunks, passes, tiled

    connection = Connection("worker")
    instrument(connection, "read", chunks, "read_region")
    instrument(connection, "read", tiled, "read_block")
    instrument(connection, "write", chunks, "write_region", "write_block")
    instrument(connection, "write", tiled, "write_block")
    instrument(connection, "reduce", passes.ChecksummedStatistics, "merge")
    instrument(connection, "solve", passes, "fit_image_scale", "fit_bank", "fit_head")
    instrument(connection, "solve", tiled, "factor_tile", "fit_bank", "fit_head")
    instrument(connection, "store", passes, "write_image_scale", "write_bank", "write_head")


def instrument_driver() -> None:
    """Report what the driver does, and the step that it works on."""
    from rescnet_dist.lifecycle import begin, resume
    from rescnet_dist.store import Claim, RunStore
    from rescnet_dist.train import loop

    connection = Connection("driver")
    instrument(connection, "prepare", begin, "prepare_run")
    instrument(connection, "resume", resume, "prepare_resume")
    instrument(connection, "claim", Claim, "take")
    instrument(connection, "create", RunStore, "create_layer", "create_work")
    instrument(connection, "commit", RunStore, "commit")
    instrument(connection, "remove", RunStore, "remove_maps_except", "remove_work")
    instrument(connection, "result", RunStore, "write_result")
    actions = {"survey": lambda: 0, "grow": lambda layer: layer, "score": lambda layer: layer + 1}
    for name, step in actions.items():
        _report_step(connection, loop._Driver, name, step)


def _report_step(connection: Connection, driver: Any, name: str, step: Callable[..., int]) -> None:
    """Make a method of the driver report its step."""
    function = getattr(driver, name)

    @functools.wraps(function)
    def wrapper(self: Any, *args: Any) -> Any:
        connection.report("step", str(step(*args)))
        return function(self, *args)

    setattr(driver, name, wrapper)


def dask_setup(_worker: Any) -> None:
    """Instrument a worker; Dask calls this after preloading the module."""
    instrument_worker()


if __name__ == "__main__":
    from rescnet_dist.cli import main

    instrument_driver()
    sys.argv[0] = "rescnet"
    main()
