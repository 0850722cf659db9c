"""Memory, traffic and tasks of conjugate gradients over the features, by arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from rescnet_dist.kernels.cg import FEATURE_SLAB_BYTES, MIN_SLAB_ROWS
from rescnet_dist.model.architecture import Architecture
from rescnet_dist.planning.plan import Plan
from rescnet_dist.reduce import count_levels

# Largest number of copies at the same time.
CHUNK_COPIES = 3  # of the features of a chunk: as read, decompressed, and those of the next chunk
FEATURE_SLAB_COPIES = 2  # of a slab of features in float32
DIRECTION_COPIES = 5  # of directions and products in a task, in float64
STATE_COPIES = 12  # of weights, basis and directions in the last task and the fit, in float64
STATE_ARRAYS = 3  # weights, basis and directions
CHECKSUM_BYTES = 12  # as the driver gets them


@dataclass(frozen=True, slots=True)
class SolverCosts:
    """What a layer needs for conjugate gradients, in addition to its pass over the images.

    Attributes
    ----------
    task_bytes : int
        Memory of a task that multiplies features, beyond the features of its chunks.
    chunk_bytes : int
        Memory of the features of a task's chunks.
    solve_bytes : int
        Memory of the last task of an iteration.
    work : int
        Bytes of the work area, uncompressed.
    feature_reads : int
        Bytes of features that are read from the store, if they do not stay in memory.
    read, written : int
        Other bytes that are read from the store, and all that are written to it.
    network : int
        Bytes that are sent between workers.
    driver : int
        Bytes of checksums that the driver receives.
    tasks : int
        Number of tasks.
    """

    task_bytes: int
    chunk_bytes: int
    solve_bytes: int
    work: int
    feature_reads: int
    read: int
    written: int
    network: int
    driver: int
    tasks: int

    @classmethod
    def of(cls, architecture: Architecture, plan: Plan) -> SolverCosts | None:
        """Return what a network needs if all iterations are done; None if its head is exact."""
        if not (solver := architecture.head.iterative_solver):
            return None
        features, targets, n = architecture.features, architecture.targets, plan.images
        iterations, groups = solver.iterations, plan.accumulators
        row_bytes = features * architecture.feature_dtype.itemsize
        stored, weights = n * row_bytes, 8 * features * targets
        slab_rows = min(plan.chunk_images, max(MIN_SLAB_ROWS, FEATURE_SLAB_BYTES // (4 * features)))
        state = STATE_ARRAYS * weights
        return cls(
            task_bytes=DIRECTION_COPIES * weights + FEATURE_SLAB_COPIES * 4 * slab_rows * features,
            chunk_bytes=CHUNK_COPIES * plan.chunk_images * row_bytes,
            solve_bytes=STATE_COPIES * weights,
            work=stored + 2 * state,
            feature_reads=iterations * stored,
            read=iterations * (groups * weights + state) + weights,
            written=stored + (1 + iterations) * state,
            network=iterations * (groups - 1) * weights,
            driver=CHECKSUM_BYTES * plan.chunks,
            tasks=iterations * (groups + count_merges(plan) + 1) + 4,
        )


def count_merges(plan: Plan) -> int:
    """Return the number of tasks that merge the accumulators of a pass."""
    return sum(count_levels(plan.accumulators, plan.split_every)[1:])
