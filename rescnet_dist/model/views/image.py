"""The images themselves, whose pixels `ImageScale` normalizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.graph import OnnxGraph
from rescnet_dist.model.view import View, ViewArrays


@dataclass(frozen=True, slots=True)
class Image(View):
    """The pixels of the images, from 0 to 1 over the training set."""

    name: ClassVar[str] = "image"
    uses_image_scale: ClassVar[bool] = True

    def __call__(self, images: Array, known: ViewArrays) -> Array:
        """Return the images (n, H, W, d) in float32."""
        return images.astype(np.float32, copy=False)

    def to_onnx(
        self, graph: OnnxGraph, images: str, known: ViewArrays, image_shape: tuple[int, int, int]
    ) -> str:
        """Return the images unchanged."""
        return images
