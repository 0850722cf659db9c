"""Making a plan: chunks, accumulators and tiles that fit the workers' memory, or a refusal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from rescnet_dist.cluster.workers import Workers
from rescnet_dist.errors import SpecError
from rescnet_dist.planning.needs import Problem, peak_memory
from rescnet_dist.planning.plan import Plan
from rescnet_dist.spec import NetworkSpec, RunSpec

CHUNK_BYTES = 32 * 2**20  # of maps and images in float32
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
    for plan in _candidates(problem, spec, run_spec, workers):
        if _fits(plan, problem, spec, workers):
            return plan
    raise SpecError(_refusal(problem, spec, run_spec, workers))


def _fits(plan: Plan, problem: Problem, spec: NetworkSpec, workers: Workers) -> bool:
    return workers.budget is None or peak_memory(problem, spec, plan, workers) <= workers.budget


def _candidates(
    problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers
) -> Iterator[Plan]:
    """Plans from the best to the least demanding one: ever smaller chunks, then ever smaller tiles
    of the scatter matrix; chunks of less than `GOOD_CHUNK` images only as the last resort."""
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


def _refusal(problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers) -> str:
    """What does not fit, why, and a value that would."""
    smallest = min(
        _candidates(problem, spec, run_spec, workers),
        key=lambda plan: peak_memory(problem, spec, plan, workers),
    )
    need, budget = peak_memory(problem, spec, smallest, workers), workers.budget or 0
    memory, remedies = workers.memory or 0, []
    cautious = replace(workers, memory=int(memory / MARGIN))  # what is advised fits for certain
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
    wanted = math.ceil(MARGIN * need / workers.share / STEP) * STEP
    remedies.append(f"use workers of at least {_mib(wanted)} MiB")
    text = (
        f"the run needs {_mib(need)} MiB of memory per worker, and {_mib(budget)} MiB of each "
        f"worker's {_mib(memory)} MiB may be used before Dask spills: "
    )
    return text + ", or ".join(remedies)


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


def _mib(size: float) -> str:
    return f"{math.ceil(size / 2**20):,}"
