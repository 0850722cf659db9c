"""Draw figures/digits.png from a run on the embedded digits: python digits.py RUN."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import SubFigure

import rescnet_dist as rd
from rescnet_dist.network import require_layers

EXAMPLE_IMAGES = (0, 120, 340, 560)
EXAMPLE_MAPS = (1, 4, 8)


def draw_accuracies(
    panel: SubFigure, clf: rd.ResCNetClassifier, images: np.ndarray, labels: np.ndarray
) -> None:
    """Draw training, validation and test accuracy by layer.

    Test accuracy is that of `images` (n, H, W, d) with `labels` (n,), up to the chosen depth.
    """
    layers = [metrics["layer"] for metrics in clf.accuracies_]
    axes = panel.subplots()
    for key in ("train", "validation"):
        axes.plot(layers, [100 * metrics[key] for metrics in clf.accuracies_], "o-", label=key)
    axes.plot(layers[: clf.depth_], 100 * clf.staged_score(images, labels), "o-", label="test")
    axes.axvline(clf.depth_, color="gray", lw=1, ls=":", label="chosen depth")
    axes.set(xlabel="layer", ylabel="accuracy (%)", xticks=layers)
    axes.legend(fontsize=8)
    panel.suptitle("Accuracy by layer", fontsize=10)


def draw_filters(panel: SubFigure, clf: rd.ResCNetClassifier) -> None:
    """Draw the 16 filters of the first layer."""
    filters = require_layers(clf.network_).layers[0].bank.filters[:, :, 0]
    for i, axes in enumerate(panel.subplots(4, 4).flat):
        limit = np.abs(filters[..., i]).max()
        axes.imshow(filters[..., i], cmap="RdBu_r", vmin=-limit, vmax=limit)
        axes.axis("off")
    panel.suptitle("Filters of layer 1: PCA above, stacked-LDA below", fontsize=10)


def draw_maps(panel: SubFigure, clf: rd.ResCNetClassifier, images: np.ndarray) -> None:
    """Draw four of the images (n, H, W, d), each with three of its maps in layer 2."""
    grid, network = panel.subplots(4, 4), require_layers(clf.network_)
    for row, image in enumerate(EXAMPLE_IMAGES):
        maps = network.maps(images[image : image + 1], min(2, network.depth))[0]
        grid[row, 0].imshow(images[image, :, :, 0], cmap="gray")
        for column, channel in enumerate(EXAMPLE_MAPS, start=1):
            grid[row, column].imshow(maps[..., channel], cmap="viridis")
    for axes in grid.flat:
        axes.axis("off")
    panel.suptitle("Images and three of their maps in layer 2", fontsize=10)


def main(run: str) -> None:
    """Draw the figure from the run at a URL and save it next to this file."""
    clf = rd.load(run)
    images, labels = rd.load_digits("test")
    figure = plt.figure(figsize=(11, 3.4), layout="constrained")
    panels = figure.subfigures(1, 3, squeeze=False, width_ratios=[1.15, 1, 1])
    draw_accuracies(panels[0, 0], clf, images, labels)
    draw_filters(panels[0, 1], clf)
    draw_maps(panels[0, 2], clf, images)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
