"""Test the views of images that layers see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rescnet_dist import NetworkSpec, SpecError
from rescnet_dist.kernels import local_contrast
from rescnet_dist.model import VIEWS, ImageScale, layer_pixels, pixels, raw_pixels
from rescnet_dist.model.views.contrast import Contrast
from rescnet_dist.model.views.global_contrast import GlobalContrast
from rescnet_dist.model.views.zca import ZCA
from tests.export.networks import fit_view


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


# oracles ------------------------------------------------------------------------------------------


def normalize(images: Any, value_range: float, floor: float) -> Any:
    """Return the global contrast of images, one by one, in double precision."""
    result = np.zeros(images.shape)
    for number, image in enumerate(images.astype(float) / value_range):
        deviations = image - image.mean()
        result[number] = deviations / np.sqrt((deviations**2).mean() + floor**2)
    return result


def whiten(images: Any, train: Any, weights: Any, ridge: float) -> Any:
    """Return images, decorrelated by the inverse root of the covariance of training images."""
    rows = train.reshape(len(train), -1)
    mean = np.average(rows, axis=0, weights=weights)
    covariance = sum(
        w * np.outer(row - mean, row - mean) for w, row in zip(weights, rows, strict=True)
    ) / sum(weights)
    ridged = covariance + ridge * np.trace(covariance) / len(mean) * np.eye(len(mean))
    u, s, _ = np.linalg.svd(ridged)
    matrix = u @ np.diag(s**-0.5) @ u.T
    return ((images.reshape(len(images), -1) - mean) @ matrix).reshape(images.shape)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_global_contrast_equals_oracle(rng: np.random.Generator, offset: float) -> None:
    """A constant image gives 0, and flat ones are not amplified to noise."""
    images = rng.integers(0, 256, (5, 9, 7, 3)) + offset
    images[0], images[1] = offset + 7, offset + 7 + rng.integers(0, 2, (9, 7, 3))
    view = GlobalContrast(floor=0.05)
    known = fit_view(view, images)
    value_range = images.max() - images.min()
    assert known["value_range"] == value_range
    found = view(images, known)
    np.testing.assert_allclose(found, normalize(images, value_range, 0.05), atol=2e-3)
    assert not found[0].any()
    assert found[1].std() < 0.1
    assert 0.9 < found[2].std() < 1


@pytest.mark.parametrize("gcn", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_zca_equals_oracle(rng: np.random.Generator, gcn: bool, dtype: str) -> None:
    """Of images that were not learned from, with weights, in fewer images than values."""
    images = (rng.random((40, 6, 5, 2)).cumsum(axis=1) * 40).astype(dtype)
    train, others = images[:30], images[30:]
    weights = rng.uniform(0.2, 3, len(train))
    view = ZCA(ridge=0.2, gcn=gcn, floor=0.02)
    found = view(others, fit_view(view, train, weights))
    if gcn:
        value_range = float(train.max()) - float(train.min())
        train, others = (normalize(part, value_range, 0.02) for part in (train, others))
    expected = whiten(others.astype(float), train.astype(float), weights, 0.2)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_zca_decorrelates_the_images_that_it_was_fitted_to(rng: np.random.Generator) -> None:
    """With a small ridge, their covariance is the identity."""
    images = rng.random((400, 4, 4, 1)).cumsum(axis=2)
    view = ZCA(ridge=1e-6, gcn=False)
    rows = view(images, fit_view(view, images)).reshape(400, 16)
    np.testing.assert_allclose(np.cov(rows.T, bias=True), np.eye(16), atol=1e-2)


def test_zca_refuses_images_that_are_too_large() -> None:
    """The message has the size, the limit and what to do."""
    spec = NetworkSpec(bank="pca@zca", filters=8)
    spec.check_images(64, 64, 3)
    message = r"images of 96×96×3 needs a matrix of 27,648×27,648 .*at most 12,288.* view gcn"
    with pytest.raises(SpecError, match=message):
        spec.check_images(96, 96, 3)


@pytest.mark.parametrize("name", VIEWS.names())
def test_a_network_may_have_one_view_alone(name: str) -> None:
    """All filters see it, and it has the channels of the images."""
    architecture = NetworkSpec(bank=f"pca@{name}", filters=5).architecture((16, 16, 3), 2)
    (tower,) = architecture.towers(2)
    assert tower.view == name
    assert tower.channels == tuple(range(8))
