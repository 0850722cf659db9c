"""Test feature extractors on a GPU against the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpu_cases import relative_error

from rescnet_dist import NetworkSpec
from rescnet_dist.kernels import Backend
from rescnet_dist.model.features.binary_hash import BinaryHash
from rescnet_dist.model.features.covariance_root import CovarianceRoot
from rescnet_dist.model.features.first_order import FirstOrder

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "change",
    [
        {"filters": 12, "block": 8, "stride": 4},
        {"filters": 50, "block": 16, "stride": 1},
        {"filters": 72, "block": 16, "stride": 4},
        {"filters": 30, "local_contrast": True, "pairs": "tower"},
        {"filters": 9, "block": 7, "stride": 3, "zscore": "block", "pool": "mean", "power": True},
    ],
    ids=["stride 4", "stride 1", "72 filters", "towers", "block, mean, power"],
)
def test_features_equal_those_of_the_cpu(backend: Backend, change: dict[str, Any]) -> None:
    """This holds for constant channels, and for all kinds of pooling."""
    spec = NetworkSpec(**change)
    maps = np.random.default_rng(0).normal(size=(20, 32, 32, spec.filters)).astype(np.float32)
    maps[3, :, :, 2] = -1.0  # constant after the ReLU
    maps[4] += 100.0  # large relative to its variance
    extract = spec.architecture(maps.shape[1:], 2).extract
    found = backend.get(extract(backend.put(maps), 1))
    assert relative_error(found, extract(maps, 1)) < 1e-4


@pytest.mark.parametrize(
    "extractor",
    [
        FirstOrder(levels=(3, 2, 1)),
        FirstOrder("absolute", pools="mean", power=True),
        FirstOrder("soft-threshold", 0.3),
        FirstOrder("none", pools="max"),
        BinaryHash(),
        BinaryHash(block=16, levels=(4, 2, 1)),
        BinaryHash(bits=3, levels=(3, 1), pool="sum", cells="even"),
    ],
    ids=repr,
)
def test_features_have_the_bits_of_the_cpu(
    backend: Backend, extractor: FirstOrder | BinaryHash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Floats are summed in the same order; several slabs of images are hashed."""
    monkeypatch.setattr("rescnet_dist.kernels.gpu.hashing.HASH_SLAB_BYTES", 7 * 4 * 6 * 1440)
    maps = np.random.default_rng(0).normal(size=(20, 32, 29, 48)).astype(np.float32)
    maps[3] = 0
    found = extractor(backend.put(maps), (48,))
    assert found.dtype == extractor.dtype
    assert np.array_equal(backend.get(found), extractor(maps, (48,)))


@pytest.mark.parametrize("filters", [37, 128, 136])  # of which 136 do not fit into shared memory
@pytest.mark.parametrize("precision", ["float32", "half"])
@pytest.mark.parametrize(
    "extractor",
    [
        CovarianceRoot(),
        CovarianceRoot(7, 3, 1, 0.1, False, (3, 2), "even", "max"),
        CovarianceRoot(29, 4, 3, levels=(1,), pools="mean"),
    ],
    ids=repr,
)
def test_roots_equal_those_of_the_cpu(
    backend: Backend,
    extractor: CovarianceRoot,
    precision: str,
    filters: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With channels that are constant, in several slabs of images.

    In shared memory, no bit depends on the number of images.
    """
    monkeypatch.setattr("rescnet_dist.kernels.covariance_root.ROOT_SLAB_BYTES", 50_000_000)
    maps = np.random.default_rng(0).normal(size=(20, 32, 29, filters)).astype(np.float32)
    maps[3, :, :, 2] = -1.0  # constant after the ReLU
    maps[4] = 0
    with replace(backend, matmul_precision=precision).working():
        found = backend.get(extractor(backend.put(maps), (filters,)))
        again = backend.get(extractor(backend.put(maps), (filters,)))
        few = backend.get(extractor(backend.put(maps[:7]), (filters,)))
    assert np.array_equal(again, found)
    in_shared_memory = precision == "half" and filters <= 128 and extractor.block * filters < 3000
    assert not in_shared_memory or np.array_equal(few, found[:7])
    assert relative_error(found, extractor(maps, (filters,))) < (
        1e-4 if precision == "float32" else 0.02
    )
