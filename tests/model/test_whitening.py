"""Test the whitening of patches: filters are those of patches that were whitened beforehand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from rescnet_dist import NetworkSpec, SpecError
from rescnet_dist.model import FILTERS, FilterLearner
from rescnet_dist.model.whitening import Whitened
from tests.observations import (
    CLASSES,
    IMAGES,
    SIZE,
    TRAIN,
    fix_signs,
    list_patches,
    make_group,
    make_images,
    observe,
)

RIDGE, CHANNELS = 0.3, 2
COUNT = CLASSES - 1  # filters: LDA at one place has no more directions


def whiten(patches: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return patches (m, p) whitened by those that are used (m,), the mean (p,), and W (p, p)."""
    mean, covariance = patches[used].mean(axis=0), np.cov(patches[used].T, bias=True)
    covariance += RIDGE * np.trace(covariance) / len(mean) * np.eye(len(mean))
    values, vectors = np.linalg.eigh(covariance)
    matrix = vectors @ np.diag(values**-0.5) @ vectors.T
    return (patches - mean) @ matrix, mean, matrix


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("name", FILTERS.names())
def test_filters_are_those_of_whitened_patches(name: str, centered: bool) -> None:
    """Images of one patch each, which can be whitened as they are; other towers see more.

    If the mean of each patch is subtracted, this comes first.
    """
    learner = FILTERS.get(name)()
    own, channels = range(CHANNELS), CHANNELS + 2 * (learner.min_towers > 1)
    group = make_group(learner, COUNT, own, channels)
    group = replace(group, image_size=(SIZE, SIZE), centered=centered)
    images = make_images(channels)[:, :SIZE, :SIZE]
    own_images = images[..., own].astype(np.float64)
    flat = own_images.reshape(IMAGES, -1)
    if centered:
        own_images = own_images - own_images.mean(axis=(1, 2), keepdims=True)
    white, _, matrix = whiten(own_images.reshape(IMAGES, -1), TRAIN)
    before = images.copy()
    before[..., own] = white.reshape(IMAGES, SIZE, SIZE, CHANNELS)
    expected, expected_bias = learner.fit(observe(learner, group, before), group)
    whitened = Whitened(learner, RIDGE)
    filters, bias = whitened.fit(observe(whitened, group, images, [10]), group)
    weights, wanted = filters.reshape(-1, COUNT), matrix @ expected.reshape(-1, COUNT)
    if centered:
        wanted = wanted - np.tile(wanted.reshape(-1, CHANNELS, COUNT).mean(axis=0), (SIZE**2, 1))
    np.testing.assert_allclose(weights, wanted, atol=2e-3)
    outputs = white @ expected.reshape(-1, COUNT) + expected_bias
    np.testing.assert_allclose(flat @ weights + bias, outputs, atol=5e-3)


@pytest.mark.parametrize("channels", [(0, 1), (1,)])
def test_whitened_pca_filters_have_equal_variances(channels: tuple[int, ...]) -> None:
    """λ/(λ + ridge), as of the plain covariance of all patches; outputs are centered."""
    whitened, images = Whitened(FILTERS.get("pca")(), RIDGE), make_images()
    group = make_group(whitened, 3, channels)
    filters, bias = whitened.fit(observe(whitened, group, images, [5, 16]), group)
    patches = np.concatenate(list_patches(images, channels))
    white, _, matrix = whiten(patches, np.ones(len(patches), bool))
    values, vectors = np.linalg.eigh(np.cov(white.T, bias=True))
    expected = matrix @ fix_signs(vectors[:, ::-1][:, :3])
    np.testing.assert_allclose(filters.reshape(-1, 3), expected, atol=1e-3)
    outputs = patches @ filters.reshape(-1, 3) + bias
    np.testing.assert_allclose(outputs.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(outputs.var(axis=0), values[::-1][:3], rtol=1e-3)


def test_filters_are_those_of_the_normalized_images() -> None:
    """Statistics are of the raw images, and their normalization is known later."""
    whitened, images = Whitened(FILTERS.get("lda")(), RIDGE), make_images()
    group = make_group(whitened, 4)
    low, scale = np.array([2.0, -1.0]), np.array([0.3, 2.0])
    raw = observe(whitened, group, images, [7]).rescale(low, scale)
    normalized = observe(whitened, group, ((images - low) * scale).astype(np.float32))
    found, expected = (whitened.fit(statistics, group) for statistics in (raw, normalized))
    np.testing.assert_allclose(found[0], expected[0], atol=2e-3)
    np.testing.assert_allclose(found[1], expected[1], atol=2e-3)


def test_a_part_of_the_bank_is_whitened() -> None:
    """In its text, its table and its architecture; the other part is not."""
    spec = NetworkSpec(bank="pca:0.5+whiten=0.2,stacked-lda:0.5@contrast", filters=8)
    assert [part.whiten for part in spec.bank] == [0.2, None]
    assert NetworkSpec.from_dict(spec.to_dict()) == spec
    assert "whiten" not in spec.bank[1].to_dict()
    architecture = spec.architecture((10, 10, 1), CLASSES)
    first, second = (learner for learner, _ in architecture.groups(2))
    assert first == Whitened(spec.bank[0].learner, 0.2)
    assert first.label == "PCA"
    assert second == spec.bank[1].learner
    plain = spec.replace(bank="pca:0.5,stacked-lda:0.5@contrast").architecture((10, 10, 1), CLASSES)
    (learner, group), _ = plain.groups(2)
    assert first.statistics_bytes(group) == 2 * learner.statistics_bytes(group)
    assert first.workspace_bytes(group) > learner.workspace_bytes(group)


def test_constant_images_give_finite_filters() -> None:
    """There is nothing to whiten."""
    whitened = Whitened(FILTERS.get("pca")(), RIDGE)
    group = make_group(whitened, 4)
    statistics = observe(whitened, group, np.ones_like(make_images()))
    assert all(np.isfinite(values).all() for values in whitened.fit(statistics, group))


@dataclass(frozen=True, slots=True)
class Rigid(FilterLearner):
    """A learner with statistics that cannot be transformed."""

    name: ClassVar[str] = "rigid"

    def empty(self, group: Any) -> Any:
        """Return a number."""
        return 0.0

    def fit(self, statistics: Any, group: Any) -> Any:
        """Return nothing."""


def test_statistics_without_a_transform_are_an_error() -> None:
    """The message names the learner and the method."""
    learner = Rigid()
    with pytest.raises(SpecError, match=r"whiten=0\.3 .* 'rigid' .* transform\(matrix, offset\)"):
        Whitened(learner, RIDGE).empty(make_group(learner, 2))
