"""Rows of pixels as images, and all checks of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator

import rescnet_dist as rd

# Features of tables of few columns, which the checks use, are trained on images of 2×2 pixels.
SPEC = rd.NetworkSpec(
    filters=4,
    first_filter_size=2,
    filter_size=2,
    block=2,
    stride=1,
    levels=(1,),
    bank="gaussian",
    head="regress",
    ridge=0.01,
    max_layers=1,
)
RUN = rd.RunSpec(validation=0, chunk_images=1000, accumulators=1, solve_threads=1)
DIGITS = rd.ResCNetClassifier(
    rd.NetworkSpec(filters=6, block=4, stride=2, head="regress", max_layers=1), run=RUN
)
# Checks that cannot pass, with the reason
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "Sums are rounded to single precision, which "
    "exceeds a relative tolerance of 1e-7 of probabilities, and the smoothing of their temperature "
    "counts images, not weights. `test_weights` has tests with wider tolerances.",
}


@pytest.fixture(scope="module", autouse=True)
def current_client(threads_cluster: LocalCluster) -> Iterator[Client]:
    """Yield one client, which all fits of this module use."""
    with Client(threads_cluster) as client:
        yield client


# What most users meet; the others take a minute.
USUAL_CHECKS = {
    "check_classifier_data_not_an_array",
    "check_classifiers_classes",
    "check_classifiers_train",
    "check_dict_unchanged",
    "check_estimators_nan_inf",
    "check_estimators_pickle",
    "check_get_params_invariance",
    "check_n_features_in",
    "check_no_attributes_set_in_init",
    "check_transformer_general",
}


def list_checks() -> Iterator[Any]:
    """Yield all checks of scikit-learn; all but the usual ones are slow."""
    estimator = rd.FlatResCNetClassifier(rd.ResCNetClassifier(SPEC, run=RUN))
    for copy, check in estimator_checks_generator(estimator):
        name = check.func.__name__
        options = ", ".join(f"{name}={value}" for name, value in check.keywords.items())
        marks = [] if name in USUAL_CHECKS else [pytest.mark.slow]
        if name in EXPECTED_FAILURES:
            marks.append(pytest.mark.xfail(reason=EXPECTED_FAILURES[name], strict=True))
        yield pytest.param(copy, check, marks=marks, id=f"{name}({options})")


@pytest.mark.parametrize(("estimator", "check"), list(list_checks()))
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    """All that scikit-learn requires of a classifier and transformer of tables."""
    check(estimator)


def test_rows_are_the_images_that_they_were(current_client: Client) -> None:
    """Predictions are those of a classifier of the images."""
    X, y = (array[:200] for array in load_digits(return_X_y=True))
    flat = rd.FlatResCNetClassifier(DIGITS).fit(X, y, validation=(X[:50], y[:50]))
    assert flat.image_shape_ == (8, 8, 1)
    assert flat.n_features_in_ == 64
    images = rd.ResCNetClassifier(**DIGITS.get_params(deep=False))
    images.fit(X.reshape(-1, 8, 8), y, validation=(X[:50].reshape(-1, 8, 8), y[:50]))
    assert images.accuracies_ == flat.estimator_.accuracies_
    for method in ("predict", "predict_proba", "decision_function", "transform"):
        expected = getattr(images, method)(X.reshape(-1, 8, 8))
        np.testing.assert_array_equal(getattr(flat, method)(X), expected)
        lazy = getattr(flat, method)(da.from_array(X, chunks=(150, 64)))
        assert isinstance(lazy, da.Array)
        assert lazy.shape == expected.shape
    assert flat.score(X, y) > 0.8


def test_lazy_rows_can_be_trained_on(current_client: Client) -> None:
    """As those in memory."""
    X, y = (array[:100] for array in load_digits(return_X_y=True))
    lazy = rd.FlatResCNetClassifier(DIGITS).fit(da.from_array(X, chunks=(40, 64)), y)
    assert lazy.n_features_in_ == 64
    flat = rd.FlatResCNetClassifier(DIGITS).fit(X, y)
    np.testing.assert_array_equal(lazy.predict(X), flat.predict(X))


def test_cross_validation(current_client: Client) -> None:
    """As with any classifier of tables."""
    X, y = (array[:200] for array in load_digits(return_X_y=True))
    assert cross_val_score(rd.FlatResCNetClassifier(DIGITS), X, y, cv=2).min() > 0.5


@pytest.mark.parametrize(
    ("pixels", "given", "expected"),
    [
        (64, None, (8, 8, 1)),
        (60, None, (8, 8, 1)),
        (1, None, (2, 2, 1)),
        (60, (6, 10), (6, 10, 1)),
        (60, [4, 5, 3], (4, 5, 3)),
    ],
)
def test_image_shape(pixels: int, given: Any, expected: tuple[int, int, int]) -> None:
    """A square by default, filled up with zeros if need be."""
    clf = rd.FlatResCNetClassifier(image_shape=given)
    clf.n_features_in_, clf.image_shape_ = pixels, clf._find_image_shape(pixels)
    assert clf.image_shape_ == expected
    X = np.arange(1.0, 2 * pixels + 1).reshape(2, pixels)
    for rows in (X, da.from_array(X, chunks=(1, pixels))):
        images = np.asarray(clf._reshape(rows))
        assert images.shape == (2, *expected)
        np.testing.assert_array_equal(images.reshape(2, -1)[:, :pixels], X)
        assert not images.reshape(2, -1)[:, pixels:].any()


@pytest.mark.parametrize("shape", [(8, 9), (64,), (4, 4, 2, 2)])
def test_image_shape_that_does_not_fit(shape: tuple[int, ...]) -> None:
    """The error has the shape and the number of pixels."""
    clf = rd.FlatResCNetClassifier(image_shape=shape)
    with pytest.raises(rd.SpecError, match=r"image_shape=.* does not fit rows of 64 pixels"):
        clf.fit(np.eye(64), [0, 1] * 32)
