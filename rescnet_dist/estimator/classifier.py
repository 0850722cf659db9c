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

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from rescnet_dist.automatic import describe_choice
from rescnet_dist.cluster import current_client
from rescnet_dist.dashboard import Plots
from rescnet_dist.dashboard.scheduler import SchedulerPage
from rescnet_dist.data import classes_from_json
from rescnet_dist.errors import mask_secrets
from rescnet_dist.estimator.predictions import Predictions
from rescnet_dist.estimator.settings import TrainingSettings
from rescnet_dist.estimator.transformer import LayerOutputs
from rescnet_dist.events import Listener, check_listeners
from rescnet_dist.export import DEFAULT_OPSET
from rescnet_dist.lifecycle import Changes, begin_or_resume, check_resume, check_run, resume_run
from rescnet_dist.network import FusedNetwork, load_network, require_layers, stored_accuracies
from rescnet_dist.planning import Forecast, forecast
from rescnet_dist.planning.backend import get_backend
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import RunStore

TYPICAL_SIZE = ((32, 32, 3), 5000, 10)  # of data, for which options are checked before any is given


class ResCNetClassifier(
    TrainingSettings, Predictions, LayerOutputs, TransformerMixin, ClassifierMixin, BaseEstimator
):
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
        layer. That on the training images is a leave-one-out accuracy for some heads.
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

    accuracies_: list[dict[str, Any]]
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


load = ResCNetClassifier.load
