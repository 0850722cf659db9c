"""Test the kernel of all pairs of images against plain NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rescnet_dist.errors import DataError, SingularError
from rescnet_dist.kernels import leave_one_out
from rescnet_dist.kernels import samples as samples_module
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.samples import (
    FeatureSamples,
    GaussianKernel,
    kernel_ridge,
    round_to_unit,
    sum_unit,
)


def plain_kernel(left: Array, right: Array, train: Array, width: float) -> Array:
    """Return the kernel (n, m) of features (n, D) and (m, D), given those of training images."""
    deviation = train.std(axis=0)
    live = deviation > 0
    left, right = ((rows - train.mean(axis=0))[:, live] / deviation[live] for rows in (left, right))
    distances = ((left[:, None] - right[None]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-distances / (2 * width * live.sum())))


def make_samples(rng: np.random.Generator, dtype: str = "float32") -> tuple[FeatureSamples, Array]:
    """Return samples of 90 images, gathered in three chunks in another order, and their features.

    The last of seven features has no variance.
    """
    features = (3 + rng.normal(size=(90, 7)) * np.arange(1, 8)).astype(np.float32)
    features[:, 6] = 5
    targets = rng.normal(size=(90, 2)).astype(np.float32)
    train = np.arange(90) % 4 > 0
    parts = [
        FeatureSamples.empty(7, dtype).fold(
            start, *(values[start : start + 30] for values in (features, targets, train))
        )
        for start in (60, 0, 30)
    ]
    return parts[0].merge(parts[1]).merge(parts[2]).merge(FeatureSamples.empty(7, dtype)), features


def test_samples_keep_all_images_in_the_order_of_the_run(rng: np.random.Generator) -> None:
    """And the moments are those of training images alone."""
    samples, features = make_samples(rng)
    train = np.concatenate([block.train for block in samples.blocks])
    kept = np.concatenate([block.features for block in samples.blocks])
    assert np.array_equal(kept, features)
    assert samples.count == train.sum() == 67
    np.testing.assert_allclose(samples.moments.mean, features[train].mean(axis=0), rtol=1e-6)
    scaling = samples.scaling()
    assert scaling.mean_square == 6
    standardized = scaling(features[train])
    np.testing.assert_allclose(standardized[:, :6].std(axis=0), 1, rtol=1e-5)
    assert not standardized[:, 6].any()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 3e-3)])
def test_kernel_of_all_pairs(
    rng: np.random.Generator, dtype: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equals the definition, in blocks of any size, on its lower triangle."""
    for name, value in {"PRODUCT_FEATURES": 3, "KERNEL_PANEL_COLUMNS": 16}.items():
        monkeypatch.setattr(samples_module, name, value)
    monkeypatch.setattr(samples_module, "KERNEL_PANEL_BYTES", 67 * 4 * 5)
    samples, features = make_samples(rng, dtype)
    train = np.concatenate([block.train for block in samples.blocks])
    trained = [block.features[block.train] for block in samples.blocks]
    kernel = GaussianKernel(samples.scaling(), 0.7)
    expected = plain_kernel(features[train], features[train], features[train].astype(float), 0.7)
    found = kernel.pairs(samples.blocks)
    np.testing.assert_allclose(np.tril(found), np.tril(expected), atol=tolerance)
    assert (np.diagonal(found) == 1).all()
    weights = rng.normal(size=(67, 3)).astype(np.float32)
    others = plain_kernel(features[~train], features[train], features[train].astype(float), 0.7)
    products = kernel.products(features[~train], np.concatenate(trained), weights)
    np.testing.assert_allclose(products, others @ weights, atol=10 * tolerance)


def test_kernel_ridge_leaves_images_out(rng: np.random.Generator) -> None:
    """With exact leverages, predictions are those of fits without the image."""
    square = plain_kernel(*[rng.normal(size=(40, 5))] * 2, rng.normal(size=(40, 5)), 1.0)
    targets, ridge = rng.normal(size=(40, 2)), 0.3
    inverse = np.linalg.inv(square + ridge * np.eye(40))
    weights, fitted = kernel_ridge(np.asfortranarray(square, np.float32), targets, ridge)
    np.testing.assert_allclose(weights, inverse @ targets, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fitted, square @ inverse @ targets, rtol=1e-4, atol=1e-5)
    leverage = (1 - ridge * np.diagonal(inverse))[:, None]
    assert leverage.max() < 0.9
    left_out = leave_one_out(fitted, targets, leverage, np.ones((40, 1)))
    for image in (0, 17):
        others = np.arange(40) != image
        matrix = square[np.ix_(others, others)] + ridge * np.eye(39)
        expected = square[image, others] @ np.linalg.solve(matrix, targets[others])
        np.testing.assert_allclose(left_out[image], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_features_too_large_for_half_precision_are_refused() -> None:
    """The message names the limit and the remedy."""
    features = np.array([[1, 2], [3, 1e5]], np.float32)
    samples = FeatureSamples.empty(2, "float16")
    with np.errstate(all="ignore"):
        samples = samples.fold(0, features, np.ones((2, 1), np.float32), np.ones(2, bool))
    with pytest.raises(DataError, match=r'larger than 65504, .* Use store_dtype="float32"'):
        samples.scaling()


def test_equal_images_need_a_ridge() -> None:
    """The message names the ridge and the remedy."""
    with pytest.raises(SingularError, match=r"kernel of 30 training images .* ridge=1e-12\. Use"):
        kernel_ridge(np.ones((30, 30), np.float32, order="F"), np.ones((30, 1)), 1e-12)


def test_sums_of_rounded_values_do_not_depend_on_order(rng: np.random.Generator) -> None:
    """They are exact, and values are as precise as single precision needs."""
    values = rng.normal(size=(200, 5)).astype(np.float32) * 10.0 ** rng.integers(-6, 6, (200, 1))
    bound = float(abs(values).sum(axis=0).max())
    rounded = round_to_unit(values.astype(np.float32), sum_unit(bound))
    np.testing.assert_allclose(rounded, values, rtol=1e-6, atol=1e-15 * bound)
    total = sum(rounded)
    for _ in range(5):
        order = rng.permutation(200)
        cut = rng.integers(1, 199)
        assert np.array_equal(sum(rounded[order[:cut]]) + sum(rounded[order[cut:]]), total)
    assert math.fsum(rounded[:, 0]) == total[0]
    assert not np.isfinite(round_to_unit(np.float32([np.nan, np.inf]), sum_unit(0.0))).any()
