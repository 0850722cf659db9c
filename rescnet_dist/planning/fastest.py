"""Choice of tiles of the scatter matrix by measured rates: where they are faster than one solve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rescnet_dist.errors import SpecError, WorkersTooSmallError
from rescnet_dist.planning.choose import make_plan
from rescnet_dist.planning.plan import Plan
from rescnet_dist.planning.requirements import Problem
from rescnet_dist.planning.speed import Speed
from rescnet_dist.planning.tier import choose_tier
from rescnet_dist.spec import NetworkSpec, RunSpec

if TYPE_CHECKING:
    from rescnet_dist.cluster.workers import Workers

SIDES = (4096, 2048, 1024, 512)  # of tiles, in features; smaller ones are slow and too many
MIN_GAIN = 1.25  # factor by which tiles must be faster, as estimates are rough


def choose_fastest(
    plan: Plan,
    problem: Problem,
    spec: NetworkSpec,
    run_spec: RunSpec,
    workers: Workers,
    speed: Speed,
) -> Plan:
    """Return a plan in tiles if it is clearly faster than this one, otherwise this one.

    One worker factorizes a matrix that is kept whole, in single precision on all threads of its
    machine. Tiles are factorized by all workers, in double precision, and go through the store.
    """
    has_scatter = not (spec.head.iterative_solver or spec.head.fits_samples)
    if plan.tile_features or not has_scatter or workers.gpu_memory is not None:
        return plan

    def estimate_seconds(candidate: Plan) -> float:
        tier = choose_tier(problem, spec, run_spec, candidate, workers)
        rates = speed.with_threads(candidate.solve_threads)
        return rates.layer_seconds(problem, spec, candidate, workers, in_memory=tier.in_memory)

    tiled = []
    for side in SIDES:
        if side < problem.features(spec):
            try:
                tiled.append(
                    make_plan(problem, spec, run_spec.replace(tile_features=side), workers)
                )
            # it does not fit, or maps are to stay in memory
            except (SpecError, WorkersTooSmallError):
                continue
    fastest = min(tiled, key=estimate_seconds, default=plan)
    is_faster = MIN_GAIN * estimate_seconds(fastest) < estimate_seconds(plan)
    return fastest if is_faster else plan
