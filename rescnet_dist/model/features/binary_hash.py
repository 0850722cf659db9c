"""Binary hashing: histograms of codes of the maps' signs in blocks, the output stage of PCANet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels import binary_hash_features
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.binary_hash import count_dtype, histogram_cells
from rescnet_dist.kernels.gpu_tiles import HASH_SLAB_BYTES, hash_image_bytes
from rescnet_dist.model.components import FeatureExtractor, check_side
from rescnet_dist.model.graph import OnnxGraph, ints
from rescnet_dist.model.pooling_graph import BlockGraph
from rescnet_dist.options import option

INT64 = 7  # ONNX's number of the data type


@dataclass(frozen=True, slots=True)
class BinaryHash(FeatureExtractor):
    """Histograms of the binary codes of groups of maps in blocks of pixels, as in PCANet."""

    name: ClassVar[str] = "binary-hash"
    prefix: ClassVar[str] = "hash_"

    bits: int = option(
        8,
        help="maps whose signs make a code",
        doc="Number of maps whose signs make a code; a histogram has 2^bits counts.",
        low=1,
        high=12,
    )
    block: int = option(
        8, help="width and height of the blocks of a histogram, in pixels", low=1, high=255
    )
    stride: int = option(4, help="distance between blocks of histograms, in pixels", low=1)
    levels: tuple[int, ...] = option(
        (),
        help="cells per side at each level of a spatial pyramid; none: histograms of all blocks",
        doc="Cells per side at each level of a spatial pyramid, over which histograms are pooled. "
        "Without levels, the histograms of all blocks are features.",
    )
    cells: Literal["center", "even"] = option(
        "center", help="assignment of blocks to pyramid cells: by block center, or in equal shares"
    )
    pool: Literal["max", "sum"] = option(
        "max", help="pooling of the histograms of the blocks of a pyramid cell"
    )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type of integers that holds the counts."""
        return count_dtype(self.block, self.pool)

    def check(self) -> None:
        """Raise SpecError for a level without cells, or options of a pyramid without levels."""
        if self.levels and min(self.levels) < 1:
            raise SpecError(
                f"levels={self.levels!r} is not valid. Give levels of at least 1, or none."
            )
        for name in ("cells", "pool"):
            value = getattr(self, name)
            if not self.levels and value != self.__options__[name].default:
                raise SpecError(
                    f"{name}={value!r} has no effect without the levels of a pyramid. Leave it "
                    "out, or give levels such as (4, 2, 1)."
                )

    def check_network(self, towers: tuple[int, ...]) -> None:
        """Raise SpecError if maps are left over after the last code."""
        filters = sum(towers)
        if filters % self.bits:
            below = filters - filters % self.bits
            few = f"{below} or " if below else ""
            raise SpecError(
                f"filters={filters} is not a multiple of {self.bits}, the number of maps whose "
                f"signs make a code of binary-hash. Use {few}{below + self.bits} filters, or "
                "another hash_bits."
            )

    def check_images(self, image_shape: tuple[int, int, int]) -> None:
        """Raise SpecError if a block is larger than the images."""
        check_side("hash_block", self.block, image_shape)

    def count(self, height: int, width: int, towers: tuple[int, ...]) -> int:
        """Return the number of histograms times that of their counts."""
        grid = height, width, self.block, self.stride, self.levels, self.cells
        return histogram_cells(*grid)[0] * (sum(towers) // self.bits) * 2**self.bits

    def __call__(self, maps: Array, towers: tuple[int, ...]) -> Array:
        """Return the features (n, D) of maps (n, H, W, f); see `FeatureExtractor`."""
        return binary_hash_features(
            maps,
            self.block,
            self.stride,
            self.levels,
            bits=self.bits,
            cells=self.cells,
            pool=self.pool,
        )

    def workspace_bytes(self, images: int, height: int, width: int, towers: tuple[int, ...]) -> int:
        """Return the bytes of the codes and counts of the images that are hashed at a time."""
        image_bytes = hash_image_bytes(height, width, sum(towers) // self.bits, self.bits)
        return min(images * image_bytes, max(image_bytes, HASH_SLAB_BYTES))

    def to_onnx(
        self, graph: OnnxGraph, maps: str, image_size: tuple[int, int], towers: tuple[int, ...]
    ) -> str:
        """Add the features (n, D) of maps (n, f, H, W); see `FeatureExtractor.to_onnx`.

        Counts are sums of ones, which are exact. A map that is rounded to the other side of 0 by
        another runtime gives another code.
        """
        add, (height, width), groups = graph.add, image_size, sum(towers) // self.bits
        blocks = BlockGraph(graph, height, width, sum(towers), self.block, self.stride)
        bins, size = ints(2**self.bits), groups * 2**self.bits
        codes = self._hash_onnx(graph, maps, image_size, groups)
        counts = add("OneHot", codes, bins, np.array([0, 1], np.float32))
        counts = add("Reshape", counts, ints(0, height, width * size))
        counts = add("MatMul", blocks.pixels_of_blocks(height), counts)
        counts = add("Reshape", counts, ints(0, blocks.rows, width, size))
        counts = add("MatMul", blocks.pixels_of_blocks(width), counts)
        if self.levels:
            counts = blocks.pool(counts, size, self.levels, self.cells, self.pool)
        return add("Flatten", counts, axis=1)

    def _hash_onnx(
        self, graph: OnnxGraph, maps: str, image_size: tuple[int, int], groups: int
    ) -> str:
        """Add the codes (n, H, W, groups) of maps (n, f, H, W), in int64."""
        add = graph.add
        positive = add("Greater", maps, np.float32(0))
        digits = add("Where", positive, np.float32(1), np.float32(0))
        digits = add("Transpose", digits, perm=[0, 2, 3, 1])
        digits = add("Reshape", digits, ints(0, *image_size, groups, self.bits))
        values = 2.0 ** np.arange(self.bits - 1, -1, -1)
        return add("Cast", add("MatMul", digits, values.astype(np.float32)), to=INT64)
