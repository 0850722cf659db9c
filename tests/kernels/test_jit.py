"""Test compiled kernels: workers load them from disk, and do not compile them themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import numpy as np
from rescnet_dist.kernels import LayerInput
from rescnet_dist.kernels.cpu import sliding
from rescnet_dist.kernels.cpu.products import sum_pair_products
if {doubles}:
    sliding.sum_over_patches(np.zeros((9, 9)), 3, 3, 1, 2, np.zeros((4, 4)))
sum_pair_products(LayerInput.of(np.ones((2, 3, 3, 1), np.float32)), 2, np.zeros(1, np.float32))
stats = sliding.sum_over_patches.stats
print(sum(stats.cache_misses.values()), sum(stats.cache_hits.values()))
"""


def count_compiled_and_loaded(cache: Path, doubles: bool) -> list[int]:
    """Return how often a new process compiled a kernel, and loaded it from disk."""
    return [
        int(number)
        for number in subprocess.run(
            [sys.executable, "-c", SCRIPT.format(doubles=doubles)],
            env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split()
    ]


@pytest.mark.slow
def test_kernels_are_compiled_by_another_process(tmp_path: Path) -> None:
    """This holds also if the kernel was cached for other types before."""
    assert count_compiled_and_loaded(tmp_path / "new", doubles=False) == [0, 1]
    assert count_compiled_and_loaded(tmp_path / "other", doubles=True) == [1, 1]
    assert count_compiled_and_loaded(tmp_path / "other", doubles=False) == [0, 1]
