"""The parameters of augmented copies, from which the kernels of the CPU and the GPU make pixels."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rescnet_dist.kernels.arrays import Array

PADDINGS = ("zero", "edge", "reflect")  # kernels get the index
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in perceived brightness


def get_copy_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that copies of images of a dtype are made in.

    It is double precision for integers of more than 2 bytes, else single precision.
    """
    is_wide = dtype.kind in "iu" and dtype.itemsize > 2
    return np.dtype(np.float64 if is_wide else np.float32)


@dataclass(frozen=True, slots=True)
class CopyParameters:
    """What is drawn for each of n copies of images (H, W, d), and what all of them share.

    Arrays are NumPy arrays. They are None for changes that are not made.

    Attributes
    ----------
    padding : {"zero", "edge", "reflect"}
        The pixels beyond the border.
    affine : ndarray of float64, shape (n, 6), or None
        The map from pixels of the copy to coordinates of the original: row and column of its
        center, steps down and to the right, cosine and sine of the angle.
    rotates : bool
        Whether any angle may differ from 0.
    brightness, contrast, saturation : ndarray of float32, shape (n,), or None
        The factors of the changes of color.
    corners : ndarray of int64, shape (n, 2), or None
        The first row and column of the square that is set to 0; it may begin outside the image.
    cutout : int
        The side of the square.
    noise : ndarray of float32, shape (n, H, W, d), or None
        What is added to the pixels.
    limits : (float, float) or None
        The range that pixels are clipped to after they are rounded; neither is done if it is None.
    """

    padding: str = "zero"
    affine: Array | None = None
    rotates: bool = False
    brightness: Array | None = None
    contrast: Array | None = None
    saturation: Array | None = None
    corners: Array | None = None
    cutout: int = 0
    noise: Array | None = None
    limits: tuple[float, float] | None = None

    def select(self, rows: slice) -> CopyParameters:
        """Return the parameters of some of the copies."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {name: v[rows] for name, v in values.items() if isinstance(v, np.ndarray)}
        return CopyParameters(**values)

    @property
    def changes_pixels(self) -> bool:
        """Whether pixels are changed, other than moved."""
        changes = self.brightness, self.contrast, self.saturation, self.corners, self.noise
        return self.limits is not None or any(change is not None for change in changes)
