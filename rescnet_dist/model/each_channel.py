"""Filters that are applied to each input channel, learned from the patches of all channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.components import FilterLearner
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.observation import Observation
from rescnet_dist.options import option

FILTER_COPIES = 3  # with their zeros: as fitted, centered, and in the bank


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """What a learner has gathered of each channel; `pool` merges it once all are normalized.

    Attributes
    ----------
    channels : tuple of Statistics
        The statistics of each channel.
    """

    channels: tuple[Any, ...]

    def merge(self, other: ChannelStatistics) -> ChannelStatistics:
        """Return the statistics of both sets of images."""
        pairs = zip(self.channels, other.channels, strict=True)
        return ChannelStatistics(tuple(one.merge(two) for one, two in pairs))

    def rescale(self, low: Array, scale: Array) -> ChannelStatistics:
        """Return the statistics of (input − low)·scale."""
        ranges = zip(low[:, None], scale[:, None], self.channels, strict=True)
        return ChannelStatistics(tuple(own.rescale(*pair) for *pair, own in ranges))

    def pool(self) -> Any:
        """Return the statistics of the patches of all channels together."""
        return reduce(lambda one, two: one.merge(two), self.channels)


@dataclass(frozen=True, slots=True)
class EachChannel(FilterLearner):
    """Fits the filters of another learner once for all channels of a group.

    The maps of a channel are next to each other: those of the first channel, then those of the
    second. A filter of the group sees its own channel; the others have zeros.
    """

    learner: FilterLearner = option(help="what fits the filters")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the learner."""
        return self.learner.name

    @property
    def label(self) -> str:  # type: ignore[override]
        """What pictures of the filters are called."""
        return self.learner.label

    def check_group(self, group: FilterGroup) -> None:
        """Raise SpecError if the learner cannot fit filters for each of the channels."""
        self.learner.check_group(group.each_channel()[0])

    def empty(self, group: FilterGroup) -> ChannelStatistics:
        """Return the statistics of no image."""
        return self._gather(group, self.learner.empty)

    def observe(self, chunk: Observation, group: FilterGroup) -> ChannelStatistics:
        """Return what the learner gathers of each channel of a chunk."""
        return self._gather(group, lambda own: self.learner.observe(chunk, own))

    def _gather(self, group: FilterGroup, gather: Callable[[FilterGroup], Any]) -> Any:
        """Return the statistics of the group of each channel."""
        return ChannelStatistics(tuple(map(gather, group.each_channel())))

    def fit(self, statistics: ChannelStatistics, group: FilterGroup) -> tuple[Array, Array]:
        """Return filters (k, k, c, count) that see one channel each, and biases (count,)."""
        total, own = len(group.channels), group.each_channel()[0]
        fitted, bias = self.learner.fit(statistics.pool(), own)
        filters = np.zeros((group.size, group.size, total, group.count))
        for index in range(total):
            filters[:, :, index, index * own.count : (index + 1) * own.count] = fitted[:, :, 0]
        return filters, np.tile(bias, total)

    def statistics_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of the statistics of all channels."""
        return sum(map(self.learner.statistics_bytes, group.each_channel()))

    def workspace_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of all copies of the statistics of all channels, and of the filters."""
        filters = FILTER_COPIES * 8 * group.directions * group.count
        return filters + sum(map(self.learner.workspace_bytes, group.each_channel()))
