"""Min-max normalization and the convolution of a layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module
from rescnet_dist.kernels.backend import get_operations
from rescnet_dist.kernels.inputs import LayerInput


def min_max_scale(low: Array, high: Array, mode: str) -> tuple[Array, Array]:
    """Compute the offset and scale that map [low, high] to [0, 1].

    Parameters
    ----------
    low, high : ndarray of shape (c,)
        The range of each channel.
    mode : {"channel", "global", "images"}
        Whether each channel has its own range, or all channels share one, which is the same for
        "images".

    Returns
    -------
    low : ndarray of shape (c,)
        The offset, to be subtracted.
    scale : ndarray of shape (c,)
        The scale, to multiply with afterwards. It is 0 for a range of zero width, so that a
        constant channel maps to 0.
    """
    if mode != "channel":
        low, high = np.full_like(low, low.min()), np.full_like(high, high.max())
    width = high - low
    scale = np.divide(1.0, width, out=np.zeros_like(width), where=width > 0)
    return low, scale


def normalize(images: Array, low: Array, scale: Array) -> Array:
    """Compute (images − low)·scale in single precision.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, c)
        The images.
    low, scale : ndarray of shape (c,)
        Offset and scale of each channel, as of `min_max_scale`.

    Returns
    -------
    ndarray of float32, shape (n, H, W, c)
        The normalized images.
    """
    shifted = get_array_module(images).asarray(images, dtype=np.float32)
    shifted = shifted - asarray_like(low, images).astype(np.float32)
    shifted *= asarray_like(scale, images).astype(np.float32)
    return shifted


def convolve_each(
    inputs: LayerInput,
    channels: Sequence[int],
    filters: Array,
    bias: Array,
    low: Array,
    scale: Array,
) -> Array:
    """Convolve each of some channels of (inputs − low)·scale with the same filters.

    The padding and the bias are those of `convolve`.

    Parameters
    ----------
    inputs : LayerInput of n images of shape (H, W, c)
        The input of the layer.
    channels : sequence of c' int
        The channels to convolve.
    filters : ndarray of shape (k, k, f)
        The filters.
    bias : ndarray of shape (f,)
        Added to the maps.
    low, scale : ndarray of shape (c,)
        Offset and scale of the input channels.

    Returns
    -------
    ndarray of float32, shape (n, H, W, c'·f)
        The maps: the f maps of the first channel, then those of the second, and so on.
    """
    arrays = inputs.select_arrays()
    xp, own = get_array_module(inputs.images), np.asarray(channels)
    values = arrays[1] if not arrays[0].shape[3] else xp.concatenate(arrays, axis=3)
    values = normalize(values, low, scale)[..., asarray_like(own, inputs.images)]
    n, height, width, count = values.shape
    folded = xp.ascontiguousarray(values.transpose(0, 3, 1, 2)).reshape(-1, height, width, 1)
    maps = convolve(LayerInput.of(folded), filters[:, :, None], bias)
    split = maps.reshape(n, count, height, width, -1).transpose(0, 2, 3, 1, 4)
    return split.reshape(n, height, width, -1)


def convolve(
    inputs: LayerInput,
    filters: Array,
    bias: Array,
    low: Array | None = None,
    scale: Array | None = None,
    into: Array | None = None,
) -> Array:
    """Convolve (inputs − low)·scale with filters: stride 1, zero padding, plus bias.

    It is the cross-correlation out[y, x] = Σ padded[y + dy, x + dx, c]·filters[dy, dx, c] + bias.

    Parameters
    ----------
    inputs : LayerInput of n images of shape (H, W, c)
        The input of the layer.
    filters : ndarray of shape (k, k, c, f)
        The filters.
    bias : ndarray of shape (f,)
        Added to the maps.
    low, scale : ndarray of shape (c,), optional
        Offset and scale of the input channels; 0 and 1 by default.
    into : ndarray of shape (n, H, W, f), optional
        The array to write to, C-contiguous and of the dtype of the inputs.

    Returns
    -------
    ndarray of shape (n, H, W, f)
        The maps: `into` if given, else a new array of the dtype of the inputs.

    Raises
    ------
    ValueError
        If `into` is not C-contiguous or has another dtype than the inputs.
    """
    channels = inputs.shape[2]
    low = np.zeros(channels) if low is None else low
    scale = np.ones(channels) if scale is None else scale
    operations = get_operations(inputs.images)
    return operations.convolve(inputs, filters, bias, low, scale, into)
