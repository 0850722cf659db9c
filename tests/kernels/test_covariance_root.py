"""Test the square roots of correlation matrices of blocks, pooled over a spatial pyramid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rescnet_dist import NetworkSpec, SpecError
from rescnet_dist.kernels import covariance_root, covariance_root_features, newton_roots
from rescnet_dist.kernels.pooling import assign_cells, block_starts
from rescnet_dist.model.features.covariance_root import CovarianceRoot

Array = np.ndarray[Any, np.dtype[Any]]


def make_maps(rng: np.random.Generator, height: int, width: int, filters: int) -> Array:
    """Return maps (3, H, W, f) of both signs; one is constant, one negative everywhere."""
    maps = rng.normal(0.3, 1, size=(3, height, width, filters)).astype(np.float32)
    maps[1, :, :, 1] = 2.5
    maps[2, :, :, 0] = -1
    return maps


def root_slowly(matrix: Array, steps: int, ridge: float) -> Array:
    """Return the root of a matrix (f, f) after some steps, in double precision."""
    identity = np.eye(len(matrix))
    matrix = matrix + ridge * identity
    trace = np.trace(matrix)
    root, inverse = matrix / trace, identity
    for _ in range(steps):
        factor = (3 * identity - inverse @ root) / 2
        root, inverse = root @ factor, factor @ inverse
    return root * np.sqrt(trace)


def pool_slowly(maps: Array, extractor: CovarianceRoot) -> Array:
    """Return the features of each image, block by block and cell by cell, in double precision."""
    _, height, width, filters = maps.shape
    block, stride, row, column = extractor.block, extractor.stride, *np.triu_indices(filters)
    features = []
    for image in np.maximum(maps.astype(np.float64), 0):
        entries = {}
        for i, top in enumerate(block_starts(height, block, stride)):
            for j, left in enumerate(block_starts(width, block, stride)):
                pixels = image[top : top + block, left : left + block].reshape(-1, filters)
                centered = pixels - pixels.mean(axis=0)
                deviation = centered.std(axis=0)
                scale = np.where(deviation > 1e-6, 1 / np.maximum(deviation, 1e-6), 0)
                correlation = (centered * scale).T @ (centered * scale) / block**2
                root = root_slowly(correlation, extractor.steps, extractor.ridge)[row, column]
                entries[i, j] = np.sign(root) * np.sqrt(np.abs(root)) if extractor.power else root
        values = []
        for level in extractor.levels:
            rows = assign_cells(height, block, stride, level, extractor.cells)
            columns = assign_cells(width, block, stride, level, extractor.cells)
            for cell in sorted({(r, c) for r in rows for c in columns}):
                inside = [v for (i, j), v in entries.items() if (rows[i], columns[j]) == cell]
                if extractor.pools != "mean":
                    values.append(np.max(inside, axis=0))
                if extractor.pools != "max":
                    values.append(np.mean(inside, axis=0))
        features.append(np.concatenate(values))
    return np.array(features)


@pytest.mark.parametrize(
    ("height", "width", "block", "stride", "levels", "cells"),
    [
        (12, 12, 6, 3, (2, 1), "center"),
        (9, 14, 5, 2, (3, 2, 1), "even"),
        (8, 8, 8, 4, (1,), "center"),
        (11, 10, 4, 4, (4, 2), "center"),
    ],
)
@pytest.mark.parametrize("pools", ["both", "max", "mean"])
def test_features_equal_oracle(
    height: int,
    width: int,
    block: int,
    stride: int,
    levels: tuple[int, ...],
    cells: str,
    pools: str,
    rng: np.random.Generator,
) -> None:
    """With constant channels, cells of unequal size, and levels that do not nest."""
    maps = make_maps(rng, height, width, 5)
    for power, steps in ((False, 5), (True, 1)):
        extractor = CovarianceRoot(block, stride, steps, 0.02, power, levels, cells, pools)  # type: ignore[arg-type]
        found, expected = extractor(maps, (2, 3)), pool_slowly(maps, extractor)
        assert found.dtype == np.float32
        assert found.shape == expected.shape == (3, extractor.count(height, width, (2, 3)))
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3 if power else 2e-6)


def test_many_steps_give_the_square_root(rng: np.random.Generator) -> None:
    """Its square is the matrix."""
    factors = rng.normal(size=(4, 6, 9)).astype(np.float32)
    matrices = factors @ factors.swapaxes(1, 2) / 9
    roots = newton_roots(matrices.copy(), 20, 0.01)
    np.testing.assert_allclose(roots @ roots, matrices + 0.01 * np.eye(6), atol=1e-5)


def test_bits_do_not_depend_on_other_images(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on their number, nor on how many are processed at a time, nor on memory layout."""
    maps = make_maps(rng, 12, 12, 6)
    features = covariance_root_features(maps, 6, 3, (2, 1))
    monkeypatch.setattr(covariance_root, "ROOT_SLAB_BYTES", 1)
    assert np.array_equal(covariance_root_features(maps, 6, 3, (2, 1)), features)
    strided = np.ascontiguousarray(maps.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    for part in (maps[1:], strided[1:]):
        assert np.array_equal(covariance_root_features(part, 6, 3, (2, 1)), features[1:])


def test_no_images_have_no_features() -> None:
    """Their shape is right."""
    features = covariance_root_features(np.zeros((0, 8, 8, 4), np.float32), 4, 2, (1,))
    assert features.shape == (0, 20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root_levels": ()}, "at least one level"),
        ({"root_steps": 0}, "root_steps"),
        ({"root_ridge": 0.0}, "root_ridge"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    """By the name that the user gave."""
    with pytest.raises(SpecError, match=message):
        NetworkSpec(features="covariance-root", **options)


def test_block_larger_than_images_is_refused() -> None:
    """By the spec, which names both."""
    with pytest.raises(SpecError, match="40"):
        CovarianceRoot(block=40).check_images((32, 32, 3))
