"""Making a plan: chunks, accumulators and tiles that fit the workers' memory, or a refusal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile

from rescnet_dist.cluster.workers import Workers
from rescnet_dist.errors import ClusterError, SpecError
from rescnet_dist.formatting import format_bytes, format_mib
from rescnet_dist.kernels import Backend, check_gpu_holds
from rescnet_dist.planning.plan import Plan
from rescnet_dist.planning.requirements import Problem, device_memory, peak_memory
from rescnet_dist.planning.tier import choose_tier
from rescnet_dist.spec import NetworkSpec, RunSpec

CHUNK_BYTES = 32 * 2**20  # of maps and images in float32
GPU_CHUNK_BYTES = 4096 * 2**20  # of the same on a GPU: enough to keep all of it busy
SMALLER = 4  # times, that such chunks may be, if maps then fit the GPU's memory
GOOD_CHUNK = 16  # images: with fewer, the product of features with themselves is slow
GROUPS_PER_SLOT = 4  # so that a worker that dies costs a quarter of what it would have done
FEW_CHUNKS = 16  # per slot: below, one more for some of them would be felt
CHUNKS_PER_GROUP = 4  # at least, where there are several groups per slot
MARGIN = 1.05  # on what is advised, as workers grow a little by themselves
STEP = 16 * 2**20  # that advised sizes of workers are rounded up to
TILES = (*range(4096, 0, -256), 128, 64)  # sides of tiles, as large as memory allows


def make_plan(problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers) -> Plan:
    """The plan for training on the images of `problem` with these workers, in their memory.

    What the run spec sets is taken from there. Else chunks are as large, accumulators as many and
    the scatter matrix as whole as fit. What does not fit is refused, with a value that would.
    """
    if (backend := Backend.of(run_spec)).on_gpu:
        check_gpu_holds(spec, problem.image_shape, backend.matmul_precision)
    candidates = _candidates(problem, spec, run_spec, workers)
    fitting = (plan for plan in candidates if _fits(plan, problem, spec, workers))
    best = next(fitting, None)
    if best is None:
        raise SpecError(_refusal(problem, spec, run_spec, workers))
    if workers.gpu_memory is None:
        return best
    # chunks of half or a quarter the size cost less than features that are made twice, and those
    # less than maps that go through the store
    nearly = takewhile(lambda plan: SMALLER * plan.chunk_images >= best.chunk_images, fitting)
    plans = [best, *nearly]
    tiers = [choose_tier(problem, spec, run_spec, plan, workers) for plan in plans]
    rank = [(tier.in_memory, tier.features) for tier in tiers]
    return plans[rank.index(max(rank))]


def check_fits(plan: Plan, problem: Problem, spec: NetworkSpec, workers: Workers) -> None:
    """Refuse workers that are too small for the plan that a run has begun with, and keeps."""
    if _fits(plan, problem, spec, workers):
        return
    if shortage := _gpu_shortage(problem, spec, plan, workers):
        raise ClusterError(
            f"the run goes on with the plan that it began with: {shortage}: give fewer workers to "
            "each GPU, or use larger GPUs, then resume the run"
        )
    need = peak_memory(problem, spec, plan, workers)
    fewer = ", or of fewer threads" if workers.threads > 1 else ""
    raise ClusterError(
        "the run goes on with the plan that it began with, and these workers are too small for "
        f"it: {_shortage(need, workers)}: use workers of at least {_advised(need, workers)} MiB"
        f"{fewer}, then resume the run"
    )


def _fits(plan: Plan, problem: Problem, spec: NetworkSpec, workers: Workers) -> bool:
    gpu = workers.gpu_budget
    if gpu is not None and device_memory(problem, spec, plan) > gpu:
        return False
    return workers.budget is None or peak_memory(problem, spec, plan, workers) <= workers.budget


def _candidates(
    problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers
) -> Iterator[Plan]:
    """Plans from the best to the least demanding one: ever smaller chunks, then ever smaller tiles
    of the scatter matrix; chunks of less than `GOOD_CHUNK` images only as the last resort."""
    if workers.gpu_memory is not None:
        yield from _gpu_candidates(problem, spec, run_spec, workers)
        return
    most = min(
        max(1, CHUNK_BYTES // problem.map_bytes(spec)),
        math.ceil(problem.images / (2 * workers.slots)),
    )
    chunks = math.ceil(problem.images / most)
    if chunks < FEW_CHUNKS * workers.slots:  # as many for each, or some would wait for others
        most = math.ceil(problem.images / (math.ceil(chunks / workers.slots) * workers.slots))
    sizes = [run_spec.chunk_images or most]
    while not run_spec.chunk_images and sizes[-1] > 1:
        sizes.append(math.ceil(sizes[-1] / 2))
    good = [size for size in sizes if size >= min(GOOD_CHUNK, sizes[0])]
    sides = [side for side in TILES if side < problem.features(spec)]
    ways: list[tuple[int, int | None]]
    if run_spec.tile_features:
        ways = [(size, run_spec.tile_features) for size in sizes]
    else:
        ways = [(size, None) for size in good]
        ways += [(size, side) for side in sides for size in good]
        ways += [(size, side) for size in sizes[len(good) :] for side in (None, *sides[-1:])]
    for size, side in ways:
        chunks = math.ceil(problem.images / size)
        for per_slot in (GROUPS_PER_SLOT, 1):
            groups = per_slot * workers.slots
            if per_slot > 1 and (side or chunks < groups * CHUNKS_PER_GROUP):
                continue
            yield Plan(
                images=problem.images,
                chunk_images=size,
                accumulators=min(run_spec.accumulators or groups, chunks),
                split_every=run_spec.split_every,
                solve_threads=run_spec.solve_threads or workers.machine_threads,
                tile_features=side,
            )


def _gpu_candidates(
    problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers
) -> Iterator[Plan]:
    """Plans for workers with a GPU each: chunks as large as are worked on at a time, or ever
    smaller ones, and an accumulator for each worker, as there is no other thread to wait for."""
    each = math.ceil(problem.images / workers.count)
    parts = math.ceil(each / max(1, GPU_CHUNK_BYTES // problem.map_bytes(spec)))
    sizes = [run_spec.chunk_images or math.ceil(each / parts)]
    while not run_spec.chunk_images and sizes[-1] > GOOD_CHUNK:
        sizes.append(math.ceil(sizes[-1] / 2))
    for size in sizes:
        chunks = math.ceil(problem.images / size)
        yield Plan(
            images=problem.images,
            chunk_images=size,
            accumulators=min(run_spec.accumulators or workers.count, chunks),
            split_every=run_spec.split_every,
            solve_threads=run_spec.solve_threads or 1,  # what is left to it is small
        )


def _refusal(problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers) -> str:
    """What does not fit, why, and a value that would."""
    smallest = min(
        _candidates(problem, spec, run_spec, workers),
        key=lambda plan: peak_memory(problem, spec, plan, workers),
    )
    need, remedies = peak_memory(problem, spec, smallest, workers), []
    # what is advised fits for certain
    memory = None if workers.memory is None else int(workers.memory / MARGIN)
    cautious = replace(workers, memory=memory)
    for name in ("chunk_images", "accumulators", "tile_features"):
        value = getattr(run_spec, name)
        if value is None:
            continue

        def run_fits(smaller: int, name: str = name) -> bool:
            return _any_fits(problem, spec, run_spec.replace(**{name: smaller}), cautious)

        if fitting := _largest(value, run_fits):
            remedies.append(f"replace {name}={value} by {name} of at most {fitting}")
        elif _any_fits(problem, spec, run_spec.replace(**{name: None}), cautious):
            remedies.append(f"leave {name}={value} out, which is then planned")
    if not remedies:

        def network_fits(filters: int) -> bool:
            return _any_fits(problem, spec.replace(filters=filters), run_spec, cautious)

        if fitting := _largest(spec.filters, network_fits):
            remedies.append(f"replace filters={spec.filters} by filters of at most {fitting}")
    if shortage := _gpu_shortage(problem, spec, smallest, workers):
        fewer = "fewer workers to each GPU, or " if workers.count > 1 else ""
        return f"{shortage}: {', or '.join([*remedies, f'give {fewer}larger GPUs'])}"
    remedies.append(f"use workers of at least {_advised(need, workers)} MiB")
    return f"{_shortage(need, workers)}: {', or '.join(remedies)}"


def _gpu_shortage(problem: Problem, spec: NetworkSpec, plan: Plan, workers: Workers) -> str:
    """What does not fit on the GPUs; nothing where it does."""
    need = device_memory(problem, spec, plan)
    if workers.gpu_budget is None or need <= workers.gpu_budget:
        return ""
    return (
        f"the run needs {format_bytes(need)} of a GPU, and {format_bytes(workers.gpu_budget)} may be "
        "used of that of each worker"
    )


def _shortage(need: int, workers: Workers) -> str:
    return (
        f"the run needs {format_mib(need)} MiB of memory per worker, and "
        f"{format_mib(workers.budget or 0)} MiB of each worker's "
        f"{format_mib(workers.memory or 0)} MiB may be used before Dask spills"
    )


def _advised(need: int, workers: Workers) -> str:
    """MiB of a worker that is large enough."""
    return format_mib(math.ceil(MARGIN * need / workers.share / STEP) * STEP)


def _any_fits(problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers) -> bool:
    return any(
        _fits(plan, problem, spec, workers)
        for plan in _candidates(problem, spec, run_spec, workers)
    )


def _largest(below: int, fits: Callable[[int], bool]) -> int | None:
    """The largest value below another that fits, or None; those a spec refuses do not."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        try:
            good = fits(middle)
        except SpecError:
            good = False
        low, high = (middle, high) if good else (low, middle)
    return low or None
