"""Leading eigenvectors are those of SciPy, and other threads run while they are computed."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import scipy

from rescnet_dist.kernels.cpu import eigen


def make_symmetric(rng: np.random.Generator, side: int) -> Any:
    """Return a random symmetric matrix (side, side)."""
    matrix = rng.normal(size=(side, side))
    return matrix + matrix.T


@pytest.mark.parametrize("has_routine", [True, False])
@pytest.mark.parametrize(("side", "count"), [(60, 7), (60, 60), (2, 1), (1, 1)])
def test_bits_are_those_of_scipy(
    side: int,
    count: int,
    has_routine: bool,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether or not SciPy gives access to its routine; the matrix is not changed."""
    if not has_routine:
        monkeypatch.setattr(eigen, "load_routine", lambda *_: None)
    matrix = make_symmetric(rng, side)
    before = matrix.copy()
    found = eigen.leading_eigenvectors(matrix, count)
    expected = scipy.linalg.eigh(matrix, subset_by_index=[side - count, side - 1])[1]
    assert np.array_equal(found, expected[:, ::-1])
    assert np.array_equal(matrix, before)


@pytest.mark.parametrize("make", [np.asfortranarray, lambda m: m[::-1, ::-1], np.float32])
def test_any_layout_and_precision(make: Any, rng: np.random.Generator) -> None:
    """Views are copied; other precisions are left to SciPy."""
    matrix = make(make_symmetric(rng, 30))
    found = eigen.leading_eigenvectors(matrix, 4)
    expected = scipy.linalg.eigh(matrix, subset_by_index=[26, 29])[1]
    assert np.array_equal(found, expected[:, ::-1])


@pytest.mark.parametrize(
    ("shape", "count", "message"),
    [
        ((30, 10), 3, r"3 eigenvectors of a matrix of shape \(30, 10\)"),
        ((4, 4), 5, "5 eigenvectors"),
        ((0, 0), 1, "1 eigenvectors"),
        ((4, 4), -1, "-1 eigenvectors"),
    ],
)
def test_impossible_sizes_are_refused(shape: tuple[int, int], count: int, message: str) -> None:
    """LAPACK would read and write beyond the matrix."""
    with pytest.raises(ValueError, match=message):
        eigen.leading_eigenvectors(np.zeros(shape), count)


def test_no_eigenvectors_and_a_number_of_numpy(rng: np.random.Generator) -> None:
    """None of no rows are none; any integer is a number."""
    assert eigen.leading_eigenvectors(np.zeros((0, 0)), 0).shape == (0, 0)
    matrix = make_symmetric(rng, 9)
    found = eigen.leading_eigenvectors(matrix, np.int64(2))  # type: ignore[arg-type]
    assert np.array_equal(found, eigen.leading_eigenvectors(matrix, 2))


def test_numbers_that_are_not_finite_are_named() -> None:
    """As the cause of what LAPACK does not find."""
    with pytest.raises(np.linalg.LinAlgError, match="infinite or NaN"):
        eigen.leading_eigenvectors(np.full((5, 5), np.nan), 2)


def test_metric(rng: np.random.Generator) -> None:
    """Vectors of a generalized problem are orthonormal by the metric."""
    matrix, root = make_symmetric(rng, 20), rng.normal(size=(20, 30))
    metric = root @ root.T
    vectors = eigen.leading_eigenvectors(matrix, 4, metric)
    assert np.allclose(vectors.T @ metric @ vectors, np.eye(4))
    values = np.diag(vectors.T @ matrix @ vectors)
    assert np.allclose(matrix @ vectors, metric @ vectors * values)
    assert (np.diff(values) < 0).all()


def test_other_threads_run(rng: np.random.Generator) -> None:
    """They are not kept waiting for most of the time, as by `scipy.linalg.eigh`."""
    matrix, seconds = make_symmetric(rng, 900), list[float]()

    def compute() -> None:
        started = time.perf_counter()
        eigen.leading_eigenvectors(matrix, 50)
        seconds.append(time.perf_counter() - started)

    def find_longest_wait() -> float:
        """Return the longest time without a turn, as a share of that of the computation."""
        thread, longest = threading.Thread(target=compute), 0.0
        thread.start()
        last = time.perf_counter()
        while thread.is_alive():
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        return longest / seconds.pop()

    assert min(find_longest_wait() for _ in range(4)) < 0.5
