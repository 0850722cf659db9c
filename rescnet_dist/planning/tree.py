"""The tree of merges on paper: its depth, bytes between workers, and the wait for its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rescnet_dist.planning.plan import Plan

MERGE_BYTES_PER_SECOND = 0.8e9  # of accumulators that are sent and added, approximately


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree that merges the accumulators of a pass.

    Attributes
    ----------
    depth : int
        Merges of two accumulators between a fold and the end, on the longest path.
    remote_depth : int
        How many of them receive an accumulator from another worker, on the longest path.
    moved : int
        Accumulators that are sent from one worker to another in all.
    accumulator_bytes : int
        Bytes of an accumulator in memory.
    sent_bytes : int
        Bytes of an accumulator as it is sent.
    solve_seconds : float or None, default None
        Approximate seconds of the solve that follows; None if the speed was not measured.
    """

    depth: int
    remote_depth: int
    moved: int
    accumulator_bytes: int
    sent_bytes: int
    solve_seconds: float | None = None

    @property
    def network(self) -> int:
        """Bytes that are sent from one worker to another."""
        return self.moved * self.sent_bytes

    @property
    def reduce_seconds(self) -> float:
        """Approximate seconds from the last fold to the merge of all."""
        return self.remote_depth * self.accumulator_bytes / MERGE_BYTES_PER_SECOND

    @property
    def wait_seconds(self) -> float | None:
        """Approximate seconds that the worker of the last fold waits for the next layer."""
        return None if self.solve_seconds is None else self.reduce_seconds + self.solve_seconds


def merge_tree(
    plan: Plan, placement: Sequence[int], accumulator_bytes: int, sent_bytes: int
) -> Tree:
    """Return the tree of a plan whose fold g is made on worker placement[g].

    A merge is made on the worker that has most of what it merges; others are sent there.

    >>> merge_tree(Plan(8, 1, 8, 2, 1), [0, 0, 1, 1, 2, 2, 3, 3], 10, 5)
    Tree(depth=3, remote_depth=2, moved=3, accumulator_bytes=10, sent_bytes=5, solve_seconds=None)
    """
    nodes, moved = [(worker, 0, 0) for worker in placement], 0
    while len(nodes) > 1:
        batches = [nodes[i : i + plan.split_every] for i in range(0, len(nodes), plan.split_every)]
        nodes = []
        for batch in batches:
            here = Counter(worker for worker, *_ in batch).most_common(1)[0][0]
            sent = sum(worker != here for worker, *_ in batch)
            moved += sent
            depth, remote = (max(values) for values in list(zip(*batch, strict=True))[1:])
            nodes.append((here, depth + len(batch) - 1, remote + sent))
    (_, depth, remote) = nodes[0]
    return Tree(depth, remote, moved, accumulator_bytes, sent_bytes)


def spread_groups(count: int, workers: int, *, cached: bool) -> list[int]:
    """Return the number of the worker of each of `count` folds.

    If maps or features stay in memory, neighbors share a worker, as the caches of groups do.
    Otherwise a fold is made on the next worker that is free.

    >>> spread_groups(4, 2, cached=True), spread_groups(4, 2, cached=False)
    ([0, 0, 1, 1], [0, 1, 0, 1])
    """
    if cached:
        return [group * workers // count for group in range(count)]
    return [group % workers for group in range(count)]
