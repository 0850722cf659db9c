"""DCT filters: the basis of the discrete cosine transform of a patch, in zigzag order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.components import FilterLearner
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.observation import NoStatistics


@dataclass(frozen=True, slots=True)
class DCT(FilterLearner):
    """Orthonormal cosines over rows, columns and channels, from low to high frequency.

    They need no data. Filters are sorted by the sum of their three frequencies, then in zigzag
    order: by the frequency of the channels, of the rows and of the columns. Without the mean of
    each patch, those that are constant in a channel are left out.
    """

    label: ClassVar[str] = "DCT"
    name: ClassVar[str] = "dct"

    def max_filters(self, directions: int) -> int:
        """Return the number of cosines."""
        return directions

    def fit(self, statistics: NoStatistics, group: FilterGroup) -> tuple[Array, Array]:
        """Return the first cosines (k, k, c, count) and a bias (count,) of zero."""
        channels = len(group.channels)
        space, depth = _cosines(group.size), _cosines(channels)
        order = sorted(
            np.ndindex(group.size, group.size, channels), key=lambda uvw: (sum(uvw), uvw[2], *uvw)
        )
        if group.centered:
            order = [uvw for uvw in order if uvw[0] or uvw[1]]
        filters = [
            np.einsum("i,j,k->ijk", space[u], space[v], depth[w])
            for u, v, w in order[: group.count]
        ]
        return np.stack(filters, axis=3), np.zeros(group.count)


def _cosines(length: int) -> Array:
    """Return the orthonormal cosines (length, length), one per row."""
    return np.asarray(scipy.fft.dct(np.eye(length), norm="ortho", axis=0))
