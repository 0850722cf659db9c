"""The scikit-learn face: a classifier that trains on Dask and predicts lazily where asked to."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import dask.array as da
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from rescnet_dist.cluster import current_client
from rescnet_dist.dashboard import Plots
from rescnet_dist.dashboard.scheduler import SchedulerPage
from rescnet_dist.data import (
    Images,
    TrainingSet,
    encode,
    evaluation_images,
    select_split,
    training_set,
)
from rescnet_dist.errors import SpecError, mask_secrets
from rescnet_dist.kernels import Backend, project_to_simplex
from rescnet_dist.network import Network, stored_accuracies
from rescnet_dist.planning import Forecast, forecast
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import RunStore
from rescnet_dist.train import (
    Changes,
    Listener,
    begin_run,
    check_listeners,
    check_resume,
    check_run,
    resume_run,
)

Array = np.ndarray[Any, np.dtype[Any]]
Averaging = AugmentSpec | int | None


class ResCNetClassifier(ClassifierMixin, BaseEstimator):
    """ResCNet: a deep convolutional network grown layer by layer, without backpropagation.

    Parameters
    ----------
    spec : NetworkSpec, name of a preset, or None for the `digits` preset
    store : fsspec URL of the run store, or None for a temporary one that is gone after `fit`
    random_state : seed of the draws, of the validation split and of the copies
    run : RunSpec, or None for the defaults; its seed is set by `random_state`
    augment : AugmentSpec, how many copies of the training images are made and how, or None
    listeners : functions called with each event of the run

    Attributes
    ----------
    network_ : the fitted `Network`, at its chosen depth
    classes_ : (C,) the labels as they were given
    accuracies_ : accuracy on the training images, copies included, and on the validation images
        after each layer
    depth_ : the chosen depth
    run_url_ : where the run is stored, or None

    Uses the current `dask.distributed.Client` if there is one, else an embedded cluster.

    >>> import rescnet_dist as rd
    >>> X, y = rd.load_digits()
    >>> spec = rd.NetworkSpec.preset("digits").replace(filters=4, max_layers=2)
    >>> clf = rd.ResCNetClassifier(spec).fit(X[:400], y[:400])
    >>> clf.predict(X[:3]).shape
    (3,)
    """

    network_: Network
    classes_: Array
    accuracies_: list[dict[str, Any]]
    depth_: int
    run_url_: str | None

    def __init__(
        self,
        spec: NetworkSpec | str | None = None,
        *,
        store: str | os.PathLike[str] | None = None,
        random_state: int | np.random.RandomState | None = 0,
        run: RunSpec | None = None,
        augment: AugmentSpec | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.spec = spec
        self.store = store
        self.random_state = random_state
        self.run = run
        self.augment = augment
        self.listeners = listeners

    def fit(
        self,
        X: Any,
        y: Any = None,
        validation: tuple[Any, Any] | float | None = None,
        *,
        groups: Any = None,
    ) -> Self:
        """Grow a network on images X and labels y.

        X: (N, H, W, d) or (N, H, W), as NumPy, dask or xarray, or a data set as `open_dataset`
        takes or gives one, of which the train split is used; y: (N,) labels of any hashable kind,
        or None where the data set has them. validation: a pair like (X, y), or the share of the
        images to hold out, else the val split if there is one; it chooses the depth. groups:
        (N,) labels; images of one group are held out together or not at all.
        """
        check_listeners(self.listeners)
        spec, run_spec, held_out = self._settings(validation)
        data = self._training_set(X, y, validation, held_out, groups)
        with contextlib.ExitStack() as stack:
            url, temporary = self.store, self.store is None
            if url is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rescnet-"))
                url = os.path.join(folder, "run")
            check_run(url, spec, run_spec, data)
            client = stack.enter_context(current_client(gpus=Backend.of(run_spec).on_gpu))
            run = begin_run(
                url, spec, run_spec, data, client, [SchedulerPage(client), *self.listeners],
                temporary=temporary,
            )  # fmt: skip
            self._load(run.url, run_spec.array_backend)
            if temporary:
                self.run_url_ = None
                self.network_ = replace(self.network_.in_memory(), classes=data.classes)
                self.classes_ = data.classes
        return self

    def plan(
        self,
        X: Any,
        y: Any = None,
        validation: tuple[Any, Any] | float | None = None,
        *,
        groups: Any = None,
        measure: bool = True,
    ) -> Forecast:
        """What `fit` with the same arguments would take: chunks, tasks, memory, bytes and, unless
        measure is False, about how long. Refuses what `fit` would refuse."""
        spec, run_spec, held_out = self._settings(validation)
        data = self._training_set(X, y, validation, held_out, groups)
        store = None if self.store is None else os.fspath(self.store)
        if store is not None:
            check_run(store, spec, run_spec, data)
        with current_client(gpus=Backend.of(run_spec).on_gpu) as client:
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
    ) -> Self:
        """Go on with a run after its last finished layer, up to `max_layers` if given; `maps`,
        `checkpoint_every` and `keep_maps` are those of `RunSpec`, and change nothing of what is
        learned.

        A run that another driver writes to is refused unless take_over says that it is dead.
        """
        check_listeners(listeners)
        changes = Changes(max_layers, maps, checkpoint_every, keep_maps)
        _, kept = check_resume(RunStore.open(url), changes, take_over=take_over)
        with current_client(gpus=Backend.of(kept).on_gpu) as client:
            run = resume_run(
                url, client, [SchedulerPage(client), *listeners], changes=changes,
                take_over=take_over,
            )  # fmt: skip
        attributes = run.attributes()
        spec = NetworkSpec.from_stored(attributes["network"])
        run_spec = RunSpec.from_stored(attributes["run"])
        augment = AugmentSpec.from_stored(attributes["augment"])
        clf = cls(
            spec, store=url, random_state=run_spec.seed, run=run_spec,
            augment=augment if augment.copies else None, listeners=listeners,
        )  # fmt: skip
        clf._load(run.url, run_spec.array_backend)
        return clf

    @classmethod
    def load(cls, url: str | os.PathLike[str], *, array_backend: str = "numpy") -> Self:
        """The classifier stored at a URL by `save`, or by a run; with array_backend="cupy" it
        predicts on a GPU."""
        clf = cls()
        clf._load(os.fspath(url), array_backend)
        return clf.set_params(spec=clf.network_.spec)

    def save(self, url: str | os.PathLike[str]) -> None:
        """Write the fitted network to a URL that holds nothing yet; no pickle in it."""
        check_is_fitted(self)
        self.network_.save(url)

    def decision_function(self, X: Any, *, augment: Averaging = None) -> Any:
        """Running scores (N, C) after the last layer; a dask array for a dask array.

        Of two classes, as scikit-learn has it, how far the second is ahead of the first, (N,).
        augment averages over each image and its copies: an AugmentSpec, or how many copies made
        as those that the network was trained on.
        """
        scores = self._scores(evaluation_images(X), augment)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any, *, augment: Averaging = None) -> Any:
        """Probabilities (N, C): the nearest rows that sum to 1 to the scores."""
        scores = self._scores(evaluation_images(X), augment)
        if isinstance(scores, da.Array):
            return scores.map_blocks(project_to_simplex, dtype=np.float64, meta=np.empty((0, 0)))
        return project_to_simplex(scores)

    def predict(self, X: Any, *, augment: Averaging = None) -> Any:
        """Labels (N,), as they were given to `fit`; a dask array for a dask array."""
        scores = self._scores(evaluation_images(X), augment)
        if isinstance(scores, da.Array):
            return scores.map_blocks(
                _labels_of, self.classes_, drop_axis=1, dtype=self.classes_.dtype,
                meta=np.empty(0, self.classes_.dtype),
            )  # fmt: skip
        return _labels_of(scores, self.classes_)

    def score(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        augment: Averaging = None,
    ) -> float:
        """Share of images X classified rightly; y (N,), or None where X is a data set with labels,
        of which the test split is used."""
        check_is_fitted(self)
        part = select_split(X, y, "test")
        codes = encode(part.labels, self.classes_, unknown=-1)
        self.network_.look_at(part.images)
        right = self._scores(part.images, augment).argmax(axis=1) == codes
        if sample_weight is None:
            return float(right.mean())
        return float(np.average(np.asarray(right), weights=sample_weight))

    def staged_score(self, X: Any, y: Any = None, *, augment: Averaging = None) -> Array:
        """Accuracy (L,) on images X after each layer."""
        check_is_fitted(self)
        part = select_split(X, y, "test")
        codes = encode(part.labels, self.classes_, unknown=-1)
        right = self.network_.staged_correct(part.images, codes, self._averaging(augment))
        return right / part.images.shape[0]

    def staged_predict(self, X: Any, *, augment: Averaging = None) -> Any:
        """Labels (L, N) after each layer: which layer mends, or spoils, which image; a dask array
        for a dask array."""
        check_is_fitted(self)
        scores = self.network_.staged_scores(evaluation_images(X), self._averaging(augment))
        codes = scores.argmax(axis=2).T
        if isinstance(codes, da.Array):
            return codes.map_blocks(
                _labels_at, self.classes_, dtype=self.classes_.dtype,
                meta=np.empty((0, 0), self.classes_.dtype),
            )  # fmt: skip
        return _labels_at(codes, self.classes_)

    @property
    def plot(self) -> Plots:
        """Figures of the fitted network, by matplotlib: `clf.plot.accuracy()`, `.filters(layer)`,
        `.maps(image)` and `.confusion(X, y)`."""
        check_is_fitted(self)
        return Plots(self.network_, self.accuracies_, self.run_url_)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return mask_secrets(super().__repr__(N_CHAR_MAX))  # the store's URL may have a secret

    def _html_repr(self) -> str:
        return mask_secrets(estimator_html_repr(self))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags

    def _training_set(
        self, X: Any, y: Any, validation: Any, held_out: tuple[Any, Any] | None, groups: Any
    ) -> TrainingSet:
        if not isinstance(self.augment, AugmentSpec | None):
            raise SpecError(f"augment={self.augment!r} is not an AugmentSpec")
        return training_set(
            X, y, held_out, own_validation=validation is None, augment=self.augment, groups=groups
        )

    def _settings(
        self, validation: tuple[Any, Any] | float | None
    ) -> tuple[NetworkSpec, RunSpec, tuple[Any, Any] | None]:
        spec = self.spec if self.spec is not None else "digits"
        if isinstance(spec, str):
            spec = NetworkSpec.preset(spec)
        if not isinstance(spec, NetworkSpec):
            raise SpecError(f"spec={spec!r} is not a NetworkSpec or the name of a preset")
        run = self.run if self.run is not None else RunSpec()
        if not isinstance(run, RunSpec):
            raise SpecError(f"run={run!r} is not a RunSpec")
        seed = self.random_state
        if seed is None or isinstance(seed, np.random.RandomState):
            seed = check_random_state(seed).randint(2**31)
        if not isinstance(seed, int | np.integer):
            raise SpecError(f"random_state={seed!r} is not a whole number, RandomState or None")
        run_spec = run.replace(seed=seed)
        if validation is None:
            return spec, run_spec, None
        if isinstance(validation, int | float | np.number):
            return spec, run_spec.replace(validation=validation), None
        if not isinstance(validation, tuple | list) or len(validation) != 2:
            shown = repr(validation) if isinstance(validation, str) else type(validation).__name__
            raise SpecError(
                f"validation={shown} is neither a pair (X, y) nor a share of the images such as 0.1"
            )
        return spec, run_spec, (validation[0], validation[1])

    def _scores(self, images: Images, augment: Averaging) -> Any:
        """Running scores (N, C), lazy for lazy images."""
        check_is_fitted(self)
        return self.network_.scores(images, self._averaging(augment))

    def _averaging(self, augment: Averaging) -> AugmentSpec | None:
        """How copies to average over are made; a number stands for so many of those trained on."""
        if augment is None or isinstance(augment, AugmentSpec):
            return augment
        trained = self.network_.augment
        if not trained.copies:
            raise SpecError(
                f"augment={augment} asks for copies made as in training, and the network was "
                "trained without: give an AugmentSpec that says how to make them, or average over "
                "mirror images (--flips)"
            )
        return trained.replace(copies=augment) if augment else None

    def _load(self, url: str, array_backend: str = "numpy") -> None:
        """Take over the network and the accuracies stored at a URL."""
        self.network_ = Network.load(url).on(array_backend)
        self.classes_ = self.network_.classes
        self.depth_ = self.network_.depth
        self.accuracies_ = stored_accuracies(url)
        self.run_url_ = url


def plan(
    X: Any,
    y: Any = None,
    spec: NetworkSpec | str | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    run: RunSpec | None = None,
    augment: AugmentSpec | None = None,
    validation: tuple[Any, Any] | float | None = None,
    measure: bool = True,
) -> Forecast:
    """What training on images X and labels y would take, on the cluster it would run on; arguments
    are those of `ResCNetClassifier` and its `plan`. Print it, or read its fields."""
    clf = ResCNetClassifier(spec, store=store, run=run, augment=augment)
    return clf.plan(X, y, validation, measure=measure)


def _labels_of(scores: Array, classes: Array) -> Array:
    """The label (n,) of the largest score in each row (n, C)."""
    return np.asarray(classes[scores.argmax(axis=1)])


def _labels_at(codes: Array, classes: Array) -> Array:
    """The label of each code."""
    return np.asarray(classes[codes])


load = ResCNetClassifier.load
