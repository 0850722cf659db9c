"""Whole runs of four layers, through Dask and the run store, against the slow NumPy oracle.

The package sums in float32 and in chunks, the oracle in float64 and at once. Both must agree to
1e-4 of the largest entry in everything that a layer has: normalization, filters, maps, features,
weights and scores, on training and validation images.

ResCNet is discontinuous in places: eigenvectors of near-equal eigenvalues mix, the largest two
errors of an image may be nearly tied, a draw may be barely separable, a pixel may barely pass the
ReLU in an otherwise dead block. In such cases any rounding gives another network. The images here
avoid them: class patterns differ along both axes, the noise is smooth and differs in rows and
columns, stacked-LDA draws have a bias near 0, and the seed of each case leaves a margin: with the
seeds below, errors were at most 5e-5 for chunks of 7, 26 and 76 images, those of cases with weights
for chunks of 7 and 26. `power` has no case here: the slope of the square root at 0 is unbounded, so
that no images are safe.
"""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from typing import Any

import numpy as np
import oracle
import pytest
from threadpoolctl import threadpool_limits

import rescnet_dist as rd
from rescnet_dist.model import forward, initial_state
from rescnet_dist.store import Location, RunStore, read_image_scale, read_layer

LAYERS = 4
TRAIN, VALIDATION = 56, 20
BASE = rd.NetworkSpec(
    filters=6,
    lda_positives=4,
    lda_negatives=8,
    lda_ridge=0.1,
    lda_draws=4,
    block=6,
    stride=3,
    levels=(2, 1),
    ridge=1.0,
    sigma=0.5,
    learning_rate=0.9,
    max_layers=LAYERS,
    stop_at_zero_error=False,
)


@dataclass(frozen=True)
class Case:
    """A kind of images and the options of the network."""

    name: str
    shape: tuple[int, int, int] = (10, 9, 2)
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    dtype: str = "float32"
    validation: float | None = None  # a fraction of the images, instead of a validation set
    chunk: int = 26
    weights: str | None = None  # of the training images: "whole" numbers or "fractions"

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("non-square images, min-max per channel", (12, 8, 3), {"minmax": "channel"}, seed=11),
    Case("one channel", (10, 10, 1), {"first_filter_size": 4}, seed=5),
    Case(
        "block does not divide the image, falling rate",
        (11, 13, 2),
        {"block": 7, "decay": 0.3, "decay_every": 1, "rate_floor": 0.5},
        seed=17,
    ),
    Case("z-score per block", options={"zscore": "block"}, seed=22),
    Case("PCA only", options={"lda_fraction": 0.0}, seed=3),
    Case("rectified maps", options={"rectify": True}),
    Case("two towers", options={"local_contrast": True}),
    Case(
        "two towers, rectified",
        options={"local_contrast": True, "rectify": True, "minmax": "channel"},
    ),
    Case(
        "two towers, pooled each by itself",
        options={"local_contrast": True, "pairs": "tower", "filters": 7},
    ),
    Case("filters per layer", options={"filters": [7, 5, 6], "local_contrast": True}),
    Case("maps only", options={"filters": [5, 6], "concatenate": False}),
    Case("filters of few images", options={"filter_images": 20, "local_contrast": True}, chunk=11),
    Case("bytes, fraction held out", seed=13, dtype="uint8", validation=0.3, chunk=11),
    Case("whole weights", seed=3, weights="whole"),
    Case("fractional weights", seed=3, weights="fractions"),
]
CLASSIFY = [  # softmax is used in this mode only
    Case("softmax", options={"probability": "softmax", "beta": 1.0}, seed=19),
    Case(
        "stacked-LDA only, mean, even cells",
        options={"lda_fraction": 1.0, "pool": "mean", "cells": "even"},
        seed=11,
    ),
]
REGRESS = [
    Case("stacked-LDA fills up", (10, 9, 1), {"first_filter_size": 2, "filters": 10}, seed=9),
]
HEADS = ("classify", "regress")
RUNS = [
    # Of each case the head that every other case has too is slow: heads and cases are independent.
    *(
        pytest.param(case, head, marks=[pytest.mark.slow] if (number + i) % 2 else [])
        for number, case in enumerate(CASES)
        for i, head in enumerate(HEADS)
    ),
    *((case, "classify") for case in CLASSIFY),
    *((case, "regress") for case in REGRESS),
]


