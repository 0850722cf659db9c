"""Augmented copies of images, in bulk: each depends on (seed, image, copy) alone.

The geometry of a copy is one affine map from its pixels to those of the original, so that it is
resampled once, whatever it is composed of; color, cutout and noise follow.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from scipy.special import ndtri

from rescnet_dist.kernels.hashing import uniforms
from rescnet_dist.spec import AugmentSpec

Array = np.ndarray[Any, np.dtype[Any]]

SLAB_PIXELS = 2**16  # that are worked on at a time: what a cache holds
LUMA = (0.299, 0.587, 0.114)  # share of red, green and blue in what looks equally bright
OUTSIDE = -2.0  # a coordinate that no pixel is near to


class Draw(IntEnum):
    """What a random number is for."""

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


def augment_images(images: Array, index: Array, copy: Array, spec: AugmentSpec, seed: int) -> Array:
    """Copies number copy (n,) of the images (n, H, W, d) that have these indices (n,).

    Copy 0 is the image itself. Whole-number pixels are rounded and kept within their type's range.
    """
    if images.dtype.kind == "b":
        images = images.astype(np.uint8)
    out = images.copy()
    rows = np.flatnonzero(copy)
    step = max(1, SLAB_PIXELS // (images.shape[1] * images.shape[2]))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        out[some] = _copies(images[some], index[some], copy[some], spec, seed)
    return out


def full_range(dtype: np.dtype[Any]) -> float:
    """The range of pixels of a type: 255 for uint8, 1 for floating point."""
    return float(np.iinfo(dtype).max) if dtype.kind in "iu" else 1.0


def _copies(images: Array, index: Array, copy: Array, spec: AugmentSpec, seed: int) -> Array:
    draws = _Draws(seed, index, copy)
    wide = images.dtype.kind in "iu" and images.dtype.itemsize > 2
    pixels: Array = images.astype(np.float64 if wide else np.float32)
    if spec.moves:
        pixels = _moved(pixels, copy, spec, draws)
    pixels = _recolored(pixels, spec, draws)
    if spec.cutout:
        pixels[_cut_out(images.shape[1:3], spec.cutout, draws)] = 0
    if spec.noise:
        noise = draws.normal(Draw.NOISE, pixels[0].size).reshape(pixels.shape)
        pixels = pixels + np.float32(spec.noise * full_range(images.dtype)) * noise
    if images.dtype.kind == "f":
        return pixels.astype(images.dtype)
    limits = np.iinfo(images.dtype)
    return np.clip(np.rint(pixels), limits.min, limits.max).astype(images.dtype)


class _Draws:
    """Random numbers for n copies: (n,) for each `Draw`, by image and copy."""

    def __init__(self, seed: int, index: Array, copy: Array) -> None:
        self.seed, self.index, self.copy = seed, index, copy

    def between(self, what: Draw, low: float, high: float) -> Array:
        """Uniform in [low, high)."""
        return low + (high - low) * uniforms(self.seed, self.index, self.copy, int(what))

    def whole(self, what: Draw, low: int, high: int) -> Array:
        """One of the whole numbers low to high."""
        return np.floor(self.between(what, low, high + 1))

    def normal(self, what: Draw, count: int) -> Array:
        """Standard normal, (n, count), in single precision."""
        keys = (self.index[:, None], self.copy[:, None], int(what), np.arange(count))
        u = uniforms(self.seed, *keys)
        return np.asarray(ndtri(np.maximum(u, 2.0**-54)).astype(np.float32))


# geometry ---------------------------------------------------------------------------------------


def mirrored(copy: Array, spec: AugmentSpec) -> tuple[Array, Array]:
    """Whether copies (n,) are mirrored top to bottom and left to right, (n,) bool each.

    The copies take turns: of one way to mirror, every other copy is mirrored, from the first; of
    two, they have the first, the second, both and none.
    """
    ways = [way for way, wanted in (("x", spec.flip), ("y", spec.flip_vertical)) if wanted]
    found = {way: (copy >> bit) & 1 == 1 for bit, way in enumerate(ways)}
    never = np.zeros(len(copy), bool)
    return found.get("y", never), found.get("x", never)


def _moved(images: Array, copy: Array, spec: AugmentSpec, draws: _Draws) -> Array:
    """Images (n, H, W, d) mirrored, shifted, cropped, rotated and scaled."""
    _, height, width, _ = images.shape
    n = len(copy)
    flip_y, flip_x = mirrored(copy, spec)
    step = np.ones(n)  # source pixels per pixel
    center_y, center_x = np.full(n, (height - 1) / 2), np.full(n, (width - 1) / 2)
    if spec.crop < 1:
        step = draws.between(Draw.CROP_SIDE, spec.crop, 1)
        center_y = center_y + (1 - step) * height * draws.between(Draw.CROP_Y, -0.5, 0.5)
        center_x = center_x + (1 - step) * width * draws.between(Draw.CROP_X, -0.5, 0.5)
    if spec.shift:
        center_y = center_y + draws.whole(Draw.SHIFT_Y, -spec.shift, spec.shift)
        center_x = center_x + draws.whole(Draw.SHIFT_X, -spec.shift, spec.shift)
    if spec.scale:
        step = step * (1 + spec.scale) ** draws.between(Draw.SCALE, -1, 1)
    step_y, step_x = np.where(flip_y, -step, step), np.where(flip_x, -step, step)
    down = step_y[:, None] * (np.arange(height) - (height - 1) / 2)  # (n, H)
    right = step_x[:, None] * (np.arange(width) - (width - 1) / 2)  # (n, W)
    if spec.rotate:
        angle = np.deg2rad(draws.between(Draw.ROTATE, -spec.rotate, spec.rotate))
        cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
        y = center_y[:, None, None] + cos * down[:, :, None] - sin * right[:, None, :]
        x = center_x[:, None, None] + sin * down[:, :, None] + cos * right[:, None, :]
        return _sampled(images, _padded(y, height, spec.padding), _padded(x, width, spec.padding))
    y, x = center_y[:, None] + down, center_x[:, None] + right
    return _resampled_by_axis(
        images, _padded(y, height, spec.padding), _padded(x, width, spec.padding)
    )


def _padded(coordinate: Array, side: int, padding: str) -> Array:
    """Coordinates along an axis of `side` pixels, with those beyond its borders led back to a
    pixel, or made `OUTSIDE`."""
    if padding == "reflect" and side > 1:
        around = np.mod(coordinate, 2 * (side - 1))
        return np.minimum(around, 2 * (side - 1) - around)
    inside = np.clip(coordinate, 0, side - 1)
    if padding == "zero":
        inside[np.abs(coordinate - inside) > 0.5] = OUTSIDE
    return inside


def _resampled_by_axis(images: Array, y: Array, x: Array) -> Array:
    """Images (n, H, W, d) at rows y (n, H) and columns x (n, W), linearly interpolated along one
    axis after the other; exact where they are whole."""
    n, height, width, channels = images.shape
    rows = np.matmul(_hats(y, height), images.reshape(n, height, width * channels))
    turned = rows.reshape(n, height, width, channels).swapaxes(1, 2)
    columns = np.matmul(_hats(x, width), turned.reshape(n, width, height * channels))
    return np.ascontiguousarray(columns.reshape(n, width, height, channels).swapaxes(1, 2))


def _hats(coordinate: Array, side: int) -> Array:
    """The weight (n, m, side) of each of `side` pixels in linear interpolation at (n, m)."""
    distance = coordinate.astype(np.float32)[:, :, None] - np.arange(side, dtype=np.float32)
    np.abs(distance, out=distance)
    np.subtract(1, distance, out=distance)
    return np.maximum(distance, 0, out=distance)


def _sampled(images: Array, y: Array, x: Array) -> Array:
    """Images (n, H, W, d) at rows y and columns x (n, H, W), bilinearly interpolated."""
    n, height, width, channels = images.shape
    pixels = images.reshape(n * height * width, channels)
    first = np.arange(n)[:, None, None] * (height * width)
    top, left = np.floor(y), np.floor(x)
    lower, further = (y - top).astype(np.float32), (x - left).astype(np.float32)
    out = np.zeros(images.shape, np.float32)
    for down, weight_y in ((0, 1 - lower), (1, lower)):
        for right, weight_x in ((0, 1 - further), (1, further)):
            row, column = top + down, left + right
            weight = weight_y * weight_x
            weight[(row < 0) | (column < 0)] = 0  # outside; beyond the far border it is 0 already
            at = np.clip(row, 0, height - 1) * width + np.clip(column, 0, width - 1)
            out += weight[..., None] * pixels[first + at.astype(np.int64)]
    return out


# color and cutout ------------------------------------------------------------------------------


def _recolored(images: Array, spec: AugmentSpec, draws: _Draws) -> Array:
    """Images (n, H, W, d) with brightness, contrast and saturation changed."""
    if spec.brightness:
        images = images * _factor(Draw.BRIGHTNESS, spec.brightness, draws)
    if spec.contrast:
        mean = images.reshape(len(images), -1).mean(axis=1)[:, None, None, None]
        images = mean + (images - mean) * _factor(Draw.CONTRAST, spec.contrast, draws)
    if spec.saturation:
        gray = (images * np.array(LUMA, np.float32)).sum(axis=3, keepdims=True)
        images = gray + (images - gray) * _factor(Draw.SATURATION, spec.saturation, draws)
    return images


def _factor(what: Draw, share: float, draws: _Draws) -> Array:
    return draws.between(what, 1 - share, 1 + share).astype(np.float32)[:, None, None, None]


def _cut_out(shape: tuple[int, int], side: int, draws: _Draws) -> Array:
    """Which pixels (n, H, W) lie in a square of `side`, its center anywhere in the image."""
    inside = []
    for what, length in ((Draw.CUTOUT_Y, shape[0]), (Draw.CUTOUT_X, shape[1])):
        first = draws.whole(what, 0, length - 1) - side // 2
        location = np.arange(length) - first[:, None]
        inside.append((location >= 0) & (location < side))
    return np.asarray(inside[0][:, :, None] & inside[1][:, None, :])
