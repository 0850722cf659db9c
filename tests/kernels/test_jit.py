"""Compiled kernels: workers take them from disk, and never keep what compiling them takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLED_TWICE = """
import numpy as np
from rescnet_dist.kernels import LayerInput, sliding
from rescnet_dist.kernels.products import products_of_pairs
if {doubles}:
    sliding.slide(np.zeros((9, 9)), 3, 3, 1, 2, np.zeros((4, 4)))
products_of_pairs(LayerInput.of(np.ones((2, 3, 3, 1), np.float32)), 2, np.zeros(1, np.float32))
print(sum(sliding.slide.stats.cache_misses.values()), sum(sliding.slide.stats.cache_hits.values()))
"""


def compiled_and_loaded(cache: Path, doubles: bool) -> list[int]:
    """How often a new process compiled a kernel and took it from disk."""
    return [
        int(number)
        for number in subprocess.run(
            [sys.executable, "-c", CALLED_TWICE.format(doubles=doubles)],
            env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
            capture_output=True, check=True, text=True,
        ).stdout.split()
    ]  # fmt: skip


@pytest.mark.slow
def test_kernels_are_compiled_by_another_process(tmp_path: Path) -> None:
    """Also where the same kernel was kept for other types before."""
    assert compiled_and_loaded(tmp_path / "new", doubles=False) == [0, 1]
    assert compiled_and_loaded(tmp_path / "other", doubles=True) == [1, 1]
    assert compiled_and_loaded(tmp_path / "other", doubles=False) == [0, 1]
