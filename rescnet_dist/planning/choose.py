"""Choice of a plan: chunks, accumulators and tiles that fit the memory of the workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from rescnet_dist.errors import SpecError, WorkersTooSmallError
from rescnet_dist.formatting import format_bytes, format_mib
from rescnet_dist.planning.backend import check_backend, get_backend
from rescnet_dist.planning.plan import Plan
from rescnet_dist.planning.requirements import (
    LARGE_ACCUMULATOR_BYTES,
    Problem,
    device_memory,
    peak_memory,
)
from rescnet_dist.planning.tier import choose_tier
from rescnet_dist.spec import NetworkSpec, RunSpec

if TYPE_CHECKING:
    from rescnet_dist.cluster.workers import Workers

CHUNK_TARGET_BYTES = 32 * 2**20  # of maps and images in float32
FEATURE_TARGET_BYTES = 64 * 2**20  # of the features of a chunk that a solver reads
GPU_CHUNK_TARGET_BYTES = 4096 * 2**20  # the same on a GPU: enough to use all of it
MAX_GPU_CHUNK_REDUCTION = 4  # factor by which chunks may shrink if maps then fit the GPU's memory
MIN_FAST_CHUNK_IMAGES = 16  # with fewer, the scatter matrix of the features is slow
GROUPS_PER_SLOT = 4  # so that a worker that dies loses only a quarter of its work
MIN_UNEVEN_CHUNKS_PER_SLOT = 16  # with fewer, one chunk more for some slots costs too much time
MIN_CHUNKS_PER_GROUP = 4  # if there are several groups per slot
# If there are several groups per slot and accumulators are large: to allocate and merge one took as
# long as the pass took for 170 images, and that hardly depends on the number of features.
MIN_IMAGES_PER_LARGE_GROUP = 2000
ADVISED_MEMORY_MARGIN = 1.05  # factor on advised sizes, as idle workers grow a little
ADVISED_MEMORY_STEP_BYTES = 16 * 2**20  # that advised sizes are rounded up to
TILE_SIDES = (*range(4096, 0, -256), 128, 64)  # in features, largest first


def make_plan(problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers) -> Plan:
    """Return the plan for training on the images of `problem` within the memory of the workers.

    Options that the run spec sets are used as they are. Otherwise chunks are as large, accumulators
    as many and the scatter matrix as whole as fits. Raise WorkersTooSmallError if nothing fits,
    with a value that would.
    """
    check_backend(get_backend(run_spec), spec, problem.image_shape)
    if run_spec.tile_features and spec.head.iterative_solver:
        raise SpecError(
            f'tile_features={run_spec.tile_features} is for solver="exact", which factorizes the '
            "scatter matrix. Leave it out."
        )
    if run_spec.tile_features and spec.head.fits_samples:
        raise SpecError(
            f"tile_features={run_spec.tile_features} is for heads that need the scatter matrix of "
            f"the features. {spec.head.name!r} compares images instead. Leave it out."
        )
    candidates = _iter_candidates(problem, spec, run_spec, workers)
    fitting = (plan for plan in candidates if _fits(plan, problem, spec, workers))
    best = next(fitting, None)
    if best is None:
        raise WorkersTooSmallError(_explain_no_plan(problem, spec, run_spec, workers))
    if workers.gpu_memory is None:
        return best
    # Chunks of half or a quarter of the size cost less than computing features twice, and that
    # costs less than maps that go through main memory or the store.
    smallest = best.chunk_images / MAX_GPU_CHUNK_REDUCTION
    similar = takewhile(lambda plan: plan.chunk_images >= smallest, fitting)
    plans = [best, *similar]
    tiers = [choose_tier(problem, spec, run_spec, plan, workers) for plan in plans]
    ranks = [(t.in_memory, t.features, t.device_cache_bytes is None) for t in tiers]
    return plans[ranks.index(max(ranks))]


def check_fits(plan: Plan, problem: Problem, spec: NetworkSpec, workers: Workers) -> None:
    """Raise WorkersTooSmallError if the plan of a run, which never changes, does not fit."""
    if _fits(plan, problem, spec, workers):
        return
    if shortage := _describe_gpu_shortage(problem, spec, plan, workers):
        raise WorkersTooSmallError(
            f"The run keeps the plan it started with. {shortage} Assign fewer workers to each GPU, "
            "or use larger GPUs, then resume the run."
        )
    need = peak_memory(problem, spec, plan, workers)
    fewer = ", or with fewer threads" if workers.threads > 1 else ""
    raise WorkersTooSmallError(
        "The run keeps the plan it started with, and these workers are too small for it. "
        f"{_describe_shortage(need, workers)} Use workers of at least "
        f"{_advise_mib(need, workers)} MiB{fewer}, then resume the run."
    )


def find_least_memory(
    problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers
) -> int:
    """Return the bytes of the smallest workers that are advised for a run, whatever its speed."""
    return _advise_bytes(_find_least_peak(problem, spec, run_spec, workers)[0], workers)


def _find_least_peak(
    problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers
) -> tuple[int, Plan]:
    """Return the plan that needs least memory, and the bytes that it needs in a worker."""
    plans = list(_iter_candidates(problem, spec, run_spec, workers))
    peaks = [peak_memory(problem, spec, plan, workers) for plan in plans]
    return min(peaks), plans[peaks.index(min(peaks))]


def _fits(plan: Plan, problem: Problem, spec: NetworkSpec, workers: Workers) -> bool:
    """Return whether a plan fits the memory of the workers and of their GPUs."""
    gpu = workers.gpu_budget
    if gpu is not None and device_memory(problem, spec, plan) > gpu:
        return False
    return workers.budget is None or peak_memory(problem, spec, plan, workers) <= workers.budget


def _iter_candidates(
    problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers
) -> Iterator[Plan]:
    """Yield plans from the best to the one that needs least memory.

    Chunks become smaller first, then tiles of the scatter matrix. Chunks of fewer than
    `MIN_FAST_CHUNK_IMAGES` are the last resort.
    """
    if workers.gpu_memory is not None:
        yield from _iter_gpu_candidates(problem, spec, run_spec, workers)
        return
    largest = min(
        max(1, CHUNK_TARGET_BYTES // problem.map_bytes(spec)),
        math.ceil(problem.images / (2 * workers.slots)),
    )
    if spec.head.iterative_solver:
        largest = min(largest, max(1, FEATURE_TARGET_BYTES // problem.feature_bytes(spec)))
    chunks = math.ceil(problem.images / largest)
    if chunks < MIN_UNEVEN_CHUNKS_PER_SLOT * workers.slots:
        # The same number of chunks for each slot, so that none waits for others.
        even_chunks = math.ceil(chunks / workers.slots) * workers.slots
        largest = math.ceil(problem.images / even_chunks)
    sizes = [run_spec.chunk_images or largest]
    while not run_spec.chunk_images and sizes[-1] > 1:
        sizes.append(math.ceil(sizes[-1] / 2))
    fast = [size for size in sizes if size >= min(MIN_FAST_CHUNK_IMAGES, sizes[0])]
    has_scatter = not (spec.head.iterative_solver or spec.head.fits_samples)
    features = problem.features(spec) if has_scatter else 0
    is_large = 4 * features**2 >= LARGE_ACCUMULATOR_BYTES
    sides = [side for side in TILE_SIDES if side < features]
    options: list[tuple[int, int | None]]  # images per chunk and side of the tiles
    if run_spec.tile_features:
        options = [(size, run_spec.tile_features) for size in sizes]
    else:
        options = [(size, None) for size in fast]
        options += [(size, side) for side in sides for size in fast]
        options += [(size, side) for size in sizes[len(fast) :] for side in (None, *sides[-1:])]
    for size, side in options:
        chunks = math.ceil(problem.images / size)
        for per_slot in (GROUPS_PER_SLOT, 1):
            groups = per_slot * workers.slots
            has_steps = side or spec.head.iterative_solver  # each of them with tasks for all groups
            too_short = chunks < groups * MIN_CHUNKS_PER_GROUP or (
                is_large and problem.images < groups * MIN_IMAGES_PER_LARGE_GROUP
            )
            if per_slot > 1 and (has_steps or too_short):
                continue
            yield Plan(
                images=problem.images,
                chunk_images=size,
                accumulators=min(run_spec.accumulators or groups, chunks),
                split_every=run_spec.split_every,
                solve_threads=run_spec.solve_threads or workers.machine_threads,
                tile_features=side,
            )


def _iter_gpu_candidates(
    problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers
) -> Iterator[Plan]:
    """Yield plans for workers with a GPU each, with ever smaller chunks.

    The first has chunks as large as a GPU works on at a time. Each worker has one accumulator, as
    it has no other thread to wait for.
    """
    per_worker = math.ceil(problem.images / workers.count)
    target = max(1, GPU_CHUNK_TARGET_BYTES // problem.map_bytes(spec))
    sizes = [run_spec.chunk_images or math.ceil(per_worker / math.ceil(per_worker / target))]
    while not run_spec.chunk_images and sizes[-1] > MIN_FAST_CHUNK_IMAGES:
        sizes.append(math.ceil(sizes[-1] / 2))
    for size in sizes:
        chunks = math.ceil(problem.images / size)
        yield Plan(
            images=problem.images,
            chunk_images=size,
            accumulators=min(run_spec.accumulators or workers.count, chunks),
            split_every=run_spec.split_every,
            solve_threads=run_spec.solve_threads or 1,  # little of the solve is left to the CPU
        )


def _explain_no_plan(
    problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers
) -> str:
    """Return a message for a run that does not fit: what is short, and values that would fit."""
    need, smallest = _find_least_peak(problem, spec, run_spec, workers)
    remedies = []
    # Advised values must fit for certain, so they are for slightly smaller workers.
    memory = None if workers.memory is None else int(workers.memory / ADVISED_MEMORY_MARGIN)
    smaller_workers = replace(workers, memory=memory)
    for name in ("chunk_images", "accumulators", "tile_features"):
        value = getattr(run_spec, name)
        if value is None:
            continue

        def run_fits(smaller: int, name: str = name) -> bool:
            return _has_plan(problem, spec, run_spec.replace(**{name: smaller}), smaller_workers)

        if fitting := _find_largest(value, run_fits):
            remedies.append(f"replace {name}={value} by {name} of at most {fitting}")
        elif _has_plan(problem, spec, run_spec.replace(**{name: None}), smaller_workers):
            remedies.append(f"leave {name}={value} out, so that the plan chooses it")
    if not remedies:

        def network_fits(filters: int) -> bool:
            return _has_plan(problem, spec.replace(filters=filters), run_spec, smaller_workers)

        count = spec.filters if isinstance(spec.filters, int) else 0
        if fitting := _find_largest(count, network_fits):
            remedies.append(f"replace filters={spec.filters} by filters of at most {fitting}")
    if spec.head.fits_samples:
        size = format_bytes(4 * problem.images**2)
        remedies.append(
            f"use a head without a matrix of all pairs of the {problem.images:,} images ({size}), "
            'such as head="leave-one-out"'
        )
    iterative = _solve_iteratively(spec)
    if iterative and _has_plan(problem, iterative, run_spec, smaller_workers):
        remedies.append('solve by conjugate gradients, solver="cg" (--solver cg)')
    shortage = _describe_gpu_shortage(problem, spec, smallest, workers)
    if shortage:
        fewer = "assign fewer workers to each GPU, or " if workers.count > 1 else ""
        remedies.append(f"{fewer}use larger GPUs")
    else:
        shortage = _describe_shortage(need, workers)
        remedies.append(f"use workers of at least {_advise_mib(need, workers)} MiB")
    remedy = ", or ".join(remedies)
    return f"{shortage} {remedy[0].upper()}{remedy[1:]}."


def _solve_iteratively(spec: NetworkSpec) -> NetworkSpec | None:
    """Return the network with conjugate gradients; None if its head does not have them."""
    if spec.head.iterative_solver or "solver" not in spec.head.__options__:
        return None
    return spec.replace(head=spec.head.replace(solver="cg"))


def _describe_gpu_shortage(
    problem: Problem, spec: NetworkSpec, plan: Plan, workers: Workers
) -> str:
    """Return a sentence on what does not fit on the GPUs; empty if all fits."""
    need = device_memory(problem, spec, plan)
    if workers.gpu_budget is None or need <= workers.gpu_budget:
        return ""
    return (
        f"The run needs {format_bytes(need)} of a GPU, but each worker may use only "
        f"{format_bytes(workers.gpu_budget)}."
    )


def _describe_shortage(need: int, workers: Workers) -> str:
    """Return a sentence on the bytes that a worker needs and may use."""
    return (
        f"The run needs {format_mib(need)} MiB of memory per worker, but only "
        f"{format_mib(workers.budget or 0)} MiB of each worker's "
        f"{format_mib(workers.memory or 0)} MiB may be used before Dask spills."
    )


def _advise_mib(need: int, workers: Workers) -> str:
    """Return the MiB of a worker that is large enough for `need` bytes."""
    return format_mib(_advise_bytes(need, workers))


def _advise_bytes(need: int, workers: Workers) -> int:
    """Return the size of a worker that is large enough for `need` bytes."""
    step = ADVISED_MEMORY_STEP_BYTES
    return math.ceil(ADVISED_MEMORY_MARGIN * need / workers.share / step) * step


def _has_plan(problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers) -> bool:
    """Return whether any plan fits the workers."""
    return any(
        _fits(plan, problem, spec, workers)
        for plan in _iter_candidates(problem, spec, run_spec, workers)
    )


def _find_largest(below: int, fits: Callable[[int], bool]) -> int | None:
    """Return the largest value below another that fits, or None; a SpecError means it does not."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        try:
            is_fitting = fits(middle)
        except SpecError:
            is_fitting = False
        low, high = (middle, high) if is_fitting else (low, middle)
    return low or None
