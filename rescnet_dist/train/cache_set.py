"""The caches of a run's groups on the workers of a cluster: where they are, and what keeps them.

The driver has one future for some hundred caches: that of a task which needs all of them and never
runs. The scheduler keeps the caches for this task, and frees them when the driver is gone.
"""

from __future__ import annotations

import asyncio
import json
import math
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef
from dask.typing import Key
from distributed import Client, Future

from rescnet_dist._compat import (
    are_in_memory,
    disable_stealing,
    lack_workers,
    remove_restrictions,
    skip_unwanted_reports,
)
from rescnet_dist.planning.tree import spread_groups
from rescnet_dist.reduce import DescribedLayer
from rescnet_dist.train.chunk_cache import ChunkCache

CACHE_PLACEMENT_SECONDS = 30.0  # for new caches to be placed on their workers
PLACEMENT_CHECK_SECONDS = 0.02  # between two checks whether they are
MAX_CACHES_PER_LAYER = 512  # as a scheduler adds a layer in one step, while its event loop waits
CACHE_PREFIX = "rescnet-cache-"  # of the keys of all caches
MISSING_RESOURCE = "rescnet-none"  # of Dask; no worker has it


def place_groups(current: Sequence[str], available: Sequence[str], count: int) -> list[str]:
    """Return the worker of each of `count` groups, as many on each as on the others.

    Neighbors, whose accumulators are merged first, share a worker. Groups stay on their `current`
    worker as long as it is there and has not too many.

    >>> place_groups([], ["a", "b"], 4)
    ['a', 'a', 'b', 'b']
    >>> place_groups(["a", "a", "b", "b"], ["b", "c"], 4)
    ['c', 'c', 'b', 'b']
    """
    if not current:
        return [available[n] for n in spread_groups(count, len(available), cached=True)]
    largest = math.ceil(count / len(available))
    loads, placed = dict.fromkeys(available, 0), list[str | None]()
    for worker in current:
        stays = worker in loads and loads[worker] < largest
        placed.append(worker if stays else None)
        if stays:
            loads[worker] += 1
    free = (worker for worker, load in loads.items() for _ in range(largest - load))
    return [worker or next(free) for worker in placed]


class CacheLayer(DescribedLayer):
    """The tasks that create caches on workers, and the one that keeps caches of neighbors.

    It is sent to the scheduler as it is, a few bytes per cache, and becomes tasks there.

    Parameters
    ----------
    name : str
        Key of the task that keeps the caches. It needs a resource that no worker has.
    keys : sequence of str
        Keys of the caches that are kept, of neighboring groups.
    created : dict of int to (int, str)
        Planned bytes and worker of each cache that is created, by its position among the keys.
    device_bytes : int or None
        Bytes of the worker's GPU that each may use.
    """

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        created: dict[int, tuple[int, str]],
        device_bytes: int | None,
    ) -> None:
        self.name, self.keys_by_group, self.device_bytes = name, keys, device_bytes
        self.created = {keys[group]: values for group, values in created.items()}
        is_cache = self.created.__contains__
        super().__init__(
            annotations={
                "workers": lambda key: [self.created[key][1]] if is_cache(key) else None,
                "allow_other_workers": lambda key: True if is_cache(key) else None,
                "resources": lambda key: None if is_cache(key) else {MISSING_RESOURCE: 1},
            }
        )

    def get_output_keys(self) -> set[Key]:
        """Return the key of the task that keeps the caches."""
        return {self.name}

    def make_tasks(self) -> Iterator[Task]:
        """Yield those that create caches, then the one that keeps all."""
        for key, (planned_bytes, _) in self.created.items():
            yield Task(key, ChunkCache, planned_bytes, self.device_bytes)
        yield Task(self.name, list, List(*map(TaskRef, self.keys_by_group)))

    def __reduce__(self) -> tuple[Any, ...]:
        groups = [group for group, key in enumerate(self.keys_by_group) if key in self.created]
        created = [*zip(groups, *zip(*self.created.values(), strict=True), strict=True)]
        record = [self.name, [*self.keys_by_group], created, self.device_bytes]
        return _unpack_layer, (zlib.compress(json.dumps(record).encode()),)


def _unpack_layer(packed: bytes) -> CacheLayer:
    """Return the layer that was packed."""
    name, keys, created, device_bytes = json.loads(zlib.decompress(packed))
    return CacheLayer(
        name, keys, {group: (size, worker) for group, size, worker in created}, device_bytes
    )


def _prepare_scheduler(task_names: Sequence[str], *, dask_scheduler: Any) -> None:
    """Adapt a scheduler to caches and to the tasks of these names, which use them; runs there."""
    # A stolen task would find its cache empty, and the cached bytes are not part of what
    # Dask weighs against the compute time.
    disable_stealing(task_names)
    skip_unwanted_reports(dask_scheduler, CACHE_PREFIX)


