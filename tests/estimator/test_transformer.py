"""Features and running scores as outputs of scikit-learn transformers."""

from __future__ import annotations

import pickle
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from distributed import Client
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

import rescnet_dist as rd
from rescnet_dist.model import forward, initial_state

X, Y = (array[:100] for array in rd.load_digits())
X = X[:, 2:26:2, 2:26:2]


def fail_to_compute(*args: Any, **kwargs: Any) -> None:
    """Fail the test, as a scheduler: nothing may compute while a graph is built."""
    raise AssertionError("computed while a graph was built")


@pytest.mark.parametrize("layer", [1, 2, None])
def test_features_are_what_the_head_of_a_layer_gets(
    digits_classifier: rd.ResCNetClassifier, layer: int | None
) -> None:
    """They are the features of the maps of the layer."""
    network = digits_classifier.network_
    before = initial_state(X[:7], network.image_scale, network.architecture)
    states = list(forward(network.architecture, before, network.layers))
    state = states[(layer or network.depth) - 1]
    expected = network.architecture.extract(state.maps, state.layer)
    features = digits_classifier.transform(X[:7], layer=layer)
    assert features.dtype == np.float32
    assert features.shape == (7, network.architecture.features)
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)


def test_scores_are_those_after_each_layer(digits_classifier: rd.ResCNetClassifier) -> None:
    """The last are those of the decision function."""
    staged = digits_classifier.network_.staged_scores(X[:7])
    for layer in (1, 2):
        scores = digits_classifier.transform(X[:7], layer=layer, output="scores")
        np.testing.assert_allclose(scores, staged[:, layer - 1], atol=1e-5)
    last = digits_classifier.transform(X[:7], output="scores")
    np.testing.assert_allclose(last, digits_classifier.decision_function(X[:7]), atol=1e-5)


@pytest.mark.parametrize("output", ["features", "scores"])
def test_outputs_of_lazy_images_are_lazy(
    digits_classifier: rd.ResCNetClassifier, output: Any
) -> None:
    """They equal those of the same images in memory, also for part of a network."""
    lazy = da.from_array(X[:30], chunks=(12, 12, 12, 1))
    with dask.config.set(scheduler=fail_to_compute):
        result = digits_classifier.transform(lazy, layer=1, output=output)
    assert isinstance(result, da.Array)
    expected = digits_classifier.transform(X[:30], layer=1, output=output)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(result.compute(scheduler="sync"), expected, rtol=1e-4, atol=1e-5)


def test_pipeline_with_a_linear_model(digits_classifier: rd.ResCNetClassifier) -> None:
    """A fitted network is not trained again; its features are learned from as any other."""
    images, labels = (array[:400] for array in rd.load_digits())
    images = images[:, 2:26:2, 2:26:2]
    first = digits_classifier.as_transformer(layer=1)
    pipeline = make_pipeline(first, StandardScaler(), LogisticRegression())
    pipeline.fit(images[100:300], labels[100:300])
    assert pipeline[0].estimator_.network_ is digits_classifier.network_
    assert pipeline.n_features_in_ == 144
    assert pipeline.score(images[300:], labels[300:]) > 0.6


def test_classifier_and_transformer_are_steps_that_fit(client: Client) -> None:
    """In a pipeline, both are trained first."""
    spec = rd.NetworkSpec(filters=3, block=4, stride=3, head="regress", max_layers=1)
    clf = rd.ResCNetClassifier(
        spec, run=rd.RunSpec(validation=0, chunk_images=100, solve_threads=1)
    )
    scores = rd.ResCNetTransformer(clf, output="scores")
    for step in (clf, scores):
        pipeline = make_pipeline(step, LogisticRegression()).fit(X[:60], Y[:60])
        assert pipeline.predict(X[:5]).shape == (5,)
    names = pipeline[:-1].get_feature_names_out()
    assert names.tolist() == [f"layer1_score_{y}" for y in range(10)]
    with pytest.raises(NotFittedError):
        clone(scores).transform(X)
    search = clone(scores).set_params(estimator__spec__filters=5)
    assert search.estimator.spec.filters == 5


def test_names_and_containers(digits_classifier: rd.ResCNetClassifier) -> None:
    """`set_output` gives data frames of any layer, whose columns have the names."""
    names = digits_classifier.get_feature_names_out()
    assert names[:2].tolist() == ["layer2_feature0", "layer2_feature1"]
    assert digits_classifier.n_features_in_ == 144
    clf = pickle.loads(pickle.dumps(digits_classifier)).set_output(transform="pandas")
    for options, columns in (
        ({}, names.tolist()),
        ({"layer": 1}, [name.replace("layer2", "layer1") for name in names]),
        ({"output": "scores"}, [f"layer2_score_digit {y}" for y in range(10)]),
    ):
        frame = clf.transform(X[:3], **options)
        assert isinstance(frame, pd.DataFrame)
        assert frame.columns.tolist() == columns
        np.testing.assert_array_equal(frame, digits_classifier.transform(X[:3], **options))
    assert not hasattr(rd.ResCNetClassifier(), "n_features_in_")


def test_tags_say_what_is_transformed() -> None:
    """Images, to float32."""
    for estimator in (rd.ResCNetClassifier(), rd.ResCNetTransformer(rd.ResCNetClassifier())):
        tags = get_tags(estimator)
        assert tags.transformer_tags.preserves_dtype == ["float32"]
        assert (tags.input_tags.two_d_array, tags.input_tags.three_d_array) == (False, True)
        assert tags.target_tags.required


def test_wrong_choices_are_errors(digits_classifier: rd.ResCNetClassifier) -> None:
    """They name what there is."""
    with pytest.raises(rd.DataError, match=r"layer=3 does not exist\. .* layers 1 to 2"):
        digits_classifier.transform(X, layer=3)
    with pytest.raises(rd.DataError, match="layer=0 does not exist"):
        digits_classifier.transform(X, layer=0, output="scores")
    with pytest.raises(rd.SpecError, match=r"output='feature' is unknown\. Did you mean 'features"):
        digits_classifier.transform(X, output="feature")  # type: ignore[arg-type]


def test_outputs_of_xarray_have_coordinates(digits_classifier: rd.ResCNetClassifier) -> None:
    """Of the images, and the names of the features."""
    images = xr.DataArray(X[:3], {"image": ["a", "b", "c"]}, ["image", "y", "x", "channel"])
    result = digits_classifier.transform(images)
    assert result.dims == ("image", "feature")
    assert result.image.to_numpy().tolist() == ["a", "b", "c"]
    assert result.feature.to_numpy()[0] == "layer2_feature0"
    np.testing.assert_array_equal(result, digits_classifier.transform(X[:3]))
