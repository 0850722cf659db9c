"""Test local contrast against the oracle, and its invariances."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

from rescnet_dist.kernels import local_contrast


@pytest.mark.parametrize("shape", [(3, 9, 12, 2), (2, 28, 28, 1), (1, 1, 7, 3)])
def test_contrast_equals_oracle(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    """Images may be rectangular, of one row, and of several channels."""
    images = rng.random(shape)
    found = local_contrast(images)
    assert found.dtype == np.float32
    assert np.allclose(found, oracle.local_contrast(images), atol=2e-5)


def test_contrast_does_not_depend_on_lighting(rng: np.random.Generator) -> None:
    """Brightness and scale may change for each image and channel."""
    images = rng.integers(0, 100, (4, 16, 16, 3)).astype(np.uint8)
    lit = images * rng.uniform(0.1, 3, (4, 1, 1, 3)) + rng.uniform(0, 1000, (4, 1, 1, 3))
    assert np.allclose(local_contrast(lit), local_contrast(images), atol=1e-3)


@pytest.mark.parametrize(
    ("value", "side", "dtype"),
    [
        (200, 8, "uint8"),
        (255, 300, "uint8"),
        (60_001, 30, "uint16"),
        (0.1, 32, "float32"),
        (0.7, 32, "float64"),
        (0.0, 9, "float32"),
        (-3e30, 9, "float32"),
        (1e-25, 9, "float32"),
    ],
)
def test_constant_images_have_zero_contrast(value: float, side: int, dtype: str) -> None:
    """There is no rounding noise, even in one constant channel of several."""
    images = np.full((2, side, side, 2), value, dtype)
    images[..., 1] *= np.arange(side).astype(dtype) % 2
    found = local_contrast(images)
    assert not found[..., 0].any()
    assert found[..., 1].any() == (value != 0)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
def test_contrast_does_not_depend_on_extreme_scale(rng: np.random.Generator, scale: float) -> None:
    """This holds even if squares would overflow or underflow."""
    images = rng.random((2, 16, 16, 1))
    scaled = (images * scale).astype(np.float32)
    assert np.allclose(local_contrast(scaled), local_contrast(images), atol=1e-4)
