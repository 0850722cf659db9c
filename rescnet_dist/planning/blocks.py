"""Memory, traffic and tasks of block coordinate descent over the features, by arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rescnet_dist.model.architecture import Architecture
from rescnet_dist.planning.plan import Plan

SPAN_BYTES = 32 * 2**20  # of a block of features in float32, read and converted at a time
# Largest number of copies at the same time.
BLOCK_COPIES = 4  # of the matrix of a block, in float32
SPAN_COPIES = 4  # of a span
PREDICTION_COPIES = 3  # of the predictions of a group, in float32: as read, updated and written
STEP_COPIES = 6  # of products, right-hand sides and weights of a block, in float64
WEIGHT_COPIES = 8  # of the weights of all features in the last fit, in float64
CHECKSUM_BYTES = 12  # as the driver gets and sends them


@dataclass(frozen=True, slots=True)
class BlockCosts:
    """What a layer needs for block coordinate descent, in addition to its pass over the images.

    Attributes
    ----------
    row_bytes : int
        Bytes of the features of an image in a block.
    task_bytes : int
        Memory of a task that works on a block.
    fit_bytes : int
        Memory of the last task, which fits the head.
    work : int
        Bytes of the work area, uncompressed.
    read, written : int
        Bytes that are read from and written to the store.
    network : int
        Bytes that are sent between workers.
    driver : int
        Bytes of checksums that the driver receives and sends.
    tasks : int
        Number of tasks.
    """

    row_bytes: int
    task_bytes: int
    fit_bytes: int
    work: int
    read: int
    written: int
    network: int
    driver: int
    tasks: int

    @classmethod
    def of(cls, architecture: Architecture, plan: Plan) -> BlockCosts | None:
        """Return what a network needs if all sweeps are done; None if its head is exact."""
        if not (solver := architecture.head.block_solver):
            return None
        features, targets, n = architecture.features, architecture.targets, plan.images
        width = min(solver.block_features, features)
        blocks, sweeps = math.ceil(features / width), solver.sweeps
        steps = sweeps * blocks
        stored = n * features * architecture.feature_dtype.itemsize
        factors, predictions = 4 * features * width, 4 * n * targets
        weights = 8 * features * targets
        group_images = math.ceil(plan.chunks / plan.accumulators) * plan.chunk_images
        group_predictions = PREDICTION_COPIES * 4 * min(n, group_images) * targets
        products = STEP_COPIES * 8 * width * targets
        return cls(
            row_bytes=width * architecture.feature_dtype.itemsize,
            task_bytes=BLOCK_COPIES * 4 * width**2
            + SPAN_COPIES * max(SPAN_BYTES, 4 * width)
            + group_predictions
            + products,
            fit_bytes=WEIGHT_COPIES * weights,
            work=stored + factors + 2 * predictions + 4 * weights,
            read=(1 + 2 * sweeps) * stored + sweeps * (factors + 4 * weights) + steps * predictions,
            written=stored + factors + (2 + sweeps) * weights + steps * predictions,
            network=steps * (plan.accumulators - 1) * 8 * width * targets,
            driver=CHECKSUM_BYTES * plan.chunks * (blocks + 2 * steps),
            tasks=blocks + steps * (plan.accumulators + count_merges(plan) + 1) + 1,
        )


def count_merges(plan: Plan) -> int:
    """Return the number of tasks that merge the accumulators of a pass."""
    merges, partials = 0, plan.accumulators
    while partials > 1:
        partials = math.ceil(partials / plan.split_every)
        merges += partials
    return merges
