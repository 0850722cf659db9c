"""Layers of stored networks that a process keeps in memory, within a budget.

A prediction runs images through all layers, one after the other, and the next prediction does so
again. A cache that replaced the least recently used layer would replace each layer just before it
is needed, if not all of them fit. So layers of one network never replace each other: those that
fit stay, the others are read again each time, ahead of their use.
"""

from __future__ import annotations

import sys
import threading
import uuid
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, overload

import dask
import psutil
from dask.utils import parse_bytes

from rescnet_dist._compat import worker_memory_limit
from rescnet_dist.cluster.current import find_worker
from rescnet_dist.errors import SpecError
from rescnet_dist.model import Layer

LAYER_MEMORY_SETTING = "rescnet.layer-memory"  # of Dask's configuration: bytes, or text like 2 GiB
LAYER_MEMORY_FRACTION = 0.25  # of the memory of the process, without that setting
# Of the limits of control groups, version 1 and 2, hard and soft
MEMORY_LIMIT_FILES = (
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/memory/memory.soft_limit_in_bytes",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory.high",
    "/sys/fs/cgroup/memory.low",
)
PREFETCHED_LAYERS = 4  # that are read ahead, at the same time

# Of the worker whose task has started the thread that reads ahead: Dask does not know such threads.
_worker_memory: ContextVar[int | None] = ContextVar("worker_memory", default=None)


def get_layer_memory() -> int:
    """Return the bytes of layers that this process keeps.

    Returns
    -------
    int
        The setting `rescnet.layer-memory` of Dask's configuration; by default, a quarter of the
        memory of the Dask worker or of the machine. Workers in one process share its layers.

    Raises
    ------
    SpecError
        If the setting is not a number of bytes.
    """
    setting = dask.config.get(LAYER_MEMORY_SETTING, None)
    if setting is None:
        return int(LAYER_MEMORY_FRACTION * (_find_worker_memory() or get_machine_memory()))
    try:
        size = parse_bytes(setting)
    except (AttributeError, TypeError, ValueError):
        size = -1
    if size < 0:
        raise SpecError(
            f"{LAYER_MEMORY_SETTING}={setting!r} in Dask's configuration is not a size. Set it to "
            'a number of bytes, or to text such as "2 GiB".'
        )
    return size


def _find_worker_memory() -> int | None:
    """Return the memory limit of the worker that this thread works for; None if there is none."""
    worker = find_worker()
    return _worker_memory.get() if worker is None else worker_memory_limit(worker)


@cache
def get_machine_memory() -> int:
    """Return the bytes of memory of the machine, or those that the container may use.

    Returns
    -------
    int
        What `distributed.system.memory_limit` returns, without importing distributed.
    """
    limits = [psutil.virtual_memory().total]
    for path in MEMORY_LIMIT_FILES:
        with suppress(OSError, ValueError):  # There is no such file, or no limit: "max".
            limits.append(int(Path(path).read_text()))
    if sys.platform != "win32":
        import resource

        limits.append(resource.getrlimit(resource.RLIMIT_RSS)[1])
    return min(limit for limit in limits if limit > 0)


