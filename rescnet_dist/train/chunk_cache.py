"""Chunk caches: maps that stay in the memory of workers, host or GPU, until the next layer.

Features stay with them, or alone if the maps are in the store. Maps of a GPU that do not fit there
wait in pinned main memory.

Each group of chunks has one cache. It is the result of a Dask task, and every task of the group
takes it as an argument: Dask sends the task to the worker that has the cache. The contents of a
cache are never transferred. A task that gets the cache on another worker, or after its worker was
lost, finds it empty and recomputes the contents from the store.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
from dask.sizeof import sizeof

from rescnet_dist._compat import worker_memory_limit
from rescnet_dist.cluster.memory import GPU_MEMORY_FRACTION, spill_fraction
from rescnet_dist.kernels import Backend
from rescnet_dist.train.task_events import this_worker


@dataclass(frozen=True, slots=True)
class ChunkState:
    """State of a chunk after a layer: maps (n, H, W, f), features (n, D), and the scores (n, C)
    that entered the layer."""

    layer: int
    maps: Any
    scores: Any
    features: Any

    def cast_maps(self, dtype: str) -> ChunkState:
        """Return the same state with maps in the dtype that they have been rounded to."""
        return replace(self, maps=self.maps.astype(dtype, copy=False))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = self.maps, self.scores, self.features
        return sum(array.nbytes for array in arrays if array is not None)


EMPTY = ChunkState(0, None, None, None)  # the state before the first layer
NONE = (0, None)  # features that are not cached


@dataclass
class ChunkCache:
    """Cache of one group of chunks on one worker, by the first row of each chunk.

    On a GPU, states of more than `device_bytes` have their maps in main memory; None keeps all
    there.
    """

    planned_bytes: int = 0  # of main memory
    device_bytes: int | None = None
    states: dict[int, ChunkState] = field(default_factory=dict)
    images: dict[int, Any] = field(default_factory=dict)
    features: dict[int, tuple[int, Any]] = field(default_factory=dict)  # with their layer
    chunks: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    backend: Backend | None = None  # of the cached arrays
    offloaded: dict[int, Any] = field(default_factory=dict)  # maps in main memory
    last_offloaded: Any = None  # whose copy may be under way

    def __reduce__(self) -> tuple[type[ChunkCache], tuple[int, int | None]]:
        return ChunkCache, (self.planned_bytes, self.device_bytes)

    def __del__(self) -> None:
        """Free GPU memory, which other processes may wait for once a run is done."""
        if self.last_offloaded is not None:
            self.last_offloaded.wait()  # both memories are in use until then
        if self.backend:
            self.states.clear()
            self.images.clear()
            self.features.clear()
            self.offloaded.clear()
            self.last_offloaded = None
            self.backend.free()

    def pop(self, start: int, layer: int) -> ChunkState | None:
        """Remove and return the state of a chunk if it is of this layer or an earlier one."""
        with self.lock:
            self.features.pop(start, None)
            state = self.states.get(start)
            if state is None or state.layer > layer:
                return None
            del self.states[start]
            maps = self.offloaded.pop(start, None)
        return state if maps is None else replace(state, maps=maps.load())

    def put(self, start: int, state: ChunkState, backend: Backend) -> None:
        """Replace the state of a chunk; the new one is cached only if there is room."""
        with self.lock:
            self.states.pop(start, None)
            self.offloaded.pop(start, None)
            if self._fits_device(state) and has_room(backend):
                maps, scores = (self._retain(a, backend) for a in (state.maps, state.scores))
                self.states[start] = replace(state, maps=maps, scores=scores)
                self.backend = backend
            elif self.device_bytes is not None:
                self._put_in_host(start, state, backend)

    def _fits_device(self, state: ChunkState) -> bool:
        """Return whether a state has room on the GPU next to the others."""
        if self.device_bytes is None:
            return True
        others = (other for start, other in self.states.items() if start not in self.offloaded)
        return sum(other.nbytes for other in others) + state.nbytes <= self.device_bytes

    def _retain(self, array: Any, backend: Backend) -> Any:
        """Return an array that does not fragment the memory of the GPU, if that will be full."""
        return array if self.device_bytes is None else backend.retain(array)

    def _put_in_host(self, start: int, state: ChunkState, backend: Backend) -> None:
        """Cache a state whose maps wait in main memory; at most one copy is under way."""
        if self.last_offloaded is not None:
            self.last_offloaded.wait()
        if has_room(Backend()):
            self.offloaded[start] = self.last_offloaded = backend.offload(state.maps)
            scores = self._retain(state.scores, backend)
            self.states[start], self.backend = replace(state, maps=None, scores=scores), backend

    def put_images(self, start: int, images: Any, backend: Backend) -> None:
        """Cache the images (n, H, W, d) of a chunk if there is room."""
        if has_room(backend):
            self.images[start], self.backend = self._retain(images, backend), backend

    def get_features(self, start: int, layer: int) -> Any:
        """Return the features (n, D) of a chunk in this layer, which stay; None if not cached."""
        with self.lock:
            state, (own_layer, features) = self.states.get(start), self.features.get(start, NONE)
        if state is not None and state.layer == layer and state.features is not None:
            return state.features
        return features if own_layer == layer else None

    def put_features(self, start: int, layer: int, features: Any, backend: Backend) -> None:
        """Cache the features (n, D) of a chunk until its next layer, if there is room."""
        if has_room(backend):
            with self.lock:
                self.features[start], self.backend = (layer, features), backend


sizeof.register(ChunkCache, lambda cache: cache.planned_bytes)

# memory that a worker may use above the planned fraction before it stops caching
CACHE_TOLERANCE_FRACTION = 0.05


def has_room(backend: Backend) -> bool:
    """Return whether this worker may cache more.

    A worker may have more groups than planned after other workers died.
    """
    if backend.on_gpu:
        return backend.used_memory_fraction() < GPU_MEMORY_FRACTION + CACHE_TOLERANCE_FRACTION
    limit = worker_memory_limit(this_worker())
    fraction = spill_fraction() + CACHE_TOLERANCE_FRACTION
    return not limit or psutil.Process().memory_info().rss < fraction * limit
