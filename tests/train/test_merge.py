"""Merging accumulators of passes."""

from __future__ import annotations

from dataclasses import dataclass

from rescnet_dist.kernels.cpu.threads import blas_threads, count_blas_threads
from rescnet_dist.store import Checksums
from rescnet_dist.train.passes import ChecksummedStatistics


@dataclass(frozen=True, slots=True)
class ThreadCounts:
    """Statistics that record the threads of BLAS in each merge."""

    counts: tuple[int, ...] = ()

    def merge(self, other: ThreadCounts) -> ThreadCounts:
        """Return the counts of both, and that of this merge."""
        return ThreadCounts((*self.counts, *other.counts, count_blas_threads()))


def test_merge_has_one_blas_thread() -> None:
    """More would wait actively after it, on cores that other tasks use; also within a fold."""
    part = ChecksummedStatistics(ThreadCounts(), Checksums())
    merged = part.merge(part).merge(part)
    assert merged.statistics.counts == (1, 1)
    with blas_threads(1):
        assert part.merge(part).statistics.counts == (1,)
