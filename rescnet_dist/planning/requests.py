"""Requests to an object store in a layer, by arithmetic.

The numbers were counted at a proxy in front of an S3 server.
`tests/planning/test_estimated_requests.py` has them, and `tests/store/test_requests.py` compares
some with a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rescnet_dist.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of a layer that stores its maps, approximately.

    Attributes
    ----------
    gets : int
        Objects that are read.
    puts : int
        Objects that are written.
    """

    gets: int
    puts: int

    def plus(self, gets: int, puts: int) -> Requests:
        """Return the sum with other requests."""
        return Requests(self.gets + gets, self.puts + puts)


def count_requests(
    plan: Plan,
    features: int,
    *,
    in_memory: bool,
    is_stored: bool = True,
    iterations: int = 0,
    feature_reads: int = 0,
    feature_chunks: int = 1,
) -> Requests:
    """Return the requests of a layer.

    Each chunk of images, maps and scores is read and written once, unless maps stay in memory; each
    task reads the records and the small arrays that it needs. Those of the solve come on top, for
    tiles of the scatter matrix or for so many `iterations` over features, each chunk of which is
    read `feature_reads` times: in each iteration, or never if workers keep them. Features of a
    chunk of images are stored in `feature_chunks` chunks of columns.

    >>> plan = Plan(120, 12, 4, 2, 1)
    >>> count_requests(plan, 126, in_memory=False)
    Requests(gets=75, puts=42)
    """
    chunks, tasks = plan.chunks, plan.accumulators
    gets = 13 + 8 * tasks + 3 * chunks
    if in_memory:
        gets = 13 + 2 * tasks if is_stored else 9
    found = Requests(gets, 22 + 2 * chunks if is_stored else 20)
    if iterations:
        stored = chunks * feature_chunks
        reads = feature_reads * stored + iterations * (7 * tasks + 16)
        return found.plus(reads + tasks + 56, stored + 5 * iterations + 28)
    if not plan.tile_features:
        return found
    blocks = math.ceil(features / plan.tile_features)
    tiles = blocks * (blocks + 1) // 2
    factor_reads = sum((2 * j + 1) * (blocks - j) for j in range(blocks))
    reads = chunks * blocks * (blocks + 1) + factor_reads + 11 * tiles
    return found.plus(reads + tasks + 4, chunks * blocks + 2 * tiles + 6)
