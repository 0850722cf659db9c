"""Global contrast: images of mean 0 and of a standard deviation of about 1 each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rescnet_dist.kernels import global_contrast
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.graph import DOUBLE, FLOAT, OnnxGraph, ints
from rescnet_dist.model.view import PixelRange, View, ViewArrays
from rescnet_dist.options import option

DEFAULT_FLOOR_FRACTION = 0.0124  # √10 / 255, with which Coates and Ng (2012) normalize


@dataclass(frozen=True, slots=True)
class GlobalContrast(View):
    """Images less their mean, divided by their standard deviation over pixels and channels."""

    name: ClassVar[str] = "gcn"
    prefix: ClassVar[str] = "gcn_"
    arrays: ClassVar[dict[str, tuple[str, ...]]] = {"value_range": ()}
    copies: ClassVar[int] = 4

    floor: float = option(
        DEFAULT_FLOOR_FRACTION,
        help="standard deviation of noise in gcn, as a fraction of the range of pixel values",
        doc="Standard deviation of noise, as a fraction of the range of pixel values; its square "
        "is added to the variance of an image. The default is that of Coates and Ng, √10 of 255.",
        above=0,
    )

    @property
    def passes(self) -> int:
        """One, for the range of pixel values."""
        return 1

    def empty(
        self, image_shape: tuple[int, int, int], known: ViewArrays, xp: Any = np
    ) -> PixelRange:
        """Return the range of no image."""
        return PixelRange.empty(image_shape[2])

    def observe(
        self,
        statistics: PixelRange,
        images: Array,
        known: ViewArrays,
        weights: Array | None = None,
    ) -> PixelRange:
        """Return the range with that of more images."""
        return statistics.merge(PixelRange.of(images))

    def fit(self, statistics: PixelRange, known: ViewArrays) -> dict[str, Array]:
        """Return the width of the range."""
        return {"value_range": np.array(statistics.width)}

    def untrained(self, image_shape: tuple[int, int, int]) -> dict[str, Array]:
        """Return the range of pixels of 8 bits."""
        return {"value_range": np.array(255.0)}

    def __call__(self, images: Array, known: ViewArrays) -> Array:
        """Return the global contrast (n, H, W, d) of images (n, H, W, d)."""
        return global_contrast(images, float(known["value_range"]), self.floor)

    def fitted_bytes(self, image_shape: tuple[int, int, int]) -> int:
        """Return the bytes of the range."""
        return 8

    def to_onnx(
        self, graph: OnnxGraph, images: str, known: ViewArrays, image_shape: tuple[int, int, int]
    ) -> str:
        """Add what `global_contrast` computes."""
        return add_global_contrast(graph, images, float(known["value_range"]), self.floor)


def add_global_contrast(graph: OnnxGraph, images: str, value_range: float, floor: float) -> str:
    """Add the global contrast of images (n, d, H, W); see `kernels.global_contrast`."""
    add, axes = graph.add, ints(1, 2, 3)
    pixels = add("Mul", images, np.float32(1 / value_range))
    mean = add("ReduceMean", add("Cast", pixels, to=DOUBLE), axes, keepdims=1)
    pixels = add("Sub", pixels, add("Cast", mean, to=FLOAT))
    squares = add("Cast", add("Mul", pixels, pixels), to=DOUBLE)
    variance = add("Add", add("ReduceMean", squares, axes, keepdims=1), np.float64(floor**2))
    factor = add("Reciprocal", add("Cast", add("Sqrt", variance), to=FLOAT))
    return add("Mul", pixels, factor)