async def _finish_placement(token: str, packed: bytes, *, dask_scheduler: Any) -> bool:
    """Unbind new caches from their workers once they are placed; runs on a scheduler.

    If all workers are gone for a moment, Dask would otherwise wait forever for the one that a cache
    was, or is to be, created on. Return whether the scheduler has the caches: those with a token,
    of the groups whose packed flag is set.
    """
    flags = zlib.decompress(packed)
    keys = [_cache_key(token, group) for group, is_created in enumerate(flags) if is_created]
    waits = math.ceil(CACHE_PLACEMENT_SECONDS / PLACEMENT_CHECK_SECONDS)
    for _ in range(waits):  # a cluster that has just lost its workers may be slow
        if are_in_memory(dask_scheduler, keys) or lack_workers(dask_scheduler, keys):
            break
        await asyncio.sleep(PLACEMENT_CHECK_SECONDS)
    return remove_restrictions(dask_scheduler, keys)


def _cache_key(token: str, group: int) -> str:
    """Return the key of the cache of a group, among those created with a token."""
    return f"{CACHE_PREFIX}{token}-{group}"


class CacheSet:
    """The caches of a run's groups, distributed over the workers of a cluster."""

    def __init__(self, client: Client, task_names: Sequence[str]) -> None:
        """Create an empty set; task_names are the Dask names of the tasks that use caches."""
        self._client = client
        self._task_names = tuple(task_names)
        self._workers: list[str] = []  # of each cache
        self._keys: tuple[str, ...] = ()
        self._keepers: dict[int, list[Future]] = {}  # by the first group whose cache they keep

    @property
    def keys(self) -> tuple[str, ...]:
        """The key of each group's cache; empty without caches."""
        return self._keys

    def distribute(
        self, planned_bytes: Sequence[int], device_bytes: int | None = None, *, is_stored: bool
    ) -> None:
        """Create one cache per group, of these planned bytes; see `place_groups`.

        The caches of a worker share `device_bytes` of its GPU, if given. If workers have joined or
        left since, some caches move to other workers, which empties them. They move only if
        everything in them is stored too (`is_stored`).
        """
        keepers = (keeper for part in self._keepers.values() for keeper in part)
        if any(keeper.status != "pending" for keeper in keepers):
            self.release()  # Dask has given up tasks that no worker can run, as configured
        if self._keys and not is_stored:
            return
        available = sorted(self._client.nthreads())
        if not available:
            return
        workers = place_groups(self._workers, available, len(planned_bytes))
        if workers == self._workers:
            return
        if device_bytes is not None:
            device_bytes //= math.ceil(len(workers) / len(available))
        token = uuid.uuid4().hex[:12]
        keys = [_cache_key(token, group) for group in range(len(workers))]
        old = zip(self._keys, self._workers, strict=True)
        for group, (key, worker) in enumerate(old):
            if worker == workers[group]:
                keys[group] = key
        old_keys = set(self._keys)
        created = {
            group: (planned_bytes[group], worker)
            for group, worker in enumerate(workers)
            if keys[group] not in old_keys
        }
        self._client.run_on_scheduler(_prepare_scheduler, self._task_names)
        layers = dict[int, CacheLayer]()
        for first in range(0, len(keys), MAX_CACHES_PER_LAYER):
            kept = keys[first : first + MAX_CACHES_PER_LAYER]
            new = {i: created[first + i] for i in range(len(kept)) if first + i in created}
            if new:
                name = f"rescnet-caches-{token}-{first}"
                layers[first] = CacheLayer(name, kept, new, device_bytes)
        self._create(layers, token, bytes(group in created for group in range(len(workers))))
        self._keys, self._workers = tuple(keys), workers

    def _create(self, layers: dict[int, CacheLayer], token: str, created: bytes) -> None:
        """Create caches, and keep them in place of the earlier ones, by the first group of a layer.

        `created` has a byte for each group: whether its cache is created with the token.
        """
        keepers = dict[int, Future]()
        for first, layer in layers.items():
            graph = HighLevelGraph({layer.name: layer}, {layer.name: set()})
            keepers[first] = self._client.get(graph, layer.name, sync=False)
        # The earlier ones are kept until the scheduler has the graphs, which refer to some of them.
        if self._client.run_on_scheduler(_finish_placement, token, zlib.compress(created)):
            self._release_keepers(layers)
        for first, keeper in keepers.items():
            self._keepers.setdefault(first, []).append(keeper)

    def _release_keepers(self, firsts: Iterable[int]) -> None:
        """Let the scheduler free caches that nothing else needs, given by their first groups."""
        for first in firsts:
            for keeper in self._keepers.pop(first, ()):
                keeper.release()

    def release(self) -> None:
        """Free all caches, even if the graph of a failed pass still refers to them."""
        self._release_keepers([*self._keepers])
        self._workers, self._keys = [], ()
