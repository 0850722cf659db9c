"""Test the blocked Cholesky factorization, and solving with its factor and with its matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescnet_dist.kernels.cpu import cholesky as blocks
from rescnet_dist.kernels.cpu.cholesky import cholesky, solve_factored
from rescnet_dist.kernels.cpu.solve import factor_scaled, multiply_symmetric
from rescnet_dist.kernels.cpu.threads import blas_threads

SIDES = (1, 2, 127, 128, 129, 255, 257, 511, 513, 1153)  # around multiples of blocks and panels
UNUSED = 7.5  # what strict upper triangles are filled with


def make_matrix(side: int, dtype: str = "f8") -> np.ndarray:
    """Return a positive definite matrix (D, D), whose lower triangle alone is set."""
    rng = np.random.default_rng(side)
    rows = rng.normal(size=(side + 5, side))
    matrix = np.tril(rows.T @ rows / side + 0.1 * np.eye(side))
    matrix[np.triu_indices(side, 1)] = UNUSED
    return np.asfortranarray(matrix, dtype)


def mirror(lower: np.ndarray) -> np.ndarray:
    """Return the symmetric matrix (D, D) of a lower triangle, in double precision."""
    lower = np.tril(lower).astype(np.float64)
    return lower + np.tril(lower, -1).T


@pytest.mark.parametrize(("dtype", "tolerance"), [("f4", 2e-5), ("f8", 1e-12)])
@pytest.mark.parametrize("side", SIDES)
def test_factor_and_solutions_equal_numpy(side: int, dtype: str, tolerance: float) -> None:
    """The upper triangle is neither read nor written."""
    matrix = make_matrix(side, dtype)
    whole, factor = mirror(matrix), matrix.copy(order="F")
    cholesky(factor)
    expected = np.linalg.cholesky(whole)
    assert np.abs(np.tril(factor) - expected).max() <= tolerance * np.abs(expected).max()
    assert (factor[np.triu_indices(side, 1)] == UNUSED).all()
    for count in (0, 1, 10):
        columns = np.random.default_rng(0).normal(size=(side, count))
        found = solve_factored(factor, columns)
        assert (found.shape, found.dtype) == (columns.shape, factor.dtype)
        solution = np.linalg.solve(whole, columns)
        np.testing.assert_allclose(
            found, solution, rtol=0, atol=100 * tolerance * np.abs(solution).max(initial=0)
        )


@given(
    side=st.integers(1, 60),
    block=st.integers(1, 12),
    least=st.integers(1, 30),
    most=st.integers(1, 60),
    panels=st.integers(1, 5),
)
@settings(max_examples=80, deadline=None)
def test_any_blocks_give_the_same_factor(side, block, least, most, panels):
    """Blocks need not divide the panels whose products are subtracted at once, nor these D."""
    expected = np.linalg.cholesky(mirror(make_matrix(side)))
    factor, columns = make_matrix(side), np.arange(2.0 * side).reshape(side, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_COLUMNS", block)
        patch.setattr(blocks, "MIN_PANEL_COLUMNS", least)
        patch.setattr(blocks, "MAX_PANEL_COLUMNS", max(least, most))
        patch.setattr(blocks, "MATRIX_PANELS", panels)
        patch.setattr(blocks, "SOLVE_COLUMNS", block)
        patch.setattr(blocks, "SOLVE_ROWS", least)
        patch.setattr(blocks, "SOLVE_PANEL", most)
        cholesky(factor)
        found, other = (solve_factored(factor, columns, threads) for threads in (1, 3))
    np.testing.assert_array_equal(found, other)
    np.testing.assert_allclose(np.tril(factor), expected, atol=1e-12)
    np.testing.assert_allclose(expected @ (expected.T @ found), columns, atol=1e-9 * side)


@pytest.mark.parametrize("value", [0.0, -1.0])
@pytest.mark.parametrize("place", [0, 127, 128, 300, 512, 699])
def test_minor_that_is_not_positive_raises(place: int, value: float) -> None:
    """The error names the first one, in whichever block it is."""
    matrix = np.asfortranarray(np.eye(700, dtype=np.float32))
    matrix[place, place] = value
    with pytest.raises(np.linalg.LinAlgError, match=f"order {place + 1} is not positive"):
        cholesky(matrix)


def test_indefinite_matrix_with_positive_diagonal_raises() -> None:
    """It becomes so only when products are subtracted."""
    matrix = make_matrix(600)
    matrix[550, 3] = 100
    with pytest.raises(np.linalg.LinAlgError, match="order 551 is not positive"):
        cholesky(matrix)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_factor_and_solutions_have_the_same_bits_again(threads: int) -> None:
    """This holds for each number of BLAS threads, which plans fix."""
    columns, results = np.random.default_rng(0).normal(size=(1153, 10)), []
    with blas_threads(threads):
        for _ in range(3):
            factor = make_matrix(1153, "f4")
            cholesky(factor)
            results.append((factor, solve_factored(factor, columns)))
    for factor, solutions in results[1:]:
        np.testing.assert_array_equal(factor, results[0][0])
        np.testing.assert_array_equal(solutions, results[0][1])


@pytest.mark.parametrize("side", [1, 127, 129, 640, 1153])
@pytest.mark.parametrize("count", [1, 10])
def test_product_of_lower_triangle_is_that_of_symmetric_matrix(side: int, count: int) -> None:
    """It is in double precision, the upper triangle is not read, and threads change no bit."""
    lower = make_matrix(side, "f4")
    x = np.random.default_rng(0).normal(size=(side, count))
    expected = mirror(lower) @ x
    found = multiply_symmetric(lower, x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * side)
    for threads in (2, 3):
        np.testing.assert_array_equal(multiply_symmetric(lower, x, threads), found)


def test_threads_scale_the_same_factor() -> None:
    """Its bits do not depend on their number."""
    scatter, root = make_matrix(700, "f4"), np.random.default_rng(0).uniform(0.5, 2, 700)
    diagonal = np.full(700, 5.0)
    one, three = (
        factor_scaled(scatter, root, diagonal, np.dtype(np.float32), threads) for threads in (1, 3)
    )
    np.testing.assert_array_equal(one, three)
    expected = mirror(scatter) * np.outer(root, root)
    expected[np.diag_indices(700)] = diagonal
    np.testing.assert_allclose(np.tril(one) @ np.tril(one).T, expected, rtol=0, atol=1e-5)


def test_array_in_rows_is_rejected() -> None:
    """It would have to be copied."""
    with pytest.raises(ValueError, match="in F order"):
        cholesky(np.eye(3))
