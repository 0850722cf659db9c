"""Test the backend of a run: presets fit a GPU, and filters that do not fit raise."""

from __future__ import annotations

import pytest

from rescnet_dist.cluster import Workers
from rescnet_dist.errors import SpecError
from rescnet_dist.kernels import Backend
from rescnet_dist.planning import Problem, make_plan
from rescnet_dist.planning.backend import check_backend, get_backend
from rescnet_dist.spec import PRESETS, NetworkSpec, RunSpec
from tests.presets import IMAGES


def test_backend_is_that_of_the_run() -> None:
    """Library and precision are taken over."""
    assert get_backend(RunSpec()) == Backend()
    run_spec = RunSpec(array_backend="cupy", matmul_precision="half")
    assert get_backend(run_spec) == Backend("cupy", "half")


@pytest.mark.parametrize("matmul_precision", ["float32", "split", "half"])
@pytest.mark.parametrize("name", PRESETS)
def test_presets_fit(name: str, matmul_precision: str) -> None:
    """They fit in every precision."""
    check_backend(Backend("cupy", matmul_precision), PRESETS[name], IMAGES[name])


@pytest.mark.parametrize("name", ["first_filter_size", "filter_size"])
def test_too_large_filter_raises_before_anything_is_written(name: str) -> None:
    """The plan raises; a CPU has no such limit."""
    spec, problem = NetworkSpec(**{name: 71}), Problem(1000, (96, 96, 3), 10)
    workers = Workers(1, 1, 1, 1, 64 * 2**30, gpu_memory=80 * 2**30)
    with pytest.raises(SpecError, match=f"{name}=71 gives filters that do not fit"):
        make_plan(problem, spec, RunSpec(array_backend="cupy"), workers)
    check_backend(Backend(), spec, problem.image_shape)
