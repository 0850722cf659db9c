"""The architecture of a network for images of one shape: which filters see what, and what follows.

It is what a `NetworkSpec` becomes once image shape and classes are known. All arithmetic on
filters, channels, towers and features is here, so that kernels get arrays, and nothing else has to
know how a layer is composed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels.arrays import Array, get_array_module, on_gpu
from rescnet_dist.kernels.solving import overflow_error
from rescnet_dist.model.bank import BankPart, Tower
from rescnet_dist.model.components import FeatureExtractor, FilterLearner, check_side
from rescnet_dist.model.each_channel import EachChannel
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.head import Head
from rescnet_dist.model.view import View

SLAB_BYTES = 4 * 2**20  # size of the maps and images in float32 processed at a time, for the cache
ROUNDING = 1e-9  # of the sum of shares, in filters
MAX_FEATURE_RATIO = 8  # of the features of a slab in float32, relative to its size
GPU_SLAB_BYTES = 2048 * 2**20  # the same on a GPU, enough to saturate it


@dataclass(frozen=True)
class Architecture:
    """What all layers of a network have in common.

    Attributes
    ----------
    image_shape : tuple of int
        Height, width and channels (H, W, d) of the images.
    classes : int
        The number of classes C.
    filters : tuple of int
        The number of filters of each layer; the last number holds for all later layers.
    layers : int
        The largest number of layers.
    filter_sizes : tuple of int
        Width and height of the filters, in pixels: of layer 1, and of later layers.
    bank : tuple of BankPart
        The parts of the filter bank.
    views : tuple of View
        What parts of the bank see of an image, in the order of their channels.
    extractors : tuple of FeatureExtractor
        The features are those of all extractors, one after the other.
    head : Head
        What updates the scores.
    minmax : {"global", "channel", "images"}
        Normalization of the input of a layer: one range for all channels of a tower, one per
        channel, or one range for the images and none for maps.
    rectify : bool
        Whether layers get ReLU(maps) of the layer before.
    store_dtype : {"float32", "float16"}
        The precision that maps are rounded to.
    feature_precision : {"float32", "float16"}
        The precision that features are rounded to, unless they are integers.
    seed : int
        The seed of the random streams of the filter learners.
    concatenate : bool
        Whether layers 2 and later see the images, too, and not only the maps of the layer before.
    heads : {"every", "last"}
        Whether all layers have a head, or only the last of `layers`.
    filter_images : int or None
        About how many training images moments of patches are gathered from, repetitions included;
        None for all.
    """

    image_shape: tuple[int, int, int]
    classes: int
    filters: tuple[int, ...]
    layers: int
    filter_sizes: tuple[int, int]
    bank: tuple[BankPart, ...]
    views: tuple[View, ...]
    extractors: tuple[FeatureExtractor, ...]
    head: Head
    minmax: str = "global"
    rectify: bool = False
    store_dtype: str = "float32"
    feature_precision: str = "float32"
    seed: int = 0
    concatenate: bool = True
    heads: str = "every"
    filter_images: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out cached values, which each process computes itself."""
        return {name: vars(self)[name] for name in self.__dataclass_fields__}

    def filter_size(self, layer: int) -> int:
        """Return the width and height of the filters of a layer.

        Parameters
        ----------
        layer : int
            The number of the layer, from 1.

        Returns
        -------
        int
            Pixels.
        """
        return self.filter_sizes[0 if layer == 1 else 1]

    def filter_count(self, layer: int) -> int:
        """Return the number of filters of a layer.

        Parameters
        ----------
        layer : int
            The number of the layer, from 1.

        Returns
        -------
        int
            The number of filters.
        """
        return self.filters[min(layer, len(self.filters)) - 1]

    @cached_property
    def distinct_layers(self) -> tuple[int, ...]:
        """The layers of which all others are copies, for plans and checks."""
        last = len(self.filters) + 1  # all later ones are like it
        if any(part.channels == "each" for part in self.bank):
            last = self.layers
        if self.heads == "last":
            return (*range(1, min(last + 1, self.layers)), self.layers)
        return tuple(range(1, last + 1))

    @property
    def bank_layers(self) -> tuple[int, ...]:
        """The layers whose filters are learned, of which all others are copies, for plans."""
        last = self.distinct_layers[-1]
        return (*self.distinct_layers, *((last + 1,) if self.has_next(last) else ()))

    @property
    def pixel_channels(self) -> int:
        """The number of channels of all views of an image."""
        return sum(view.channels(self.image_shape[2]) for view in self.views)

    def input_channels(self, layer: int) -> int:
        """Return the number of input channels of a layer: maps of the layer before, and pixels.

        Parameters
        ----------
        layer : int
            The number of the layer, from 1.

        Returns
        -------
        int
            The number of channels c.
        """
        return self.map_count(layer - 1) + (self.pixel_channels if self._sees_images(layer) else 0)

    def patch_channels(self, layer: int) -> int:
        """Return the largest number of channels of a patch that a filter of a layer sees.

        Parameters
        ----------
        layer : int
            The number of the layer, from 1.

        Returns
        -------
        int
            The number of channels, 1 if filters are applied to each.
        """
        towers = self.towers(layer)
        return max(1 if tower.is_each else len(tower.channels) for tower in towers)

    def _sees_images(self, layer: int) -> bool:
        """Return whether the images are part of the input of a layer."""
        return layer == 1 or self.concatenate

    def tower_maps(self, layer: int) -> tuple[int, ...]:
        """Return the number of maps of each tower of a layer.

        Parameters
        ----------
        layer : int
            The number of the layer, from 1.

        Returns
        -------
        tuple of int
            The numbers, in the order of the towers.
        """
        known = self._known_tower_maps
        if layer not in known:
            known[layer] = self._count_tower_maps(layer)
        return known[layer]

    @cached_property
    def _known_tower_maps(self) -> dict[int, tuple[int, ...]]:
        """The results of `tower_maps` so far, which every slab of images asks for."""
        return {}

    def _count_tower_maps(self, layer: int) -> tuple[int, ...]:
        """Return the number of maps of each tower of a layer."""
        counts = self._filter_counts(layer)
        if layer == 1 or not any(map(self._is_each, self.views)):
            return tuple(counts)
        maps = []
        for view, count, inputs in zip(self.views, counts, self.tower_maps(layer - 1), strict=True):
            pixels = view.channels(self.image_shape[2]) if self._sees_images(layer) else 0
            maps.append(count * (inputs + pixels) if self._is_each(view) else count)
        return tuple(maps)

    def _is_each(self, view: View) -> bool:
        """Return whether the filters of a tower are applied to each channel in layers 2 and on."""
        return any(p.channels == "each" for p in self.bank if p.share and p.view == view.name)

    def map_count(self, layer: int) -> int:
        """Return the number of maps of a layer.

        Parameters
        ----------
        layer : int
            The number of the layer, from 1; layer 0, the images, has no maps.

        Returns
        -------
        int
            The number of maps f.
        """
        return sum(self.tower_maps(layer)) if layer else 0

    @cached_property
    def max_maps(self) -> int:
        """The largest number of maps of a layer."""
        return max(map(self.map_count, self.distinct_layers))

    @property
    def max_channels(self) -> int:
        """The largest number of channels of an image and its maps."""
        return self.max_maps + self.pixel_channels

    def feature_count(self, layer: int) -> int:
        """Return the number of features of a layer.

        Parameters
        ----------
        layer : int
            The number of the layer, from 1.

        Returns
        -------
        int
            The number of features D.
        """
        (height, width, _), towers = self.image_shape, self.tower_maps(layer)
        return sum(extractor.count(height, width, towers) for extractor in self.extractors)

    @cached_property
    def features(self) -> int:
        """The largest number of features D of a layer that has a head."""
        return max(
            self.feature_count(layer) for layer in self.distinct_layers if self.has_head(layer)
        )

    def has_head(self, layer: int) -> bool:
        """Return whether a layer has a head, and so features.

        Parameters
        ----------
        layer : int
            The number of the layer, from 1.

        Returns
        -------
        bool
            Whether it adds to the scores.
        """
        return self.heads == "every" or layer >= self.layers

    def has_next(self, layer: int) -> bool:
        """Return whether the filters of the layer after a layer are learned.

        Parameters
        ----------
        layer : int
            The number of the layer, from 1.

        Returns
        -------
        bool
            Whether they are. A network whose layers all have heads can get more layers later.
        """
        return self.heads == "every" or layer < self.layers

    @cached_property
    def feature_dtype(self) -> np.dtype[Any]:
        """The dtype of the features: of integers if those of all extractors are, else of floats."""
        dtypes = [extractor.dtype for extractor in self.extractors]
        if all(dtype.kind == "u" for dtype in dtypes):
            return np.result_type(*dtypes)
        return np.dtype(self.feature_precision)

    @property
    def targets(self) -> int:
        """The number of targets that a layer is fitted to, random signs included."""
        return self.head.target_count(self.classes) + self.head.probe_count

    def dimension_sizes(self, layer: int) -> dict[str, int]:
        """Return the lengths of the dimensions of the stored arrays of a layer.

        Parameters
        ----------
        layer : int
            The number of the layer, from 1.

        Returns
        -------
        dict of str to int
            Lengths by the names of dimensions in `BANK_ARRAYS` and `Head.arrays`; dimensions of a
            head that it alone knows are left out.
        """
        size = self.filter_size(layer)
        sizes = {"filter_y": size, "filter_x": size, "filter": self.map_count(layer)}
        sizes |= {"input_channel": self.input_channels(layer), "class": self.classes}
        if self.has_head(layer):
            sizes["feature"] = self.feature_count(layer)
            sizes["sign"] = self.head.target_count(self.classes) // self.classes
        return sizes

    def towers(self, layer: int) -> tuple[Tower, ...]:
        """Return the towers of a layer, one for each view.

        Together they have all filters and input channels of the layer. Filters beyond the limit of
        their learner go to another learner of the same tower, first to one without a limit.

        Parameters
        ----------
        layer : int
            The number of the layer, from 1.

        Returns
        -------
        tuple of Tower
            The towers, in the order of the views.

        Raises
        ------
        SpecError
            If the learners of a tower cannot fit so many filters.
        """
        known = self._known_towers
        if layer not in known:
            known[layer] = self._make_towers(layer)
        return known[layer]

    @cached_property
    def _known_towers(self) -> dict[int, tuple[Tower, ...]]:
        """The results of `towers` so far: for one image, making them takes a tenth of a layer."""
        return {}

    def _make_towers(self, layer: int) -> tuple[Tower, ...]:
        """Return the towers of a layer; raise SpecError as `towers` does."""
        towers, first_stream = [], 0
        numbers = zip(self._filter_counts(layer), self._tower_filters(layer), strict=True)
        for view, (total, filters) in zip(self.views, numbers, strict=True):
            inputs, is_each = self._tower_inputs(view, layer), layer > 1 and self._is_each(view)
            parts = [part for part in self.bank if part.view == view.name]
            counts = self._divide_filters(parts, total, layer, 1 if is_each else len(inputs))
            groups: list[tuple[FilterLearner, FilterGroup]] = []
            start = filters.start
            for part, count in zip(parts, counts, strict=True):
                streams = range(first_stream, first_stream + part.learner.streams(count))
                own = range(start, start + count * (len(inputs) if is_each else 1))
                start, first_stream = own.stop, streams.stop
                if own:
                    group = self._make_group(layer, own, inputs, streams, centered=part.center)
                    groups.append((EachChannel(part.fitter) if is_each else part.fitter, group))
            towers.append(Tower(view.name, inputs, filters, tuple(groups), is_each))
        return tuple(towers)

    def _tower_inputs(self, view: View, layer: int) -> tuple[int, ...]:
        """Return the input channels that the tower of a view sees: its maps, then its pixels."""
        number, maps, pixels = self.views.index(view), range(0), range(0)
        if layer > 1:
            maps = self._tower_filters(layer - 1)[number]
        if self._sees_images(layer):
            ends = [self.map_count(layer - 1)]
            for other in self.views:
                ends.append(ends[-1] + other.channels(self.image_shape[2]))
            pixels = range(ends[number], ends[number + 1])
        return (*maps, *pixels)

    def _tower_filters(self, layer: int) -> list[range]:
        """Return the indices of the maps of each tower."""
        ends = itertools.accumulate(self.tower_maps(layer), initial=0)
        return [range(*pair) for pair in itertools.pairwise(ends)]

    def _filter_counts(self, layer: int) -> list[int]:
        """Return the number of filters of each tower: as many as the shares of its parts."""
        shares = [sum(p.share for p in self.bank if p.view == view.name) for view in self.views]
        total = sum(shares)
        ends = [
            math.floor(self.filter_count(layer) * end / total + ROUNDING)
            for end in itertools.accumulate(shares, initial=0)
        ]
        return [end - start for start, end in itertools.pairwise(ends)]

    def _divide_filters(
        self, parts: list[BankPart], filters: int, layer: int, channels: int
    ) -> list[int]:
        """Return the number of filters of each part of a tower with so many input channels."""
        total = sum(part.share for part in parts)
        after = [sum(p.share for p in parts[index + 1 :]) for index in range(len(parts))]
        ends = [0, *(filters - math.floor(filters * rest / total + 0.5) for rest in after)]
        counts = [stop - start for start, stop in itertools.pairwise(ends)]
        limits = _limit_filters(parts, self.filter_size(layer), channels)
        excess = 0
        for index, limit in enumerate(limits):
            if limit is not None and counts[index] > limit:
                excess += counts[index] - limit
                counts[index] = limit
        # learners without a limit come first
        for index in sorted(range(len(parts)), key=lambda index: limits[index] is not None):
            if parts[index].share:
                limit = limits[index]
                room = excess if limit is None else limit - counts[index]
                counts[index] += min(room, excess)
                excess -= min(room, excess)
        if excess:
            raise SpecError(self._explain_excess(parts, filters, layer, channels))
        return counts

    def _explain_excess(
        self, parts: list[BankPart], filters: int, layer: int, channels: int
    ) -> str:
        """Return the message for more filters of a tower than its learners fit to its channels."""
        used = [part for part in parts if part.share]
        labels = " and ".join(part.learner.label for part in used)
        limits = _limit_filters(used, self.filter_size(layer), channels)
        most, count = sum(filter(None, limits)) * len(self.views), self.filter_count(layer)
        fewer = f"filters of at most {most}"
        remedies = [f"{fewer} in layer {layer}" if len(self.filters) > 1 else fewer]
        for size in range(self.filter_size(layer) + 1, min(self.image_shape[:2]) + 1):
            if sum(filter(None, _limit_filters(used, size, channels))) >= filters:
                option = "first_filter_size" if layer == 1 else "filter_size"
                remedies.append(f"{option} of at least {size}")
                break
        # that option is for such a bank only
        is_papers = {part.learner.name for part in self.bank} == {"pca", "stacked-lda"}
        other = "a learner without this limit in the bank, such as gaussian"
        remedies.append("lda_fraction above 0" if is_papers else other)
        return (
            f"filters={count} {labels} filters are more than the {most} directions of a patch in "
            f"layer {layer}. Use {', '.join(remedies[:-1])}, or {remedies[-1]}."
        )

    def _make_group(
        self,
        layer: int,
        filters: range,
        channels: tuple[int, ...],
        streams: range,
        *,
        centered: bool,
    ) -> FilterGroup:
        """Return a group of filters of a layer."""
        return FilterGroup(
            layer=layer,
            filters=filters,
            channels=channels,
            input_channels=self.input_channels(layer),
            size=self.filter_size(layer),
            image_size=self.image_shape[:2],
            streams=streams,
            classes=self.classes,
            seed=self.seed,
            centered=centered,
        )

    def groups(self, layer: int) -> tuple[tuple[FilterLearner, FilterGroup], ...]:
        """Return the learners of a layer, and the filters that each fits.

        Parameters
        ----------
        layer : int
            The number of the layer, from 1.

        Returns
        -------
        tuple of (FilterLearner, FilterGroup)
            The groups of all towers, one after the other.
        """
        return tuple(group for tower in self.towers(layer) for group in tower.groups)

    def extract(self, maps: Array, layer: int) -> Array:
        """Compute the features of all extractors.

        Parameters
        ----------
        maps : ndarray of float32, shape (n, H, W, f)
            The maps of a layer.
        layer : int
            The number of the layer, from 1.

        Returns
        -------
        ndarray of shape (n, D)
            The features, of `feature_dtype`.

        Raises
        ------
        DataError
            If a feature is too large for `feature_dtype`. On a GPU, `check_features` raises it.
        """
        towers = self.tower_maps(layer)
        if len(self.extractors) == 1:
            features = self.extractors[0](maps, towers)
            with _refuse_overflow(self.feature_dtype):
                return features.astype(self.feature_dtype, copy=False)
        shape, start = (len(maps), self.feature_count(layer)), 0
        features = get_array_module(maps).empty(shape, self.feature_dtype)
        for extractor in self.extractors:
            part = extractor(maps, towers)
            with _refuse_overflow(self.feature_dtype):
                features[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        return features

    def slabs(self, chunk: Array) -> Iterator[slice]:
        """Divide a chunk (n, …) into the slabs of rows that are processed at a time.

        The number of rows can change the rounding of a matrix product, so a chunk is always divided
        in this way.

        Parameters
        ----------
        chunk : ndarray of shape (n, …)
            An array of the chunk.

        Yields
        ------
        slice
            The rows of each slab.
        """
        n, size = len(chunk), GPU_SLAB_BYTES if on_gpu(chunk) else SLAB_BYTES
        step = max(1, size // self.image_bytes)
        for start in range(0, n, step):
            yield slice(start, min(start + step, n))

    @cached_property
    def image_bytes(self) -> int:
        """Bytes of an image that slabs and tasks are sized by, in float32.

        These are its maps and pixels, or a fraction of its features if they are very many.
        """
        height, width, _ = self.image_shape
        maps = 4 * height * width * self.max_channels
        return max(maps, 4 * self.features // MAX_FEATURE_RATIO)

    def check_images(self) -> None:
        """Raise SpecError if the network cannot be trained on images of this shape.

        Raises
        ------
        SpecError
            If blocks or filters are larger than the images, or a learner cannot fit its filters.
        """
        for view in self.views:
            view.check_images(self.image_shape)
        for extractor in self.extractors:
            extractor.check_images(self.image_shape)
        check_side("first_filter_size", self.filter_sizes[0], self.image_shape)
        check_side("filter_size", self.filter_sizes[1], self.image_shape)
        for layer in self.distinct_layers:
            for learner, group in self.groups(layer):  # raises if there are too many filters
                learner.check_group(group)


@contextmanager
def _refuse_overflow(dtype: np.dtype[Any]) -> Iterator[None]:
    """Raise DataError if the body converts a number that is too large for the dtype."""
    try:
        with np.errstate(over="raise"):
            yield
    except FloatingPointError:
        raise overflow_error(dtype, "feature_dtype") from None


def _limit_filters(parts: list[BankPart], size: int, channels: int) -> list[int | None]:
    """Return the largest number of filters of each part, for patches of size×size pixels."""
    directions = size**2 * channels
    return [
        part.learner.max_filters(directions - (channels if part.center else 0)) for part in parts
    ]
