"""Test the fit_tiles scatter and factorization against untiled ones."""

from __future__ import annotations

import numpy as np
import pytest

from rescnet_dist.errors import SingularError
from rescnet_dist.kernels import (
    FeatureMoments,
    Standardizer,
    TileScatter,
    factor_tile,
    feature_blocks,
    one_vs_rest_lda,
    ridge_regression,
    tiled_whitening,
)


def fit_tiles(features, targets, tile: int, ridge: float, chunk: int = 37, weights=None):
    """Return moments without scatter, and the whitening from tiles in a dictionary."""
    get_weights = lambda rows: None if weights is None else weights[rows]  # noqa: E731
    moments = FeatureMoments.empty(features.shape[1], targets.shape[1], scatter=False)
    chunks = [slice(start, start + chunk) for start in range(0, len(features), chunk)]
    for rows in chunks:
        moments = moments.fold(features[rows], targets[rows], get_weights(rows))
    blocks = feature_blocks(features.shape[1], tile)
    scatter = {}
    for i, rows in enumerate(blocks):
        for j, columns in enumerate(blocks[: i + 1]):
            accumulator = TileScatter.empty(moments.mean[rows], moments.mean[columns])
            for part in chunks:
                accumulator.add(features[part, rows], features[part, columns], get_weights(part))
            scatter[i, j] = accumulator.value()
    squares = np.concatenate([np.diagonal(scatter[i, i]) for i in range(len(blocks))])
    standardizer = Standardizer.of(squares, moments.mean, moments.count, ridge)
    factor = {}
    for j in range(len(blocks)):
        for i in range(j, len(blocks)):
            factor[i, j] = factor_tile(
                standardizer.tile(scatter[i, j], blocks[i], blocks[j]),
                ((factor[i, k], factor[j, k]) for k in range(j)),
                factor[j, j] if i > j else None,
                standardizer,
            )
    read = lambda i, j: factor[i, j]  # noqa: E731
    return moments, tiled_whitening(moments, standardizer, blocks, read)


@pytest.mark.parametrize("tile", [1, 5, 16, 23, 100])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_tiles_give_the_weights_of_an_untiled_matrix(
    rng, tile: int, ridge: float, offset: float
) -> None:
    """Tiles divide the features, do not divide them, or hold them all; one is constant."""
    features = (rng.normal(size=(200, 23)) @ rng.normal(size=(23, 23)) + offset).astype(np.float32)
    features[:, 7] = 3.0
    targets = np.eye(4)[rng.integers(4, size=200)]
    moments, white = fit_tiles(features, targets, tile, ridge)
    # in double precision, so that the reference is the more accurate of the two
    exact = FeatureMoments.empty(23, 4, np.float64).fold(features.astype(float), targets)
    limit = 2e-3 if offset else 1e-4
    for fit in (one_vs_rest_lda, ridge_regression):
        found, expected = fit(moments, ridge, white), fit(exact, ridge)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=limit, atol=limit * np.abs(other).max())
        assert not found[0][:, 7].any()


@pytest.mark.parametrize("fit", [one_vs_rest_lda, ridge_regression])
def test_weighted_tiles_give_the_weights_of_repeated_samples(rng, fit) -> None:
    """The reference is an untiled matrix in double precision."""
    features = (rng.normal(size=(200, 23)) @ rng.normal(size=(23, 23)) + 20).astype(np.float32)
    targets, repeats = np.eye(4)[rng.integers(4, size=200)], rng.integers(1, 5, 200)
    moments, white = fit_tiles(features, targets, 5, 0.1, weights=repeats.astype(np.float64))
    repeated = features.astype(float).repeat(repeats, axis=0), targets.repeat(repeats, axis=0)
    expected = fit(FeatureMoments.empty(23, 4, np.float64).fold(*repeated), 0.1)
    for one, other in zip(fit(moments, 0.1, white), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


def test_singular_tile_raises(rng) -> None:
    """More features than samples and no ridge give the message of an untiled matrix."""
    features = rng.normal(size=(10, 30)).astype(np.float32)
    targets = np.eye(2)[np.arange(10) % 2]
    with pytest.raises(SingularError, match=r"30 features over 10 samples .* ridge=0.0"):
        fit_tiles(features, targets, 8, 0.0)
