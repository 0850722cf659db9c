"""Test CCA filters against a plain computation with all patches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rescnet_dist import NetworkSpec
from rescnet_dist.errors import SpecError
from rescnet_dist.model.filters.cca import CCA
from tests.observations import fix_signs, list_patches, make_group, make_images, observe

RIDGE = 0.05
VIEWS = {"first": ((0, 3), (1, 2)), "second": ((1, 2), (0, 3))}  # channels of both towers


def cca_directions(one: np.ndarray, other: np.ndarray, count: int) -> np.ndarray:
    """Return the canonical directions (p, count) of patches (m, p) with other patches (m, q)."""
    one, other = one - one.mean(axis=0), other - other.mean(axis=0)
    one_covariance, other_covariance = (
        x.T @ x + RIDGE * np.diag((x**2).sum(axis=0)) for x in (one, other)
    )
    explained = one.T @ other @ np.linalg.inv(other_covariance) @ other.T @ one
    values, vectors = np.linalg.eig(np.linalg.inv(one_covariance) @ explained)
    vectors = vectors.real[:, np.argsort(-values.real)[:count]]
    return fix_signs(vectors / np.linalg.norm(vectors, axis=0))


def make_views() -> np.ndarray:
    """Return images (24, 9, 8, 4) whose first two channels are noisy mixtures of the last two."""
    images = make_images(4)
    images[..., :2] += images[..., 2:] @ np.array([[1, 0.5], [-0.3, 1]], np.float32)
    return images


@pytest.mark.parametrize("tower", VIEWS)
@pytest.mark.parametrize("cuts", [(), (5, 16)])
def test_filters_are_canonical_directions(tower: str, cuts: tuple[int, ...]) -> None:
    """Of either tower with the other, in any chunks."""
    own, others = VIEWS[tower]
    learner, images = CCA(ridge=RIDGE), make_views()
    group = make_group(learner, 4, own, 4)
    filters, bias = learner.fit(observe(learner, group, images, cuts), group)
    one, other = (np.concatenate(list_patches(images, channels)) for channels in (own, others))
    np.testing.assert_allclose(filters.reshape(-1, 4), cca_directions(one, other, 4), atol=1e-3)
    assert not bias.any()


def test_filters_are_those_of_the_normalized_images() -> None:
    """The scale of the other view does not matter, and need not be known."""
    learner, images = CCA(ridge=RIDGE), make_views()
    group = make_group(learner, 4, (0, 1), 4)
    low, scale = np.array([2.0, -1.0, 5.0, 1.0]), np.array([0.3, 2.0, 0.01, 40.0])
    raw = observe(learner, group, images, [7]).rescale(low[:2], scale[:2])
    normalized = observe(learner, group, ((images - low) * scale).astype(np.float32))
    found, expected = (learner.fit(statistics, group)[0] for statistics in (raw, normalized))
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_first_filter_finds_what_both_views_share() -> None:
    """Views of independent noise and one common signal, whose variance is the smallest."""
    rng = np.random.default_rng(0)
    images = 5 * rng.normal(size=(24, 9, 8, 4)).astype(np.float32)
    signal = images[..., 0] / 5
    images[..., 0] = images[..., 2] = signal
    learner = CCA()
    group = make_group(learner, 2, (0, 1), 4)
    filters, _ = learner.fit(observe(learner, group, images), group)
    assert np.linalg.norm(filters[:, :, 0], axis=(0, 1)).min() > 0.9


def test_constant_views_give_finite_filters() -> None:
    """They have no correlation."""
    learner, images = CCA(), np.ones_like(make_images(4))
    group = make_group(learner, 4, (0, 1), 4)
    assert np.isfinite(learner.fit(observe(learner, group, images), group)[0]).all()


def test_rounding_errors_of_maps_that_hardly_vary_give_finite_filters() -> None:
    """Their covariances exceed their variances, as in sums of single precision on a GPU."""
    learner, images = CCA(), make_views()
    group = make_group(learner, 4, (0, 1), 4)
    statistics = observe(learner, group, images)
    scatter = statistics.moments.scatter.copy()
    weak = np.arange(3, len(scatter), 4)  # a channel of the other view
    scatter[weak] *= 1e-4
    scatter[:, weak] *= 1e-3
    moments = replace(statistics.moments, scatter=(scatter + scatter.T) / 2)
    assert np.linalg.eigvalsh(moments.scatter).min() < 0
    filters, _ = learner.fit(replace(statistics, moments=moments), group)
    np.testing.assert_allclose(np.linalg.norm(filters.reshape(-1, 4), axis=0), 1)


def test_one_tower_is_an_error() -> None:
    """There is nothing to correlate with."""
    with pytest.raises(SpecError, match=r"has 1 tower, but cca filters need 2.*local_contrast"):
        NetworkSpec(bank="cca,pca")
    spec = NetworkSpec(bank="cca", local_contrast=True)
    assert [part.view for part in spec.bank] == ["image", "contrast"]


@pytest.mark.parametrize(
    "bank", ["cca:0.75+each,pca:0.25@contrast", "pca:0.75,cca:0.25@contrast+each"]
)
def test_filters_on_each_channel_need_as_many_channels_of_the_other_view(bank: str) -> None:
    """Channels are compared in pairs."""
    spec = NetworkSpec(bank=bank, filters=8, max_layers=2, block=4)
    with pytest.raises(SpecError, match=r"layer 2 has . channels of a view and . of all others"):
        spec.check_images(8, 8, 3)
    equal = spec.replace(bank="cca+each,pca@contrast")
    equal.check_images(8, 8, 3)
