"""Metrics from mergeable sums, against scikit-learn."""

from __future__ import annotations

import json
from dataclasses import astuple
from itertools import pairwise

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    confusion_matrix,
    log_loss,
    precision_recall_fscore_support,
    top_k_accuracy_score,
)

from rescnet_dist import DataError, ResCNetClassifier
from rescnet_dist.kernels import softmax
from rescnet_dist.network import Metrics
from rescnet_dist.network.metrics import MetricSums


def make_probabilities(rng: np.random.Generator, n: int, classes: int):
    """Return probabilities whose largest is often that of the class, and class codes."""
    codes = rng.integers(0, classes, n)
    return softmax(rng.normal(size=(n, classes)) + 2 * np.eye(classes)[codes], 1.0), codes


@pytest.mark.parametrize("classes", [2, 8, 30])
def test_metrics_are_those_of_scikit_learn(classes, rng):
    """By class and over all images, with a class that no image has."""
    probabilities, codes = make_probabilities(rng, 200, classes)
    codes[codes == classes - 1] = 0
    found, labels = Metrics.of(np.arange(classes), probabilities, codes), np.arange(classes)
    predicted = probabilities.argmax(axis=1)
    np.testing.assert_array_equal(
        found.confusion, confusion_matrix(codes, predicted, labels=labels)
    )
    expected = precision_recall_fscore_support(codes, predicted, labels=labels, zero_division=0)
    for name, values in zip(("precision", "recall", "f1", "support"), expected, strict=True):
        np.testing.assert_allclose(getattr(found, name), values)
    present = np.unique(codes)
    macro = precision_recall_fscore_support(
        codes, predicted, labels=present, average="macro", zero_division=0
    )
    assert list(found.macro.values()) == pytest.approx(macro[:3])
    assert found.accuracy == (predicted == codes).mean()
    assert found.log_loss == pytest.approx(log_loss(codes, probabilities, labels=labels))
    if classes > 5:
        top5 = top_k_accuracy_score(codes, probabilities, k=5, labels=labels)
        assert found.top5_accuracy == pytest.approx(top5)
    else:
        assert found.top5_accuracy is None


def test_calibration_error_is_that_of_its_definition(rng):
    """The mean distance of confidence and accuracy in 15 bins, weighted by images."""
    probabilities, codes = make_probabilities(rng, 300, 4)
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == codes
    found, expected = Metrics.of(np.arange(4), probabilities, codes), 0.0
    for low, high in pairwise(np.linspace(0, 1, 16)):
        inside = (confidence >= low) & (confidence < high)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    assert found.calibration_error == pytest.approx(expected)
    assert sum(entry["images"] for entry in found.calibration()) == 300


@given(cuts=st.lists(st.integers(0, 40), max_size=4), seed=st.integers(0, 2**16))
@settings(max_examples=30, deadline=None)
def test_sums_merge_over_any_chunks(cuts, seed):
    """The sums of chunks are those of all images, and those of no image change nothing."""
    probabilities, codes = make_probabilities(np.random.default_rng(seed), 40, 6)
    merged = MetricSums.empty(6)
    for start, stop in pairwise([0, *sorted(cuts), 40]):
        merged = merged.merge(MetricSums.of(probabilities[start:stop], codes[start:stop]))
    for found, expected in zip(
        astuple(merged), astuple(MetricSums.of(probabilities, codes)), strict=True
    ):
        np.testing.assert_allclose(found, expected)


def test_lazy_images_have_the_same_metrics(fitted: ResCNetClassifier, images, labels):
    """Chunks of images and of labels may differ; accuracy is that of `score`."""
    expected = fitted.evaluate(images, labels)
    lazy = da.from_array(images, chunks=(17, 14, 14, 1)), da.from_array(labels, chunks=23)
    found = fitted.evaluate(*lazy)
    np.testing.assert_array_equal(found.confusion, expected.confusion)
    assert found.log_loss == pytest.approx(expected.log_loss)
    assert found.calibration_error == pytest.approx(expected.calibration_error)
    assert found.accuracy == pytest.approx(fitted.score(*lazy))
    with pytest.raises(DataError, match="the label 'ten'"):
        fitted.evaluate(lazy[0], da.where(lazy[1] == "nine", "ten", lazy[1]))


def test_table_lists_all_classes_or_the_worst(rng):
    """And the dict can be written as JSON."""
    few = Metrics.of(np.array(["cat", "dog"]), *make_probabilities(rng, 40, 2))
    assert all(word in repr(few) for word in ("cat", "dog", "accuracy", "log loss", "recall"))
    assert "top-5" not in repr(few)
    many = Metrics.of(np.arange(50), *make_probabilities(rng, 400, 50))
    worst = int(np.where(many.support > 0, many.f1, 2).argmin())
    lines = repr(many).splitlines()
    first = lines[lines.index(next(line for line in lines if line.startswith("class"))) + 1]
    assert first.split()[0] == str(worst)
    assert "10 classes with the smallest F1 of 50" in lines[-1]
    assert json.loads(json.dumps(many.to_dict())) == many.to_dict()
    labels = np.empty(2, object)
    labels[:] = [("a", 1), b"b"]
    json.dumps(Metrics.of(labels, *make_probabilities(rng, 9, 2)).to_dict())
