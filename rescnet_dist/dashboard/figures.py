"""Figures of a fitted network: accuracy by layer, filters, maps and confusion, by matplotlib.

Figures are made without pyplot, so that none is kept or shown twice; matplotlib is loaded when the
first is drawn.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rescnet_dist.dashboard.evaluation import (
    MATRIX_CLASSES,
    Evaluation,
    confused_class_pairs,
    sample_of_data,
    sample_of_run,
)
from rescnet_dist.dashboard.thumbnails import (
    select_filters,
    shown_filters,
    shown_image,
    shown_maps,
    spread,
)
from rescnet_dist.data import as_images
from rescnet_dist.errors import (
    DataError,
    RescnetError,
    StoreError,
    StoreUnreachableError,
    pluralize,
)
from rescnet_dist.formatting import plain_text
from rescnet_dist.network import Network, stored_accuracies
from rescnet_dist.store import RunStore

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NO_FIGURES = "figures need matplotlib: pip install 'rescnet-dist[plot]'"
PAIRS = 25
MOST_LAYERS, MAPS_PER_LAYER = 5, 6  # whose maps are shown by default
FILTERS_PER_ROW = 10
BLUE, RED, GRAY = "#2166ac", "#d6604d", "#808a96"
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Plots:
    """Figures of a network: `clf.plot` of a fitted classifier, or `Plots.load(url)`.

    accuracies: those after each layer as `ResCNetClassifier.accuracies_` has them. url: of the run
    that the network is from, if that is known.
    """

    network: Network
    accuracies: Sequence[dict[str, Any]] = ()
    url: str | None = None

    @classmethod
    def load(cls, url: str | os.PathLike[str]) -> Plots:
        """The figures of a run, or of a network that was saved."""
        return cls(Network.load(url), stored_accuracies(url), os.fspath(url))

    def accuracy(self) -> Figure:
        """Accuracy on training and on held-out images after each layer, the chosen depth marked."""
        if not self.accuracies:
            raise DataError(
                "no accuracies are known of this network: they are kept by runs, not by networks "
                "that were saved; load the run instead"
            )
        figure = new_figure(6.4, 3.8)
        axes = figure.subplots()
        layers = [entry["layer"] for entry in self.accuracies]
        style = "o-" if len(layers) <= 40 else "-"
        for key, color in (("train", RED), ("validation", BLUE)):
            if self.accuracies[0][key] is not None:
                shares = [100 * entry[key] for entry in self.accuracies]
                axes.plot(layers, shares, style, color=color, label=key)
        depth = self.network.depth
        axes.axvline(depth, color=GRAY, lw=1.2, ls=":", label=f"chosen depth, {depth}")
        axes.set(xlabel="layer", ylabel="accuracy (%)", title="Accuracy by layer")
        axes.locator_params(axis="x", integer=True)
        axes.grid(alpha=0.25)
        axes.legend()
        return figure

    def filters(self, layer: int = 1) -> Figure:
        """The filters of a layer, from 1: PCA in the first rows, stacked-LDA in those below."""
        self._check_layer(layer)
        found = shown_filters(self.network, layer)
        kinds = [[tile for tile in found if tile[0].startswith(kind)] for kind in ("PCA", "LDA")]
        rows = [
            (kind, tiles[start : start + FILTERS_PER_ROW])
            for kind, tiles in zip(("PCA", "stacked-LDA"), kinds, strict=True)
            for start in range(0, len(tiles), FILTERS_PER_ROW)
        ]
        columns = max(len(tiles) for _, tiles in rows)
        figure = new_figure(0.9 * columns + 1, 1.15 * len(rows) + 0.6)
        grid = figure.subplots(len(rows), columns, squeeze=False)
        for cells, (_, tiles) in zip(grid, rows, strict=True):
            for location, axes in enumerate(cells):
                _bare(axes)
                if location < len(tiles):
                    axes.imshow(tiles[location][1])
                    axes.set_title(tiles[location][0].replace(" · ", "\n"), fontsize=8)
        side = self.network.spec.filter_size_at(layer)
        figure.suptitle(
            f"Layer {layer}: {len(kinds[0])} PCA and {len(kinds[1])} stacked-LDA filters of "
            f"{side}×{side}", fontsize=11,
        )  # fmt: skip
        return figure

    def maps(self, image: Any, layers: Sequence[int] | None = None) -> Figure:
        """Some maps of an image (H, W) or (H, W, d) in each of some layers; a few, evenly spread,
        unless they are named."""
        pixels = self._image(image)
        wanted = list(layers or spread(1, self.network.depth, MOST_LAYERS))
        for layer in wanted:
            self._check_layer(layer)
        found = shown_maps(self.network, pixels[None], wanted, MAPS_PER_LAYER)
        columns = 1 + max(len(found[layer][0]) for layer in wanted)
        figure = new_figure(1.15 * columns, 1.25 * len(wanted) + 0.5)
        grid = figure.subplots(len(wanted), columns, squeeze=False)
        for axes in grid.flat:
            _bare(axes)
        grid[0, 0].imshow(shown_image(pixels))
        grid[0, 0].set_title("image", fontsize=9)
        for row, layer in enumerate(wanted):
            numbers = select_filters(self.network, layer, MAPS_PER_LAYER)
            for axes, number, tile in zip(grid[row, 1:], numbers, found[layer][0], strict=False):
                axes.imshow(tile)
                axes.set_title(f"filter {number + 1}", fontsize=8)
            grid[row, 1].set_ylabel(f"layer {layer}", fontsize=9)
        figure.suptitle("Maps of one image, each over its own range", fontsize=11)
        return figure

    def confusion(self, X: Any = None, y: Any = None) -> Figure:
        """How many images of each class are taken for which: of images X and labels y (N,), of a
        data set X, or else of those that the network's run held out."""
        judged = Evaluation.of(self.network, self._sample(X, y))
        matrix = judged.confusion()
        names = [plain_text(label) for label in self.network.classes.tolist()]
        title = (
            f"{100 * judged.accuracy:.2f} % of {pluralize(len(judged.scores), 'image')} right "
            f"({judged.sample.which})"
        )
        if len(names) > MATRIX_CLASSES:
            return _pairs_figure(matrix, names, title)
        return _matrix_figure(matrix, names, title)

    def _sample(self, X: Any, y: Any) -> Any:
        if X is not None:
            return sample_of_data(X, y, self.network)
        if y is not None:
            raise DataError("labels y are given without images: give X, too, or neither")
        needed = "give images X and labels y to make a confusion matrix of"
        if self.url is None:
            raise DataError(f"this network is not from a stored run: {needed}")
        try:
            run = RunStore.open(self.url)
        except StoreUnreachableError:
            raise
        except StoreError as error:
            raise DataError(f"{needed}, as those of its run are not there ({error})") from None
        return sample_of_run(run)

    def _image(self, image: Any) -> Array:
        """An image (H, W, d) of the network's shape, from (H, W) or (H, W, d)."""
        shape, pixels = tuple(self.network.image_shape), np.asarray(image)
        if pixels.ndim == 2:
            pixels = pixels[..., np.newaxis]
        if pixels.shape != shape:
            raise DataError(
                f"image has shape {np.shape(image)} and the network was trained on {shape} "
                "(height, width, channels): give one image of that shape"
            )
        return np.asarray(as_images(pixels[None], name="image").array)[0]

    def _check_layer(self, layer: int) -> None:
        whole = isinstance(layer, int | np.integer) and not isinstance(layer, bool)
        if not whole or not 1 <= layer <= self.network.depth:
            raise DataError(
                f"layer={layer!r}: the network has the layers 1 to {self.network.depth}; give one "
                "of them"
            )


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, on a white ground that is legible on dark pages, too."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RescnetError(NO_FIGURES) from None
    figure: Any = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    figure._repr_png_ = partial(_png_of, figure)  # else notebooks show it once pyplot is imported
    return figure


