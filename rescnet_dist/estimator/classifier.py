"""The scikit-learn estimator: a classifier that trains on Dask and predicts dask arrays lazily."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Self

import dask.array as da
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import check_random_state, estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from rescnet_dist.automatic import describe_choice
from rescnet_dist.cluster import current_client
from rescnet_dist.dashboard import Plots
from rescnet_dist.dashboard.scheduler import SchedulerPage
from rescnet_dist.data import (
    Images,
    TrainingSet,
    classes_from_json,
    encode,
    evaluation_images,
    select_split,
    training_set,
)
from rescnet_dist.errors import SpecError, mask_secrets
from rescnet_dist.estimator.labeled import xarray_like_input
from rescnet_dist.estimator.transformer import LayerOutputs
from rescnet_dist.events import Listener, check_listeners
from rescnet_dist.export import DEFAULT_OPSET
from rescnet_dist.lifecycle import Changes, begin_or_resume, check_resume, check_run, resume_run
from rescnet_dist.network import (
    BaseNetwork,
    FusedNetwork,
    ImagePrediction,
    Metrics,
    load_network,
    require_layers,
    stored_accuracies,
)
from rescnet_dist.planning import Forecast, forecast
from rescnet_dist.planning.backend import get_backend
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import RunStore

Array = np.ndarray[Any, np.dtype[Any]]
Averaging = AugmentSpec | int | None
TYPICAL_SIZE = ((32, 32, 3), 5000, 10)  # of data, for which options are checked before any is given


class ResCNetClassifier(LayerOutputs, TransformerMixin, ClassifierMixin, BaseEstimator):
    """Classifier that grows a deep convolutional network (ResCNet) without backpropagation.

    Layers are fitted one after the other in closed form. Training uses the current
    `dask.distributed.Client` if there is one, else an embedded cluster.

    A fitted classifier is pickled with its layers, so that pickles and joblib dumps do not need the
    run store, and without its listeners. `save` writes a form without pickles.

    Parameters
    ----------
    spec : NetworkSpec, str, dict or None, default None
        The network, or the name of a preset. None chooses settings for the images, as
        `NetworkSpec.auto` does; a dict has options to set to other values.
    store : str, os.PathLike or None, default None
        fsspec URL of the run store. None uses a temporary store that is removed after `fit`.
    random_state : int, numpy.random.RandomState or None, default 0
        Seed of the patch draws, the validation split and the augmented copies.
    run : RunSpec or None, default None
        How to train; None is the default RunSpec. Its seed is replaced by `random_state`.
    augment : AugmentSpec or None, default None
        Augmented copies of the training images; None makes no copies.
    class_weight : {"balanced"}, dict or None, default None
        Weights of classes, by which those of their images are multiplied: a dict of numbers by
        label, where others weigh 1, or "balanced", with which all classes count the same. None is
        `class_weight` of `run`.
    listeners : sequence of callable, default ()
        Functions that are called with each event of the run, such as a `Callback`.
    verbose : bool, default False
        Show the settings that were chosen and the progress of `fit`, in a terminal or in the cell
        of a notebook.

    Attributes
    ----------
    network_ : Network or FusedNetwork
        The fitted network at its chosen depth; a `FusedNetwork` if such a one was loaded.
    classes_ : ndarray of shape (C,)
        The labels, as they were given to `fit`.
    accuracies_ : list of dict
        Accuracy on the training images (copies included) and on the validation images after each
        layer.
    depth_ : int
        The chosen number of layers.
    run_url_ : str or None
        URL of the run store; None if it was temporary.

    Examples
    --------
    >>> import rescnet_dist as rd
    >>> X, y = rd.load_digits()
    >>> spec = rd.NetworkSpec.preset("digits").replace(filters=4, max_layers=2)
    >>> clf = rd.ResCNetClassifier(spec).fit(X[:400], y[:400])
    >>> clf.predict(X[:3]).shape
    (3,)
    """

    network_: BaseNetwork
    classes_: Array
    accuracies_: list[dict[str, Any]]
    depth_: int
    run_url_: str | None

    def __init__(
        self,
        spec: NetworkSpec | str | dict[str, Any] | None = None,
        *,
        store: str | os.PathLike[str] | None = None,
        random_state: int | np.random.RandomState | None = 0,
        run: RunSpec | None = None,
        augment: AugmentSpec | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
        listeners: Sequence[Listener] = (),
        verbose: bool = False,
    ) -> None:
        self.spec = spec
        self.store = store
        self.random_state = random_state
        self.run = run
        self.augment = augment
        self.class_weight = class_weight
        self.listeners = listeners
        self.verbose = verbose

    def set_params(self, **params: Any) -> Self:
        """Set parameters, or options of the specs by nested names such as `spec__ridge`.

        Specs are frozen, so that a spec of which an option is set is replaced. If it is the name
        of a preset, the spec that it stands for is. If `spec` is None or a dict, it becomes a dict.

        Parameters
        ----------
        **params
            Values by name. The names of options start with `spec__`, `run__` or `augment__`.

        Returns
        -------
        ResCNetClassifier
            The classifier itself.

        Raises
        ------
        SpecError
            If an option is unknown or a value is not valid.

        Examples
        --------
        >>> ResCNetClassifier("mnist").set_params(spec__filters=8).spec.filters
        8
        """
        current = {"spec": self._given_spec, "run": self._run_spec, "augment": self._augment_spec}
        options: dict[str, dict[str, Any]] = {}
        own = {}
        for key, value in params.items():
            name, _, option = key.partition("__")
            if option and name in current:
                options.setdefault(name, {})[option] = value
            else:
                own[key] = value
        super().set_params(**own)
        for name, changes in options.items():
            if (spec := current[name]()) is None:
                self.spec = {**(self.spec or {}), **changes}  # type: ignore[dict-item]
                NetworkSpec.auto(*TYPICAL_SIZE, **self.spec)  # raises for unknown options
            else:
                setattr(self, name, spec.set_params(**changes))
        return self

    def fit(
        self,
        X: Any,
        y: Any = None,
        validation: tuple[Any, Any] | float | None = None,
        *,
        groups: Any = None,
        sample_weight: Any = None,
        or_resume: bool = False,
        overwrite: bool = False,
    ) -> Self:
        """Train a network on images and labels.

        Parameters
        ----------
        X : array-like of shape (n, H, W, d) or (n, H, W), Dataset or str
            Images as a NumPy, dask or xarray array; or a dataset, as `open_dataset` accepts or
            returns, of which the train split is used.
        y : array-like of shape (n,) or None, default None
            Labels of any hashable type; None if the dataset has them.
        validation : tuple (X, y), float or None, default None
            Validation images and labels, or the fraction of the images to hold out, 0 for none.
            None uses the val split of the dataset, if any, else the fraction of `run`, by default
            a tenth. The validation accuracy chooses the depth.
        groups : array-like of shape (n,) or None, default None
            Group of each image. Images of one group are held out together or not at all.
        sample_weight : array-like of shape (n,) or None, default None
            As how many images each counts in what is learned; 0 leaves an image out. None uses the
            `sample_weight` of the dataset, if any, else 1.
        or_resume : bool, default False
            Resume the run in the store if it is the same, or return it if it is done.
        overwrite : bool, default False
            Replace the run in the store, if any. Nothing else is ever removed.

        Returns
        -------
        ResCNetClassifier
            The fitted classifier itself.

        Raises
        ------
        SpecError
            If an option is not valid, does not fit the images, or needs more memory than the
            workers have.
        DataError
            If the images or labels cannot be trained on.
        StoreError
            If the store already has a run or cannot be written.
        ClusterError
            If the Dask cluster cannot be used.
        """
        check_listeners(self.listeners)
        run_spec, held_out = self._resolve_run(validation)
        data = self._training_set(X, y, validation, held_out, groups, sample_weight)
        spec = self._network_spec(data)
        with contextlib.ExitStack() as stack:
            url, temporary = self.store, self.store is None
            if url is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rescnet-"))
                url = os.path.join(folder, "run")
            checked = check_run(
                *(url, spec, run_spec, data),
                temporary=temporary,
                or_resume=or_resume,
                overwrite=overwrite,
            )
            client = stack.enter_context(current_client(gpus=get_backend(run_spec).on_gpu))
            page = SchedulerPage(client)
            listeners: list[Listener] = [page, *self.listeners]
            if self.verbose:
                note = None if self._given_spec() else describe_choice(spec.rows(), *data.size)
                listeners.append(stack.enter_context(_open_progress(page, note)))
            run = begin_or_resume(checked, client, listeners)
            self._load(run.url, run_spec.array_backend)
            if temporary:
                self.run_url_ = None
                network = require_layers(self.network_).in_memory()
                self.network_ = replace(network, classes=data.classes)
                self.classes_ = data.classes
        return self

    def plan(
        self,
        X: Any,
        y: Any = None,
        validation: tuple[Any, Any] | float | None = None,
        *,
        groups: Any = None,
        sample_weight: Any = None,
        measure: bool = True,
    ) -> Forecast:
        """Estimate what `fit` with the same arguments needs: chunks, tasks, memory, bytes, time.

        Parameters
        ----------
        X : array-like of shape (n, H, W, d) or (n, H, W), Dataset or str
            Images as a NumPy, dask or xarray array; or a dataset, as `open_dataset` accepts or
            returns, of which the train split is used.
        y : array-like of shape (n,) or None, default None
            Labels of any hashable type; None if the dataset has them.
        validation : tuple (X, y), float or None, default None
            Validation images and labels, or the fraction of the images to hold out, 0 for none.
            None uses the val split of the dataset, if any, else the fraction of `run`, by default
            a tenth. The validation accuracy chooses the depth.
        groups : array-like of shape (n,) or None, default None
            Group of each image. Images of one group are held out together or not at all.
        sample_weight : array-like of shape (n,) or None, default None
            As how many images each counts in what is learned; 0 leaves an image out. None uses the
            `sample_weight` of the dataset, if any, else 1.
        measure : bool, default True
            Measure the speed of the cluster and of the store to estimate the time.

        Returns
        -------
        Forecast
            Plan and estimates; print it, or read its attributes.

        Raises
        ------
        RescnetError
            If `fit` would fail with an error for these arguments.
        """
        run_spec, held_out = self._resolve_run(validation)
        data = self._training_set(X, y, validation, held_out, groups, sample_weight)
        spec = self._network_spec(data)
        store = None if self.store is None else os.fspath(self.store)
        if store is not None:
            check_run(store, spec, run_spec, data)
        with current_client(gpus=get_backend(run_spec).on_gpu) as client:
            return forecast(data, spec, run_spec, client, store=store, measure=measure)

    @classmethod
    def resume(
        cls,
        url: str | os.PathLike[str],
        *,
        max_layers: int | None = None,
        maps: str | None = None,
        checkpoint_every: int | None = None,
        keep_maps: str | None = None,
        take_over: bool = False,
        listeners: Sequence[Listener] = (),
        verbose: bool = False,
    ) -> Self:
        """Resume a run after its last finished layer.

        `maps`, `checkpoint_every` and `keep_maps` are options of `RunSpec` and do not change what
        is learned; None keeps the values of the run.

        Parameters
        ----------
        url : str or os.PathLike
            fsspec URL of the run store.
        max_layers : int or None, default None
            New maximum number of layers; None keeps that of the run.
        maps : {"auto", "store", "memory"} or None, default None
            Where maps are kept until the next layer.
        checkpoint_every : int or None, default None
            Layers after which maps in memory are stored.
        keep_maps : {"last", "all", "none"} or None, default None
            Layers whose maps stay in the store.
        take_over : bool, default False
            Resume the run although another driver claims it. Only use this if that driver is dead.
        listeners : sequence of callable, default ()
            Functions that are called with each event of the run.
        verbose : bool, default False
            Show the progress, as that of `fit`.

        Returns
        -------
        ResCNetClassifier
            The fitted classifier.

        Raises
        ------
        StoreError
            If there is no run at the URL, or another driver claims it.
        SpecError
            If a change is not possible for this run.
        ClusterError
            If the Dask cluster cannot be used.
        """
        check_listeners(listeners)
        changes = Changes(max_layers, maps, checkpoint_every, keep_maps)
        run = RunStore.open(url)
        _, run_spec = check_resume(run, changes, take_over=take_over)
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(current_client(gpus=get_backend(run_spec).on_gpu))
            page = SchedulerPage(client)
            all_listeners: list[Listener] = [page, *listeners]
            if verbose:
                all_listeners.append(stack.enter_context(_open_progress(page)))
            resume_run(run, client, all_listeners, changes=changes, take_over=take_over)
        attributes = run.attributes()
        spec = NetworkSpec.from_stored(attributes["network"])
        run_spec = RunSpec.from_stored(attributes["run"])
        augment = AugmentSpec.from_stored(attributes["augment"])
        clf = cls(
            spec,
            store=url,
            random_state=run_spec.seed,
            run=run_spec,
            augment=augment if augment.copies else None,
            class_weight=_stored_class_weight(attributes),
            listeners=listeners,
            verbose=verbose,
        )
        clf._load(run.url, run_spec.array_backend)
        return clf

    @classmethod
    def load(cls, url: str | os.PathLike[str], *, array_backend: str = "numpy") -> Self:
        """Load the classifier that `save` or a run has stored, or a fused network.

        Parameters
        ----------
        url : str or os.PathLike
            fsspec URL of a saved or fused network, a folder or a zip file, or of a run store.
        array_backend : {"numpy", "cupy"}, default "numpy"
            Array library for predictions; "cupy" predicts on a GPU.

        Returns
        -------
        ResCNetClassifier
            The fitted classifier. Of a run it has the chosen depth, or all finished layers if the
            run is unfinished.

        Raises
        ------
        StoreError
            If there is no network at the URL, or no finished layer.
        BackendError
            If CuPy or a GPU is missing for `array_backend="cupy"`.
        """
        clf = cls()
        clf._load(os.fspath(url), array_backend)
        is_fused = isinstance(clf.network_, FusedNetwork)
        return clf if is_fused else clf.set_params(spec=require_layers(clf.network_).spec)

    def save(self, url: str | os.PathLike[str], *, dtype: str = "float32") -> None:
        """Write the fitted network to a Zarr store, without pickles.

        Parameters
        ----------
        url : str or os.PathLike
            fsspec URL at which nothing is stored yet. One that ends in .zip becomes a single file,
            others a folder.
        dtype : {"float32", "float16"}, default "float32"
            Type in which the weights are stored. "float16" makes the store about half as large;
            the weights are rounded to 11 significant bits, and are float32 again when loaded.

        Raises
        ------
        StoreError
            If something is already stored at the URL.
        SpecError
            If `dtype` is unknown.
        """
        check_is_fitted(self)
        self.network_.save(url, dtype=dtype)

    def to_onnx(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: str = "float32",
        opset: int = DEFAULT_OPSET,
        external_data: bool | None = None,
    ) -> None:
        """Write the fitted network as an ONNX file; see `Network.to_onnx`.

        Parameters
        ----------
        path : str or os.PathLike
            Local path of the file, which is replaced if it exists.
        dtype : {"float32", "uint8"}, default "float32"
            Data type of the images.
        opset : int, default 23
            Version of the ONNX operators. Older runtimes need a lower one, from 18.
        external_data : bool or None, default None
            Whether weights are written to a second file, PATH.data. None does so above 2 GB, the
            limit of one file.

        Raises
        ------
        RescnetError
            If the package onnx is not installed, or the file cannot be written.
        SpecError
            If an option is not valid, or a component of the network cannot be exported.
        """
        check_is_fitted(self)
        self.network_.to_onnx(path, dtype=dtype, opset=opset, external_data=external_data)

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
        if isinstance(scores, da.Array):
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
            image, resize=resize, channels=channels, augment=self._resolve_augment(augment)
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
        codes = encode(part.labels, self.classes_)
        self.network_.look_at(part.images)
        is_correct = self._scores(part.images, augment).argmax(axis=1) == codes
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
        return self.network_.evaluate(part.images, codes, self._resolve_augment(augment))

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
        correct = network.staged_correct(part.images, codes, self._resolve_augment(augment))
        accuracies = correct / part.images.shape[0]
        accuracies[: network.spec.first_head - 1] = np.nan
        return accuracies

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
        scores = network.staged_scores(self.to_images(X), self._resolve_augment(augment))
        codes = scores.argmax(axis=2).T
        if isinstance(codes, da.Array):
            return codes.map_blocks(
                _decode_labels,
                self.classes_,
                dtype=self.classes_.dtype,
                meta=np.empty((0, 0), self.classes_.dtype),
            )
        return _decode_labels(codes, self.classes_)

    @property
    def n_features_in_(self) -> int:
        """Number of values of an image, height × width × channels."""
        return math.prod(self.network_.image_shape)

    @property
    def plot(self) -> Plots:
        """Matplotlib figures of the fitted network.

        The methods are `accuracy()`, `filters(layer)`, `maps(image)` and `confusion(X, y)`.
        """
        check_is_fitted(self)
        return Plots(require_layers(self.network_), self.accuracies_, self.run_url_)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return mask_secrets(super().__repr__(N_CHAR_MAX))  # the URL of the store may have secrets

    def _html_repr(self) -> str:
        return mask_secrets(estimator_html_repr(self))

    def _get_params_html(self, _deep: bool = True, *args: Any, **kwargs: Any) -> Any:
        """Return the HTML table of the parameters, without a row for each option of the specs."""
        return super()._get_params_html(False, *args, **kwargs)

    def __getstate__(self) -> Any:
        # Listeners belong to the training in this process; many have open files or locks.
        state = super().__getstate__()
        return state | {"listeners": ()} if "network_" in state else state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def _training_set(
        self,
        X: Any,
        y: Any,
        validation: Any,
        held_out: tuple[Any, Any] | None,
        groups: Any,
        sample_weight: Any,
    ) -> TrainingSet:
        """Return the training data of `fit` and `plan`, with the validation images if given."""
        augment = None if self.augment is None else self._augment_spec()
        return training_set(
            X,
            y,
            held_out,
            own_validation=validation is None,
            augment=augment,
            groups=groups,
            sample_weight=sample_weight,
            class_weight=None if isinstance(self.class_weight, str) else self.class_weight,
        )

    def _given_spec(self) -> NetworkSpec | None:
        """Return the network that is given, or None if settings are to be chosen for the images.

        Raise SpecError if `spec` is none of a network, the name of a preset, a dict and None.
        """
        spec = self.spec
        if spec is None or isinstance(spec, dict):
            return None
        if isinstance(spec, str):
            return NetworkSpec.preset(spec)
        if not isinstance(spec, NetworkSpec):
            raise SpecError(f"spec={spec!r} is not a NetworkSpec, the name of a preset or a dict.")
        return spec

    def _network_spec(self, data: TrainingSet) -> NetworkSpec:
        """Return the network to train on the data."""
        changes = self.spec if isinstance(self.spec, dict) else {}
        return self._given_spec() or NetworkSpec.auto(*data.size, **changes)

    def _run_spec(self) -> RunSpec:
        """Return how to train; raise SpecError if `run` does not say it."""
        run = self.run if self.run is not None else RunSpec()
        if not isinstance(run, RunSpec):
            raise SpecError(f"run={run!r} is not a RunSpec.")
        return run

    def _augment_spec(self) -> AugmentSpec:
        """Return the copies to make, without any by default; raise SpecError for other values."""
        augment = self.augment if self.augment is not None else AugmentSpec()
        if not isinstance(augment, AugmentSpec):
            raise SpecError(f"augment={augment!r} is not an AugmentSpec or None.")
        return augment

    def _resolve_run(
        self, validation: tuple[Any, Any] | float | None
    ) -> tuple[RunSpec, tuple[Any, Any] | None]:
        """Return how to train and the pair (X, y) of validation images, if given."""
        self._given_spec()  # raises before the data are read
        run = self._run_spec()
        seed = self.random_state
        if seed is None or isinstance(seed, np.random.RandomState):
            seed = check_random_state(seed).randint(2**31)
        if not isinstance(seed, int | np.integer):
            raise SpecError(f"random_state={seed!r} is not a whole number, RandomState or None.")
        run_spec = run.replace(seed=seed)
        if isinstance(self.class_weight, str):
            run_spec = run_spec.replace(class_weight=self.class_weight)
        elif self.class_weight is not None and run.class_weight is not None:
            raise SpecError(
                f"class_weight is a dict, but that of run is {run.class_weight!r}. Leave one of "
                "them out."
            )
        if validation is None:
            return run_spec, None
        if isinstance(validation, int | float | np.number):
            return run_spec.replace(validation=validation), None
        if not isinstance(validation, tuple | list) or len(validation) != 2:
            text = repr(validation) if isinstance(validation, str) else type(validation).__name__
            raise SpecError(
                f"validation={text} is neither a pair (X, y) nor a fraction of the images. Pass "
                "a pair, or a fraction such as 0.1."
            )
        return run_spec, (validation[0], validation[1])

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
        return self.network_.scores(images, self._resolve_augment(augment))

    def _resolve_augment(self, augment: Averaging) -> AugmentSpec | None:
        """Return the spec of the copies to average over; an int is a number of training copies."""
        if augment is None or isinstance(augment, AugmentSpec):
            return augment
        trained = self.network_.augment
        if not trained.copies:
            raise SpecError(
                f"augment={augment} asks for copies made as in training, but the network was "
                "trained without copies. Pass an AugmentSpec that describes them, or average over "
                "mirror images (--flips)."
            )
        return trained.replace(copies=augment) if augment else None

    def _load(self, url: str, array_backend: str = "numpy") -> None:
        """Set the fitted attributes from the network and the accuracies stored at a URL."""
        self.network_ = load_network(url).on(array_backend)
        self.classes_ = self.network_.classes
        self.depth_ = self.network_.depth
        self.accuracies_ = stored_accuracies(url)
        self.run_url_ = url


def plan(
    X: Any,
    y: Any = None,
    spec: NetworkSpec | str | dict[str, Any] | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    run: RunSpec | None = None,
    augment: AugmentSpec | None = None,
    validation: tuple[Any, Any] | float | None = None,
    measure: bool = True,
) -> Forecast:
    """Estimate what training on the current cluster needs: chunks, tasks, memory, bytes and time.

    Parameters
    ----------
    X : array-like of shape (n, H, W, d) or (n, H, W), Dataset or str
        Images as a NumPy, dask or xarray array; or a dataset, as `open_dataset` accepts or
        returns, of which the train split is used.
    y : array-like of shape (n,) or None, default None
        Labels; None if the dataset has them.
    spec : NetworkSpec, str, dict or None, default None
        As for `ResCNetClassifier`: None chooses settings for the images.
    store : str, os.PathLike or None, default None
        fsspec URL of the run store to be.
    run : RunSpec or None, default None
        How to train; None is the default RunSpec.
    augment : AugmentSpec or None, default None
        Augmented copies of the training images.
    validation : tuple (X, y), float or None, default None
        Validation images and labels, or the fraction of the images to hold out.
    measure : bool, default True
        Measure the speed of the cluster and of the store to estimate the time.

    Returns
    -------
    Forecast
        Plan and estimates; print it, or read its attributes.

    Raises
    ------
    RescnetError
        If training would fail with an error for these arguments.

    Examples
    --------
    >>> import rescnet_dist as rd
    >>> X, y = rd.load_digits()
    >>> rd.plan(X, y, "digits", measure=False).features
    2520
    """
    clf = ResCNetClassifier(spec, store=store, run=run, augment=augment)
    return clf.plan(X, y, validation, measure=measure)


def _stored_class_weight(attributes: dict[str, Any]) -> dict[Any, float] | None:
    """Return the weights by label that a run was given; None if it was given none."""
    if "class_weight" not in attributes:
        return None
    classes = classes_from_json(attributes["classes"]).tolist()
    return dict(zip(classes, attributes["class_weight"], strict=True))


def _open_progress(
    page: SchedulerPage, note: str | None = None
) -> AbstractContextManager[Listener]:
    """Return a listener that shows the progress of a run in a terminal or a notebook."""
    from rescnet_dist.dashboard.progress import open_progress  # imports rich, which takes 0.2 s

    return open_progress(page, note)


def _select_labels(scores: Array, classes: Array) -> Array:
    """Return the label of the largest score in each row: (n, C) to (n,)."""
    return np.asarray(classes[scores.argmax(axis=1)])


def _decode_labels(codes: Array, classes: Array) -> Array:
    """Return the label of each class code, in an array of the same shape."""
    return np.asarray(classes[codes])


load = ResCNetClassifier.load
