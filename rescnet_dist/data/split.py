"""A validation split that is stratified, seeded, and needs nothing but ranks within classes."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def ranks_in_class(codes: Array, before: Array) -> Array:
    """The rank (n,) of each image among those of its class, given how many of each class (C,) lie
    ahead of this chunk.

    >>> ranks_in_class(np.array([1, 0, 1]), np.array([10, 20]))
    array([20, 10, 21])
    """
    ranks = np.empty(len(codes), np.int64)
    for c in np.unique(codes):
        members = codes == c
        ranks[members] = before[c] + np.arange(members.sum())
    return ranks


def validation_members(codes: Array, before: Array, fraction: float, seed: int) -> Array:
    """Which images of a chunk, codes (n,), are held out for validation, (n,) bool.

    The ranks of a class are cut into runs of 1/fraction images and one of each run, drawn from
    (seed, class, run) alone, is held out: each class gives its share, whatever the chunks are. In
    place of the first image of a class the second is, so that every class can be learnt.
    """
    ranks = ranks_in_class(codes, before)
    slack = 1e-7  # ranks·fraction is rounded
    run = np.floor(ranks * fraction + slack)
    first, behind = np.ceil(run / fraction - slack), np.ceil((run + 1) / fraction - slack)
    drawn = first + np.floor(_uniform(seed, codes, run) * (behind - first))
    return (ranks == np.where((drawn == 0) & (behind > 1), 1, drawn)) & (ranks > 0)


def _uniform(seed: int, codes: Array, run: Array) -> Array:
    """Uniform numbers in [0, 1) that depend on (seed, class, run) alone: SplitMix64."""
    with np.errstate(over="ignore"):
        state = np.uint64(seed) + codes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state = _mix(state) + run.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
        return (_mix(state) >> np.uint64(11)).astype(np.float64) / 2**53


def _mix(state: Array) -> Array:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
