"""How a GPU's convolution is cut: it fits for what the presets ask for, else it is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rescnet_dist.cluster import Workers
from rescnet_dist.errors import SpecError
from rescnet_dist.kernels import check_gpu_holds
from rescnet_dist.kernels.gpu_tiles import MOST_HELD, Tile, on_matrix_units
from rescnet_dist.planning import Problem, make_plan
from rescnet_dist.spec import PRESETS, NetworkSpec, RunSpec
from tests.presets import IMAGES


def held(tile: Tile, size: int) -> int:
    """Bytes that convolution.cu declares: inputs and filters."""
    inputs = (tile.rows + size - 1) * (tile.columns + size - 1 + 1)
    return 4 * tile.depth * (inputs + 4 * size * size * tile.groups)


@pytest.mark.parametrize("products", ["float32", "split", "half"])
@pytest.mark.parametrize("name", PRESETS)
def test_presets_fit(name: str, products: str) -> None:
    """In every precision."""
    check_gpu_holds(PRESETS[name], IMAGES[name], products)


@pytest.mark.parametrize(("size", "filters"), [(3, 50), (13, 60), (7, 16), (5, 200), (1, 2)])
def test_what_is_held_is_what_there_is(size: int, filters: int) -> None:
    """As the source of the kernel has it; as deep as may be."""
    tile = Tile.of(size, filters, 32, 32)
    assert 0 < held(tile, size) <= MOST_HELD
    assert tile.threads <= 512


@pytest.mark.parametrize(("size", "filters"), [(13, 68), (15, 52), (11, 100), (9, 150)])
def test_what_does_not_fit_is_refused_with_what_does(size: int, filters: int) -> None:
    """Before anything is written, by the plan."""
    spec = NetworkSpec(filters=filters, first_filter_size=size)
    there = Workers(1, 1, 1, 1, 64 * 2**30, gpu_memory=80 * 2**30)
    run = RunSpec(array_backend="cupy")
    with pytest.raises(SpecError, match=f"filters={filters} with first_filter_size={size}") as why:
        make_plan(Problem(1000, (32, 32, 3), 10), spec, run, there)
    advised: Any = re.search(r"at most (\d+) filters", str(why.value))
    check_gpu_holds(spec.replace(filters=int(advised[1])), (32, 32, 3), "split")
    with pytest.raises(SpecError):
        check_gpu_holds(spec.replace(filters=int(advised[1]) + 1), (32, 32, 3), "split")


def test_few_channels_and_single_precision_are_not_for_matrix_units() -> None:
    """Nor are filters of which too few fit."""
    assert on_matrix_units(3, 53, 50, "split")
    assert not on_matrix_units(3, 3, 50, "split")
    assert not on_matrix_units(3, 53, 50, "float32")
    assert not on_matrix_units(13, 61, 60, "half")
