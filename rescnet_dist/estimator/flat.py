"""A classifier of images that are rows of pixels, as scikit-learn's own tools have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MetaEstimatorMixin,
    TransformerMixin,
    clone,
)
from sklearn.utils.validation import check_is_fitted, validate_data

from rescnet_dist.data import Images, as_images
from rescnet_dist.data.kinds import is_dask_array
from rescnet_dist.errors import SpecError
from rescnet_dist.estimator.classifier import ResCNetClassifier
from rescnet_dist.estimator.transformer import LayerOutputs
from rescnet_dist.network import BaseNetwork

Array = np.ndarray[Any, np.dtype[Any]]

MIN_SIDE_PIXELS = 2  # of the square that rows are reshaped to: the smallest block of features


class FlatResCNetClassifier(
    LayerOutputs, MetaEstimatorMixin, TransformerMixin, ClassifierMixin, BaseEstimator
):
    """Classifier of images that are given as rows of pixels, such as `load_digits().data`.

    Rows are reshaped to images, on which a `ResCNetClassifier` is trained. It follows the
    conventions of scikit-learn for tables and passes its `check_estimator`.

    Parameters
    ----------
    estimator : ResCNetClassifier or None, default None
        The classifier that `fit` trains a copy of; None is `ResCNetClassifier()`.
    image_shape : tuple of int or None, default None
        Height and width (H, W), or height, width and channels (H, W, d), of the images, in the
        order of their pixels in a row. None is the smallest square of one channel, of at least 2×2
        pixels, that holds the pixels of a row; zeros fill it up.

    Attributes
    ----------
    estimator_ : ResCNetClassifier
        The fitted classifier.
    image_shape_ : tuple of int
        Height, width and channels (H, W, d) of the images.
    classes_ : ndarray of shape (C,)
        The labels, as they were given to `fit`.
    n_features_in_ : int
        Number of pixels of a row.

    Examples
    --------
    >>> import rescnet_dist as rd
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)  # 8×8 pixels in rows of 64
    >>> spec = rd.NetworkSpec(filters=4, block=4, stride=2, head="regress", max_layers=1)
    >>> clf = rd.FlatResCNetClassifier(rd.ResCNetClassifier(spec)).fit(X[:400], y[:400])
    >>> clf.image_shape_
    (8, 8, 1)
    """

    estimator_: ResCNetClassifier
    image_shape_: tuple[int, int, int]
    n_features_in_: int

    def __init__(
        self,
        estimator: ResCNetClassifier | None = None,
        *,
        image_shape: Sequence[int] | None = None,
    ) -> None:
        self.estimator = estimator
        self.image_shape = image_shape

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Train a classifier on rows of pixels and labels.

        Parameters
        ----------
        X : array-like or dask.array.Array of shape (n, p)
            Rows of pixels.
        y : array-like of shape (n,)
            Labels.
        sample_weight : array-like of shape (n,) or None, default None
            As how many images each counts in what is learned; 0 leaves an image out.
        **fit_params
            Other arguments of `ResCNetClassifier.fit`. The images of a validation pair are rows of
            pixels, too.

        Returns
        -------
        FlatResCNetClassifier
            The fitted classifier itself.

        Raises
        ------
        SpecError
            If `image_shape` does not fit the rows, or an option does not fit the images.
        DataError
            If the images or labels cannot be trained on.
        """
        if is_dask_array(X):
            self.n_features_in_ = X.shape[-1]
        else:
            X, y = validate_data(self, X, y)
        self.image_shape_ = self._find_image_shape(self.n_features_in_)
        validation = fit_params.get("validation")
        if isinstance(validation, tuple | list) and len(validation) == 2:
            fit_params["validation"] = self._reshape(validation[0]), validation[1]
        estimator = ResCNetClassifier() if self.estimator is None else clone(self.estimator)
        fit_params["sample_weight"] = sample_weight
        self.estimator_ = estimator.fit(self._reshape(X), y, **fit_params)
        return self

    def predict(self, X: Any) -> Any:
        """Predict the labels of images.

        Parameters
        ----------
        X : array-like or dask.array.Array of shape (n, p)
            Rows of pixels.

        Returns
        -------
        ndarray or dask.array.Array of shape (n,)
            Labels, as they were given to `fit`; lazy for a dask array.
        """
        return self._fitted().predict(self._reshape(X))

    def predict_proba(self, X: Any) -> Any:
        """Compute the class probabilities of images.

        Parameters
        ----------
        X : array-like or dask.array.Array of shape (n, p)
            Rows of pixels.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, C)
            Probabilities; lazy for a dask array.
        """
        return self._fitted().predict_proba(self._reshape(X))

    def decision_function(self, X: Any) -> Any:
        """Compute the running scores of images after the last layer.

        Parameters
        ----------
        X : array-like or dask.array.Array of shape (n, p)
            Rows of pixels.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, C), or (n,) for two classes
            Scores; lazy for a dask array.
        """
        return self._fitted().decision_function(self._reshape(X))

    @property
    def classes_(self) -> Array:
        """Labels of the classes."""
        return self.estimator_.classes_

    @property
    def network_(self) -> BaseNetwork:
        """The fitted network."""
        return self.estimator_.network_

    def _fitted(self) -> ResCNetClassifier:
        """Return the fitted classifier; raise NotFittedError if there is none."""
        check_is_fitted(self)
        return self.estimator_

    def to_images(self, X: Any) -> Images:
        """Return the images of rows of pixels, as `Network` takes them.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Rows of pixels.

        Returns
        -------
        Images of shape (n, H, W, d)
            The images; lazy ones are not computed.

        Raises
        ------
        ValueError
            If X does not have rows of p pixels.
        """
        check_is_fitted(self)
        return as_images(self._reshape(X))

    def _reshape(self, X: Any) -> Any:
        """Return rows of pixels (n, p) as images (n, H, W, d); raise ValueError if not rows."""
        if not is_dask_array(X):
            X = validate_data(self, X, reset=False)
        if missing := math.prod(self.image_shape_) - X.shape[1]:
            # NumPy passes the call on to dask.array for a dask array.
            X = np.pad(X, ((0, 0), (0, missing)))
        return X.reshape(-1, *self.image_shape_)

    def _find_image_shape(self, pixels: int) -> tuple[int, int, int]:
        """Return the shape (H, W, d) of images of so many pixels, all channels counted."""
        if self.image_shape is None:
            side = max(MIN_SIDE_PIXELS, math.isqrt(pixels - 1) + 1)
            return side, side, 1
        shape = tuple(self.image_shape)
        if len(shape) not in (2, 3) or math.prod(shape) != pixels:
            raise SpecError(
                f"image_shape={self.image_shape!r} does not fit rows of {pixels} pixels. Pass "
                "(height, width) or (height, width, channels) whose product is that number."
            )
        height, width, channels = (*shape, 1)[:3]
        return int(height), int(width), int(channels)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags
