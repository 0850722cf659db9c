"""Arrays that begin where a vector of the processor may. The function is also compiled by Numba."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array


def aligned_zeros(count: int, lanes: int, like: Array) -> Array:
    """Return zeros (count,) of the type of `like`, whose address is a multiple of `lanes` of them.

    Vectors that are parts of two lines of the cache take twice as long.
    """
    buffer = np.zeros(count + lanes, like.dtype)
    skipped = -(buffer.ctypes.data // buffer.itemsize) % lanes
    return buffer[skipped : skipped + count]
