"""Limits of the variances of channels in blocks, for code that does without Numba, too."""

from __future__ import annotations

# Fraction of the mean square, below which a channel counts as constant in its block
MIN_VARIANCE_FRACTION = 1e-8
# Fraction of the mean square about the image's mean, below which a channel is recomputed by pixels
RECOMPUTE_VARIANCE_FRACTION = 1e-2
