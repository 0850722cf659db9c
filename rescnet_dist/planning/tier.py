"""Choice of the storage tier of maps: the memory of the workers if they fit, else the store.

The choice changes no bits, so it is made before every layer, for the workers present then.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rescnet_dist.cluster.workers import Workers
from rescnet_dist.errors import ClusterError
from rescnet_dist.formatting import format_bytes
from rescnet_dist.planning.plan import Group, Plan
from rescnet_dist.planning.requirements import Problem, device_memory, peak_memory
from rescnet_dist.spec import NetworkSpec, RunSpec

MAX_ADVISED_BYTES = 2**42  # memory of a worker


@dataclass(frozen=True, slots=True)
class Tier:
    """Where maps are kept until the next layer.

    Attributes
    ----------
    in_memory : bool
        Whether maps stay in memory.
    features : bool
        Whether their features stay in memory too.
    cached_bytes : int
        Bytes that the fullest worker would keep.
    on_gpu : bool
        Whether the memory is that of a GPU.
    reason : str
        Where maps are kept and why, for users.
    """

    in_memory: bool
    features: bool
    cached_bytes: int
    on_gpu: bool
    reason: str

    @property
    def host_cache_bytes(self) -> int:
        """Bytes that a worker keeps in the main memory of its machine."""
        return self.cached_bytes if self.in_memory and not self.on_gpu else 0


IN_STORE_BECAUSE = "in the store because "  # how the reason for the store starts
NO_WORKERS = Tier(False, False, 0, False, f"{IN_STORE_BECAUSE}no worker has joined yet")


def cached_bytes(problem: Problem, spec: NetworkSpec, rows: int, *, features: bool = True) -> int:
    """Return the bytes of the maps, scores, images and, optionally, features of some rows."""
    height, width, channels = problem.image_shape
    maps = np.dtype(spec.store_dtype).itemsize * spec.filters
    pixels = height * width * (maps + problem.itemsize * channels)
    feature_bytes = 4 * problem.features(spec) if features else 0
    return rows * (pixels + feature_bytes + 4 * problem.classes)


def group_cache_bytes(
    problem: Problem, spec: NetworkSpec, group: Group, *, features: bool = True
) -> int:
    """Return the bytes that a worker keeps of a group of chunks."""
    return cached_bytes(problem, spec, group.stop - group.start, features=features)


def choose_tier(
    problem: Problem, spec: NetworkSpec, run_spec: RunSpec, plan: Plan, workers: Workers
) -> Tier:
    """Choose where the maps of a run are kept with these workers."""
    groups = plan.groups()
    on_gpu = workers.gpu_memory is not None
    if on_gpu:
        memory = "GPU memory"
        used, budget = device_memory(problem, spec, plan), workers.gpu_budget
    else:
        memory = "memory"
        used, budget = peak_memory(problem, spec, plan, workers), workers.budget

    def fullest_worker_bytes(features: bool) -> int:
        sizes = (group_cache_bytes(problem, spec, group, features=features) for group in groups)
        return math.ceil(len(groups) / workers.count) * max(sizes)

    def make_tier(in_memory: bool, reason: str, *, features: bool = True) -> Tier:
        size = fullest_worker_bytes(features)
        return Tier(in_memory, in_memory and features, size, on_gpu, reason)

    if run_spec.maps == "store":
        return make_tier(False, f'{IN_STORE_BECAUSE}maps="store"')
    if run_spec.keep_maps == "all":
        return make_tier(False, f'{IN_STORE_BECAUSE}keep_maps="all"')
    if run_spec.tile_features:
        return make_tier(False, f"{IN_STORE_BECAUSE}tile_features={run_spec.tile_features}")
    if plan.tile_features:
        features = problem.features(spec)
        matrix = f"the scatter matrix of {features:,} features, {format_bytes(4 * features**2)}"
        return make_tier(False, f"{IN_STORE_BECAUSE}not even {matrix}, fits in {memory}")
    with_features = fullest_worker_bytes(True)
    if budget is None:  # unlimited memory: only on request
        if run_spec.maps != "memory":
            return make_tier(False, "in the store")
        size = format_bytes(with_features)
        return make_tier(True, f"in workers' {memory}, with their features: {size} per worker")
    free = max(0, budget - used)
    if with_features <= free:
        sizes = f"{format_bytes(with_features)} per worker, of {format_bytes(free)} free"
        return make_tier(True, f"in workers' {memory}, with their features: {sizes}")
    # Maps without their features, which are computed a second time: less work than storing both.
    without_features = fullest_worker_bytes(False)
    sizes = f"{format_bytes(without_features)} per worker, of {format_bytes(free)} free"
    if without_features <= free:
        reason = f"{sizes}, no room for their features, which are computed twice"
        return make_tier(True, f"in workers' {memory}: {reason}", features=False)
    reason = f"{IN_STORE_BECAUSE}they do not fit in {memory}: {sizes}"
    return make_tier(False, reason, features=False)


def check_tier(
    tier: Tier, run_spec: RunSpec, workers: Workers, fits: Callable[[Workers], bool]
) -> None:
    """Raise ClusterError for maps="memory" if the workers have no room for the maps.

    `fits` returns whether the maps would stay in the memory of other workers.
    """
    if run_spec.maps == "memory" and not tier.in_memory:
        problem = tier.reason.removeprefix(IN_STORE_BECAUSE)
        prefix = "a GPU of at least" if tier.on_gpu else "at least"
        size = _smallest_sufficient_bytes(workers, fits)
        advice = f" (with {prefix} {format_bytes(size)})" if size else ""
        raise ClusterError(
            f'maps="memory" is not possible: {problem}. Use larger workers{advice}, more of them '
            'or fewer filters, or leave maps="memory" out.'
        )


def _smallest_sufficient_bytes(workers: Workers, fits: Callable[[Workers], bool]) -> int | None:
    """Return the memory, of a worker or its GPU, that would keep the maps; None if no size does.

    It is a multiple of 64 MiB below 1 GiB, and of half a GiB above.
    """
    field = "memory" if workers.gpu_memory is None else "gpu_memory"

    def is_enough(size: int) -> bool:
        return fits(replace(workers, **{field: size}))

    sizes = [*range(2**26, 2**30, 2**26), *range(2**30, MAX_ADVISED_BYTES, 2**29)]
    if not is_enough(sizes[-1]):
        return None
    return sizes[bisect_left(sizes, True, key=is_enough)]


def max_stored_layers(spec: NetworkSpec, run_spec: RunSpec, tier: Tier) -> int:
    """Return the largest number of layers whose maps are in the store at the same time.

    The maps of a layer are removed once those of a later one are stored.
    """
    if run_spec.keep_maps == "all":
        return max(2, spec.max_layers)
    at_end = tier.in_memory and not run_spec.maps_stay
    return 0 if at_end and spec.max_layers <= run_spec.checkpoint_every else 2
