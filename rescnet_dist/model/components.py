"""What a network is composed of: base classes of filter learners and feature extractors.

Those of heads are in `head`, and of views in `view`. To add a component, derive a frozen dataclass
from one of the base classes, give it a `name`, declare its options with `option`, and put it into a
module of its own in `filters/`, `features/`, `heads/` or `views/`, or into an entry point of
another package. Everything else (specs, TOML, command-line flags, plans, stores, reports) asks the
class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.graph import OnnxGraph
from rescnet_dist.model.observation import NoStatistics, Observation
from rescnet_dist.options import Options

MAX_COLOR_CHANNELS = 4  # of RGBA images; images with a height below it look channels-first


class Component(Options):
    """Base class of all components: a frozen dataclass of options with a name.

    Attributes
    ----------
    name : str
        The name in specs, TOML and on the command line, such as "stacked-lda".
    prefix : str
        What the options are prefixed with where they stand next to those of other components: on
        the command line and as flat options of `NetworkSpec`.
    own_scale : frozenset of str
        Names of options that other components have, too, but on another scale: a component that
        takes the place of another one does not take them over.
    """

    __slots__ = ()

    name: ClassVar[str]
    prefix: ClassVar[str] = ""
    own_scale: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def check_class(cls) -> None:
        """Raise SpecError if the class cannot be used; called when it is registered.

        Raises
        ------
        SpecError
            If something is missing that the other parts of a network need.
        """

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the options of the component.

        Returns
        -------
        dict
            Values by name, JSON-serializable.
        """
        return {"name": self.name, **super().to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the component with these options; the inverse of `to_dict`.

        Parameters
        ----------
        values : dict
            Values by option name, and optionally the name of the component.

        Returns
        -------
        Component
            A component of this class.

        Raises
        ------
        SpecError
            If the name is another one, or an option is unknown, missing or not valid.
        """
        options = {key: value for key, value in values.items() if key != "name"}
        if values.get("name", cls.name) != cls.name:
            raise SpecError(
                f"The table is of the component {values['name']!r}, not of {cls.name!r}. Use its "
                "own class."
            )
        return super().from_dict(options)

    def _refuse_export(self, method: str) -> SpecError:
        """Return the error for a component without a method that exports it."""
        return SpecError(
            f"{self.name!r} cannot be exported to ONNX, because its class {type(self).__name__} "
            f"has no method {method}. Add it to the class."
        )


class FilterLearner(Component, ABC):
    """Learns filters of a layer from its input, without gradients."""

    __slots__ = ()

    label: ClassVar[str] = "filter"  # what pictures of the filters are called
    min_towers: ClassVar[int] = 1  # of a network with the learner

    def max_filters(self, directions: int) -> int | None:
        """Return the largest number of filters that can be fitted.

        Other learners of the same tower fit those that are left.

        Parameters
        ----------
        directions : int
            The number k²c of elements of a patch.

        Returns
        -------
        int or None
            The largest number; None if there is no limit.
        """
        return None

    def check_group(self, group: FilterGroup) -> None:
        """Raise SpecError if the filters of a group cannot be fitted, whatever the images.

        The default raises nothing.

        Parameters
        ----------
        group : FilterGroup
            The filters.

        Raises
        ------
        SpecError
            If the learner cannot fit them.
        """

    def streams(self, count: int) -> int:
        """Return the number of random streams of a group.

        Parameters
        ----------
        count : int
            The number of filters.

        Returns
        -------
        int
            The number of streams, for `FilterGroup.rng`.
        """
        return 0

    def empty(self, group: FilterGroup) -> Any:
        """Return the `Statistics` of no image.

        Parameters
        ----------
        group : FilterGroup
            The filters to fit.

        Returns
        -------
        Statistics
            The identity of `merge`. The default gathers nothing.
        """
        return NoStatistics()

    def observe(self, chunk: Observation, group: FilterGroup) -> Any:
        """Return the `Statistics` of the training images of a chunk.

        Parameters
        ----------
        chunk : Observation
            The chunk.
        group : FilterGroup
            The filters to fit.

        Returns
        -------
        Statistics
            The statistics of the chunk, which may be on a GPU if its arrays are.
        """
        return NoStatistics()

    @abstractmethod
    def fit(self, statistics: Any, group: FilterGroup) -> tuple[Array, Array]:
        """Fit the filters.

        Parameters
        ----------
        statistics : Statistics
            Those of all training images, rescaled to the normalized input, in NumPy arrays.
        group : FilterGroup
            The filters to fit.

        Returns
        -------
        filters : ndarray of shape (k, k, c, count)
            The filters.
        bias : ndarray of shape (count,)
            The bias of each.
        """

    def statistics_bytes(self, group: FilterGroup) -> int:
        """Return the size of the statistics as they are sent between workers.

        Parameters
        ----------
        group : FilterGroup
            The filters to fit.

        Returns
        -------
        int
            Bytes.
        """
        return 0

    def workspace_bytes(self, group: FilterGroup) -> int:
        """Return the most memory that gathering, merging and fitting need in a worker.

        Parameters
        ----------
        group : FilterGroup
            The filters to fit.

        Returns
        -------
        int
            Bytes.
        """
        return 0


class FeatureExtractor(Component, ABC):
    """Computes the features of a layer from its maps, each image for itself.

    Features must not depend on other images of the array: chunks are recomputed one by one.
    `towers` are the numbers of filters of each tower, which follow each other in the maps.
    """

    __slots__ = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the features, in which they can be stored exactly.

        It is float32 by default. Counts are of a smaller type of integers; they become float32
        where they are multiplied.
        """
        return np.dtype(np.float32)

    def check_network(self, towers: tuple[int, ...]) -> None:
        """Raise SpecError if maps of these towers give no features.

        Parameters
        ----------
        towers : tuple of int
            The number of filters of each tower.

        Raises
        ------
        SpecError
            If there are no features, or the options do not fit the towers.
        """

    def check_images(self, image_shape: tuple[int, int, int]) -> None:
        """Raise SpecError if images of this shape give no features.

        Parameters
        ----------
        image_shape : tuple of int
            Height, width and channels (H, W, d) of the images.

        Raises
        ------
        SpecError
            If the images are too small.
        """

    @abstractmethod
    def count(self, height: int, width: int, towers: tuple[int, ...]) -> int:
        """Return the number of features of an image.

        Parameters
        ----------
        height, width : int
            Size of the images in pixels.
        towers : tuple of int
            The number of filters of each tower.

        Returns
        -------
        int
            The number of features D.
        """

    @abstractmethod
    def __call__(self, maps: Array, towers: tuple[int, ...]) -> Array:
        """Compute the features.

        Parameters
        ----------
        maps : ndarray of float32, shape (n, H, W, f)
            The maps of a layer, in NumPy or CuPy.
        towers : tuple of int
            The number of filters of each tower; they add up to f.

        Returns
        -------
        ndarray of shape (n, D)
            The features, of `dtype`, in the same array library.
        """

    def to_onnx(
        self, graph: OnnxGraph, maps: str, image_size: tuple[int, int], towers: tuple[int, ...]
    ) -> str:
        """Add the computation of the features to an ONNX graph.

        Parameters
        ----------
        graph : OnnxGraph
            The graph to add operators to.
        maps : str
            The name of a tensor of float32, shape (n, f, H, W): the maps of a layer.
        image_size : tuple of int
            Height and width (H, W) of the maps.
        towers : tuple of int
            The number of filters of each tower; they add up to f.

        Returns
        -------
        str
            The name of a tensor of float32, shape (n, D): what `__call__` returns, as float32.

        Raises
        ------
        SpecError
            If the class does not implement it.
        """
        raise self._refuse_export("to_onnx(graph, maps, image_size, towers)")

    def workspace_bytes(self, images: int, height: int, width: int, towers: tuple[int, ...]) -> int:
        """Return the memory that is needed in addition to maps and features.

        Parameters
        ----------
        images : int
            The number of images in an array.
        height, width : int
            Size of the images in pixels.
        towers : tuple of int
            The number of filters of each tower.

        Returns
        -------
        int
            Bytes.
        """
        return 0


def check_levels(levels: tuple[int, ...]) -> None:
    """Raise SpecError for a spatial pyramid without levels, or with one without cells."""
    if not levels or min(levels) < 1:
        raise SpecError(
            f"levels={levels!r} is not valid. Give at least one level, each at least 1."
        )


def check_side(name: str, size: int, image_shape: tuple[int, int, int]) -> None:
    """Raise SpecError if option `name`, a side in pixels, is larger than images (H, W, d)."""
    height, width, channels = image_shape
    side = min(height, width)
    if size > side:
        remedy = f"Use {name} of at most {side}."
        if height <= MAX_COLOR_CHANNELS < min(width, channels):
            remedy = "The array looks channels-first; pass images.transpose(0, 2, 3, 1)."
        raise SpecError(
            f"{name}={size} is larger than the image ({height}×{width} pixels). {remedy}"
        )
