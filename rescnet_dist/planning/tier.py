"""Where maps wait for the next layer: in the workers' memory where they fit, else in the store.

It changes no bits, so it is chosen anew before every layer, for the workers that are there.
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

LARGEST = 2**42  # bytes of a worker that is advised


@dataclass(frozen=True, slots=True)
class Tier:
    """Whether maps stay in memory, and their features beside them, the bytes that a worker keeps
    then, whether it is a GPU's memory, and why it is so."""

    in_memory: bool
    features: bool
    held: int
    on_gpu: bool
    reason: str

    @property
    def on_host(self) -> int:
        """Bytes that a worker keeps of them in the machine's own memory."""
        return self.held if self.in_memory and not self.on_gpu else 0


NO_WORKERS = Tier(False, False, 0, False, "in the store, as no worker is there yet")


def cached_bytes(problem: Problem, spec: NetworkSpec, rows: int, *, features: bool = True) -> int:
    """Bytes that are kept of so many rows: maps, scores, the images themselves, and features, if
    those are kept too."""
    height, width, channels = problem.image_shape
    maps = np.dtype(spec.store_dtype).itemsize * spec.filters
    pixels = height * width * (maps + problem.itemsize * channels)
    beside = 4 * problem.features(spec) if features else 0
    return rows * (pixels + beside + 4 * problem.classes)


def group_cache_bytes(
    problem: Problem, spec: NetworkSpec, group: Group, *, features: bool = True
) -> int:
    """Bytes that are kept of a group of chunks."""
    return cached_bytes(problem, spec, group.stop - group.start, features=features)


def choose_tier(
    problem: Problem, spec: NetworkSpec, run_spec: RunSpec, plan: Plan, workers: Workers
) -> Tier:
    """Where the maps of a run go with these workers."""
    groups = plan.groups()
    on_gpu = workers.gpu_memory is not None
    location, used, budget = "memory", peak_memory(problem, spec, plan, workers), workers.budget
    if on_gpu:
        location, used, budget = (
            "GPU memory",
            device_memory(problem, spec, plan),
            workers.gpu_budget,
        )

    def most(features: bool) -> int:
        """Bytes that the fullest worker keeps."""
        each = (group_cache_bytes(problem, spec, group, features=features) for group in groups)
        return math.ceil(len(groups) / workers.count) * max(each)

    def tier(in_memory: bool, reason: str, *, features: bool = True) -> Tier:
        return Tier(in_memory, in_memory and features, most(features), on_gpu, reason)

    if run_spec.maps == "store":
        return tier(False, 'in the store, as maps="store" says')
    if run_spec.keep_maps == "all":
        return tier(False, 'in the store, as keep_maps="all" says')
    if run_spec.tile_features:
        return tier(False, f"in the store, as tile_features={run_spec.tile_features} says")
    if plan.tile_features:
        features = problem.features(spec)
        matrix = f"the scatter matrix of {features:,} features, {format_bytes(4 * features**2)}"
        return tier(False, f"in the store, as not even {matrix}, fits in {location}")
    if budget is None:  # as large as it takes: for those who ask for it
        wanted = run_spec.maps == "memory"
        both = f"in workers' {location}, with their features: {format_bytes(most(True))} per worker"
        return tier(wanted, both if wanted else "in the store")
    room = max(0, budget - used)
    if most(True) <= room:
        sizes = f"{format_bytes(most(True))} per worker, of {format_bytes(room)} free"
        return tier(True, f"in workers' {location}, with their features: {sizes}")
    # maps without their features, which are made again from them: less work than to store both
    sizes = f"{format_bytes(most(False))} per worker, of {format_bytes(room)} free"
    if most(False) <= room:
        why = f"{sizes}, no room for their features, which are made twice"
        return tier(True, f"in workers' {location}: {why}", features=False)
    return tier(False, f"in the store, as they do not fit in {location}: {sizes}", features=False)


def check_tier(
    tier: Tier, run_spec: RunSpec, workers: Workers, fits: Callable[[Workers], bool]
) -> None:
    """Refuse maps="memory" where there is no room for them; `fits` tells whether they would stay in
    the memory of other workers."""
    if run_spec.maps == "memory" and not tier.in_memory:
        problem = tier.reason.removeprefix("in the store, as ")
        each = "a GPU of at least" if tier.on_gpu else "at least"
        size = _large_enough(workers, fits)
        larger = f" (of {each} {format_bytes(size)})" if size else ""
        raise ClusterError(
            f'maps="memory", and {problem}: use larger workers{larger}, more of them or fewer '
            'filters, or leave maps="memory" out'
        )


def _large_enough(workers: Workers, fits: Callable[[Workers], bool]) -> int | None:
    """Bytes of memory, or of a GPU's, with which each of so many workers would keep the maps, to
    64 MiB, from 1 GiB on to half a GiB; None if no size helps."""
    field = "memory" if workers.gpu_memory is None else "gpu_memory"

    def enough(size: int) -> bool:
        return fits(replace(workers, **{field: size}))

    sizes = [*range(2**26, 2**30, 2**26), *range(2**30, LARGEST, 2**29)]
    if not enough(sizes[-1]):
        return None
    return sizes[bisect_left(sizes, True, key=enough)]


def is_stored_at_once(spec: NetworkSpec, run_spec: RunSpec, tier: Tier) -> int:
    """The layers whose maps are in the store at a time, at most: those of one are removed once
    those of a later one are there."""
    if run_spec.keep_maps == "all":
        return max(2, spec.max_layers)
    at_end = tier.in_memory and not run_spec.maps_stay
    return 0 if at_end and spec.max_layers <= run_spec.checkpoint_every else 2
