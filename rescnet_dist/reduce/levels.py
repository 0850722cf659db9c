"""The shape of the tree in which accumulators are merged."""

from __future__ import annotations

import math


def count_levels(accumulators: int, split_every: int) -> list[int]:
    """Return how many accumulators each level of a tree has, from the folds to the last one.

    >>> count_levels(9, 4)
    [9, 3, 1]
    """
    counts = [accumulators]
    while counts[-1] > 1:
        counts.append(math.ceil(counts[-1] / split_every))
    return counts
