"""Second-order pooling on the CPU: the features of a layer from its maps."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.loading import kernel


def pool_blocks(
    maps: Array,
    block: int,
    stride: int,
    targets: Array,
    parents: Array,
    channelwise: bool,
    power: bool,
    counts: Array | None,
    cells: int,
    pairs: int,
) -> Array:
    """Return the pooled covariances (n, cells·pairs) of maps (n, H, W, f)."""
    pooled = np.empty((len(maps), cells, pairs), maps.dtype)
    if not maps.flags.c_contiguous:
        maps = np.ascontiguousarray(maps)
    use_max = counts is None
    kernel("pool_blocks")(
        maps, block, stride, targets, parents, channelwise, power, use_max, pooled
    )
    if counts is not None:
        pooled /= counts.astype(maps.dtype)[:, None]
    return pooled.reshape(len(maps), cells * pairs)
