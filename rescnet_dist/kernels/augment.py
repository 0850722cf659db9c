"""Augmented copies of images, in bulk. A copy depends on (seed, image, copy number) only.

All geometric changes of a copy are composed into one affine map from its pixels to those of the
original, so that it is resampled only once. Color, cutout and noise follow. This module draws the
random numbers; the pixels are made by `Operations.make_copies`, on the CPU or on a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import scipy

from rescnet_dist.kernels.arrays import asarray_like, on_gpu
from rescnet_dist.kernels.backend import get_operations
from rescnet_dist.kernels.copy_parameters import LUMA, CopyParameters, get_copy_dtype
from rescnet_dist.kernels.gpu_tiles import COPY_SLAB_BYTES, copy_image_bytes
from rescnet_dist.kernels.hashing import uniforms

Array = np.ndarray[Any, np.dtype[Any]]

SLAB_PIXELS = 2**16  # processed at a time, so that they fit into the CPU's cache


class Draw(IntEnum):
    """The purpose of a random number, used as a key of its hash."""

    SHIFT_Y = 0
    SHIFT_X = 1
    CROP_SIDE = 2
    CROP_Y = 3
    CROP_X = 4
    ROTATE = 5
    SCALE = 6
    BRIGHTNESS = 7
    CONTRAST = 8
    SATURATION = 9
    CUTOUT_Y = 10
    CUTOUT_X = 11
    NOISE = 12


@dataclass(frozen=True, slots=True)
class Augmentation:
    """The random changes of a copy of an image; none by default.

    Attributes
    ----------
    flip : bool, default False
        Whether to mirror every second copy left to right; see `find_flips`.
    flip_vertical : bool, default False
        Whether to mirror every second copy top to bottom.
    shift : int, default 0
        The largest shift, in whole pixels.
    crop : float, default 1.0
        The smallest side of a random square crop, as a fraction of the image's sides.
    rotate : float, default 0.0
        The largest rotation, in degrees.
    scale : float, default 0.0
        The largest change of size, up or down, as a fraction.
    padding : {"zero", "edge", "reflect"}, default "zero"
        The pixels beyond the border.
    brightness : float, default 0.0
        The largest distance from 1 of the factor of brightness.
    contrast : float, default 0.0
        The largest distance from 1 of the factor of contrast.
    saturation : float, default 0.0
        The largest distance from 1 of the factor of saturation.
    cutout : int, default 0
        The side of a square that is set to 0, in pixels.
    noise : float, default 0.0
        The standard deviation of Gaussian noise, as a fraction of the pixel range.
    """

    flip: bool = False
    flip_vertical: bool = False
    shift: int = 0
    crop: float = 1.0
    rotate: float = 0.0
    scale: float = 0.0
    padding: str = "zero"
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    cutout: int = 0
    noise: float = 0.0

    @property
    def moves(self) -> bool:
        """Whether pixels are moved: any change of geometry."""
        grows = self.crop < 1 or self.scale > 0
        return bool(self.flip or self.flip_vertical or self.shift or self.rotate or grows)


def augment_images(images: Any, index: Array, copy: Array, changes: Augmentation, seed: int) -> Any:
    """Make augmented copies of images, where the images are.

    Copies on a GPU have the same bits as on the CPU. All random numbers are drawn on the host, also
    the noise of each pixel: the normal distribution's inverse has other last digits on a GPU.

    Parameters
    ----------
    images : ndarray or cupy.ndarray of shape (n, H, W, d)
        The original images. Booleans are converted to uint8.
    index : ndarray of int, shape (n,)
        The index of each image in its dataset, a key of its random numbers.
    copy : ndarray of int, shape (n,)
        The number of the copy to make of each image. Copy 0 is the image itself.
    changes : Augmentation
        The changes to apply.
    seed : int
        The seed of the random numbers.

    Returns
    -------
    ndarray or cupy.ndarray of shape (n, H, W, d)
        The copies, in the dtype of `images`. Integer pixels are rounded and clipped to the range
        of their dtype.
    """
    if changes.saturation and images.shape[3] != len(LUMA):
        raise ValueError(
            f"saturation={changes.saturation} is of {len(LUMA)} colors, but the images have "
            f"{images.shape[3]} channels. Leave it out."
        )
    if images.dtype.kind == "b":
        images = images.astype(np.uint8)
    out = images.copy()
    rows = np.flatnonzero(copy)
    dtype = get_copy_dtype(images.dtype)
    draws = _Draws(seed, index[rows], copy[rows])
    drawn = _draw_parameters(images, changes, draws)
    step = _count_slab_images(images, changes)
    for start in range(0, len(rows), step):
        slab = slice(start, start + step)
        parameters = drawn.select(slab)
        if changes.noise:
            noise = _draw_noise(images, changes.noise, draws.select(slab))
            parameters = replace(parameters, noise=noise)
        where = asarray_like(rows[slab], images)
        pixels = images[where].astype(dtype, copy=False)
        copies = get_operations(pixels).make_copies(pixels, parameters)
        out[where] = copies.astype(images.dtype, copy=False)
    return out


def _count_slab_images(images: Any, changes: Augmentation) -> int:
    """Return the number of images (n, H, W, d) whose copies are made at a time."""
    if on_gpu(images) and not changes.noise:
        return max(1, COPY_SLAB_BYTES // copy_image_bytes(images.shape[1:], images.dtype))
    return max(1, SLAB_PIXELS // (images.shape[1] * images.shape[2]))


def full_range(dtype: np.dtype[Any]) -> float:
    """Return the range of pixel values of a dtype: 255 for uint8, 1 for floating point."""
    return float(np.iinfo(dtype).max) if dtype.kind in "iu" else 1.0


def _draw_parameters(images: Any, changes: Augmentation, draws: _Draws) -> CopyParameters:
    """Draw the parameters of copies but the noise; shape and dtype are those of images."""
    shape = images.shape[1:]
    return CopyParameters(
        changes.padding,
        _draw_affine(shape, changes, draws) if changes.moves else None,
        changes.rotate > 0,
        _draw_factors(Draw.BRIGHTNESS, changes.brightness, draws),
        _draw_factors(Draw.CONTRAST, changes.contrast, draws),
        _draw_factors(Draw.SATURATION, changes.saturation, draws),
        _draw_corners(shape, changes.cutout, draws) if changes.cutout else None,
        changes.cutout,
        limits=_find_limits(images.dtype) if images.dtype.kind != "f" else None,
    )


def _draw_noise(images: Any, deviation: float, draws: _Draws) -> Array:
    """Draw the noise (m, H, W, d) of m copies; shape and dtype are those of images.

    The deviation is a fraction of the pixel range.
    """
    shape = images.shape[1:]
    noise = draws.normal(Draw.NOISE, math.prod(shape)).reshape(-1, *shape)
    noise *= np.float32(deviation * full_range(images.dtype))
    return noise


def _find_limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the smallest and largest value of an integer dtype that copies are made in."""
    kind, limits = get_copy_dtype(dtype), np.iinfo(dtype)
    high = kind.type(limits.max)
    if int(high) > limits.max:  # of 8 bytes: rounded up
        high = np.nextafter(high, kind.type(0))
    return float(limits.min), float(high)