def make_images(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return waves, one per class and channel, under smooth noise, and labels of 3 classes."""
    rng = np.random.default_rng(case.seed)
    n, (height, width, channels), classes = TRAIN + VALIDATION, case.shape, 3
    y, x = np.mgrid[:height, :width]
    along, across, phase = (
        rng.uniform(*limits, (classes, channels, 1, 1))
        for limits in ((0.2, 1.2), (-0.7, 0.7), (0, 6))
    )
    waves = np.cos(along * x + across * y + phase).transpose(0, 2, 3, 1)
    labels = rng.permutation(np.arange(n) % classes)
    noise = rng.normal(size=(n, height + 2, width + 1, channels))
    noise = noise[:, :-2] + 0.8 * noise[:, 1:-1] + 0.6 * noise[:, 2:]
    noise = noise[:, :, 1:] + 0.5 * noise[:, :, :-1]
    noise = noise @ (np.eye(channels) + 0.3 * rng.normal(size=(channels, channels)))
    images = waves[labels] * rng.uniform(0.5, 1.5, (n, 1, 1, channels)) + noise
    if case.dtype == "uint8":
        return np.clip(images * 20 + 128, 0, 255).astype(np.uint8), labels
    return images.astype(np.float32), labels


def make_weights(case: Case, count: int) -> np.ndarray | None:
    """Return the weights of the first `count` images, if the case has any."""
    rng = np.random.default_rng(case.seed)
    if case.weights == "whole":
        return rng.integers(1, 4, count)
    return rng.uniform(0.2, 3.0, count) if case.weights else None


def assert_near(found: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Assert agreement to 1e-4 of the largest entry."""
    assert found.shape == expected.shape, name
    error, largest = np.abs(found - expected).max(), np.abs(expected).max()
    assert error <= 1e-4 * largest, f"{name}: {error:.2e} of {largest:.2e}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("case", "head"), RUNS, ids=str)
def test_run_equals_oracle(case, head, tmp_path, client):
    """Every number of every layer agrees, and so do the scores, accuracies and the depth."""
    spec = BASE.replace(head=head, **case.options)
    images, labels = make_images(case)
    clf = rd.ResCNetClassifier(
        spec,
        store=tmp_path / "run",
        random_state=case.seed,
        run=rd.RunSpec(validation=0, keep_maps="all", chunk_images=case.chunk, accumulators=2),
    )
    if case.validation is None:
        held_out, weights = (images[TRAIN:], labels[TRAIN:]), make_weights(case, TRAIN)
        clf.fit(images[:TRAIN], labels[:TRAIN], validation=held_out, sample_weight=weights)
    else:
        clf.fit(images, labels, validation=case.validation)
    run, location = RunStore.open(tmp_path / "run"), Location.of(tmp_path / "run")
    training = np.asarray(run.data_array("train")[...])
    assert 0 < np.count_nonzero(~training) < len(images)
    if case.validation is None:
        np.testing.assert_array_equal(training, np.arange(len(images)) < TRAIN)
    weights = make_weights(case, len(images))  # those of validation images must not matter
    values = spec.get_params()  # a spec collects its flat options whenever one is read
    options = make_dataclass("Options", values)(**values)
    with threadpool_limits(1):
        image_scale, layers = oracle.train(
            images, labels, options, case.seed, LAYERS, training, weights
        )

    scale = read_image_scale(location)
    assert_near(scale.low, image_scale[0], "image low")
    assert_near(scale.scale, image_scale[1], "image scale")
    dims, architecture = spec.head.arrays, spec.architecture(images.shape[1:], 3)
    stored = [read_layer(location, number, dims) for number in range(1, LAYERS + 1)]
    for number, (layer, expected) in enumerate(zip(stored, layers, strict=True), start=1):
        maps = np.asarray(run.maps(number)[...])
        for name, found, reference in (
            ("low", layer.bank.low, expected.low),
            ("scale", layer.bank.scale, expected.scale),
            ("filters", layer.bank.filters, expected.filters),
            ("bias", layer.bank.bias, expected.bias),
            ("maps", maps, expected.maps),
            ("features", architecture.extract(maps, number), expected.features),
            ("weights", layer.head.arrays["weights"], expected.weights),
            ("share", layer.head.arrays["share"], expected.share),
            ("rate", np.array(layer.head.rate), np.array(expected.rate)),
        ):
            assert_near(found, reference, f"{name} of layer {number}")
        terms = np.abs(expected.weights) @ np.abs(expected.features).mean(axis=0)
        error = np.abs(layer.head.arrays["intercept"] - expected.intercept).max()
        assert error <= 1e-4 * terms.max()  # relative to its terms, as it may itself be near 0
        np.testing.assert_array_equal(layer.head.arrays["present"], expected.present)
        entering = layers[number - 2].scores if number > 1 else np.zeros_like(expected.scores)
        assert_near(np.asarray(run.scores(number)[...]), entering, f"scores into layer {number}")
    if head == "classify":  # both kinds of residual must occur to be tested
        assert any(0 < layer.share[1] < 1 for layer in layers)

    *_, after = forward(architecture, initial_state(images, scale, architecture), stored)
    scores = after.scores
    assert_near(scores, layers[-1].scores, "scores after the last layer")
    correct = np.array([layer.scores.argmax(axis=1) == labels for layer in layers])
    for role, mask in (("train", training), ("validation", ~training)):
        found = [accuracy[role] for accuracy in clf.accuracies_]
        assert found == pytest.approx(correct[:, mask].mean(axis=1))
    assert clf.depth_ == 1 + correct[:, ~training].mean(axis=1).argmax()
    decision = clf.decision_function(images)
    assert_near(decision, layers[clf.depth_ - 1].scores, "scores at the chosen depth")
    np.testing.assert_array_equal(clf.predict(images) == labels, correct[clf.depth_ - 1])
