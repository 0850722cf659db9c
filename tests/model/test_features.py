"""Test several feature extractors side by side, through training, prediction and transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import rescnet_dist as rd
from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec
from rescnet_dist.model.features.binary_hash import BinaryHash
from rescnet_dist.model.features.first_order import FirstOrder
from rescnet_dist.model.features.second_order import SecondOrder
from tests.models import assert_same_bits, read_model

X, Y = rd.load_digits()
X, Y = X[:120, ::2, ::2], Y[:120]
SPEC = NetworkSpec(
    filters=4, block=7, levels=(2, 1), head="regress", max_layers=2, stop_at_zero_error=False
)


def test_extractors_side_by_side_keep_their_own_options() -> None:
    """Names take over what the network has; options with a prefix are those of one extractor."""
    spec = SPEC.replace(features="second-order,first-order", power=True)
    assert spec.features == (SecondOrder(block=7, levels=(2, 1), power=True), FirstOrder())
    changed = spec.replace(first_order_levels=(3,), levels=(1,))
    assert [extractor.levels for extractor in changed.features] == [(1,), (3,)]
    assert NetworkSpec.from_toml(changed.to_toml()) == changed
    assert changed.replace(features="second-order").features == (changed.features[0],)


def test_features_of_several_extractors_are_concatenated(client: Client, tmp_path: Path) -> None:
    """In training, in the loaded network, in transformers, and with tiles."""
    spec = SPEC.replace(features="second-order,first-order")
    clf = ResCNetClassifier(spec, store=tmp_path / "run").fit(X, Y)
    tiled = ResCNetClassifier(spec, run=RunSpec(tile_features=40, maps="store")).fit(X, Y)
    scores = clf.decision_function(X)
    np.testing.assert_allclose(tiled.decision_function(X), scores, atol=1e-4)
    assert np.array_equal(ResCNetClassifier.load(tmp_path / "run").decision_function(X), scores)
    architecture = clf.network_.architecture
    second, first = (e.count(14, 14, (4,)) for e in spec.features)
    assert architecture.features == second + first
    assert architecture.feature_dtype == np.float32
    features = clf.transform(X)
    assert features.shape == (120, len(clf.get_feature_names_out())) == (120, second + first)
    assert (features[:, second:] >= 0).all()  # means and maxima of ReLU(maps)
    assert (features[:, :second] < 0).any()  # correlations


@pytest.mark.sampled(2)
@pytest.mark.parametrize("run", [RunSpec(), RunSpec(tile_features=60, maps="store")])
def test_integer_features_train_like_floats(
    run: RunSpec, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weighted, cached with the maps or in tiles, they give the bits that floats give."""
    spec = SPEC.replace(features=BinaryHash(bits=4, block=7, levels=(2, 1)))
    weights, extract = np.linspace(0.5, 2, len(X)), BinaryHash.__call__
    counts = ResCNetClassifier(spec, run=run, store=tmp_path / "counts")
    counts.fit(X, Y, sample_weight=weights)
    assert counts.network_.architecture.feature_dtype == np.uint8
    features = counts.transform(X)
    assert features.dtype == np.float32
    assert 1 < features.max() <= 49
    monkeypatch.setattr(BinaryHash, "dtype", np.dtype(np.float32))
    monkeypatch.setattr(BinaryHash, "__call__", lambda *a: extract(*a).astype(np.float32))
    ResCNetClassifier(spec, run=run, store=tmp_path / "floats").fit(X, Y, sample_weight=weights)
    assert_same_bits(read_model(tmp_path / "counts"), read_model(tmp_path / "floats"))