class LayerCache:
    """Layers of several networks, up to a total size; for use by several threads.

    Networks that were not used lately make room for others. Layers of one network do not replace
    each other.

    Parameters
    ----------
    budget : callable
        Returns the largest total size, in bytes.
    """

    def __init__(self, budget: Callable[[], int]) -> None:
        self.budget = budget
        self._lock = threading.Lock()
        self._networks: OrderedDict[str, dict[int, Layer]] = OrderedDict()
        self._loading: dict[tuple[str, int], Future[Layer]] = {}
        self._dropped: deque[str] = deque()
        self._size = 0

    def get(self, network: str, index: int, load: Callable[[int], Layer]) -> Layer:
        """Return a layer of a network; it is loaded if it is not cached.

        Threads that need the same layer at the same time load it once.

        Parameters
        ----------
        network : str
            Identity of the network.
        index : int
            Index of the layer, from 0.
        load : callable
            Returns the layer of an index.

        Returns
        -------
        Layer
            The layer.
        """
        key = network, index
        with self._lock:
            if (layer := self._find(network, index)) is not None:
                return layer
            loading = self._loading.get(key)
            if is_first := loading is None:
                loading = self._loading[key] = Future()
        if not is_first:
            return loading.result()
        try:
            layer, budget = load(index), self.budget()
        except BaseException as error:
            with self._lock:
                del self._loading[key]
            loading.set_exception(error)
            raise
        with self._lock:
            del self._loading[key]
            self._keep(network, index, layer, budget)
        loading.set_result(layer)
        return layer

    def iterate(self, network: str, count: int, load: Callable[[int], Layer]) -> Iterator[Layer]:
        """Yield the layers of a network in order; those that are not cached are read ahead.

        Parameters
        ----------
        network : str
            Identity of the network.
        count : int
            Number of layers.
        load : callable
            Returns the layer of an index.

        Yields
        ------
        Layer
            Each layer.
        """
        with self._lock:
            cached = [self._find(network, index) for index in range(count)]
        if count < 2 or None not in cached:
            for index, layer in enumerate(cached):
                yield self.get(network, index, load) if layer is None else layer
            return
        del cached
        context = copy_context()
        context.run(_worker_memory.set, _find_worker_memory())
        with ThreadPoolExecutor(PREFETCHED_LAYERS, "rescnet-layers") as executor:
            ahead: deque[Future[Layer]] = deque()
            try:
                for index in range(count):
                    read = context.copy().run
                    ahead.append(executor.submit(read, self.get, network, index, load))
                    if len(ahead) == PREFETCHED_LAYERS:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for future in ahead:
                    future.cancel()

    def drop(self, network: str) -> None:
        """Remove the layers of a network; if the lock is held, when it is taken next.

        Finalizers call it, which may run at any point of a thread, also one that holds the lock.
        """
        self._dropped.append(network)
        if self._lock.acquire(blocking=False):
            try:
                self._remove_dropped()
            finally:
                self._lock.release()

    @property
    def size(self) -> int:
        """Bytes of the cached layers."""
        return self._size

    def _find(self, network: str, index: int) -> Layer | None:
        """Return a cached layer, or None. The lock is held."""
        self._remove_dropped()
        layers = self._networks.get(network)
        if layers is None:
            return None
        self._networks.move_to_end(network)
        return layers.get(index)

    def _keep(self, network: str, index: int, layer: Layer, budget: int) -> None:
        """Cache a layer if there is room for it. The lock is held."""
        self._remove_dropped()
        if layer.nbytes > budget:
            return
        while self._size + layer.nbytes > budget:
            oldest = next((name for name in self._networks if name != network), None)
            if oldest is None:
                return
            self._remove(oldest)
        self._networks.setdefault(network, {})[index] = layer
        self._networks.move_to_end(network)
        self._size += layer.nbytes

    def _remove_dropped(self) -> None:
        """Remove the layers of dropped networks. The lock is held."""
        while self._dropped:
            self._remove(self._dropped.popleft())

    def _remove(self, network: str) -> None:
        """Remove the layers of a network. The lock is held."""
        layers = self._networks.pop(network, {})
        self._size -= sum(layer.nbytes for layer in layers.values())


HOST_LAYERS = LayerCache(get_layer_memory)


@dataclass(frozen=True)
class CachedLayers(Sequence[Layer]):
    """Stored layers, each read on first use and kept in `HOST_LAYERS`.

    Copies in other processes have layers of their own there. Layers are dropped with the last copy
    in the process that made this object; worker processes keep them for later tasks.
    """

    stored: Sequence[Layer]
    token: str = field(init=False, default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        weakref.finalize(self, HOST_LAYERS.drop, self.token)

    def __reduce__(self) -> Any:
        return _restore_layers, (self.stored, self.token)

    def __len__(self) -> int:
        return len(self.stored)

    def __iter__(self) -> Iterator[Layer]:
        # A generator: it refers to this object, which must not be finalized before the last layer.
        yield from HOST_LAYERS.iterate(self.token, len(self), self.stored.__getitem__)

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Layer]: ...
    def __getitem__(self, index: int | slice) -> Layer | Sequence[Layer]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(f"Layer index {index} is out of range. There are {len(self)} layers.")
        return HOST_LAYERS.get(self.token, index % len(self), self.stored.__getitem__)

    @cached_property
    def _layer_bytes(self) -> int:
        """Bytes of the last layer, which is read for it."""
        return self[-1].nbytes

    @property
    def fits(self) -> bool:
        """Whether all layers fit into the budget, if they are as large as the last one."""
        return len(self) * self._layer_bytes <= HOST_LAYERS.budget()


def _restore_layers(stored: Sequence[Layer], token: str) -> CachedLayers:
    """Return a pickled `CachedLayers`, whose layers stay cached when it is deleted."""
    layers = object.__new__(CachedLayers)
    object.__setattr__(layers, "stored", stored)
    object.__setattr__(layers, "token", token)
    return layers
