"""How a GPU's convolution is cut: it fits for what the presets ask for, else it is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from rescnet_dist.cluster import Workers
from rescnet_dist.errors import SpecError
from rescnet_dist.kernels import check_gpu_holds
from rescnet_dist.kernels.gpu_tiles import (
    MOST_HELD,
    Tile,
    filters_at_once,
    launches,
    on_matrix_units,
)
from rescnet_dist.planning import Problem, make_plan
from rescnet_dist.spec import PRESETS, NetworkSpec, RunSpec
from tests.presets import IMAGES


def held(tile: Tile, size: int) -> int:
    """Bytes that convolution.cu declares: inputs and filters."""
    inputs = (tile.rows + size - 1) * (tile.columns + size - 1 + 1)
    return 4 * tile.depth * (inputs + 4 * size * size * tile.groups)


@pytest.mark.parametrize("matmul_precision", ["float32", "split", "half"])
@pytest.mark.parametrize("name", PRESETS)
def test_presets_fit(name: str, matmul_precision: str) -> None:
    """In every precision."""
    check_gpu_holds(PRESETS[name], IMAGES[name], matmul_precision)


@pytest.mark.parametrize(("size", "filters"), [(3, 50), (13, 60), (7, 16), (5, 200), (1, 2)])
def test_what_is_held_is_what_there_is(size: int, filters: int) -> None:
    """As the source of the kernel has it; as deep as may be."""
    tile = Tile.of(size, filters, 32, 32)
    assert 0 < held(tile, size) <= MOST_HELD
    assert tile.threads <= 512


def test_a_filter_that_does_not_fit_is_refused_with_what_does() -> None:
    """Before anything is written, by the plan."""
    spec = NetworkSpec(first_filter_size=71)
    there = Workers(1, 1, 1, 1, 64 * 2**30, gpu_memory=80 * 2**30)
    run = RunSpec(array_backend="cupy")
    with pytest.raises(SpecError, match="first_filter_size=71: a filter is more than") as why:
        make_plan(Problem(1000, (96, 96, 3), 10), spec, run, there)
    advised: Any = re.search(r"at most (\d+)", str(why.value))
    check_gpu_holds(spec.replace(first_filter_size=int(advised[1])), (96, 96, 3), "split")
    with pytest.raises(SpecError):
        check_gpu_holds(spec.replace(first_filter_size=int(advised[1]) + 1), (96, 96, 3), "split")


def test_few_channels_and_single_precision_are_not_for_matrix_units() -> None:
    """Nor are large filters."""
    assert on_matrix_units(3, 53, "split")
    assert not on_matrix_units(3, 3, "split")
    assert not on_matrix_units(3, 53, "float32")
    assert not on_matrix_units(13, 61, "half")


@pytest.mark.parametrize("matmul_precision", ["float32", "split"])
@pytest.mark.parametrize(("size", "filters"), [(3, 50), (3, 72), (5, 60), (13, 75), (3, 500)])
def test_launches_make_each_filter_once(size: int, filters: int, matmul_precision: str) -> None:
    """None with more than a block of threads holds, all with the channels that they see."""
    bank = np.ones((size, size, 70, filters))
    bank[:, :, 40:, : filters // 2] = 0
    bank[:, :, :40, filters // 2 :] = 0
    bank[..., 3] = 0  # as where a filter could not be learned
    found = launches(bank, matmul_precision, 32, 32)
    made = [number for one in found for number in range(one.filters.start, one.filters.stop)]
    assert made == list(range(filters))
    for one in found:
        others = np.setdiff1d(np.arange(70), one.channels)
        assert not bank[:, :, others, one.filters].any()
        assert len(one.channels) < 70
        count = one.filters.stop - one.filters.start
        assert filters_at_once(size, count, 32, 32, matrix_units=one.matrix_units) == count
    assert len({one.filters.stop - one.filters.start for one in found}) <= 3  # few to compile
