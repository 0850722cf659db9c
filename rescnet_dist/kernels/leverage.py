"""Leave-one-out errors of a ridge regression, from random estimates of the leverages.

With features F (n, D), centered, and A = FᵀF/N + γI, the predictions of the targets T are H T,
H = F A⁻¹ Fᵀ/N + 1/N. Without image i, it would be predicted with an error that is 1/(1 − Hᵢᵢ) times
as large. For random signs z, the mean of zᵢ (H z)ᵢ is the leverage Hᵢᵢ, with a variance of at most
Hᵢᵢ(1 − Hᵢᵢ). H z is the prediction of a regression on z, so signs are further targets of the same
regression, and no matrix of D × D is needed where the images are.

Copies of an image are left out with it: they have its signs, so that the estimate is the sum of Hᵢⱼ
over the image and its copies j. That is exact if they all are predicted with the same error.
"""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like
from rescnet_dist.kernels.hashing import hash_keys

MAX_LEVERAGE = 0.9  # estimates are not larger: errors grow to ten times their size at most
WORD_BITS = 64


def probe_signs(seed: int, layer: int, numbers: Array, count: int) -> Array:
    """Draw random signs of images.

    Parameters
    ----------
    seed : int
        The seed of the network.
    layer : int
        The number of the layer, from 1.
    numbers : ndarray of int, shape (n,)
        The numbers of the images in the data; copies have that of their original.
    count : int
        The number of signs s of an image.

    Returns
    -------
    ndarray of float32, shape (n, s)
        1 or −1. They depend on seed, layer and number only.
    """
    words = np.arange(-(-count // WORD_BITS))
    drawn = hash_keys(seed, layer, np.asarray(numbers)[:, None], words)
    octets = np.ascontiguousarray(drawn, "<u8").view(np.uint8)
    bits = np.unpackbits(octets.reshape(len(drawn), -1), axis=1)[:, :count]
    return 1 - 2 * bits.astype(np.float32)


def leave_one_out(
    correction: Array, errors: Array, predicted: Array, signs: Array, share: float = 1.0
) -> Array:
    """Compute what would be predicted for each image if it had not been trained on.

    Parameters
    ----------
    correction : ndarray of shape (n, C)
        The predicted errors.
    errors : ndarray of shape (n, C)
        The errors that the regression was fitted to.
    predicted : ndarray of shape (n, s)
        The predicted signs.
    signs : ndarray of shape (n, s)
        The signs that the regression was fitted to.
    share : float, default 1.0
        The share of the leverage that is used: with 0, images are predicted as they were fitted.

    Returns
    -------
    ndarray of shape (n, C)
        The predictions without the image: (correction − h·errors)/(1 − h) with its leverage h,
        times the share.
    """
    signs = asarray_like(signs, predicted)
    leverage = (predicted * signs).mean(axis=1, keepdims=True, dtype=np.float32)
    leverage = np.float32(share) * np.clip(leverage, np.float32(0), np.float32(MAX_LEVERAGE))
    return (correction - leverage * errors) / (1 - leverage)
