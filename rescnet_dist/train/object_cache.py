"""A cache, in each worker process, of small objects that tasks read or store."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from rescnet_dist.model import ImageScale, put_views
from rescnet_dist.model.view import ViewArrays
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import read_image_scale, read_views
from rescnet_dist.train.task import Task

MAX_CACHED_OBJECTS = 16  # enough for a few drivers that share a worker

Value = TypeVar("Value")

_lock = threading.Lock()
_objects: OrderedDict[tuple[str, str], tuple[int, Any]] = OrderedDict()


def get(task: Task, name: str, load: Callable[[], Value], layer: int = 0) -> Value:
    """Return the object of this name and layer, and `load` it if it is not cached.

    Each driver has its own objects, since another driver may have written to the same store before.
    Tasks without a driver name bypass the cache.
    """
    if not task.driver:
        return load()
    with _lock:
        entry = _objects.get((task.driver, name))
        if entry and entry[0] == layer:
            _objects.move_to_end((task.driver, name))
            value: Value = entry[1]
            return value
    value = load()
    put(task, name, value, layer)
    return value


def put(task: Task, name: str, value: Any, layer: int = 0) -> None:
    """Cache an object, in place of the one of the same name of another layer."""
    if not task.driver:
        return
    with _lock:
        _objects[task.driver, name] = layer, value
        _objects.move_to_end((task.driver, name))
        while len(_objects) > MAX_CACHED_OBJECTS:
            _objects.popitem(last=False)


def load_state(task: Task) -> RunState:
    """Return the attributes of the task's run."""
    return get(task, "state", lambda: RunState.of(task.run))


def load_views(task: Task) -> Mapping[str, ViewArrays]:
    """Return what views have learned from the training images, on the backend of the run."""
    state = load_state(task)

    def load() -> dict[str, ViewArrays]:
        return put_views(read_views(task.run.location, state.spec.views), state.backend)

    return get(task, "views", load)


def load_image_scale(task: Task) -> ImageScale:
    """Return the normalization of the images, with what views have learned."""
    views = load_views(task)
    return get(
        task, "image scale", lambda: replace(read_image_scale(task.run.location), views=views)
    )
