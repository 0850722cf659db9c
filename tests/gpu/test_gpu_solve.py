"""Test ridge regression, factorizations and conjugate gradients on a GPU against the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_cases import TOLERANCE, relative_error

from rescnet_dist.kernels import (
    Backend,
    CovarianceProduct,
    FeatureMoments,
    Iterate,
    Standardizer,
    ridge_regression,
    to_host,
)
from rescnet_dist.kernels.backend import get_operations
from rescnet_dist.kernels.cpu import solve as cpu_solve

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
def test_ridge_regression_equals_that_of_the_cpu(
    backend: Backend, matmul_precision: str, rng: np.random.Generator
) -> None:
    """Moments of three chunks are merged from two parts and solved.

    There are enough features for single precision with refinement.
    """
    features = rng.normal(size=(3000, 2500)).astype(np.float32)
    features += 2 * rng.normal(size=(3000, 1)).astype(np.float32)
    targets = rng.normal(size=(3000, 4)).astype(np.float32)
    parts = np.array_split(np.arange(3000), 3)

    def fit_weights(xp: Any) -> Any:
        first, second = (FeatureMoments.empty(2500, 4, xp=xp) for _ in range(2))
        for rows in parts[:2]:
            first = first.fold(xp.asarray(features[rows]), xp.asarray(targets[rows]))
        second = second.fold(xp.asarray(features[parts[2]]), xp.asarray(targets[parts[2]]))
        return ridge_regression(first.merge(second), 1.0)[0]

    with Backend("cupy", matmul_precision).working():
        error = relative_error(backend.get(fit_weights(backend.xp)), fit_weights(np))
        assert error < 10 * TOLERANCE[matmul_precision]


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("side", [2000, 2048, 2500, 3072, 3073])  # in single precision from 2048 on
def test_solutions_equal_those_of_the_cpu(
    backend: Backend, side: int, overwrite: bool, matmul_precision: str, rng: np.random.Generator
) -> None:
    """Only the lower triangle is read, and it is overwritten only if that is allowed.

    The solution of a single column does not depend on others.
    """
    scatter, columns = make_scatter(rng, side, 1.0), rng.normal(size=(side, 5))
    _, expected = cpu_solve.whiten(scatter, np.zeros(side), 4000.0, 0.5)
    operations = get_operations(backend.put(columns))
    square = operations.new_square(side, np.dtype(np.float32))
    square[...] = backend.put(np.tril(scatter) + np.triu(np.full_like(scatter, 1e30), 1))
    with Backend("cupy", matmul_precision).working():
        _, solve = operations.whiten(
            square, backend.put(np.zeros(side)), 4000.0, 0.5, overwrite=overwrite
        )
        found = [backend.get(solve(backend.put(columns))) for _ in range(2)]
        single = backend.get(solve(backend.put(columns[:, :1])))
    assert relative_error(found[0], expected(columns)) < 1e-5
    assert relative_error(single, expected(columns[:, :1])) < 1e-5
    assert np.array_equal(*found)
    kept = np.array_equal(np.tril(backend.get(square)), np.tril(scatter))
    assert kept == (not overwrite or side < 2048)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("ridge", "precisions"),
    [(1.0, ["half"]), (1e-3, ["half", "split"]), (1e-3, ["half", "float64"])],
)
def test_factors_of_more_precision_are_tried_in_turn(
    backend: Backend,
    ridge: float,
    precisions: list[str],
    overwrite: bool,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Features that share most of their variance: half precision needs a large ridge.

    Each factor is that of the same matrix, which the one before has overwritten.
    """
    from rescnet_dist.kernels.gpu import solve as gpu_solve

    tried: list[str] = []
    factorize, factorize_double = gpu_solve.InPlaceFactor.factorize, gpu_solve.factorize_double
    monkeypatch.setattr(
        gpu_solve.InPlaceFactor,
        "factorize",
        lambda *arguments: tried.append(arguments[-1]) or factorize(*arguments),
    )
    monkeypatch.setattr(
        gpu_solve,
        "factorize_double",
        lambda *arguments: tried.append("float64") or factorize_double(*arguments),
    )
    single = tuple(name for name in precisions if name != "float64")
    if "float64" in precisions:
        monkeypatch.setitem(gpu_solve.FACTOR_PRECISIONS, "half", single)
    scatter, columns = make_scatter(rng, 2500, 0.03), rng.normal(size=(2500, 3))
    square = gpu_solve.as_square(backend.put(scatter))
    with Backend("cupy", "half").working():
        scale, solve = gpu_solve.whiten(
            square, backend.put(np.zeros(2500)), 4000.0, ridge, overwrite=overwrite
        )
        found = backend.get(solve(backend.put(columns)))
    root = backend.get(scale) / np.sqrt(4000)
    covariance = scatter.astype(np.float64) * root * root[:, None] + ridge * np.eye(2500)
    assert tried == precisions
    assert relative_error(covariance @ found, columns) < 1e-6


def make_scatter(rng: np.random.Generator, side: int, deviation: float) -> Any:
    """Return the scatter of 4,000 samples of features that share a part, and this own deviation."""
    features = deviation * rng.normal(size=(4000, side)) + rng.normal(size=(4000, 1))
    features -= features.mean(axis=0)
    return (features.T @ features).astype(np.float32)


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_conjugate_gradients_equal_those_of_the_cpu(
    backend: Backend, matmul_precision: str, dtype: type, rng: np.random.Generator
) -> None:
    """Three iterations, with weights and a feature without variance."""
    features = rng.poisson(3, size=(1500, 1100)).astype(dtype)
    features[:, 5] = 1
    weights = rng.uniform(0.5, 2, 1500)
    targets = rng.normal(size=(1500, 4)).astype(np.float32)

    def solve(xp: Any) -> Any:
        own = xp.asarray(features)
        moments = FeatureMoments.empty(1100, 4, scatter=False, squares=True, xp=xp)
        moments = to_host(moments.fold(own, xp.asarray(targets), weights))
        standardizer = Standardizer.of(moments.squares, moments.mean, moments.count, 0.1)
        centered = moments.cross - moments.target_sums[:, None] * moments.mean
        state = Iterate.first((centered * standardizer.scale / moments.count).T)
        for _ in range(3):
            product = CovarianceProduct.empty(
                state.directions, moments.mean, standardizer, own.dtype, xp
            )
            for rows in (slice(0, 700), slice(700, 1500)):
                product.add(own[rows], weights[rows])
            state = state.step(to_host(product.value()), standardizer)
        return state.solution

    expected = solve(np)
    with Backend("cupy", matmul_precision).working():
        assert relative_error(solve(backend.xp), expected) < 10 * TOLERANCE[matmul_precision]
