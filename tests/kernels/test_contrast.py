"""Local contrast: against the oracle, and what makes no difference to it."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

from rescnet_dist.kernels import contrast, local_contrast


@pytest.mark.parametrize("shape", [(3, 9, 12, 2), (2, 28, 28, 1), (1, 1, 7, 3)])
def test_contrast_is_the_oracles(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    """Of images that are not square, of one row, and of several channels."""
    images = rng.random(shape)
    found = local_contrast(images)
    assert found.dtype == np.float32
    assert np.allclose(found, oracle.local_contrast(images), atol=2e-5)


def test_light_makes_no_difference(rng: np.random.Generator) -> None:
    """Neither brightness nor scale do, of each image and channel by itself."""
    images = rng.integers(0, 100, (4, 16, 16, 3)).astype(np.uint8)
    lit = images * rng.uniform(0.1, 3, (4, 1, 1, 3)) + rng.uniform(0, 1000, (4, 1, 1, 3))
    assert np.allclose(local_contrast(lit), local_contrast(images), atol=1e-3)


def test_flat_images_have_none() -> None:
    """And no division by zero."""
    assert not local_contrast(np.full((2, 8, 8, 3), 200, np.uint8)).any()


def test_images_do_not_depend_on_others(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are worked on at a time."""
    images = rng.random((7, 12, 12, 1), np.float32)
    whole = local_contrast(images)
    monkeypatch.setattr(contrast, "AT_ONCE", 3)
    assert np.array_equal(local_contrast(images), whole)
    assert np.array_equal(local_contrast(images[2:4]), whole[2:4])
