"""Extremes and patch moments of the input of a layer, in one call."""

from __future__ import annotations

from typing import Any

from rescnet_dist.kernels import InputSums, LayerInput, PatchMoments, patch_moments


def patch_statistics(inputs: LayerInput, size: int) -> tuple[Any, Any, PatchMoments]:
    """Return the extremes (c,) of each channel, and the moments of all patches."""
    sums = InputSums.of(inputs)
    return sums.low, sums.high, patch_moments(inputs, size, sums)