class _Draws:
    """Random numbers for n copies, (n,) for each `Draw`, keyed by image and copy number."""

    def __init__(self, seed: int, index: Array, copy: Array) -> None:
        self.seed, self.index, self.copy = seed, index, copy

    def select(self, rows: slice) -> _Draws:
        """Return the random numbers of some of the copies."""
        return _Draws(self.seed, self.index[rows], self.copy[rows])

    def uniform(self, purpose: Draw, low: float, high: float) -> Array:
        """Draw uniform numbers (n,) in [low, high)."""
        return low + (high - low) * uniforms(self.seed, self.index, self.copy, int(purpose))

    def integers(self, purpose: Draw, low: int, high: int) -> Array:
        """Draw integers (n,) from low to high, both included, as float64."""
        return np.floor(self.uniform(purpose, low, high + 1))

    def normal(self, purpose: Draw, count: int) -> Array:
        """Draw standard normal numbers (n, count) in single precision."""
        keys = (self.index[:, None], self.copy[:, None], int(purpose), np.arange(count))
        u = uniforms(self.seed, *keys)
        return np.asarray(scipy.special.ndtri(np.maximum(u, 2.0**-54)).astype(np.float32))


# geometry ---------------------------------------------------------------------------------------


def find_flips(copy: Array, changes: Augmentation) -> tuple[Array, Array]:
    """Return whether copies (n,) are flipped top to bottom and left to right, (n,) bool each.

    Copies take turns: with one kind of flip, every other copy is flipped, starting with the first;
    with two, copies get the first, the second, both and none.
    """
    axes = [axis for axis, flip in (("x", changes.flip), ("y", changes.flip_vertical)) if flip]
    flips = {axis: (copy >> bit) & 1 == 1 for bit, axis in enumerate(axes)}
    never = np.zeros(len(copy), bool)
    return flips.get("y", never), flips.get("x", never)


