"""Compiled kernels: the pixels of augmented copies of images.

The CUDA source `gpu/copies.cu` has the same operations in the same order, so that both round alike;
change both together.
"""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.copy_parameters import PADDINGS
from rescnet_dist.kernels.cpu.jit import compile_exact_kernel, compile_exact_part

ZERO, REFLECT = PADDINGS.index("zero"), PADDINGS.index("reflect")
RESAMPLE_SIGNATURES = {
    name: f"void({name}[:,:,::1], int64, float64[:,::1], boolean, int64, {name}[:,:,::1])"
    for name in ("float32", "float64")
}
ADJUST_SIGNATURES = {
    name: f"void({name}[:,:,::1], int64, {name}[::1], {name}[::1], {name}[::1], {name}[::1], "
    f"int64[:,::1], int64, float32[:,:,::1], {name}[::1])"
    for name in ("float32", "float64")
}


@compile_exact_part
def locate(coordinate: float, side: int, padding: int) -> tuple[int, float, float]:
    """Return the pixel at or before a coordinate, and the weights of it and of the next pixel.

    There are `side` pixels. The weights are 0 for a coordinate beyond a border of zeros.
    """
    last = side - 1.0
    if padding == REFLECT and last > 0:
        inside = abs(coordinate)
        if inside > last:
            inside = np.fmod(inside, 2 * last)
            inside = inside if inside <= last else 2 * last - inside
    else:
        inside = 0.0 if coordinate < 0 else last if coordinate > last else coordinate
        if padding == ZERO and abs(coordinate - inside) > 0.5:
            return 0, 0.0, 0.0
    first = int(inside)
    return first, 1 - (inside - first), inside - first


@compile_exact_part
def locate_axis(
    center: float, step: float, padding: int, numbers: int, taps: Array, weights: Array
) -> None:
    """Locate the coordinates of an axis of m pixels, which have so many numbers each.

    taps (2, m·numbers) are the numbers of a line to interpolate between, weights (2, m·numbers)
    theirs.
    """
    side = taps.shape[1] // numbers
    for i in range(side):
        first, before, after = locate(center + step * (i - 0.5 * (side - 1)), side, padding)
        second = min(first + 1, side - 1)
        for number in range(numbers):
            at = i * numbers + number
            taps[0, at], taps[1, at] = first * numbers + number, second * numbers + number
            weights[0, at], weights[1, at] = before, after


@compile_exact_part
def resample_by_axis(
    image: Array,
    rows: tuple[Array, Array],
    columns: tuple[Array, Array],
    line: Array,
    copy: Array,
) -> None:
    """Interpolate an image (H, W·d) between rows, then between columns, by `locate_axis` of each.

    line (W·d,) is overwritten.
    """
    height, length = image.shape
    zero = copy.dtype.type(0)
    (row_taps, row_weights), (taps, weights) = rows, columns
    for y in range(height):
        one, other, into = image[row_taps[0, y]], image[row_taps[1, y]], copy[y]
        above, below = row_weights[0, y], row_weights[1, y]
        for i in range(length):
            line[i] = one[i] * above + other[i] * below + zero  # −0 becomes 0
        for i in range(length):
            mixed = line[taps[0, i]] * weights[0, i] + line[taps[1, i]] * weights[1, i]
            into[i] = mixed + zero


@compile_exact_part
def resample_rotated(
    image: Array,
    channels: int,
    affine: Array,
    padding: int,
    right: Array,
    weights: Array,
    copy: Array,
) -> None:
    """Interpolate an image (H, W·d) bilinearly at the coordinates of an affine map (6,).

    right (2, W), in double precision, and weights (4,) are overwritten.
    """
    height, width, zero = image.shape[0], right.shape[1], copy.dtype.type(0)
    step_y, step_x, cos, sin = affine[2], affine[3], affine[4], affine[5]
    for x in range(width):
        distance = step_x * (x - 0.5 * (width - 1))
        right[0, x], right[1, x] = sin * distance, cos * distance
    for y in range(height):
        down = step_y * (y - 0.5 * (height - 1))
        row_y, row_x, into = affine[0] + cos * down, affine[1] + sin * down, copy[y]
        for x in range(width):
            top, above, below = locate(row_y - right[0, x], height, padding)
            left, before, after = locate(row_x + right[1, x], width, padding)
            weights[0], weights[1], weights[2], weights[3] = above, below, before, after
            one, other = image[top], image[min(top + 1, height - 1)]
            first, second = left * channels, min(left + 1, width - 1) * channels
            for c in range(channels):
                start = one[first + c] * weights[0] + other[first + c] * weights[1] + zero
                stop = one[second + c] * weights[0] + other[second + c] * weights[1] + zero
                into[x * channels + c] = start * weights[2] + stop * weights[3] + zero


