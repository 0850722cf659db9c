"""Local contrast: pixels relative to their surroundings, independent of the lighting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rescnet_dist.kernels import local_contrast
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.contrast import ROUNDING_FRACTION, blur_matrix
from rescnet_dist.model.graph import DOUBLE, FLOAT, OnnxGraph, ints
from rescnet_dist.model.view import View, ViewArrays
from rescnet_dist.options import option


@dataclass(frozen=True, slots=True)
class Contrast(View):
    """The local contrast of the images, channel by channel, with a Gaussian window.

    It is a local contrast normalization, subtractive and divisive, as in Jarrett et al. (2009).
    """

    name: ClassVar[str] = "contrast"
    prefix: ClassVar[str] = "contrast_"
    copies: ClassVar[int] = 6

    sigma: float = option(
        2.0,
        help="standard deviation of the window of local contrast, in pixels",
        doc="Standard deviation of the Gaussian window, in pixels.",
        above=0,
    )
    floor: float = option(
        0.25,
        help="fraction of the contrast of an image that is added to its local contrast",
        doc="Fraction of the contrast of the whole image that the local deviation is increased by, "
        "so that noise in flat regions is not amplified.",
        above=0,
    )

    def __call__(self, images: Array, known: ViewArrays) -> Array:
        """Return the local contrast (n, H, W, d) of images (n, H, W, d)."""
        return local_contrast(images, self.sigma, self.floor)

    def to_onnx(
        self, graph: OnnxGraph, images: str, known: ViewArrays, image_shape: tuple[int, int, int]
    ) -> str:
        """Add what `local_contrast` computes."""
        add, axes, (height, width, _) = graph.add, ints(2, 3), image_shape
        largest = add("ReduceMax", add("Abs", images), axes, keepdims=1)
        mean = add("ReduceMean", add("Cast", images, to=DOUBLE), axes, keepdims=1)
        pixels = add("Sub", images, add("Cast", mean, to=FLOAT))
        amplitude = add("ReduceMax", add("Abs", pixels), axes, keepdims=1)
        varies = add("Greater", amplitude, add("Mul", largest, np.float32(ROUNDING_FRACTION)))
        inverse = add("Reciprocal", add("Where", varies, amplitude, np.float32(1)))
        pixels = add("Mul", pixels, add("Where", varies, inverse, np.float32(0)))
        down = blur_matrix(height, self.sigma)
        across = np.ascontiguousarray(blur_matrix(width, self.sigma).T)

        def blur(values: str) -> str:
            return add("MatMul", add("MatMul", down, values), across)

        pixels = add("Sub", pixels, blur(pixels))
        squares = add("Mul", pixels, pixels)
        overall = add("Sqrt", add("ReduceMean", squares, axes, keepdims=1))
        floor = add("Mul", overall, np.float32(self.floor))
        deviation = add("Add", add("Sqrt", blur(squares)), floor)
        return add("Div", pixels, add("Where", varies, deviation, np.float32(1)))
