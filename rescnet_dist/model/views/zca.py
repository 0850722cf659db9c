"""ZCA of whole images: their pixels decorrelated, as similar to the images as possible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels import FeatureMoments, global_contrast, to_host
from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module
from rescnet_dist.model.graph import OnnxGraph, ints
from rescnet_dist.model.view import PixelRange, View, ViewArrays
from rescnet_dist.model.views.global_contrast import (
    DEFAULT_FLOOR_FRACTION,
    add_global_contrast,
)
from rescnet_dist.options import option

MAX_IMAGE_VALUES = 12_288  # of 64×64×3, whose matrix has 604 MB


@dataclass(frozen=True, slots=True)
class ZCA(View):
    """Images whose values are uncorrelated over the training set, after their global contrast."""

    name: ClassVar[str] = "zca"
    prefix: ClassVar[str] = "zca_"
    arrays: ClassVar[dict[str, tuple[str, ...]]] = {
        "value_range": (),
        "mean": ("image_value",),
        "matrix": ("image_value", "whitened_value"),
    }
    copies: ClassVar[int] = 5

    ridge: float = option(
        0.1,
        help="ridge of the covariance of images in ZCA, relative to its mean eigenvalue",
        doc="Ridge of the covariance of the images, relative to its mean eigenvalue. Directions of "
        "less variance, which are noise, are not amplified to a variance of 1.",
        above=0,
    )
    gcn: bool = option(True, help="take the global contrast of images before their ZCA")
    floor: float = option(
        DEFAULT_FLOOR_FRACTION,
        help="standard deviation of noise in that contrast, as a fraction of the pixel range",
        doc="Standard deviation of noise in the global contrast, as of the view `gcn`.",
        above=0,
    )

    @property
    def passes(self) -> int:
        """One for the covariance, after one for the range that the global contrast needs."""
        return 1 + self.gcn

    def check_images(self, image_shape: tuple[int, int, int]) -> None:
        """Raise SpecError if the matrix would be too large."""
        if (values := math.prod(image_shape)) > MAX_IMAGE_VALUES:
            shape = "×".join(map(str, image_shape))
            raise SpecError(
                f"The view zca of images of {shape} needs a matrix of {values:,}×{values:,} values "
                f"({4 * values**2 / 1e9:.1f} GB), and at most {MAX_IMAGE_VALUES:,} are allowed. "
                "Use smaller images, or the view gcn or contrast."
            )

    def empty(self, image_shape: tuple[int, int, int], known: ViewArrays, xp: Any = np) -> Any:
        """Return the range, or the moments, of no image."""
        if self.gcn and not known:
            return PixelRange.empty(image_shape[2])
        return FeatureMoments.empty(math.prod(image_shape), 0, xp=xp)

    def observe(
        self, statistics: Any, images: Array, known: ViewArrays, weights: Array | None = None
    ) -> Any:
        """Return the range, or the moments, with those of more images."""
        if isinstance(statistics, PixelRange):
            return statistics.merge(PixelRange.of(images))
        targets = get_array_module(images).zeros((len(images), 0), np.float32)
        return statistics.fold(self._flatten(images, known), targets, weights)

    def fit(self, statistics: Any, known: ViewArrays) -> dict[str, Array]:
        """Return the width of the range, or all arrays."""
        if isinstance(statistics, PixelRange):
            return {"value_range": np.array(statistics.width)}
        scatter = statistics.scatter
        xp = get_array_module(scatter)
        values, vectors = xp.linalg.eigh(scatter.astype(np.float64) / statistics.count, UPLO="L")
        values = np.maximum(values, 0)
        ridge = self.ridge * float(values.mean()) or 1.0  # of images that are all the same
        matrix = (vectors / np.sqrt(values + ridge)) @ vectors.T
        return {
            "value_range": known.get("value_range", np.array(1.0)),
            "mean": to_host(statistics.mean.astype(np.float32)),
            "matrix": to_host(matrix.astype(np.float32)),
        }

    def _flatten(self, images: Array, known: ViewArrays) -> Array:
        """Return images (n, H, W, d), or their global contrast, as rows (n, H·W·d) in float32."""
        pixels = images.astype(np.float32, copy=False)
        if self.gcn:
            pixels = global_contrast(images, float(known["value_range"]), self.floor)
        return pixels.reshape(len(images), math.prod(images.shape[1:]))

    def untrained(self, image_shape: tuple[int, int, int]) -> dict[str, Array]:
        """Return arrays that leave the values as they are."""
        values = math.prod(image_shape)
        matrix = np.eye(values, dtype=np.float32)
        mean = np.zeros(values, np.float32)
        return {"value_range": np.array(255.0), "mean": mean, "matrix": matrix}

    def __call__(self, images: Array, known: ViewArrays) -> Array:
        """Return the whitened images (n, H, W, d) of images (n, H, W, d)."""
        rows = self._flatten(images, known) - asarray_like(known["mean"], images)
        return (rows @ asarray_like(known["matrix"], images)).reshape(images.shape)

    def to_onnx(
        self, graph: OnnxGraph, images: str, known: ViewArrays, image_shape: tuple[int, int, int]
    ) -> str:
        """Add the product with the matrix, whose values are put in the order of the channels."""
        height, width, channels = image_shape
        numbers = np.arange(math.prod(image_shape)).reshape(image_shape)
        order = numbers.transpose(2, 0, 1).reshape(-1)  # of values (d, H, W)
        mean, matrix = to_host(known["mean"])[order], to_host(known["matrix"])[order][:, order]
        if self.gcn:
            images = add_global_contrast(graph, images, float(known["value_range"]), self.floor)
        rows = graph.add("Reshape", images, ints(-1, len(order)))
        rows = graph.add("MatMul", graph.add("Sub", rows, mean), matrix)
        return graph.add("Reshape", rows, ints(-1, channels, height, width))

    def fitted_bytes(self, image_shape: tuple[int, int, int]) -> int:
        """Return the bytes of the matrix and the mean."""
        values = math.prod(image_shape)
        return 4 * values * (values + 1) + 8

    def statistics_bytes(self, image_shape: tuple[int, int, int]) -> int:
        """Return the bytes of the scatter matrix and the mean."""
        values = math.prod(image_shape)
        return 4 * values**2 + 8 * values

    def workspace_bytes(self, image_shape: tuple[int, int, int]) -> int:
        """Return the bytes of the covariance, its eigenvectors and products of them."""
        return 6 * 8 * math.prod(image_shape) ** 2
