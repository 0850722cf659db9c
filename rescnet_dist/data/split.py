"""Stratified, seeded validation splits, by image or by group of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from rescnet_dist.kernels import hash_keys, uniforms

Array = np.ndarray[Any, np.dtype[Any]]


def ranks_in_class(codes: Array, before: Array) -> Array:
    """Return the rank (n,) of each image among those of its class.

    `before` (C,) is the number of images of each class in the chunks before this one.

    >>> ranks_in_class(np.array([1, 0, 1]), np.array([10, 20]))
    array([20, 10, 21])
    """
    ranks = np.empty(len(codes), np.int64)
    for c in np.unique(codes):
        members = codes == c
        ranks[members] = before[c] + np.arange(members.sum())
    return ranks


def select_validation(codes: Array, before: Array, fraction: float, seed: int) -> Array:
    """Return which images of a chunk, with codes (n,), are held out for validation, (n,) bool.

    The ranks of a class are divided into runs of 1/fraction images. One image of each run, drawn
    from (seed, class, run) alone, is held out, so the result is stratified and does not depend on
    the chunks. The first image of a class is replaced by the second, so that every class can be
    learned. `before` is that of `ranks_in_class`.
    """
    ranks = ranks_in_class(codes, before)
    tolerance = 1e-7  # as ranks·fraction is rounded
    run = np.floor(ranks * fraction + tolerance)
    start, stop = np.ceil(run / fraction - tolerance), np.ceil((run + 1) / fraction - tolerance)
    drawn = start + np.floor(uniforms(seed, codes, run) * (stop - start))
    return (ranks == np.where((drawn == 0) & (stop > 1), 1, drawn)) & (ranks > 0)


def choose_held_out_groups(counts: dict[int, Array], fraction: float, seed: int) -> set[int]:
    """Return the groups that are held out, given the images of each class (C,) of each group.

    Groups are visited in an order drawn from (seed, group). A group is held out if it brings the
    number of held-out images of all classes closer to the fraction.
    """
    groups = np.fromiter(counts, np.int64, len(counts))
    order = groups[np.argsort(hash_keys(seed, groups), kind="stable")]
    target = fraction * np.sum([counts[group] for group in groups.tolist()], axis=0)
    held_out, chosen = np.zeros(len(target)), set()
    for group in order.tolist():
        candidate = held_out + counts[group]
        if np.abs(target - candidate).sum() < np.abs(target - held_out).sum():
            held_out = candidate
            chosen.add(group)
    return chosen
