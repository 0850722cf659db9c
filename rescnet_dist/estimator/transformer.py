"""Features and running scores of any layer, as outputs of scikit-learn transformers."""

from __future__ import annotations

from typing import Any, Literal, Self, get_args

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, TransformerMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted

from rescnet_dist._compat import copy_output_config
from rescnet_dist.errors import SpecError, suggest_name
from rescnet_dist.estimator.labeled import label_result
from rescnet_dist.network import require_layers

Array = np.ndarray[Any, np.dtype[Any]]
LayerOutput = Literal["features", "scores"]


class LayerOutputs:
    """A classifier with a network that gives the features or the running scores of any layer.

    It is not a TransformerMixin, which estimators inherit too: that would wrap `transform`, and
    name its outputs by `get_feature_names_out`, whatever layer was asked for.
    """

    def transform(
        self, X: Any, *, layer: int | None = None, output: LayerOutput = "features"
    ) -> Any:
        """Compute the features or the running scores of images after a layer.

        In a pipeline, it gives the features of the last layer. `as_transformer` gives a
        transformer with another choice.

        Parameters
        ----------
        X : array-like of shape (n, H, W, d) or (n, H, W)
            Images as a NumPy, dask or xarray array; or a dataset, of which the test split is used.
        layer : int or None, default None
            Number of the layer, from 1; None is the last.
        output : {"features", "scores"}, default "features"
            What to compute.

        Returns
        -------
        ndarray, dask.array.Array or xarray.DataArray of shape (n, D) or (n, C)
            D features, or scores of C classes, in float32; lazy for a dask array.

        Raises
        ------
        DataError
            If there is no such layer, or the images have a different shape from the training
            images.
        SpecError
            If `output` is unknown.
        """
        transformer = self.as_transformer(layer=layer, output=output)
        copy_output_config(self, transformer)
        return transformer.transform(X)

    def as_transformer(
        self, *, layer: int | None = None, output: LayerOutput = "features"
    ) -> ResCNetTransformer:
        """Return a transformer that gives the outputs of a layer of this classifier.

        The classifier is not fitted again if the transformer is, as part of a pipeline.

        Parameters
        ----------
        layer : int or None, default None
            Number of the layer, from 1; None is the last.
        output : {"features", "scores"}, default "features"
            What the transformer computes.

        Returns
        -------
        ResCNetTransformer
            A fitted transformer that shares the network.
        """
        check_is_fitted(self)
        transformer = ResCNetTransformer(FrozenEstimator(self), layer=layer, output=output)
        transformer.estimator_ = transformer.estimator
        return transformer

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of what `transform` gives: the features of the last layer.

        Parameters
        ----------
        input_features : object, default None
            Ignored, as features are not of single pixels.

        Returns
        -------
        ndarray of str objects, shape (D,)
            Names such as `layer2_feature0`.
        """
        return self.as_transformer().get_feature_names_out()


class ResCNetTransformer(TransformerMixin, MetaEstimatorMixin, BaseEstimator):
    """Transformer that gives the features or the running scores of one layer of a network.

    Parameters
    ----------
    estimator : ResCNetClassifier or FlatResCNetClassifier
        The classifier that `fit` trains a copy of. A `sklearn.frozen.FrozenEstimator` of a fitted
        classifier is used as it is.
    layer : int or None, default None
        Number of the layer, from 1; None is the last.
    output : {"features", "scores"}, default "features"
        What `transform` computes.

    Attributes
    ----------
    estimator_ : ResCNetClassifier or FlatResCNetClassifier
        The fitted classifier.

    Examples
    --------
    >>> import rescnet_dist as rd
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> X, y = rd.load_digits()
    >>> clf = rd.ResCNetClassifier(rd.NetworkSpec.preset("digits").replace(filters=4, max_layers=2))
    >>> first = rd.ResCNetTransformer(clf, layer=1)
    >>> pipeline = make_pipeline(first, LogisticRegression())
    >>> pipeline.fit(X[:300], y[:300]).predict(X[:3]).shape  # doctest: +SKIP
    (3,)
    """

    estimator_: Any

    def __init__(
        self, estimator: Any, *, layer: int | None = None, output: LayerOutput = "features"
    ) -> None:
        self.estimator = estimator
        self.layer = layer
        self.output = output

    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> Self:
        """Train a copy of the classifier.

        Parameters
        ----------
        X : array-like of shape (n, H, W, d) or (n, H, W), Dataset or str
            Images, as for the `fit` of the classifier.
        y : array-like of shape (n,) or None, default None
            Labels.
        **fit_params
            Other arguments of the `fit` of the classifier.

        Returns
        -------
        ResCNetTransformer
            The fitted transformer itself.
        """
        self._check_output()
        self.estimator_ = clone(self.estimator).fit(X, y, **fit_params)
        return self

    def transform(self, X: Any) -> Any:
        """Compute the outputs of the layer.

        Parameters
        ----------
        X : array-like of shape (n, H, W, d) or (n, H, W)
            Images as a NumPy, dask or xarray array; or a dataset, of which the test split is used.

        Returns
        -------
        ndarray, dask.array.Array or xarray.DataArray of shape (n, D) or (n, C)
            D features, or scores of C classes, in float32; lazy for a dask array.

        Raises
        ------
        DataError
            If there is no such layer, or the images have a different shape from the training
            images.
        """
        check_is_fitted(self)
        self._check_output()
        network = require_layers(self.estimator_.network_)
        images = self.estimator_.to_images(X)
        compute = network.features if self.output == "features" else network.scores
        values = compute(images, layer=self.layer)
        return label_result(
            values, X, ("image", "feature"), {"feature": self.get_feature_names_out()}
        )

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the outputs.

        Parameters
        ----------
        input_features : object, default None
            Ignored, as features are not of single pixels.

        Returns
        -------
        ndarray of str objects, shape (D,) or (C,)
            Names such as `layer2_feature0` or `layer2_score_cat`.
        """
        check_is_fitted(self)
        network = require_layers(self.estimator_.network_)
        layer = network.depth if self.layer is None else self.layer
        outputs = (
            [f"feature{index}" for index in range(network.architecture.feature_count(layer))]
            if self.output == "features"
            else [f"score_{label}" for label in network.classes.tolist()]
        )
        return np.array([f"layer{layer}_{name}" for name in outputs], dtype=object)

    @property
    def n_features_in_(self) -> int:
        """Number of values of an image, height × width × channels."""
        check_is_fitted(self)
        return int(self.estimator_.n_features_in_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def _check_output(self) -> None:
        """Raise SpecError if `output` is unknown."""
        if self.output not in get_args(LayerOutput):
            raise SpecError(
                f"output={self.output!r} is unknown. "
                f"{suggest_name(str(self.output), get_args(LayerOutput))}"
            )
