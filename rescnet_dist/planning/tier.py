"""Choice of the storage tier of maps: the memory of the workers if they fit, else the store.

The choice changes no bits, so it is made before every layer, for the workers present then.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rescnet_dist.errors import ClusterError
from rescnet_dist.formatting import format_bytes
from rescnet_dist.planning.placement import (
    WITHOUT_FEATURES,
    Placement,
    PlacementCause,
    describe_cause,
    describe_placement,
)
from rescnet_dist.planning.plan import Group, Plan
from rescnet_dist.planning.requirements import (
    Problem,
    device_memory,
    max_resident_accumulators,
    peak_memory,
)
from rescnet_dist.spec import NetworkSpec, RunSpec

if TYPE_CHECKING:
    from rescnet_dist.cluster.workers import Workers

MAX_ADVISED_BYTES = 2**42  # memory of a worker


@dataclass(frozen=True, slots=True)
class Tier:
    """Where maps are kept until the next layer.

    Attributes
    ----------
    in_memory : bool
        Whether maps stay in memory.
    features : bool
        Whether their features stay in memory, with the maps or, if these are in the store, alone.
    cached_bytes : int
        Bytes that the fullest worker would keep.
    placement : Placement
        Where maps are kept and why.
    """

    in_memory: bool
    features: bool
    cached_bytes: int
    placement: Placement

    @property
    def on_gpu(self) -> bool:
        """Whether the memory is that of a GPU."""
        return self.placement.on_gpu

    @property
    def uses_caches(self) -> bool:
        """Whether workers keep maps or features until the next layer."""
        return self.in_memory or self.features

    @property
    def host_cache_bytes(self) -> int:
        """Bytes that a worker keeps in the main memory of its machine."""
        if not self.uses_caches:
            return 0
        if self.on_gpu:
            return self.cached_bytes - (self.device_cache_bytes or self.cached_bytes)
        return self.cached_bytes

    @property
    def device_cache_bytes(self) -> int | None:
        """Bytes that a worker keeps on its GPU; None if all that it keeps is there."""
        has_host = self.placement.cause == PlacementCause.FITS_WITH_HOST
        return self.placement.free_bytes if has_host else None

    def to_dict(self) -> dict[str, Any]:
        """Return the tier as JSON-serializable values.

        Runs store it, so its keys are part of the format and keep their first names.
        """
        return {
            "in_memory": self.in_memory,
            "features": self.features,
            "held": self.cached_bytes,
            "on_gpu": self.on_gpu,
            "why": describe_placement(self.placement),
            "placement": asdict(self.placement) | {"cause": self.placement.cause.value},
        }


NO_WORKERS = Tier(False, False, 0, Placement(PlacementCause.NO_WORKERS))


def cached_bytes(
    problem: Problem, spec: NetworkSpec, rows: int, *, maps: bool = True, features: bool = True
) -> int:
    """Return the bytes that a worker keeps of some rows: maps, scores and images, and features.

    Without maps, features are all that it keeps.
    """
    features = features and not spec.head.fits_samples  # which need those of no other layer
    feature_bytes = problem.feature_bytes(spec) if features else 0
    if not maps:
        return rows * feature_bytes
    height, width, channels = problem.image_shape
    map_bytes = np.dtype(spec.store_dtype).itemsize * problem.maps(spec)
    pixels = height * width * (map_bytes + problem.itemsize * channels)
    return rows * (pixels + feature_bytes + 4 * problem.classes)


def group_cache_bytes(
    problem: Problem, spec: NetworkSpec, group: Group, *, maps: bool = True, features: bool = True
) -> int:
    """Return the bytes that a worker keeps of a group of chunks."""
    return cached_bytes(problem, spec, group.stop - group.start, maps=maps, features=features)


def choose_tier(
    problem: Problem, spec: NetworkSpec, run_spec: RunSpec, plan: Plan, workers: Workers
) -> Tier:
    """Choose where the maps and features of a run are kept with these workers."""
    groups = plan.groups()

    def fullest_worker_bytes(**kept: bool) -> int:
        sizes = (group_cache_bytes(problem, spec, group, **kept) for group in groups)
        return math.ceil(len(groups) / workers.count) * max(sizes)

    sizes = fullest_worker_bytes(), fullest_worker_bytes(features=False)
    placement = _choose_placement(problem, spec, run_spec, plan, workers, *sizes)
    placement = replace(placement, needs_features=not spec.head.fits_samples)
    if not placement.in_memory:
        used, budget = _memory_use(problem, spec, plan, workers)
        placement = replace(
            placement,
            free_bytes=None if budget is None else max(0, budget - used),
            feature_bytes=fullest_worker_bytes(maps=False),
        )
        if placement.keeps_features:
            return Tier(False, True, placement.feature_bytes or 0, placement)
    return Tier(
        in_memory=placement.in_memory,
        features=placement.in_memory
        and placement.needs_features
        and placement.cause not in WITHOUT_FEATURES,
        cached_bytes=sizes[placement.cause in WITHOUT_FEATURES],
        placement=placement,
    )


def _choose_placement(
    problem: Problem,
    spec: NetworkSpec,
    run_spec: RunSpec,
    plan: Plan,
    workers: Workers,
    with_features: int,
    without_features: int,
) -> Placement:
    """Choose where maps are kept, given the bytes that the fullest worker would keep."""
    on_gpu = workers.gpu_memory is not None
    if run_spec.maps == "store":
        return Placement(PlacementCause.STORE_REQUESTED, on_gpu)
    if run_spec.keep_maps == "all":
        return Placement(PlacementCause.ALL_MAPS_REQUESTED, on_gpu)
    if tile_features := run_spec.tile_features or (run_spec.calibrate and plan.tile_features):
        return Placement(PlacementCause.TILES_REQUESTED, on_gpu, tile_features=tile_features)
    if plan.tile_features:
        features = problem.features(spec)
        threads = math.ceil(workers.slots / workers.count)
        held = max_resident_accumulators(replace(plan, tile_features=None), threads)
        cause, size = PlacementCause.MATRIX_DOES_NOT_FIT, held * 4 * features**2
        return Placement(cause, on_gpu, needed_bytes=size, features=features)
    used, budget = _memory_use(problem, spec, plan, workers)
    if budget is None:  # unlimited memory: only on request
        if run_spec.maps != "memory":
            return Placement(PlacementCause.UNLIMITED_MEMORY, on_gpu)
        return Placement(PlacementCause.MEMORY_REQUESTED, on_gpu, with_features)
    free = max(0, budget - used)
    if with_features <= free:
        return Placement(PlacementCause.FITS, on_gpu, with_features, free)
    # Maps without their features, which are computed a second time: less work than storing both.
    if without_features <= free:
        return Placement(PlacementCause.FITS_WITHOUT_FEATURES, on_gpu, without_features, free)
    if on_gpu and workers.budget is not None:
        host = max(0, workers.budget - peak_memory(problem, spec, plan, workers))
        if without_features <= free + host:
            cause = PlacementCause.FITS_WITH_HOST
            return Placement(cause, on_gpu, without_features, free, host_free_bytes=host)
    return Placement(PlacementCause.MAPS_DO_NOT_FIT, on_gpu, without_features, free)


def _memory_use(
    problem: Problem, spec: NetworkSpec, plan: Plan, workers: Workers
) -> tuple[int, int | None]:
    """Return the bytes that a worker, or its GPU, uses and may use; None if that is unlimited."""
    if workers.gpu_memory is not None:
        return device_memory(problem, spec, plan), workers.gpu_budget
    return peak_memory(problem, spec, plan, workers), workers.budget


def check_tier(
    tier: Tier, run_spec: RunSpec, workers: Workers, fits: Callable[[Workers], bool]
) -> None:
    """Raise ClusterError for maps="memory" if the workers have no room for the maps.

    `fits` returns whether the maps would stay in the memory of other workers.
    """
    if run_spec.maps == "memory" and not tier.in_memory:
        prefix = "a GPU of at least" if tier.on_gpu else "at least"
        size = _smallest_sufficient_bytes(workers, fits)
        advice = f" (with {prefix} {format_bytes(size)})" if size else ""
        raise ClusterError(
            f'maps="memory" is not possible: {describe_cause(tier.placement)}. Use larger '
            f'workers{advice}, more of them or fewer filters, or leave maps="memory" out.'
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
    if not tier.in_memory:
        return min(2, spec.max_layers)
    checkpoints = (spec.max_layers - 1) // run_spec.checkpoint_every
    return min(2, checkpoints + run_spec.maps_stay)