@compile_exact_kernel
def resample_images(
    images: Array, channels: int, affine: Array, rotates: bool, padding: int, copies: Array
) -> None:
    """Write images (n, H, W·d), interpolated at the coordinates of affine maps (n, 6), to copies.

    The coordinates and the padding, an index of `PADDINGS`, are those of `CopyParameters`. Pixels
    are interpolated between rows, then between columns.
    """
    n, height, length = images.shape
    dtype = images.dtype
    line, right, weights = (
        np.empty(length, dtype),
        np.empty((2, length // channels)),
        np.empty(4, dtype),
    )
    rows = np.empty((2, height), np.uintp), np.empty((2, height), dtype)
    columns = np.empty((2, length), np.uintp), np.empty((2, length), dtype)
    for i in range(n):
        if rotates:
            resample_rotated(images[i], channels, affine[i], padding, right, weights, copies[i])
            continue
        locate_axis(affine[i, 0], affine[i, 2], padding, 1, *rows)
        locate_axis(affine[i, 1], affine[i, 3], padding, channels, *columns)
        resample_by_axis(images[i], rows, columns, line, copies[i])


@compile_exact_part
def change_contrast(copy: Array, factor: float, sums: Array, mean: Array) -> None:
    """Multiply the distance of pixels (H, W·d) from their mean by a factor.

    Columns are summed, then their sums, both in order. sums (W·d,) and mean (1,) are overwritten.
    """
    height, length = copy.shape
    sums[:] = 0
    for y in range(height):
        for i in range(length):
            sums[i] += copy[y, i]
    total = 0.0
    for i in range(length):
        total += sums[i]
    mean[0] = total / (height * length)
    for y in range(height):
        for i in range(length):
            copy[y, i] = mean[0] + (copy[y, i] - mean[0]) * factor


@compile_exact_part
def change_saturation(copy: Array, factor: float, luma: Array) -> None:
    """Multiply the distance of pixels (H, W·3) from their gray by a factor."""
    height, length = copy.shape
    for y in range(height):
        for i in range(0, length, 3):
            red, green, blue = copy[y, i], copy[y, i + 1], copy[y, i + 2]
            gray = red * luma[0] + green * luma[1] + blue * luma[2]
            copy[y, i] = gray + (red - gray) * factor
            copy[y, i + 1] = gray + (green - gray) * factor
            copy[y, i + 2] = gray + (blue - gray) * factor


@compile_exact_kernel
def adjust_images(
    copies: Array,
    channels: int,
    brightness: Array,
    contrast: Array,
    saturation: Array,
    luma: Array,
    corners: Array,
    cutout: int,
    noise: Array,
    limits: Array,
) -> None:
    """Change the color of copies (n, H, W·d), cut a square out, add noise, round and clip.

    The parameters are those of `CopyParameters`, and empty for changes that are not made; luma (3,)
    has the weights of colors.
    """
    n, height, length = copies.shape
    sums, mean = np.empty(length), np.empty(1, copies.dtype)
    for number in range(n):
        copy = copies[number]
        if len(brightness):
            for y in range(height):
                for i in range(length):
                    copy[y, i] *= brightness[number]
        if len(contrast):
            change_contrast(copy, contrast[number], sums, mean)
        if len(saturation):
            change_saturation(copy, saturation[number], luma)
        if len(corners):
            top, left = corners[number, 0], corners[number, 1]
            start, stop = max(left, 0) * channels, max(left + cutout, 0) * channels
            copy[max(top, 0) : max(top + cutout, 0), start:stop] = 0
        if len(noise):
            for y in range(height):
                for i in range(length):
                    copy[y, i] += noise[number, y, i]
        if len(limits):
            for y in range(height):
                for i in range(length):
                    copy[y, i] = min(max(np.rint(copy[y, i]), limits[0]), limits[1])
