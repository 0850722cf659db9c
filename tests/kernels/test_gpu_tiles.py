"""Test the tiles of a GPU's convolution, and that filters that do not fit raise."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels import check_gpu_holds
from rescnet_dist.kernels.gpu_tiles import (
    MAX_SHARED_BYTES,
    Tile,
    max_launch_filters,
    plan_launches,
    use_matrix_units,
)


def shared_bytes(tile: Tile, size: int) -> int:
    """Return the shared memory that convolution.cu declares for inputs and filters."""
    inputs = (tile.rows + size - 1) * (tile.columns + size - 1 + 1)
    return 4 * tile.depth * (inputs + 4 * size * size * tile.groups)


@pytest.mark.parametrize(("size", "filters"), [(3, 50), (13, 60), (7, 16), (5, 200), (1, 2)])
def test_tile_fits_into_shared_memory(size: int, filters: int) -> None:
    """At least one channel fits, by the declarations of the kernel."""
    tile = Tile.of(size, filters, 32, 32)
    assert 0 < shared_bytes(tile, size) <= MAX_SHARED_BYTES
    assert tile.threads <= 512


def test_too_large_filter_raises_with_a_size_that_fits() -> None:
    """The advised size is the largest, and the message names the option."""
    with pytest.raises(SpecError, match="first_filter_size=71 gives filters that do not") as error:
        check_gpu_holds("first_filter_size", 71, 3, 96, 96, "split")
    advised: Any = re.search(r"at most (\d+)", str(error.value))
    check_gpu_holds("first_filter_size", int(advised[1]), 3, 96, 96, "split")
    with pytest.raises(SpecError):
        check_gpu_holds("first_filter_size", int(advised[1]) + 1, 3, 96, 96, "split")


def test_filters_that_do_not_use_matrix_units() -> None:
    """These are filters of few channels, in single precision, and large ones."""
    assert use_matrix_units(3, 53, "split")
    assert not use_matrix_units(3, 3, "split")
    assert not use_matrix_units(3, 53, "float32")
    assert not use_matrix_units(13, 61, "half")


@pytest.mark.parametrize("matmul_precision", ["float32", "split"])
@pytest.mark.parametrize(("size", "filters"), [(3, 50), (3, 72), (5, 60), (13, 75), (3, 500)])
def test_launches_apply_each_filter_once(size: int, filters: int, matmul_precision: str) -> None:
    """No launch has more filters than a block of threads holds; all have their channels."""
    bank = np.ones((size, size, 70, filters))
    bank[:, :, 40:, : filters // 2] = 0
    bank[:, :, :40, filters // 2 :] = 0
    bank[..., 3] = 0  # a filter that could not be learned
    launches = plan_launches(bank, matmul_precision, 32, 32)
    applied = [n for launch in launches for n in range(launch.filters.start, launch.filters.stop)]
    assert applied == list(range(filters))
    for launch in launches:
        others = np.setdiff1d(np.arange(70), launch.channels)
        assert not bank[:, :, others, launch.filters].any()
        assert len(launch.channels) < 70
        count = launch.filters.stop - launch.filters.start
        assert max_launch_filters(size, count, 32, 32, matrix_units=launch.matrix_units) == count
    sizes = {launch.filters.stop - launch.filters.start for launch in launches}
    assert len(sizes) <= 3  # each size is compiled
