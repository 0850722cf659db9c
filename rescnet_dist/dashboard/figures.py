"""Matplotlib figures of a fitted network: accuracy by layer, filters, maps and confusion.

Figures are made without pyplot, so that none is kept alive or shown twice. Matplotlib is imported
when the first figure is drawn.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from rescnet_dist.dashboard.evaluation import (
    MAX_MATRIX_CLASSES,
    Evaluation,
    Sample,
    most_confused_pairs,
    sample_from_data,
    sample_from_run,
)
from rescnet_dist.dashboard.thumbnails import (
    FilterPicture,
    draw_filters,
    draw_image,
    draw_maps,
    select_filters,
    spaced_integers,
)
from rescnet_dist.data import as_images
from rescnet_dist.errors import (
    DataError,
    RescnetError,
    StoreReadError,
    pluralize,
)
from rescnet_dist.formatting import plain_text, train_suffix
from rescnet_dist.network import Network, stored_accuracies
from rescnet_dist.store import RunStore

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEEDS_MATPLOTLIB = "Figures need matplotlib. Run pip install 'rescnet-dist[plot]'."
MAX_PLOTTED_PAIRS = 25  # of confused classes
MAX_PLOTTED_LAYERS, FIGURE_MAPS_PER_LAYER = 5, 6  # in the figure of maps, by default
FILTERS_PER_ROW = 10
MAX_MARKED_LAYERS = 40  # with more layers, the accuracy lines have no markers
BLUE, RED, GRAY = "#2166ac", "#d6604d", "#808a96"
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Plots:
    """Figures of a network: `clf.plot` of a fitted classifier, or `Plots.load(url)`.

    Attributes
    ----------
    network : Network
    accuracies : sequence of dict
        Accuracy after each layer, in the form of `ResCNetClassifier.accuracies_`.
    url : str or None
        Run that the network was trained by, if known.

    Examples
    --------
    >>> clf.plot.accuracy()  # doctest: +SKIP
    >>> Plots.load("runs/digits").confusion().savefig("confusion.png")  # doctest: +SKIP
    """

    network: Network
    accuracies: Sequence[dict[str, Any]] = ()
    url: str | None = None

    @classmethod
    def load(cls, url: str | os.PathLike[str]) -> Plots:
        """Load the figures of a run or of a saved network.

        Parameters
        ----------
        url : str or path-like
            Run store, or network saved with `Network.save`.

        Returns
        -------
        Plots

        Raises
        ------
        StoreError
            If there is no run and no network at the URL.
        """
        return cls(Network.load(url), stored_accuracies(url), os.fspath(url))

    def accuracy(self) -> Figure:
        """Plot training and validation accuracy after each layer, with the chosen depth marked.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        DataError
            If no accuracies are known, as for a saved network.
        """
        if not self.accuracies:
            raise DataError(
                "This network has no accuracies. Runs store them, saved networks do not; load "
                "the run instead."
            )
        figure = new_figure(6.4, 3.8)
        axes = figure.subplots()
        layers = [entry["layer"] for entry in self.accuracies]
        style = "o-" if len(layers) <= MAX_MARKED_LAYERS else "-"
        network = self.network
        suffix = train_suffix(network.augment.copies, network.spec.head.leave_one_out_scores)
        for key, name, color in (
            ("train", f"train{suffix}", RED),
            ("validation", "validation", BLUE),
        ):
            if self.accuracies[0][key] is not None:
                percents = [100 * entry[key] for entry in self.accuracies]
                axes.plot(layers, percents, style, color=color, label=name)
        depth = network.depth
        axes.axvline(depth, color=GRAY, lw=1.2, ls=":", label=f"chosen depth, {depth}")
        axes.set(xlabel="layer", ylabel="accuracy (%)", title="Accuracy by layer")
        axes.locator_params(axis="x", integer=True)
        axes.grid(alpha=0.25)
        axes.legend()
        return figure

    def filters(self, layer: int = 1) -> Figure:
        """Plot the filters of a layer, those of each learner in rows of their own.

        Parameters
        ----------
        layer : int, default=1
            Layer, counted from 1.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        DataError
            If the network has no such layer.
        """
        self._check_layer(layer)
        pictures = draw_filters(self.network, layer)
        kinds: dict[str, list[FilterPicture]] = {}
        for tile in pictures:
            kinds.setdefault(tile.kind, []).append(tile)
        rows = [
            tiles[start : start + FILTERS_PER_ROW]
            for tiles in kinds.values()
            for start in range(0, len(tiles), FILTERS_PER_ROW)
        ]
        columns = max(map(len, rows))
        figure = new_figure(0.9 * columns + 1, 1.15 * len(rows) + 0.6)
        grid = figure.subplots(len(rows), columns, squeeze=False)
        for cells, tiles in zip(grid, rows, strict=True):
            for column, axes in enumerate(cells):
                _hide_frame(axes)
                if column < len(tiles):
                    axes.imshow(tiles[column].pixels)
                    axes.set_title(tiles[column].name.replace(" · ", "\n"), fontsize=8)
        side = self.network.spec.filter_size_at(layer)
        counts = " and ".join(f"{len(tiles)} {kind}" for kind, tiles in kinds.items())
        figure.suptitle(f"Layer {layer}: {counts} filters of {side}×{side}", fontsize=11)
        return figure

    def maps(self, image: Any, layers: Sequence[int] | None = None) -> Figure:
        """Plot feature maps of one image, a row of maps for each layer.

        Parameters
        ----------
        image : array-like of shape (H, W) or (H, W, d)
        layers : sequence of int, optional
            Layers, counted from 1. By default, at most five evenly spaced layers.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        DataError
            If the image has a different shape from the training images, or the network has no such
            layer.
        """
        pixels = self._as_image(image)
        selected = list(layers or spaced_integers(1, self.network.depth, MAX_PLOTTED_LAYERS))
        for layer in selected:
            self._check_layer(layer)
        pictures = draw_maps(self.network, pixels[None], selected, FIGURE_MAPS_PER_LAYER)
        columns = 1 + max(len(pictures[layer][0]) for layer in selected)
        figure = new_figure(1.15 * columns, 1.25 * len(selected) + 0.5)
        grid = figure.subplots(len(selected), columns, squeeze=False)
        for axes in grid.flat:
            _hide_frame(axes)
        grid[0, 0].imshow(draw_image(pixels))
        grid[0, 0].set_title("image", fontsize=9)
        for row, layer in enumerate(selected):
            numbers = select_filters(self.network, layer, FIGURE_MAPS_PER_LAYER)
            tiles = pictures[layer][0]
            for axes, number, tile in zip(grid[row, 1:], numbers, tiles, strict=False):
                axes.imshow(tile)
                axes.set_title(f"filter {number + 1}", fontsize=8)
            grid[row, 1].set_ylabel(f"layer {layer}", fontsize=9)
        figure.suptitle("Maps of one image, each scaled to its own range", fontsize=11)
        return figure

    def confusion(self, X: Any = None, y: Any = None) -> Figure:
        """Plot the confusion matrix, or the most confused pairs if there are more than 30 classes.

        Parameters
        ----------
        X : array-like of shape (n, H, W) or (n, H, W, d), or dataset, optional
            Images, or a dataset whose test split is used. By default, the images that the run
            of the network held out.
        y : array-like of shape (n,), optional
            Labels of the images. A dataset has its own.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        DataError
            If labels are given without images, or no images are given and the run has none.
        """
        evaluation = Evaluation.of(self.network, self._select_sample(X, y))
        metrics = evaluation.metrics
        matrix = metrics.confusion
        names = [plain_text(label) for label in self.network.classes.tolist()]
        title = (
            f"Accuracy {100 * metrics.accuracy:.2f} % on "
            f"{pluralize(len(evaluation.scores), 'image')} ({evaluation.sample.description})"
        )
        if len(names) > MAX_MATRIX_CLASSES:
            return _plot_pairs(matrix, names, title)
        return _plot_matrix(matrix, names, title)

    def _select_sample(self, X: Any, y: Any) -> Sample:
        """Return the images X and labels y as a sample, or the held-out images of the run."""
        if X is not None:
            return sample_from_data(X, y, self.network)
        if y is not None:
            raise DataError("Labels y are given without images. Pass X, too, or neither.")
        remedy = "Pass images X and labels y to make a confusion matrix."
        if self.url is None:
            raise DataError(f"This network is not from a stored run. {remedy}")
        try:
            run = RunStore.open(self.url)
        except StoreReadError as error:
            problem = str(error).rstrip(".")
            raise DataError(
                f"The images of the run of this network cannot be read ({problem}). {remedy}"
            ) from None
        return sample_from_run(run)

    def _as_image(self, image: Any) -> Array:
        """Return an image (H, W) or (H, W, d) as (H, W, d), the shape of the network's images."""
        shape, pixels = tuple(self.network.image_shape), np.asarray(image)
        if pixels.ndim == 2:
            pixels = pixels[..., np.newaxis]
        if pixels.shape != shape:
            raise DataError(
                f"image has shape {np.shape(image)}. The network was trained on images of shape "
                f"{shape} (height, width, channels); pass one image of that shape."
            )
        return np.asarray(as_images(pixels[None], name="image").array)[0]

    def _check_layer(self, layer: int) -> None:
        """Raise DataError if the network has no such layer."""
        is_integer = isinstance(layer, int | np.integer) and not isinstance(layer, bool)
        if not is_integer or not 1 <= layer <= self.network.depth:
            raise DataError(
                f"layer={layer!r} is not a layer of the network. It has layers 1 to "
                f"{self.network.depth}; pass one of them."
            )


