"""What a worker need not read again: small things it has read, or stored itself, for one driver."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from rescnet_dist.train.state import RunState, Task

KEPT = 16  # things: of a few drivers that share a worker

Value = TypeVar("Value")

_lock = threading.Lock()
_known: OrderedDict[tuple[str, str], tuple[int, Any]] = OrderedDict()


def get(task: Task, name: str, find: Callable[[], Value], layer: int = 0) -> Value:
    """What goes by this name for the task's driver, of a layer if it has one: `find` it if it is
    not known by now. Others may have written to the same place before, so each driver has its own,
    and a task without one trusts nothing."""
    if not task.driver:
        return find()
    with _lock:
        found = _known.get((task.driver, name))
        if found and found[0] == layer:
            _known.move_to_end((task.driver, name))
            value: Value = found[1]
            return value
    value = find()
    put(task, name, value, layer)
    return value


def put(task: Task, name: str, value: Any, layer: int = 0) -> None:
    """Have something known, in place of that of another layer."""
    if not task.driver:
        return
    with _lock:
        _known[task.driver, name] = layer, value
        _known.move_to_end((task.driver, name))
        while len(_known) > KEPT:
            _known.popitem(last=False)


def load_state(task: Task) -> RunState:
    """The attributes of the task's run."""
    return get(task, "state", lambda: RunState.of(task.run))
