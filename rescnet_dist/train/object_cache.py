"""A cache, in each worker process, of objects that the tasks of a run read or store."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model import ImageScale, put_views
from rescnet_dist.model.view import ViewArrays
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import read_image_scale, read_views
from rescnet_dist.train.task import Task

MAX_CACHED_BYTES = 2**28  # the objects of one driver are cached even if they are larger
MAX_CACHED_DRIVERS = 8

Value = TypeVar("Value")


@dataclass(slots=True)
class DriverObjects:
    """The objects of one driver: a layer and a value by name, and the bytes of their arrays."""

    entries: dict[str, tuple[int, Any]] = field(default_factory=dict)
    nbytes: int = 0

    def put(self, name: str, layer: int, value: Any) -> None:
        """Add an object, in place of the one of the same name; count an array in two only once."""
        self.entries[name] = layer, value
        arrays = {id(array): array for array in _iter_arrays([*self.entries.values()])}
        self.nbytes = sum(array.nbytes for array in arrays.values())


_lock = threading.Lock()
_drivers: OrderedDict[str, DriverObjects] = OrderedDict()  # the one used last at the end


def get(task: Task, name: str, load: Callable[[], Value], layer: int = 0) -> Value:
    """Return the object of this name and layer, and `load` it if it is not cached.

    Each driver has its own objects, since another driver may have written to the same store before.
    Tasks without a driver name bypass the cache.
    """
    if not task.driver:
        return load()
    with _lock:
        if task.driver in _drivers:
            _drivers.move_to_end(task.driver)
            entry = _drivers[task.driver].entries.get(name)
            if entry and entry[0] == layer:
                value: Value = entry[1]
                return value
    value = load()
    put(task, name, value, layer)
    return value


def put(task: Task, name: str, value: Any, layer: int = 0) -> None:
    """Cache an object, in place of the one of the same name of another layer.

    Objects of the drivers that were not used for the longest time are removed, as many as needed.
    """
    if not task.driver:
        return
    with _lock:
        _drivers.setdefault(task.driver, DriverObjects()).put(name, layer, value)
        _drivers.move_to_end(task.driver)
        while len(_drivers) > 1 and (
            len(_drivers) > MAX_CACHED_DRIVERS
            or sum(objects.nbytes for objects in _drivers.values()) > MAX_CACHED_BYTES
        ):
            _drivers.popitem(last=False)


def _iter_arrays(value: Any) -> Iterator[Array]:
    """Yield the arrays in dataclasses, mappings and sequences, of NumPy or CuPy."""
    if is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from _iter_arrays(getattr(value, part.name))
    elif isinstance(value, Mapping):
        yield from _iter_arrays([*value.values()])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _iter_arrays(part)
    elif hasattr(value, "__array_interface__") or hasattr(value, "__cuda_array_interface__"):
        yield value


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