def _draw_affine(shape: tuple[int, ...], changes: Augmentation, draws: _Draws) -> Array:
    """Draw the affine maps (n, 6) of n copies of images (H, W, d); see `CopyParameters`."""
    height, width, _ = shape
    n = len(draws.copy)
    flip_y, flip_x = find_flips(draws.copy, changes)
    step = np.ones(n)  # source pixels per pixel of the copy
    center_y, center_x = np.full(n, (height - 1) / 2), np.full(n, (width - 1) / 2)
    if changes.crop < 1:
        step = draws.uniform(Draw.CROP_SIDE, changes.crop, 1)
        center_y = center_y + (1 - step) * height * draws.uniform(Draw.CROP_Y, -0.5, 0.5)
        center_x = center_x + (1 - step) * width * draws.uniform(Draw.CROP_X, -0.5, 0.5)
    if changes.shift:
        center_y = center_y + draws.integers(Draw.SHIFT_Y, -changes.shift, changes.shift)
        center_x = center_x + draws.integers(Draw.SHIFT_X, -changes.shift, changes.shift)
    if changes.scale:
        step = step * (1 + changes.scale) ** draws.uniform(Draw.SCALE, -1, 1)
    angle = np.zeros(n)
    if changes.rotate:
        angle = np.deg2rad(draws.uniform(Draw.ROTATE, -changes.rotate, changes.rotate))
    step_y, step_x = np.where(flip_y, -step, step), np.where(flip_x, -step, step)
    return np.stack([center_y, center_x, step_y, step_x, np.cos(angle), np.sin(angle)], axis=1)


# color and cutout ------------------------------------------------------------------------------


def _draw_factors(purpose: Draw, fraction: float, draws: _Draws) -> Array | None:
    """Draw factors (n,) in [1 − fraction, 1 + fraction); None if the fraction is 0."""
    if not fraction:
        return None
    return draws.uniform(purpose, 1 - fraction, 1 + fraction).astype(np.float32)


def _draw_corners(shape: tuple[int, ...], side: int, draws: _Draws) -> Array:
    """Draw the corners (n, 2) of squares of `side` centered anywhere in images (H, W, d)."""
    purposes = (Draw.CUTOUT_Y, Draw.CUTOUT_X)
    centers = (draws.integers(p, 0, n - 1) for p, n in zip(purposes, shape[:2], strict=True))
    return np.stack([center.astype(np.int64) - side // 2 for center in centers], axis=1)
