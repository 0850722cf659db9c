"""Counter-based random numbers: they depend on their keys only, not on worker or order."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# SplitMix64 increments: of the first key, and of every further one
FIRST_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
NEXT_INCREMENT = np.uint64(0xD1B54A32D192ED03)


def hash_keys(seed: int, *keys: Array | int) -> Array:
    """Hash a seed and integer keys to random uint64 numbers with SplitMix64.

    Parameters
    ----------
    seed : int
        The seed, not negative.
    *keys : int or ndarray of integers
        Keys, broadcast against each other.

    Returns
    -------
    ndarray of uint64
        One number for each combination of keys, of their broadcast shape.
    """
    state, increment = np.asarray(np.uint64(seed)), FIRST_INCREMENT
    with np.errstate(over="ignore"):
        for key in keys:
            state = _mix(state + np.asarray(key).astype(np.uint64) * increment)
            increment = NEXT_INCREMENT
    return state


def uniforms(seed: int, *keys: Array | int) -> Array:
    """Draw uniform numbers in [0, 1) that depend on a seed and integer keys only.

    Parameters
    ----------
    seed : int
        The seed, not negative.
    *keys : int or ndarray of integers
        Keys, broadcast against each other.

    Returns
    -------
    ndarray of float64
        One number for each combination of keys, of their broadcast shape.

    Examples
    --------
    >>> uniforms(0, np.arange(3), 7).round(3)
    array([0.927, 0.491, 0.415])
    """
    return (hash_keys(seed, *keys) >> np.uint64(11)).astype(np.float64) / 2**53


def _mix(state: Array) -> Array:
    """Return the output function of SplitMix64 for uint64 states."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))
