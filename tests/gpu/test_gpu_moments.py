"""Test moments of patches and of features, and statistics of learners, on a GPU."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from gpu_cases import TOLERANCE, relative_error

from rescnet_dist import NetworkSpec
from rescnet_dist.kernels import Backend, FeatureMoments, to_host
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.model import BankStatistics, Observation
from tests.patch_statistics import patch_statistics

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["cca", "lda", "residual-metric"])
def test_statistics_of_learners_equal_those_of_the_cpu(
    backend: Backend, name: str, rng: np.random.Generator
) -> None:
    """Of two towers in a later layer, in two chunks that are merged on the GPU."""
    spec = NetworkSpec(filters=8, bank=f"{name}:0.5,{name}:0.5@contrast")
    architecture = spec.architecture((16, 16, 1), 3)
    images = rng.random((20, 16, 16, 2)).astype(np.float32)
    maps = rng.normal(size=(20, 16, 16, 8)).astype(np.float32)
    scores = rng.normal(size=(20, 3)).astype(np.float32)
    labels, train = np.arange(20) % 3, np.arange(20) % 7 != 0
    counts = np.bincount(labels[train], minlength=3)

    def gather(put: Any, xp: Any) -> Any:
        total = BankStatistics.empty(architecture, 2, xp)
        for rows in (slice(12), slice(12, 20)):
            inputs = LayerInput.of(put(images[rows]), put(maps[rows]))
            observed = labels[rows], train[rows], 0 * counts, counts, None, put(scores[rows])
            chunk = Observation(inputs, *observed)
            total = total.merge(BankStatistics.of(chunk, architecture, 2))
        return to_host(total)

    expected = list_arrays(gather(np.asarray, np))
    with Backend("cupy", "float32").working():
        found = list_arrays(gather(backend.put, backend.xp))
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < TOLERANCE["float32"]


def list_arrays(value: Any) -> list[Any]:
    """Return all arrays that statistics hold."""
    if is_dataclass(value):
        return [a for field in fields(value) for a in list_arrays(getattr(value, field.name))]
    if isinstance(value, tuple):
        return [array for part in value for array in list_arrays(part)]
    return [value] if isinstance(value, np.ndarray) else []


@pytest.mark.parametrize("size", [1, 2, 5])
def test_patches_of_any_size_equal_those_of_the_cpu(
    backend: Backend, size: int, rng: np.random.Generator
) -> None:
    """Minimum, maximum, mean and scatter are compared.

    The rows of the images are not a whole number of segments, and there is one channel.
    """
    images = rng.normal(size=(600, 11, 13, 1)).astype(np.float32)
    low, high, moments = patch_statistics(LayerInput.of(images), size)
    found = tuple(map(to_host, patch_statistics(LayerInput.of(backend.put(images)), size)))
    assert np.array_equal(found[0], low)
    assert np.array_equal(found[1], high)
    assert relative_error(found[2].mean, moments.mean) < 1e-6
    assert relative_error(found[2].scatter, moments.scatter) < TOLERANCE["split"]


@pytest.mark.parametrize("slab", [2**20, None], ids=["many slabs", "one slab"])
def test_sums_over_many_images_are_accurate(
    backend: Backend, slab: int | None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test as many images as a chunk has on a large GPU, summed in single precision.

    Matrix units round towards zero when they sum, by 6e-9 of the sum for each image.
    """
    from rescnet_dist.kernels.gpu import patches

    if slab:
        monkeypatch.setattr(patches, "PATCH_SLAB_BYTES", slab)
    n = 2 * patches.MAX_SUMMED_IMAGES
    images = (rng.random((n, 6, 6, 2)) + 3).astype(np.float32)
    whole = images.astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(whole, (3, 3), (1, 2))
    rows = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, 18)
    centered = rows - rows.mean(axis=0)
    found = to_host(patch_statistics(LayerInput.of(backend.put(images)), 3)[2])
    assert relative_error(found.scatter, centered.T @ centered) < 3 * TOLERANCE["split"]


def test_chunk_without_training_images_adds_nothing(backend: Backend) -> None:
    """All of its images are held out."""
    images, train = np.zeros((5, 8, 8, 3), np.float32), np.zeros(5, bool)
    expected = patch_statistics(LayerInput.of(images).select(train), 3)
    found = patch_statistics(LayerInput.of(backend.put(images)).select(train), 3)
    for one, other in zip(found[:2], expected[:2], strict=True):
        assert np.array_equal(to_host(one), other)
    assert found[2].count == expected[2].count == 0


@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_counts_equal_those_of_the_cpu(
    backend: Backend, weighted: bool, rng: np.random.Generator
) -> None:
    """Features are bytes."""
    counts = rng.poisson(3, size=(600, 300)).astype(np.uint8)
    targets = rng.normal(size=(600, 4)).astype(np.float32)
    weights = 10 ** rng.uniform(-1.5, 1.5, 600) if weighted else None
    expected = FeatureMoments.empty(300, 4).fold(counts, targets, weights)
    empty = FeatureMoments.empty(300, 4, xp=backend.xp)
    with backend.working():
        found = to_host(empty.fold(backend.put(counts), backend.put(targets), weights))
    assert relative_error(found.mean, expected.mean) < 1e-6
    assert relative_error(found.cross, expected.cross) < 1e-4
    scatter, expected_scatter = np.tril(found.scatter), np.tril(expected.scatter)
    assert relative_error(scatter, expected_scatter) < TOLERANCE["split"]


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
def test_weighted_moments_equal_those_of_the_cpu(
    backend: Backend, matmul_precision: str, rng: np.random.Generator
) -> None:
    """Weights differ by a factor of a thousand; some images are not selected."""
    maps = rng.normal(size=(600, 12, 11, 20)).astype(np.float32)
    images = rng.random((600, 12, 11, 3)).astype(np.float32)
    weights, train = 10 ** rng.uniform(-1.5, 1.5, 600), rng.random(600) < 0.8
    expected = patch_statistics(LayerInput.of(images, maps, weights).select(train), 3)
    gpu_inputs = LayerInput.of(backend.put(images), backend.put(maps), weights).select(train)
    features = rng.normal(size=(600, 300)).astype(np.float32)
    targets = rng.normal(size=(600, 4)).astype(np.float32)

    def fold(xp: Any) -> FeatureMoments:
        moments = FeatureMoments.empty(300, 4, xp=xp)
        for rows in (slice(0, 350), slice(350, 600)):
            chunk = xp.asarray(features[rows]), xp.asarray(targets[rows])
            moments = moments.fold(*chunk, weights[rows])
        return to_host(moments)

    with Backend("cupy", matmul_precision).working():
        found = tuple(map(to_host, patch_statistics(gpu_inputs, 3)))
        moments = fold(backend.xp)
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])
    assert found[2].count == pytest.approx(expected[2].count)
    assert relative_error(found[2].mean, expected[2].mean) < 1e-6
    assert relative_error(found[2].scatter, expected[2].scatter) < TOLERANCE[matmul_precision]
    on_cpu = fold(np)
    assert relative_error(moments.mean, on_cpu.mean) < 1e-6
    assert relative_error(moments.cross, on_cpu.cross) < 1e-4
    assert relative_error(moments.target_sums, on_cpu.target_sums) < 1e-10
    scatter, on_cpu_scatter = np.tril(moments.scatter), np.tril(on_cpu.scatter)
    assert relative_error(scatter, on_cpu_scatter) < TOLERANCE[matmul_precision]
