"""Short measurements of the speed of a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from rescnet_dist.planning import speed


@pytest.mark.parametrize(
    ("size", "enough", "expected"),
    [
        (3, np.inf, [3]),  # no larger than that of the network
        (1500, np.inf, [512, 1024, 1500]),
        (1500, 0.0, [512]),  # which takes long enough
    ],
)
def test_factorizations_grow_until_they_can_be_timed(
    size: int, enough: float, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No matrix is larger than needed: BLAS threads on shared cores take seconds for it."""
    sides = []

    def factorize(matrix: np.ndarray) -> None:
        sides.append(len(matrix))
        cholesky(matrix)

    cholesky = speed.cholesky
    monkeypatch.setattr(speed, "cholesky", factorize)
    monkeypatch.setattr(speed, "FACTOR_SECONDS", enough)
    rate = speed._measure_factor_rate(size, threads=1)
    assert list(dict.fromkeys(sides)) == expected
    assert 0 < rate < 1e13


def test_factorizations_are_as_fast_as_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while BLAS threads wait for each other, as they do on cores that others use."""
    threads = list[int]()

    @contextmanager
    def record(count: int) -> Iterator[None]:
        threads.append(count)
        with blas_threads(count):
            yield

    def factorize(matrix: np.ndarray) -> None:
        time.sleep(0.3 if threads[-1] > 1 else 0)
        cholesky(matrix)

    blas_threads, cholesky = speed.blas_threads, speed.cholesky
    monkeypatch.setattr(speed, "blas_threads", record)
    monkeypatch.setattr(speed, "cholesky", factorize)
    assert speed._measure_factor_rate(512, threads=2) > 512**3 / 3 / 0.3
    assert sorted(threads) == [1, 2]
