"""Test the paper's head with leave-one-out errors: against refits, in training, and on resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from distributed import Client

import rescnet_dist as rd
from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec
from rescnet_dist.kernels import FeatureMoments, one_hot, probe_signs
from rescnet_dist.model.heads.classify import Classify
from rescnet_dist.model.heads.classify_leave_one_out import ClassifyLeaveOneOut
from tests.models import assert_same_bits, read_model

X, Y = rd.load_digits()
X, Y = X[:300, ::2, ::2], Y[:300]
SPEC = NetworkSpec(
    filters=6,
    block=7,
    levels=(2, 1),
    head="classify-leave-one-out",
    sigma=2.0,
    max_layers=4,
    learning_rate=0.5,
    stop_at_zero_error=False,
)


def train(folder: Path, spec: NetworkSpec = SPEC, **run: object) -> ResCNetClassifier:
    """Return a network, trained in a store."""
    options = RunSpec(**{"chunk_images": 70, "validation": 0.2} | run)  # type: ignore[arg-type]
    return ResCNetClassifier(spec, run=options, store=folder, random_state=0).fit(X, Y)


def test_corrections_equal_those_of_heads_without_each_image(rng: np.random.Generator) -> None:
    """With many signs, up to the deviation of the estimate, and slopes of all images."""
    n, width, classes = 80, 12, 3
    labels = rng.integers(0, classes, n)
    centers = rng.normal(size=(classes, width))
    features = (centers[labels] + rng.normal(size=(n, width))).astype(np.float32)
    scores = rng.normal(0, 0.3, size=(n, classes)).astype(np.float32)
    head = ClassifyLeaveOneOut(ridge=0.7, sigma=4.0, probes=1024)
    plain = Classify(ridge=0.7, sigma=4.0)
    members = head.targets(scores, labels, first=False)
    signs = probe_signs(0, 2, np.arange(n), head.probes)

    def fold(rows: np.ndarray, targets: np.ndarray) -> FeatureMoments:
        return FeatureMoments.empty(width, targets.shape[1]).fold(features[rows], targets[rows])

    every = np.ones(n, bool)
    arrays = head.fit(fold(every, np.concatenate([members, signs], axis=1)), classes)
    fitted = head.correction(arrays, features)
    np.testing.assert_allclose(
        fitted, plain.correction(plain.fit(fold(every, members), classes), features), atol=1e-4
    )
    found = head.training_correction(arrays, features, fitted, scores, labels, signs)
    expected = np.empty_like(found)
    for image in range(n):
        others = np.arange(n) != image
        without = plain.fit(fold(others, members), classes)
        expected[image] = plain.correction(without, features[image : image + 1])[0]
    scale = np.abs(expected - fitted).mean()
    assert np.abs(found - expected).mean() < 0.3 * scale
    assert np.corrcoef((found - fitted).ravel(), (expected - fitted).ravel())[0, 1] > 0.95


def test_first_layer_is_fitted_to_the_labels() -> None:
    """Residual classes of scores of 0 are the labels, so that they need no case of their own."""
    scores = np.zeros((len(Y), 10), np.float32)
    members = ClassifyLeaveOneOut().targets(scores, Y, first=False)
    assert np.array_equal(members, one_hot(Y, 20))


def test_training_accuracy_estimates_that_on_other_images(client: Client, tmp_path: Path) -> None:
    """Unlike that of `classify`; without a share of the leverage, both are the same."""
    spec = SPEC.replace(ridge=0.1)
    clf = train(tmp_path / "left out", spec)
    none = train(tmp_path / "none", spec.replace(leverage_share=0.0))
    fitted = train(tmp_path / "fitted", spec.replace(head="classify"))
    assert clf.accuracies_[0]["train"] < fitted.accuracies_[0]["train"] - 0.05
    assert abs(clf.accuracies_[0]["train"] - clf.accuracies_[0]["validation"]) < 0.15
    np.testing.assert_allclose(none.decision_function(X), fitted.decision_function(X), atol=2e-3)


def test_runs_are_resumed_and_replayed_to_the_same_bits(client: Client, tmp_path: Path) -> None:
    """From the store and in memory, and loaded without the arrays of training."""
    whole = train(tmp_path / "whole", maps="store")
    train(tmp_path / "parts", SPEC.replace(max_layers=2), maps="memory", checkpoint_every=100)
    ResCNetClassifier.resume(tmp_path / "parts", max_layers=4)
    assert_same_bits(read_model(tmp_path / "whole"), read_model(tmp_path / "parts"))
    whole.save(tmp_path / "saved")
    saved = ResCNetClassifier.load(tmp_path / "saved")
    assert saved.network_.layers[0].head.arrays["probe_weights"].shape[0] == 0
    assert np.array_equal(saved.decision_function(X), whole.decision_function(X))