def check_matplotlib() -> None:
    """Raise RescnetError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise RescnetError(NEEDS_MATPLOTLIB)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches.

    The background is white, so that the figure is legible on dark pages, too.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    # without this, notebooks show the figure only after pyplot was imported
    figure._repr_png_ = partial(_encode_png, figure)
    return figure


def _encode_png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _hide_frame(axes: Axes) -> None:
    """Hide the ticks and the frame of axes; labels stay visible."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _plot_matrix(matrix: Array, names: list[str], title: str) -> Figure:
    """Plot a confusion matrix (C, C) with its counts, colored by the fraction of the true class."""
    count = len(names)
    size = 2.2 + 0.42 * count
    figure = new_figure(size + 0.8, size)
    axes = figure.subplots()
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    heatmap = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for i, j in np.argwhere(matrix):
        ink = "white" if shares[i, j] > 0.5 else "#1c2733"
        axes.text(j, i, str(matrix[i, j]), ha="center", va="center", fontsize=8, color=ink)
    rotation = 90 if max(map(len, names)) > 3 else 0
    axes.set_xticks(range(count), names, rotation=rotation, fontsize=9)
    axes.set_yticks(range(count), names, fontsize=9)
    axes.set(xlabel="predicted", ylabel="true")
    axes.set_title(title, fontsize=10)
    figure.colorbar(heatmap, ax=axes, shrink=0.8, label="fraction of the true class")
    return figure


def _plot_pairs(matrix: Array, names: list[str], title: str) -> Figure:
    """Plot the most frequent errors of a confusion matrix (C, C) of many classes as bars."""
    pairs = most_confused_pairs(matrix, MAX_PLOTTED_PAIRS)
    figure = new_figure(7, 1.4 + 0.24 * len(pairs))
    axes = figure.subplots()
    axes.barh(range(len(pairs)), [count for *_, count in pairs], color=BLUE)
    labels = [f"{names[i]} predicted as {names[j]}" for i, j, _ in pairs]
    axes.set_yticks(range(len(pairs)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="images", xlim=(0, math.ceil(1.05 * max((n for *_, n in pairs), default=1))))
    axes.set_title(f"{title}; most frequent errors", fontsize=10)
    return figure