def _png_of(figure: Figure) -> bytes:
    """A figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _bare(axes: Axes) -> None:
    """Without ticks and frame; labels stay."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _matrix_figure(matrix: Array, names: list[str], title: str) -> Figure:
    """A confusion matrix (C, C) with its numbers; colors are by the share of the true class."""
    count = len(names)
    size = 2.2 + 0.42 * count
    figure = new_figure(size + 0.8, size)
    axes = figure.subplots()
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    drawn = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for i, j in np.argwhere(matrix):
        ink = "white" if shares[i, j] > 0.5 else "#1c2733"
        axes.text(j, i, str(matrix[i, j]), ha="center", va="center", fontsize=8, color=ink)
    turned = 90 if max(map(len, names)) > 3 else 0
    axes.set_xticks(range(count), names, rotation=turned, fontsize=9)
    axes.set_yticks(range(count), names, fontsize=9)
    axes.set(xlabel="predicted", ylabel="true")
    axes.set_title(title, fontsize=10)
    figure.colorbar(drawn, ax=axes, shrink=0.8, label="share of the true class")
    return figure


def _pairs_figure(matrix: Array, names: list[str], title: str) -> Figure:
    """The most frequent errors of a confusion matrix (C, C) of many classes, as bars."""
    pairs = confused_class_pairs(matrix, PAIRS)
    figure = new_figure(7, 1.4 + 0.24 * len(pairs))
    axes = figure.subplots()
    axes.barh(range(len(pairs)), [count for *_, count in pairs], color=BLUE)
    labels = [f"{names[i]} taken for {names[j]}" for i, j, _ in pairs]
    axes.set_yticks(range(len(pairs)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="images", xlim=(0, math.ceil(1.05 * max((n for *_, n in pairs), default=1))))
    axes.set_title(f"{title}; the most frequent errors", fontsize=10)
    return figure
