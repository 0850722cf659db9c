"""Second-order pooling: covariances of the maps in blocks, pooled over a spatial pyramid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels import feature_count, second_order_features
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.pooling import second_order_bytes
from rescnet_dist.model.components import FeatureExtractor, check_levels, check_side
from rescnet_dist.model.graph import OnnxGraph, ints
from rescnet_dist.model.pooling_graph import BlockGraph, signed_root
from rescnet_dist.options import option


@dataclass(frozen=True, slots=True)
class SecondOrder(FeatureExtractor):
    """Z-scored covariances of ReLU(maps) in blocks of pixels, pooled over pyramid cells."""

    name: ClassVar[str] = "second-order"

    block: int = option(16, help="width and height of the pooling blocks, in pixels", low=2)
    stride: int = option(4, help="distance between pooling blocks, in pixels", low=1)
    zscore: Literal["channel", "block"] = option(
        "channel",
        help="normalization within a block: per channel, or of the whole block",
        doc="Normalization within a block: divide by the standard deviation of each channel, which "
        "gives correlations, or by that of the whole block.",
    )
    power: bool = option(False, help="replace each feature v by sign(v)·|v|^½")
    pairs: Literal["all", "tower"] = option(
        "all",
        help="pairs of maps whose covariance is a feature: all, or those within a tower",
        doc="Pairs of maps whose covariance is a feature: all, or only those within a tower (for "
        "`local_contrast`), which allows more filters at the same number of features.",
    )
    levels: tuple[int, ...] = option(
        (4, 2, 1), help="cells per side at each level of the spatial pyramid, such as 4,2,1"
    )
    cells: Literal["center", "even"] = option(
        "center",
        help="assignment of blocks to pyramid cells: by block center, or in equal shares",
        old_values={"centre": "center"},
    )
    pool: Literal["max", "mean"] = option("max", help="pooling over the blocks of a cell")

    def check(self) -> None:
        """Raise SpecError for a pyramid without levels."""
        check_levels(self.levels)

    def check_network(self, towers: tuple[int, ...]) -> None:
        """Raise SpecError if a tower has too few maps for a feature."""
        if self.pairs == "tower" and len(towers) < 2:
            raise SpecError(
                'pairs="tower" is for networks with two towers, but this network has one. Set '
                'local_contrast=True, or use pairs="all".'
            )
        groups = self._pooled_together(towers)
        if self.zscore == "channel" and min(groups) < 2:
            raise SpecError(
                f"filters={sum(towers)} leaves no feature "
                + ("of a tower " if self.pairs == "tower" else "")
                + 'with zscore="channel", which drops the diagonal. Use at least '
                f'{2 * len(groups)} filters, or zscore="block".'
            )

    def check_images(self, image_shape: tuple[int, int, int]) -> None:
        """Raise SpecError if a block is larger than the images."""
        check_side("block", self.block, image_shape)

    def count(self, height: int, width: int, towers: tuple[int, ...]) -> int:
        """Return the number of pairs of maps times that of pyramid cells."""
        return sum(
            feature_count(
                height,
                width,
                filters,
                block=self.block,
                stride=self.stride,
                levels=self.levels,
                cells=self.cells,
                zscore=self.zscore,
            )
            for filters in self._pooled_together(towers)
        )

    def __call__(self, maps: Array, towers: tuple[int, ...]) -> Array:
        """Return the features (n, D) of maps (n, H, W, f); see `FeatureExtractor`."""
        parts = [
            second_order_features(
                part,
                self.block,
                self.stride,
                self.levels,
                cells=self.cells,
                pool=self.pool,
                zscore=self.zscore,
                power=self.power,
            )
            for part in self._split_maps(maps, towers)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def workspace_bytes(self, images: int, height: int, width: int, towers: tuple[int, ...]) -> int:
        """Return the bytes of the buffers of an image on the CPU, whatever the number of images."""
        return second_order_bytes(
            height,
            width,
            max(self._pooled_together(towers)),
            block=self.block,
            stride=self.stride,
            levels=self.levels,
            cells=self.cells,
        )

    def to_onnx(
        self, graph: OnnxGraph, maps: str, image_size: tuple[int, int], towers: tuple[int, ...]
    ) -> str:
        """Add the features (n, D) of maps (n, f, H, W); see `FeatureExtractor.to_onnx`."""
        groups, parts = self._pooled_together(towers), []
        for start, stop in itertools.pairwise(itertools.accumulate(groups, initial=0)):
            part = maps
            if len(groups) > 1:
                part = graph.add("Slice", maps, ints(start), ints(stop), ints(1))
            parts.append(self._pool_onnx(graph, part, image_size, stop - start))
        return parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)

    def _pool_onnx(
        self, graph: OnnxGraph, maps: str, image_size: tuple[int, int], filters: int
    ) -> str:
        """Add the features (n, D') of maps (n, f', H, W) that are pooled together."""
        blocks = BlockGraph(graph, *image_size, filters, self.block, self.stride)
        channelwise = self.zscore == "channel"
        entries = blocks.normalize(*blocks.covariances(maps), channelwise=channelwise)
        power_first = self.power and self.pool == "mean"  # the maximum is of the same entry
        if power_first:
            entries = signed_root(graph, entries)
        pooled = blocks.pool(entries, filters**2, self.levels, self.cells, self.pool)
        row, column = np.triu_indices(filters, 1 if channelwise else 0)
        pooled = graph.add("Gather", pooled, row * filters + column, axis=2)
        if self.power and not power_first:
            pooled = signed_root(graph, pooled)
        return graph.add("Flatten", pooled, axis=1)

    def _pooled_together(self, towers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of maps that are pooled together: features are of their pairs."""
        return towers if self.pairs == "tower" else (sum(towers),)

    def _split_maps(self, maps: Array, towers: tuple[int, ...]) -> Iterator[Array]:
        """Yield the maps (n, H, W, f') that are pooled together."""
        groups = self._pooled_together(towers)
        if len(groups) == 1:
            yield maps
            return
        for start, stop in itertools.pairwise(itertools.accumulate(groups, initial=0)):
            yield maps[..., start:stop]
