"""Base classes of heads, which fit a layer's update of the scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels import FeatureMoments, Whitening
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.samples import FeatureSamples
from rescnet_dist.model.components import Component
from rescnet_dist.model.graph import OnnxGraph
from rescnet_dist.model.layer import BANK_ARRAYS, RATE_ARRAY
from rescnet_dist.model.solver import ConjugateGradients


class Head(Component, ABC):
    """Fits a layer's update of the scores to what the layers before it have left.

    `ridge` is the ridge with which the covariance of the features is factorized, and `target` the
    score λ that the true class should reach, for the reported signs of the errors.
    """

    __slots__ = ()

    arrays: ClassVar[Mapping[str, tuple[str, ...]]]  # stored arrays and their dimension names
    training_arrays: ClassVar[frozenset[str]] = frozenset()  # not used by `correction`
    fits_samples: ClassVar[bool] = False  # whether it is a SampleHead
    # Why the training accuracy may collapse, and the remedy, if a smaller step is not the one
    collapse_advice: ClassVar[str] = ""
    # Options of a network with this head that `NetworkSpec.auto` sets
    automatic_options: ClassVar[Mapping[str, Any]] = {}
    ridge: float
    target: float

    @property
    def iterative_solver(self) -> ConjugateGradients | None:
        """The settings of conjugate gradients over the features, None to solve exactly.

        With it, `fit` must call `whitening.solve` once, and with columns that depend on the moments
        alone: it is called before the solution is known, too.
        """
        return None

    @property
    def probe_count(self) -> int:
        """The number of random signs s that follow the targets of each training image.

        `fit` gets moments of K + s targets, and `training_correction` the signs of each image. By
        default there are none.
        """
        return 0

    @property
    def leave_one_out_scores(self) -> bool:
        """Whether scores of training images are those of layers that were fitted without the image.

        Their accuracy falls in deep networks, also where that on other images rises.
        """
        return False

    @classmethod
    def check_class(cls) -> None:
        """Raise SpecError if an option is missing, or an array has a name that layers use.

        Raises
        ------
        SpecError
            If there is no ridge or target, or the name of an array is taken.
        """
        missing = {"ridge", "target"} - set(dir(cls))
        if missing:
            raise SpecError(
                f"The head {cls.name!r} has no {min(missing)!r}, which the solver or reports need. "
                "Declare it as an option."
            )
        taken = {*BANK_ARRAYS, RATE_ARRAY} & set(cls.arrays)
        if taken:
            raise SpecError(
                f"The head {cls.name!r} stores an array {min(taken)!r}, a name that layers use "
                "themselves. Rename the array."
            )

    @abstractmethod
    def target_count(self, classes: int) -> int:
        """Return the number of targets of a layer.

        Parameters
        ----------
        classes : int
            The number of classes C.

        Returns
        -------
        int
            The number of targets K.
        """

    @abstractmethod
    def targets(self, scores: Array, labels: Array, *, first: bool) -> Array:
        """Compute the targets that a layer is fitted to.

        Parameters
        ----------
        scores : ndarray of shape (n, C)
            The running scores that enter the layer.
        labels : ndarray of int, shape (n,)
            The labels.
        first : bool
            Whether it is the first layer.

        Returns
        -------
        ndarray of float32, shape (n, K)
            The targets.
        """

    @abstractmethod
    def fit(
        self, moments: FeatureMoments, classes: int, whitening: Whitening | None = None
    ) -> dict[str, Array]:
        """Fit the head to the moments of features and targets.

        Parameters
        ----------
        moments : FeatureMoments of D features and K targets
            The moments of the training images.
        classes : int
            The number of classes C.
        whitening : Whitening, optional
            The factorized covariance of the features; computed from `moments` by default. Use
            it: with tiles, `moments` have no scatter matrix.

        Returns
        -------
        dict of str to ndarray
            The arrays that `arrays` names.

        Raises
        ------
        SingularError
            If the covariance of the features cannot be factorized.
        """

    @abstractmethod
    def correction(self, arrays: Mapping[str, Array], features: Array) -> Array:
        """Compute the update of the scores, before the learning rate is applied.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            What `fit` returned, in NumPy; `asarray_like` moves them to where `features` are.
        features : ndarray of shape (n, D)
            The features of the layer, in NumPy or CuPy.

        Returns
        -------
        ndarray of shape (n, C)
            The values to add to the scores.
        """

    def training_correction(
        self,
        arrays: Mapping[str, Array],
        features: Array,
        correction: Array,
        scores: Array,
        labels: Array,
        signs: Array,
    ) -> Array:
        """Compute the update of the scores of images that the head was fitted to.

        It is called after `correction`, during training, if there are random signs.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            What `fit` returned, in NumPy.
        features : ndarray of shape (n, D)
            The features of the layer, in NumPy or CuPy.
        correction : ndarray of shape (n, C)
            What `correction` gives for them.
        scores : ndarray of shape (n, C)
            The running scores that entered the layer.
        labels : ndarray of int, shape (n,)
            The labels, where the scores are.
        signs : ndarray of float32, shape (n, s)
            The random signs of the images, in NumPy.

        Returns
        -------
        ndarray of shape (n, C)
            The values to add to the scores; by default those of `correction`.
        """
        return correction

    def to_onnx(self, graph: OnnxGraph, arrays: Mapping[str, Array], features: str) -> str:
        """Add the computation of `correction` to an ONNX graph.

        Parameters
        ----------
        graph : OnnxGraph
            The graph to add operators to.
        arrays : mapping of str to ndarray
            What `fit` returned.
        features : str
            The name of a tensor of float32, shape (n, D).

        Returns
        -------
        str
            The name of a tensor of float32, shape (n, C): the values to add to the scores.

        Raises
        ------
        SpecError
            If the class does not implement it.
        """
        raise self._refuse_export("to_onnx(graph, arrays, features)")

    def workspace_bytes(self, features: int, classes: int) -> int:
        """Return the memory that `fit` needs in addition to the factorization.

        Parameters
        ----------
        features : int
            The number of features D.
        classes : int
            The number of classes C.

        Returns
        -------
        int
            Bytes.
        """
        return 0


class SampleHead(Head):
    """A head that compares images with all training images.

    Its statistics are the features of all images of a run, not their moments, so it cannot have
    more of them than fit into the memory of a worker, and no weights of images. Prediction runs the
    training images forward, too.
    """

    __slots__ = ()

    fits_samples: ClassVar[bool] = True

    @abstractmethod
    def fit_samples(self, samples: FeatureSamples, classes: int) -> dict[str, Array]:
        """Fit the head to the features and targets of images.

        Parameters
        ----------
        samples : FeatureSamples of D features and K + s targets
            The images of the run in its order, validation images included; s is `probe_count`.
        classes : int
            The number of classes C.

        Returns
        -------
        dict of str to ndarray
            The arrays that `arrays` names.

        Raises
        ------
        SingularError
            If the fit has no solution.
        """

    def fit(
        self, moments: FeatureMoments, classes: int, whitening: Whitening | None = None
    ) -> dict[str, Array]:
        """Raise TypeError: moments do not have the images; see `fit_samples`."""
        raise TypeError(f"The head {self.name!r} needs all images; call `fit_samples`.")

    def correction(self, arrays: Mapping[str, Array], features: Array) -> Array:
        """Raise TypeError: the update depends on the training images; see `compare`."""
        raise TypeError(f"The head {self.name!r} needs the training images; call `compare`.")

    @abstractmethod
    def known_correction(self, arrays: Mapping[str, Array], rows: Array) -> Array:
        """Return the update of the scores of images of the run, as `fit` found it.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            What `fit` returned, in NumPy.
        rows : ndarray of int, shape (n,)
            The rows of the images in the run.

        Returns
        -------
        ndarray of shape (n, C)
            The values to add to the scores, before the learning rate is applied.
        """

    @abstractmethod
    def sample_count(self, arrays: Mapping[str, Array]) -> int:
        """Return the number of training images that `compare` needs.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            What `fit` returned.

        Returns
        -------
        int
            The number, copies included.
        """

    @abstractmethod
    def bound(self, arrays: Mapping[str, Array]) -> float:
        """Return a bound of what any of the training images together add to a score.

        Sums are rounded relative to it, so that they do not depend on their order.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            What `fit_samples` returned.

        Returns
        -------
        float
            The bound of the absolute value.
        """

    @abstractmethod
    def compare(
        self,
        arrays: Mapping[str, Array],
        features: Array,
        blocks: Iterable[tuple[slice, Array]],
    ) -> Iterator[Array]:
        """Compute what blocks of training images add to the scores of images.

        The update of the scores is the sum over all training images.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            What `fit` returned, in NumPy; `asarray_like` moves them to where `features` are.
        features : ndarray of shape (n, D)
            The features of the images, in NumPy or CuPy.
        blocks : iterable of (slice, ndarray of shape (m, D))
            Which of the training images they are, and their features.

        Yields
        ------
        ndarray of shape (n, C)
            What the block adds to the scores, before the learning rate is applied.
        """
