"""First-order pooling: means and maxima of the maps over a spatial pyramid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.first_order import (
    POOLS,
    cell_edges,
    first_order_count,
    first_order_features,
)
from rescnet_dist.model.components import FeatureExtractor, check_levels
from rescnet_dist.model.graph import OnnxGraph, ints
from rescnet_dist.model.pooling_graph import signed_root
from rescnet_dist.options import option


@dataclass(frozen=True, slots=True)
class FirstOrder(FeatureExtractor):
    """Mean and maximum of the rectified maps over the pixels of pyramid cells."""

    name: ClassVar[str] = "first-order"
    prefix: ClassVar[str] = "first_order_"

    activation: Literal["relu", "absolute", "soft-threshold", "none"] = option(
        "relu",
        help="what is pooled of a pixel of a map",
        doc="What is pooled of a pixel z of a map: max(0, z), |z|, z, or with `soft-threshold` "
        "both halves max(0, z − t) and max(0, −z − t), which gives twice as many features.",
    )
    threshold: float = option(
        0.0, help="threshold t of soft-threshold, in units of the maps", low=0
    )
    pools: Literal["both", "mean", "max"] = option(
        "both", help="pooling over the pixels of a cell: mean, maximum, or both"
    )
    levels: tuple[int, ...] = option(
        (2, 1), help="cells per side at each level of the spatial pyramid, such as 2,1"
    )
    power: bool = option(False, help="replace each feature v by sign(v)·|v|^½")

    def check(self) -> None:
        """Raise SpecError for a pyramid without levels, or a threshold that nothing reads."""
        check_levels(self.levels)
        if self.threshold and self.activation != "soft-threshold":
            raise SpecError(
                f"threshold={self.threshold} has no effect with activation={self.activation!r}. "
                'Leave it out, or use activation="soft-threshold".'
            )

    def check_images(self, image_shape: tuple[int, int, int]) -> None:
        """Raise SpecError if there are more cells than pixels along a side."""
        height, width, _ = image_shape
        if max(self.levels) > min(height, width):
            raise SpecError(
                f"levels={self.levels!r} of first-order features has more cells per side than "
                f"images of {height}×{width} have pixels. Use levels of at most "
                f"{min(height, width)}."
            )

    def count(self, height: int, width: int, towers: tuple[int, ...]) -> int:
        """Return the number of cells times that of pooled values and maps."""
        return first_order_count(sum(towers), self.levels, self.activation, self.pools)

    def __call__(self, maps: Array, towers: tuple[int, ...]) -> Array:
        """Return the features (n, D) of maps (n, H, W, f); see `FeatureExtractor`."""
        return first_order_features(
            maps,
            self.levels,
            activation=self.activation,
            threshold=self.threshold,
            pools=self.pools,
            power=self.power,
        )

    def workspace_bytes(self, images: int, height: int, width: int, towers: tuple[int, ...]) -> int:
        """Return the bytes of one row of pixels as it is pooled, zeros, sum, maximum and parts."""
        return 5 * 4 * images * width * sum(towers)

    def to_onnx(
        self, graph: OnnxGraph, maps: str, image_size: tuple[int, int], towers: tuple[int, ...]
    ) -> str:
        """Add the features (n, D) of maps (n, f, H, W); see `FeatureExtractor.to_onnx`."""
        add, (height, width) = graph.add, image_size
        active = self._activate_onnx(graph, maps)
        operators = {"mean": "ReduceMean", "max": "ReduceMax"}
        parts = []
        for level in self.levels:
            rows, columns = cell_edges(height, level), cell_edges(width, level)
            for row in range(level):
                for column in range(level):
                    first = ints(rows[row], columns[column])
                    last = ints(rows[row + 1], columns[column + 1])
                    cell = add("Slice", active, first, last, ints(2, 3))
                    parts += [
                        add(operators[pool], cell, ints(2, 3), keepdims=0)
                        for pool in POOLS[self.pools]
                    ]
        features = add("Concat", *parts, axis=1)
        return signed_root(graph, features) if self.power else features

    def _activate_onnx(self, graph: OnnxGraph, maps: str) -> str:
        """Add what is pooled of maps (n, f, H, W): (n, f, H, W), or (n, 2f, H, W) of two halves."""
        if self.activation == "none":
            return maps
        if self.activation == "absolute":
            return graph.add("Abs", maps)
        if self.activation == "soft-threshold":
            threshold = np.float32(self.threshold)
            upper = graph.add("Sub", maps, threshold)
            lower = graph.add("Sub", -threshold, maps)
            maps = graph.add("Concat", upper, lower, axis=1)
        return graph.add("Relu", maps)
