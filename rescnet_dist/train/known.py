"""What a worker need not read again: small things it has read, or stored itself, for one driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from rescnet_dist.train.state import RunState, Task

KEPT = 8  # things: the state of the run, and the filters and weights of a few layers

Value = TypeVar("Value")


class _Known:
    """What is known for one driver: others may have written to the same place before it."""

    def __init__(self) -> None:
        self.driver = ""
        self.values: dict[str, Any] = {}
        self.lock = threading.Lock()


_known = _Known()


def known(task: Task, name: str, find: Callable[[], Value]) -> Value:
    """What goes by this name for the task's driver: `find` it if it is not known by now."""
    with _known.lock:
        if task.driver and task.driver == _known.driver and name in _known.values:
            value: Value = _known.values.pop(name)
            _known.values[name] = value  # the latest is the last to go
            return value
    value = find()
    learn(task, name, value)
    return value


def learn(task: Task, name: str, value: Any) -> None:
    """Have something known, until others are. One that names no driver is not to be trusted with
    what was known before."""
    with _known.lock:
        if task.driver != _known.driver:
            _known.driver = task.driver
            _known.values.clear()
        _known.values.pop(name, None)
        _known.values[name] = value
        while len(_known.values) > KEPT:
            del _known.values[next(iter(_known.values))]


def state_of(task: Task) -> RunState:
    """The attributes of the task's run."""
    return known(task, "state", lambda: RunState.of(task.run))
