"""Predictions and scores of a fitted classifier: lazy for dask arrays, labeled for xarray."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from rescnet_dist.data import Images, encode, evaluation_images, select_split
from rescnet_dist.data.kinds import is_dask_array
from rescnet_dist.errors import SpecError
from rescnet_dist.estimator.labeled import xarray_like_input
from rescnet_dist.network import BaseNetwork, ImagePrediction, Metrics, require_layers
from rescnet_dist.spec import AugmentSpec

Array = np.ndarray[Any, np.dtype[Any]]
Averaging = AugmentSpec | int | None


class Predictions:
    """A classifier with a fitted network, which predicts and evaluates.

    Attributes
    ----------
    network_ : Network or FusedNetwork
        The fitted network.
    classes_ : ndarray of shape (C,)
        The labels, as they were given to `fit`.
    depth_ : int
        The number of layers.
    """

    network_: BaseNetwork
    classes_: Array
    depth_: int

    @xarray_like_input("image", "class")
    def decision_function(self, X: Any, *, augment: Averaging = None) -> Any:
        """Compute the running scores of images after the last layer.

        Parameters
        ----------
        X : array-like of shape (n, H, W, d) or (n, H, W)
            Images as a NumPy, dask or xarray array.
        augment : AugmentSpec, int or None, default None
            Average the scores over each image and its augmented copies. An int is the number of
            copies, made as in training.

        Returns
        -------
        ndarray, dask.array.Array or xarray.DataArray of shape (n, C), or (n,) for two classes
            Scores, lazy for a dask array, and with coordinates for images of xarray. For two
            classes, as in scikit-learn, the score of the second class minus that of the first.

        Raises
        ------
        DataError
            If the images have a different shape from the training images.
        """
        scores = self._scores(self.to_images(X), augment)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    @xarray_like_input("image", "class")
    def predict_proba(self, X: Any, *, augment: Averaging = None) -> Any:
        """Compute the class probabilities of images.

        Parameters
        ----------
        X : array-like of shape (n, H, W, d) or (n, H, W)
            Images as a NumPy, dask or xarray array.
        augment : AugmentSpec, int or None, default None
            Average the scores over each image and its augmented copies. An int is the number of
            copies, made as in training.

        Returns
        -------
        ndarray, dask.array.Array or xarray.DataArray of shape (n, C)
            softmax(scores / T): positive rows that sum to 1; lazy for a dask array. The temperature
            T was fitted in training, see `network_.calibration`.

        Raises
        ------
        DataError
            If the images have a different shape from the training images.
        """
        scores = self._scores(self.to_images(X), augment)  # raises if not fitted
        return self.network_.probabilities(scores)

    @xarray_like_input("image")
    def predict(self, X: Any, *, augment: Averaging = None) -> Any:
        """Predict the labels of images.

        Parameters
        ----------
        X : array-like of shape (n, H, W, d) or (n, H, W)
            Images as a NumPy, dask or xarray array.
        augment : AugmentSpec, int or None, default None
            Average the scores over each image and its augmented copies. An int is the number of
            copies, made as in training.

        Returns
        -------
        ndarray, dask.array.Array or xarray.DataArray of shape (n,)
            Labels, as they were given to `fit`; lazy for a dask array, and with coordinates for
            images of xarray.

        Raises
        ------
        DataError
            If the images have a different shape from the training images.
        """
        scores = self._scores(self.to_images(X), augment)
        if is_dask_array(scores):
            return scores.map_blocks(
                _select_labels,
                self.classes_,
                drop_axis=1,
                dtype=self.classes_.dtype,
                meta=np.empty(0, self.classes_.dtype),
            )
        return _select_labels(scores, self.classes_)

    def predict_image(
        self,
        image: Any,
        *,
        resize: int | tuple[int, int] | None = None,
        channels: str | None = None,
        augment: Averaging = None,
    ) -> ImagePrediction:
        """Predict the label of one photo of any size.

        It is decoded, converted to gray or color and resized as the training images were when they
        were imported.

        Parameters
        ----------
        image : str, os.PathLike or PIL.Image.Image
            Path or fsspec URL of a PNG, JPEG or WebP file, or a Pillow image.
        resize : int, tuple of int or None, default None
            Size to resize the photo to, (height, width) or the side of a square, where the network
            does not know; see `Network.input`.
        channels : {"gray", "color"} or None, default None
            What to convert the photo to, where the network does not know.
        augment : AugmentSpec, int or None, default None
            Average the scores over the image and augmented copies of it. An int is the number of
            copies, made as in training.

        Returns
        -------
        ImagePrediction
            The label, and the probability of each class.

        Raises
        ------
        DataError
            If the photo cannot be read, or does not become an image of the network's shape.
        SpecError
            If `resize` or `channels` is invalid.
        """
        check_is_fitted(self)
        return self.network_.predict_image(
            image, resize=resize, channels=channels, augment=self.network_.resolve_copies(augment)
        )

    def score(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        augment: Averaging = None,
    ) -> float:
        """Compute the accuracy on images: the fraction that is classified correctly.

        Parameters
        ----------
        X : array-like of shape (n, H, W, d) or (n, H, W), Dataset or str
            Images; or a dataset, of which the test split is used.
        y : array-like of shape (n,) or None, default None
            Labels; None if X is a dataset, which has them.
        sample_weight : array-like of shape (n,) or None, default None
            Weights of the images.
        augment : AugmentSpec, int or None, default None
            Average the scores over each image and its augmented copies. An int is the number of
            copies, made as in training.

        Returns
        -------
        float
            Accuracy from 0 to 1.

        Raises
        ------
        DataError
            If the images have a different shape from the training images, or a label is not among
            the classes.
        """
        check_is_fitted(self)
        part = select_split(X, y, "test", decoder=self.network_.photo_decoder())
        averaged = self.network_.resolve_copies(augment)
        is_correct = self.network_.find_correct(part.images, part.labels, averaged)
        if sample_weight is None:
            return float(is_correct.mean())
        return float(np.average(np.asarray(is_correct), weights=sample_weight))

    def evaluate(self, X: Any, y: Any = None, *, augment: Averaging = None) -> Metrics:
        """Compute accuracy, log loss, calibration error, confusion matrix and metrics by class.

        Parameters
        ----------
        X : array-like of shape (n, H, W, d) or (n, H, W), Dataset or str
            Images; or a dataset, of which the test split is used.
        y : array-like of shape (n,) or None, default None
            Labels; None if X is a dataset, which has them.
        augment : AugmentSpec, int or None, default None
            Average the scores over each image and its augmented copies. An int is the number of
            copies, made as in training.

        Returns
        -------
        Metrics
            Print it, read its attributes, or take its `to_dict()`.

        Raises
        ------
        DataError
            If the images have a different shape from the training images, or a label is not among
            the classes.

        Examples
        --------
        >>> import rescnet_dist as rd
        >>> X, y = rd.load_digits()
        >>> spec = rd.NetworkSpec.preset("digits").replace(filters=4, max_layers=1)
        >>> clf = rd.ResCNetClassifier(spec).fit(X[:400], y[:400])
        >>> clf.evaluate(X[400:600], y[400:600]).confusion.shape
        (10, 10)
        """
        check_is_fitted(self)
        part = select_split(X, y, "test", decoder=self.network_.photo_decoder())
        codes = encode(part.labels, self.classes_)
        return self.network_.evaluate(part.images, codes, self.network_.resolve_copies(augment))

    def staged_score(self, X: Any, y: Any = None, *, augment: Averaging = None) -> Array:
        """Compute the accuracy on images after each layer.

        Parameters
        ----------
        X : array-like of shape (n, H, W, d) or (n, H, W), Dataset or str
            Images; or a dataset, of which the test split is used.
        y : array-like of shape (n,) or None, default None
            Labels; None if X is a dataset, which has them.
        augment : AugmentSpec, int or None, default None
            Average the scores over each image and its augmented copies. An int is the number of
            copies, made as in training.

        Returns
        -------
        ndarray of shape (L,)
            Accuracy from 0 to 1 after each of the L layers; NaN after layers without a head.

        Raises
        ------
        DataError
            If the images have a different shape from the training images, or a label is not among
            the classes.
        """
        check_is_fitted(self)
        part = select_split(X, y, "test", decoder=self.network_.photo_decoder())
        codes = encode(part.labels, self.classes_)
        network = require_layers(self.network_)
        copies = network.resolve_copies(augment)
        return network.staged_accuracy(part.images, codes, copies)

    @xarray_like_input("layer", "image")
    def staged_predict(self, X: Any, *, augment: Averaging = None) -> Any:
        """Predict the labels of images after each layer.

        The result shows which layer corrects, or breaks, the prediction of which image.

        Parameters
        ----------
        X : array-like of shape (n, H, W, d) or (n, H, W)
            Images as a NumPy, dask or xarray array.
        augment : AugmentSpec, int or None, default None
            Average the scores over each image and its augmented copies. An int is the number of
            copies, made as in training.

        Returns
        -------
        ndarray, dask.array.Array or xarray.DataArray of shape (L, n)
            Labels after each of the L layers; lazy for a dask array.

        Raises
        ------
        DataError
            If the images have a different shape from the training images.
        SpecError
            If only the last layer has a head.
        """
        check_is_fitted(self)
        network = require_layers(self.network_)
        if (first := network.spec.first_head) > 1:
            raise SpecError(
                f'The network has heads="last": no layer before layer {first} predicts. Use '
                "predict."
            )
        scores = network.staged_scores(self.to_images(X), self.network_.resolve_copies(augment))
        codes = scores.argmax(axis=2).T
        if is_dask_array(codes):
            return codes.map_blocks(
                _decode_labels,
                self.classes_,
                dtype=self.classes_.dtype,
                meta=np.empty((0, 0), self.classes_.dtype),
            )
        return _decode_labels(codes, self.classes_)

    def to_images(self, X: Any) -> Images:
        """Return the images of X as `Network` takes them; image files are converted to such.

        Parameters
        ----------
        X : array-like of shape (n, H, W, d) or (n, H, W), Dataset or str
            Images, or a dataset, of which the test split is used.

        Returns
        -------
        Images of shape (n, H, W, d)
            The images; lazy ones are not computed.

        Raises
        ------
        DataError
            If X does not hold images.
        """
        check_is_fitted(self)
        return evaluation_images(X, self.network_.photo_decoder())

    def _scores(self, images: Images, augment: Averaging) -> Any:
        """Return the running scores of shape (n, C), lazy for lazy images."""
        check_is_fitted(self)
        return self.network_.scores(images, self.network_.resolve_copies(augment))


def _select_labels(scores: Array, classes: Array) -> Array:
    """Return the label of the largest score in each row: (n, C) to (n,)."""
    return np.asarray(classes[scores.argmax(axis=1)])


def _decode_labels(codes: Array, classes: Array) -> Array:
    """Return the label of each class code, in an array of the same shape."""
    return np.asarray(classes[codes])
