"""Subsets of training images: the same for any chunks, of the expected size, spread evenly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescnet_dist.kernels import rank_in_class, spread_evenly


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 60), st.booleans())
def test_ranks_do_not_depend_on_chunks(
    seed: int, classes: int, cut: int, is_repeated: bool
) -> None:
    rng = np.random.default_rng(seed)
    labels, train = rng.integers(classes, size=60), rng.random(60) < 0.7
    repeats = rng.integers(0, 4, size=60) if is_repeated else None
    whole = rank_in_class(labels, train, np.zeros(classes, int), repeats)

    counts = train.astype(int) if repeats is None else train * repeats
    before = np.bincount(labels[:cut], weights=counts[:cut], minlength=classes).astype(int)
    later = None if repeats is None else repeats[cut:]
    ranks = rank_in_class(labels[cut:], train[cut:], before, later)
    np.testing.assert_array_equal(ranks, whole[cut:])
    expected = [counts[:i][labels[:i] == c].sum() for i, c in enumerate(labels)]
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("copies", [1, 2, 7, 20])
@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.99])
def test_fraction_is_selected_of_any_sequence(fraction: float, copies: int) -> None:
    selected = spread_evenly(np.arange(20_000 * copies), fraction).reshape(-1, copies)
    np.testing.assert_allclose(selected.mean(axis=0), fraction, atol=5e-4)


def test_first_number_and_all_numbers_are_selected() -> None:
    assert spread_evenly(np.arange(3), 1e-12).tolist() == [True, False, False]
    assert spread_evenly(np.arange(3), 1.0).all()
