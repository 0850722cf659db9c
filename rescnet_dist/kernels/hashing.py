"""Random numbers that depend on their keys alone: the same on any worker, in any order."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

FIRST, FURTHER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)


def hash_keys(seed: int, *keys: Array | int) -> Array:
    """Random uint64 numbers from a seed and whole-number keys, which are broadcast: SplitMix64."""
    state, factor = np.asarray(np.uint64(seed)), FIRST
    with np.errstate(over="ignore"):
        for key in keys:
            state = _mixed(state + np.asarray(key).astype(np.uint64) * factor)
            factor = FURTHER
    return state


def uniforms(seed: int, *keys: Array | int) -> Array:
    """Uniform numbers in [0, 1) from a seed and keys.

    >>> uniforms(0, np.arange(3), 7).round(3)
    array([0.927, 0.491, 0.415])
    """
    return (hash_keys(seed, *keys) >> np.uint64(11)).astype(np.float64) / 2**53


def _mixed(state: Array) -> Array:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))
