"""Augmented copies of images, in bulk. A copy depends on (seed, image, copy number) only.

All geometric changes of a copy are composed into one affine map from its pixels to those of the
original, so that it is resampled only once. Color, cutout and noise follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import scipy

from rescnet_dist.kernels.hashing import uniforms

Array = np.ndarray[Any, np.dtype[Any]]

SLAB_PIXELS = 2**16  # processed at a time, so that they fit into the CPU's cache
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in perceived brightness
OUTSIDE = -2.0  # a coordinate that is more than one pixel away from every pixel


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


def augment_images(
    images: Array, index: Array, copy: Array, changes: Augmentation, seed: int
) -> Array:
    """Make augmented copies of images.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, d)
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
    ndarray of shape (n, H, W, d)
        The copies, in the dtype of `images`. Integer pixels are rounded and clipped to the range
        of their dtype.
    """
    if images.dtype.kind == "b":
        images = images.astype(np.uint8)
    out = images.copy()
    rows = np.flatnonzero(copy)
    step = max(1, SLAB_PIXELS // (images.shape[1] * images.shape[2]))
    for start in range(0, len(rows), step):
        slab = rows[start : start + step]
        out[slab] = _make_copies(images[slab], index[slab], copy[slab], changes, seed)
    return out


def full_range(dtype: np.dtype[Any]) -> float:
    """Return the range of pixel values of a dtype: 255 for uint8, 1 for floating point."""
    return float(np.iinfo(dtype).max) if dtype.kind in "iu" else 1.0


def _make_copies(
    images: Array, index: Array, copy: Array, changes: Augmentation, seed: int
) -> Array:
    """Return copies (n, H, W, d), none of which has the number 0, of images (n, H, W, d)."""
    draws = _Draws(seed, index, copy)
    is_wide = images.dtype.kind in "iu" and images.dtype.itemsize > 2
    pixels: Array = images.astype(np.float64 if is_wide else np.float32)
    if changes.moves:
        pixels = _transform(pixels, copy, changes, draws)
    pixels = _adjust_color(pixels, changes, draws)
    if changes.cutout:
        pixels[_cutout_mask(images.shape[1:3], changes.cutout, draws)] = 0
    if changes.noise:
        noise = draws.normal(Draw.NOISE, pixels[0].size).reshape(pixels.shape)
        pixels = pixels + np.float32(changes.noise * full_range(images.dtype)) * noise
    if images.dtype.kind == "f":
        return pixels.astype(images.dtype)
    limits = np.iinfo(images.dtype)
    return np.clip(np.rint(pixels), limits.min, limits.max).astype(images.dtype)


class _Draws:
    """Random numbers for n copies, (n,) for each `Draw`, keyed by image and copy number."""

    def __init__(self, seed: int, index: Array, copy: Array) -> None:
        self.seed, self.index, self.copy = seed, index, copy

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


def _transform(images: Array, copy: Array, changes: Augmentation, draws: _Draws) -> Array:
    """Return images (n, H, W, d) flipped, shifted, cropped, rotated and scaled."""
    _, height, width, _ = images.shape
    n = len(copy)
    flip_y, flip_x = find_flips(copy, changes)
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
    step_y, step_x = np.where(flip_y, -step, step), np.where(flip_x, -step, step)
    down = step_y[:, None] * (np.arange(height) - (height - 1) / 2)  # (n, H)
    right = step_x[:, None] * (np.arange(width) - (width - 1) / 2)  # (n, W)
    if changes.rotate:
        angle = np.deg2rad(draws.uniform(Draw.ROTATE, -changes.rotate, changes.rotate))
        cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
        y = center_y[:, None, None] + cos * down[:, :, None] - sin * right[:, None, :]
        x = center_x[:, None, None] + sin * down[:, :, None] + cos * right[:, None, :]
        return _resample(images, _pad(y, height, changes.padding), _pad(x, width, changes.padding))
    y, x = center_y[:, None] + down, center_x[:, None] + right
    return _resample_by_axis(
        images, _pad(y, height, changes.padding), _pad(x, width, changes.padding)
    )


def _pad(coordinate: Array, side: int, padding: str) -> Array:
    """Map coordinates along an axis of `side` pixels to coordinates inside, or to `OUTSIDE`."""
    if padding == "reflect" and side > 1:
        wrapped = np.mod(coordinate, 2 * (side - 1))
        return np.minimum(wrapped, 2 * (side - 1) - wrapped)
    inside = np.clip(coordinate, 0, side - 1)
    if padding == "zero":
        inside[np.abs(coordinate - inside) > 0.5] = OUTSIDE
    return inside


def _resample_by_axis(images: Array, y: Array, x: Array) -> Array:
    """Interpolate images (n, H, W, d) linearly at rows y (n, H), then at columns x (n, W).

    The result is exact where coordinates are integers.
    """
    n, height, width, channels = images.shape
    rows = np.matmul(_hat_weights(y, height), images.reshape(n, height, width * channels))
    transposed = rows.reshape(n, height, width, channels).swapaxes(1, 2)
    columns = np.matmul(_hat_weights(x, width), transposed.reshape(n, width, height * channels))
    return np.ascontiguousarray(columns.reshape(n, width, height, channels).swapaxes(1, 2))


def _hat_weights(coordinate: Array, side: int) -> Array:
    """Return the weights (n, m, side) of `side` pixels in linear interpolation at (n, m)."""
    distance = coordinate.astype(np.float32)[:, :, None] - np.arange(side, dtype=np.float32)
    np.abs(distance, out=distance)
    np.subtract(1, distance, out=distance)
    return np.maximum(distance, 0, out=distance)


def _resample(images: Array, y: Array, x: Array) -> Array:
    """Interpolate images (n, H, W, d) bilinearly at rows y and columns x, (n, H, W) each."""
    n, height, width, channels = images.shape
    pixels = images.reshape(n * height * width, channels)
    first = np.arange(n)[:, None, None] * (height * width)
    top, left = np.floor(y), np.floor(x)
    fraction_y, fraction_x = (y - top).astype(np.float32), (x - left).astype(np.float32)
    out = np.zeros(images.shape, np.float32)
    for down, weight_y in ((0, 1 - fraction_y), (1, fraction_y)):
        for right, weight_x in ((0, 1 - fraction_x), (1, fraction_x)):
            row, column = top + down, left + right
            weight = weight_y * weight_x
            # `OUTSIDE`; past the last row and column the weight is 0 already
            weight[(row < 0) | (column < 0)] = 0
            position = np.clip(row, 0, height - 1) * width + np.clip(column, 0, width - 1)
            out += weight[..., None] * pixels[first + position.astype(np.int64)]
    return out


# color and cutout ------------------------------------------------------------------------------


def _adjust_color(images: Array, changes: Augmentation, draws: _Draws) -> Array:
    """Return images (n, H, W, d) with brightness, contrast and saturation changed."""
    if changes.brightness:
        images = images * _draw_factor(Draw.BRIGHTNESS, changes.brightness, draws)
    if changes.contrast:
        mean = images.reshape(len(images), -1).mean(axis=1)[:, None, None, None]
        images = mean + (images - mean) * _draw_factor(Draw.CONTRAST, changes.contrast, draws)
    if changes.saturation:
        gray = (images * np.array(LUMA, np.float32)).sum(axis=3, keepdims=True)
        images = gray + (images - gray) * _draw_factor(Draw.SATURATION, changes.saturation, draws)
    return images


def _draw_factor(purpose: Draw, fraction: float, draws: _Draws) -> Array:
    """Draw factors (n, 1, 1, 1) in [1 − fraction, 1 + fraction)."""
    return draws.uniform(purpose, 1 - fraction, 1 + fraction).astype(np.float32)[
        :, None, None, None
    ]


def _cutout_mask(shape: tuple[int, int], side: int, draws: _Draws) -> Array:
    """Return which pixels (n, H, W) are in a square of `side` centered anywhere in the image."""
    inside = []
    for purpose, length in ((Draw.CUTOUT_Y, shape[0]), (Draw.CUTOUT_X, shape[1])):
        first = draws.integers(purpose, 0, length - 1) - side // 2
        location = np.arange(length) - first[:, None]
        inside.append((location >= 0) & (location < side))
    return np.asarray(inside[0][:, :, None] & inside[1][:, None, :])
