"""A validation split that is stratified and seeded, by image or by group of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from rescnet_dist.kernels import hash_keys, uniforms

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


def select_validation(codes: Array, before: Array, fraction: float, seed: int) -> Array:
    """Which images of a chunk, codes (n,), are held out for validation, (n,) bool.

    The ranks of a class are cut into runs of 1/fraction images and one of each run, drawn from
    (seed, class, run) alone, is held out: each class gives its share, whatever the chunks are. In
    place of the first image of a class the second is, so that every class can be learned.
    """
    ranks = ranks_in_class(codes, before)
    slack = 1e-7  # ranks·fraction is rounded
    run = np.floor(ranks * fraction + slack)
    first, behind = np.ceil(run / fraction - slack), np.ceil((run + 1) / fraction - slack)
    drawn = first + np.floor(uniforms(seed, codes, run) * (behind - first))
    return (ranks == np.where((drawn == 0) & (behind > 1), 1, drawn)) & (ranks > 0)


def choose_held_out_groups(counts: dict[int, Array], fraction: float, seed: int) -> set[int]:
    """Which groups of images are held out whole, given how many of each class (C,) each has.

    In an order drawn from (seed, group), each is held out that brings the held-out images of all
    classes nearer to their share.
    """
    groups = np.fromiter(counts, np.int64, len(counts))
    order = groups[np.argsort(hash_keys(seed, groups), kind="stable")]
    wanted = fraction * np.sum([counts[group] for group in groups.tolist()], axis=0)
    held, chosen = np.zeros(len(wanted)), set()
    for group in order.tolist():
        more = held + counts[group]
        if np.abs(wanted - more).sum() < np.abs(wanted - held).sum():
            held = more
            chosen.add(group)
    return chosen
