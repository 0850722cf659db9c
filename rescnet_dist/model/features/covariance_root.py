"""Square roots of correlation matrices: second-order features with equalized eigenvalues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rescnet_dist.kernels import feature_count
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.covariance_root import (
    ROOT_POOLS,
    covariance_root_bytes,
    covariance_root_features,
)
from rescnet_dist.model.components import FeatureExtractor, check_levels, check_side
from rescnet_dist.model.graph import OnnxGraph, ints
from rescnet_dist.model.pooling_graph import BlockGraph, signed_root
from rescnet_dist.options import option


@dataclass(frozen=True, slots=True)
class CovarianceRoot(FeatureExtractor):
    """Matrix square roots of the correlations of ReLU(maps) in blocks, pooled over cells."""

    name: ClassVar[str] = "covariance-root"
    prefix: ClassVar[str] = "root_"

    block: int = option(16, help="width and height of the pooling blocks, in pixels", low=2)
    stride: int = option(4, help="distance between pooling blocks, in pixels", low=1)
    steps: int = option(
        5,
        help="Newton-Schulz steps of the matrix square root",
        doc="Steps of the Newton–Schulz iteration for the matrix square root. With few steps, "
        "small eigenvalues have not converged and are shrunk.",
        low=1,
        high=20,
    )
    ridge: float = option(
        0.01, help="what is added to the diagonal of the correlation matrices", above=0
    )
    power: bool = option(True, help="replace each entry v of the roots by sign(v)·|v|^½")
    levels: tuple[int, ...] = option(
        (2, 1), help="cells per side at each level of the spatial pyramid, such as 2,1"
    )
    cells: Literal["center", "even"] = option(
        "center", help="assignment of blocks to pyramid cells: by block center, or in equal shares"
    )
    pools: Literal["both", "max", "mean"] = option(
        "both", help="pooling over the blocks of a cell: maximum, mean, or both"
    )

    def check(self) -> None:
        """Raise SpecError for a pyramid without levels."""
        check_levels(self.levels)

    def check_images(self, image_shape: tuple[int, int, int]) -> None:
        """Raise SpecError if a block is larger than the images."""
        check_side("block", self.block, image_shape)

    def count(self, height: int, width: int, towers: tuple[int, ...]) -> int:
        """Return the number of pairs of maps times that of pyramid cells and of pools."""
        pairs = feature_count(
            height,
            width,
            sum(towers),
            block=self.block,
            stride=self.stride,
            levels=self.levels,
            cells=self.cells,
            zscore="block",  # the diagonal is not constant
        )
        return len(ROOT_POOLS[self.pools]) * pairs

    def __call__(self, maps: Array, towers: tuple[int, ...]) -> Array:
        """Return the features (n, D) of maps (n, H, W, f); see `FeatureExtractor`."""
        return covariance_root_features(
            maps,
            self.block,
            self.stride,
            self.levels,
            cells=self.cells,
            pools=self.pools,
            steps=self.steps,
            ridge=self.ridge,
            power=self.power,
        )

    def workspace_bytes(self, images: int, height: int, width: int, towers: tuple[int, ...]) -> int:
        """Return the bytes of the pixels and matrices of some images' blocks."""
        return covariance_root_bytes(images, height, width, sum(towers), self.block, self.stride)

    def to_onnx(
        self, graph: OnnxGraph, maps: str, image_size: tuple[int, int], towers: tuple[int, ...]
    ) -> str:
        """Add the features (n, D) of maps (n, f, H, W); see `FeatureExtractor.to_onnx`."""
        add, filters = graph.add, sum(towers)
        blocks = BlockGraph(graph, *image_size, filters, self.block, self.stride)
        correlations = blocks.normalize(*blocks.covariances(maps), channelwise=True)
        entries = self._root_onnx(graph, correlations, filters)
        if self.power:
            entries = signed_root(graph, entries)
        row, column = np.triu_indices(filters)
        pooled = [
            add(
                "Gather",
                blocks.pool(entries, filters**2, self.levels, self.cells, pool),
                row * filters + column,
                axis=2,
            )
            for pool in ROOT_POOLS[self.pools]
        ]
        parts = [add("Unsqueeze", part, ints(2)) for part in pooled]
        return add("Flatten", add("Concat", *parts, axis=2), axis=1)

    def _root_onnx(self, graph: OnnxGraph, matrices: str, filters: int) -> str:
        """Add the square roots (n, R, Q, f, f) of matrices; see `kernels.newton_roots`."""
        add, identity = graph.add, np.eye(filters, dtype=np.float32)
        matrices = add("Add", matrices, np.float32(self.ridge) * identity)
        trace = add("ReduceSum", add("Mul", matrices, identity), ints(3, 4), keepdims=1)
        root, inverse = add("Div", matrices, trace), ""
        for _ in range(self.steps):
            product = add("MatMul", inverse, root) if inverse else root
            factor = add("Sub", np.float32(1.5) * identity, add("Mul", product, np.float32(0.5)))
            root = add("MatMul", root, factor)
            inverse = add("MatMul", factor, inverse) if inverse else factor
        return add("Mul", root, add("Sqrt", trace))
