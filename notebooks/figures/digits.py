"""Draw the README's picture from a run on the digits: python digits.py RUN."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import rescnet_dist as rd

clf = rd.load(sys.argv[1])
X, y = rd.load_digits("test")
layers = [a["layer"] for a in clf.accuracies_]

figure = plt.figure(figsize=(11, 3.4), layout="constrained")
left, middle, right = figure.subfigures(1, 3, width_ratios=[1.15, 1, 1])

axes = left.subplots()
for key in ("train", "validation"):
    axes.plot(layers, [100 * a[key] for a in clf.accuracies_], "o-", label=key)
axes.plot(layers[: clf.depth_], 100 * clf.staged_score(X, y), "o-", label="test")
axes.axvline(clf.depth_, color="gray", lw=1, ls=":", label="chosen depth")
axes.set(xlabel="layer", ylabel="accuracy (%)", xticks=layers)
axes.legend(fontsize=8)
left.suptitle("Accuracy by layer", fontsize=10)

filters = clf.network_.layers[0].bank.filters[:, :, 0]
for i, cell in enumerate(middle.subplots(4, 4).flat):
    limit = np.abs(filters[..., i]).max()
    cell.imshow(filters[..., i], cmap="RdBu_r", vmin=-limit, vmax=limit)
    cell.axis("off")
middle.suptitle("Filters of layer 1: PCA above, stacked-LDA below", fontsize=10)

grid = right.subplots(4, 4)
for row, image in enumerate((0, 120, 340, 560)):
    maps = clf.network_.maps(X[image : image + 1], min(2, clf.depth_))[0]
    grid[row, 0].imshow(X[image, :, :, 0], cmap="gray")
    for column, number in enumerate((1, 4, 8), start=1):
        grid[row, column].imshow(maps[..., number], cmap="viridis")
for cell in grid.flat:
    cell.axis("off")
right.suptitle("Images and three of their maps in layer 2", fontsize=10)

figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)
