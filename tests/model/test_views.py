"""Test the views of images that layers see."""

from __future__ import annotations

import numpy as np
import pytest

from rescnet_dist import NetworkSpec
from rescnet_dist.kernels import local_contrast
from rescnet_dist.model import ImageScale, layer_pixels, pixels, raw_pixels
from rescnet_dist.model.views.contrast import Contrast


def test_contrast_of_an_image_does_not_depend_on_others(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of images may be processed at a time."""
    images = rng.integers(0, 255, (7, 12, 12, 1)).astype(np.uint8)
    architecture = NetworkSpec(local_contrast=True).architecture((12, 12, 1), 2)
    whole = raw_pixels(images, architecture)
    assert np.array_equal(whole[..., 1:], local_contrast(images))
    monkeypatch.setattr(pixels, "SLAB_BYTES", 3 * Contrast.copies * 4 * 12 * 12)
    assert np.array_equal(raw_pixels(images, architecture), whole)
    assert np.array_equal(raw_pixels(images[2:4], architecture), whole[2:4])


@pytest.mark.parametrize("local_contrast", [False, True])
def test_pixels_are_normalized_images(rng: np.random.Generator, local_contrast: bool) -> None:
    """Only the image itself is scaled; its contrast has a scale of its own."""
    images = rng.integers(0, 255, (3, 12, 12, 2)).astype(np.uint8)
    spec = NetworkSpec(local_contrast=local_contrast)
    architecture = spec.architecture((12, 12, 2), 2)
    scale = ImageScale(np.array([1.0, 2.0]), np.array([0.5, 0.25]))
    pixels = layer_pixels(images, scale, architecture)
    assert pixels.shape[3] == architecture.pixel_channels
    np.testing.assert_allclose(pixels[..., :2], (images - scale.low) * scale.scale, rtol=1e-6)
    assert np.array_equal(pixels[..., 2:], raw_pixels(images, architecture)[..., 2:])
