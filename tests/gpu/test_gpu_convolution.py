"""Test convolution on a GPU against the CPU, for any number of filters."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_cases import TOLERANCE, relative_error

from rescnet_dist.kernels import Backend, convolve_each, to_host
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.model import Bank
from tests.patch_statistics import patch_statistics

pytestmark = pytest.mark.gpu


def test_filters_on_each_channel_equal_those_of_the_cpu(
    backend: Backend, rng: np.random.Generator
) -> None:
    """Maps and the moments of one channel, of maps and images."""
    maps = rng.normal(size=(9, 16, 15, 5)).astype(np.float32)
    images = rng.random((9, 16, 15, 2)).astype(np.float32)
    filters, bias, low = rng.normal(size=(5, 5, 8)) / 5, rng.normal(size=8), rng.normal(size=7)
    arguments = (0, 4, 6), filters, bias, low, np.ones(7)
    expected = convolve_each(LayerInput.of(images, maps), *arguments)
    gpu_inputs = LayerInput.of(backend.put(images), backend.put(maps))
    with backend.working():
        found = backend.get(convolve_each(gpu_inputs, *arguments))
        moments = to_host(patch_statistics(gpu_inputs.take([6]), 5)[2])
    assert relative_error(found, expected) < 2e-5
    reference = patch_statistics(LayerInput.of(images, maps).take([6]), 5)[2]
    assert relative_error(moments.scatter, reference.scatter) < 2e-5


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
def test_maps_and_patch_moments_equal_those_of_the_cpu(
    backend: Backend, matmul_precision: str, rng: np.random.Generator
) -> None:
    """The input is that of a later layer: maps and images."""
    maps = rng.normal(size=(30, 32, 32, 20)).astype(np.float32)
    images = rng.random((30, 32, 32, 3)).astype(np.float32)
    bank = Bank(
        np.full(23, -0.5),
        np.full(23, 0.3),
        rng.normal(size=(3, 3, 23, 24)) / 14,
        rng.normal(size=24),
    )
    expected = bank.maps(LayerInput.of(images, maps))
    moments = patch_statistics(LayerInput.of(images, maps), 3)[2]
    gpu_inputs = LayerInput.of(backend.put(images), backend.put(maps))
    with Backend("cupy", matmul_precision).working():
        assert (
            relative_error(backend.get(bank.maps(gpu_inputs)), expected)
            < TOLERANCE[matmul_precision]
        )
        found = to_host(patch_statistics(gpu_inputs, 3)[2])
    assert found.count == moments.count
    assert relative_error(found.scatter, moments.scatter) < TOLERANCE[matmul_precision]


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
@pytest.mark.parametrize(("size", "filters"), [(3, 72), (5, 60), (13, 75), (3, 151)])
def test_any_number_of_filters_gives_the_maps_of_the_cpu(
    backend: Backend, size: int, filters: int, matmul_precision: str, rng: np.random.Generator
) -> None:
    """There are more filters than a block of threads holds, in one tower or in two."""
    maps = rng.normal(size=(5, 32, 32, filters)).astype(np.float32)
    images = rng.random((5, 32, 32, 6)).astype(np.float32)
    channels, half = filters + 6, filters // 2
    whole = rng.normal(size=(size, size, channels, filters)) / (size * channels**0.5)
    towers = np.zeros_like(whole)
    for own, channels_used in (
        (slice(half), [*range(half), *range(filters, filters + 3)]),
        (slice(half, None), [*range(half, filters), *range(filters + 3, channels)]),
    ):
        towers[:, :, channels_used, own] = whole[:, :, channels_used, own]
    gpu_inputs = LayerInput.of(backend.put(images), backend.put(maps))
    for weights in (whole, towers):
        low, scale = rng.normal(size=channels), rng.random(channels)
        bank = Bank(low, scale, weights, rng.normal(size=filters))
        expected = bank.maps(LayerInput.of(images, maps))
        with Backend("cupy", matmul_precision).working():
            assert (
                relative_error(backend.get(bank.maps(gpu_inputs)), expected)
                < TOLERANCE[matmul_precision]
            )
