"""Weights in half precision: float16 times a power of two for each array, so that none overflows.

The factor is the attribute `scale_factor` of the array, by the CF conventions, which xarray applies
when it reads the array.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rescnet_dist.errors import DataError
from rescnet_dist.store.checksums import Array

SCALE_ATTRIBUTE = "scale_factor"
MIN_HALF_VALUES = 1024  # smaller arrays take little space, and keep their precision
LARGEST_HALF_EXPONENT = 15  # the largest magnitude becomes 2¹⁴ to 2¹⁵; float16 ends at 65504


def to_half(values: Array) -> tuple[Array, dict[str, float]]:
    """Return an array in float16, and the attributes by which `from_half` restores it.

    Small arrays, and those of other types than floats, are returned as they are. Values of less
    than 2⁻²⁹ of the largest have fewer than 11 significant bits.

    >>> half, attributes = to_half(np.linspace(0, 1e6, 1024, dtype=np.float32))
    >>> half.dtype, float(half.max()), attributes
    (dtype('float16'), 31248.0, {'scale_factor': 32.0})
    """
    if values.dtype.kind != "f" or values.size < MIN_HALF_VALUES:
        return values, {}
    largest = float(np.abs(values).max())
    if not np.isfinite(largest):
        raise DataError("The network has weights that are not finite, and cannot be saved.")
    scale = 2.0 ** (int(np.frexp(largest)[1]) - LARGEST_HALF_EXPONENT) if largest else 1.0
    return (values / scale).astype(np.float16), {SCALE_ATTRIBUTE: scale}


def from_half(values: Array, attributes: Mapping[str, Any]) -> Array:
    """Return the array that `to_half` was given, in float32 if it is stored in float16."""
    if SCALE_ATTRIBUTE not in attributes:
        return values
    return values.astype(np.float32) * np.float32(attributes[SCALE_ATTRIBUTE])
