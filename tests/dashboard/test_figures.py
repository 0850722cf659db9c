"""Figures: they show the stored values, leave nothing in pyplot, and reject bad input."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from distributed import Client
from PIL import Image
from sklearn.exceptions import NotFittedError

import rescnet_dist as rd
from rescnet_dist import DataError, NetworkSpec, ResCNetClassifier, RunSpec, load, load_digits
from rescnet_dist.dashboard.evaluation import MAX_MATRIX_CLASSES
from rescnet_dist.dashboard.figures import Plots
from rescnet_dist.model import FILTERS
from rescnet_dist.store import RunStore
from tests.dashboard.test_thumbnails import make_network


@pytest.fixture(scope="module")
def clf(digits_run: str) -> ResCNetClassifier:
    """The classifier of the small run."""
    return load(digits_run)


def texts(figure: Any) -> list[str]:
    """Return all texts within the axes of a figure."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_accuracy_figure_matches_the_run(clf: ResCNetClassifier) -> None:
    """One line per split, and one at the chosen depth."""
    (axes,) = clf.plot.accuracy().axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    for key in ("train", "validation"):
        np.testing.assert_allclose(
            lines[key].get_ydata(), [100 * entry[key] for entry in clf.accuracies_]
        )
    assert list(lines[f"chosen depth, {clf.depth_}"].get_xdata()) == [clf.depth_] * 2


def test_filters_figure_has_titles(clf: ResCNetClassifier) -> None:
    """All filters, PCA above stacked-LDA."""
    figure = clf.plot.filters(1)
    assert figure.get_suptitle() == "Layer 1: 2 PCA and 2 LDA filters of 3×3"
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["PCA 1", "PCA 2", "LDA 1", "LDA 2"]
    weights = clf.network_.layers[0].bank.filters[:, :, 0, 2]
    shown = figure.axes[2].images[0].get_array()
    assert np.unravel_index(np.argmax(np.abs(weights)), (3, 3)) in {
        tuple(location) for location in np.argwhere(np.ptp(shown.astype(int), axis=2) > 100)
    }


@pytest.mark.parametrize("name", FILTERS.names())
def test_filters_figure_of_any_bank(name: str) -> None:
    """All filters of any learner are drawn, also next to those of another."""
    view = "contrast" if FILTERS.get(name).min_towers == 2 else "image"
    spec = NetworkSpec(filters=8, bank=f"{name}:0.5,gaussian:0.5@{view}")
    figure = Plots(make_network(spec, 3)).filters(1)
    drawn = [axes for axes in figure.axes if axes.get_images()]
    assert len(drawn) == 8
    assert "Gaussian" in figure.get_suptitle()


def test_filters_figure_has_all_towers() -> None:
    """The filters that see the local contrast stand in the rows of their kind."""
    network = make_network(NetworkSpec(filters=8, local_contrast=True), 1)
    figure = Plots(network).filters(1)
    assert figure.get_suptitle() == "Layer 1: 4 PCA and 4 LDA filters of 3×3"
    titles = [axes.get_title() for axes in figure.axes]
    for kind, row in (("PCA", titles[:4]), ("LDA", titles[4:])):
        assert row == [f"{kind} 1", f"{kind} 2", f"contrast {kind} 1", f"contrast {kind} 2"]


def test_maps_figure_by_layer(clf: ResCNetClassifier) -> None:
    """Of all layers, or of the given ones; for an image with or without a channel axis."""
    image = load_digits()[0][0, ::2, ::2]
    figure = clf.plot.maps(image[:, :, 0])
    labels = [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()]
    assert labels == [f"layer {layer}" for layer in range(1, clf.depth_ + 1)]
    assert len([axes for axes in clf.plot.maps(image, layers=[1]).axes if axes.images]) == 5


def test_confusion_figure_matches_plain_counting(clf: ResCNetClassifier, digits_run: str) -> None:
    """For given images, and by default for those that the run held out."""
    run = RunStore.open(digits_run)
    held_out = ~run.data_array("train")[:]
    X, y = (run.data_array(name)[:][held_out] for name in ("images", "labels"))
    expected = np.zeros((10, 10), int)
    for true, predicted in zip(y, clf.predict(X), strict=True):
        expected[true, predicted] += 1
    shown = [str(number) for number in expected.reshape(-1) if number]
    assert texts(clf.plot.confusion()) == shown == texts(clf.plot.confusion(X, y))
    title = clf.plot.confusion().axes[0].get_title()
    assert f"{len(y)} images" in title
    assert "held-out" in title


def test_confusion_of_many_classes_shows_pairs(client: Client) -> None:
    """A matrix of 40 classes would be unreadable."""
    rng = np.random.default_rng(0)
    y = np.arange(160) % 40
    X = rng.normal(size=(160, 8, 8)) + y[:, None, None] % 7
    spec = NetworkSpec(filters=4, block=4, stride=4, max_layers=1)
    clf = ResCNetClassifier(spec, run=RunSpec(validation=0, solve_threads=1)).fit(X, y)
    assert len(clf.classes_) > MAX_MATRIX_CLASSES
    (axes,) = clf.plot.confusion(rng.normal(size=X.shape), y).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert all(" predicted as " in label for label in labels)
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == sorted(widths, reverse=True)
    with pytest.raises(DataError, match=r"not from a stored run\. Pass images X"):
        clf.plot.confusion()


def test_figures_are_not_in_pyplot(clf: ResCNetClassifier) -> None:
    """So that notebooks show a figure once, and none is kept alive."""
    before = plt.get_fignums()
    clf.plot.accuracy(), clf.plot.filters(1), clf.plot.confusion()
    assert plt.get_fignums() == before


def test_figures_display_in_notebooks(clf: ResCNetClassifier) -> None:
    """As PNG, also if pyplot was never imported; and they can be pickled."""
    figure: Any = pickle.loads(pickle.dumps(clf.plot.accuracy()))
    with Image.open(io.BytesIO(figure._repr_png_())) as picture:
        assert picture.size == (640, 380)


def test_first_layer_filters_are_in_color(client: Client) -> None:
    """For color images; filters of later layers are titled with their strongest channel."""
    rng = np.random.default_rng(1)
    y = np.arange(60) % 3
    X = rng.integers(0, 255, (60, 8, 8, 3), dtype=np.uint8)
    spec = NetworkSpec(filters=4, block=4, stride=4, max_layers=2, stop_at_zero_error=False)
    clf = ResCNetClassifier(spec, run=RunSpec(validation=0, solve_threads=1)).fit(X, y)
    first, second = clf.plot.filters(1), clf.plot.filters(2)
    assert [axes.get_title() for axes in first.axes] == ["PCA 1", "PCA 2", "LDA 1", "LDA 2"]
    assert all("\nin " in axes.get_title() for axes in second.axes)
    clf.plot.maps(X[0]).canvas.draw()


@pytest.mark.parametrize("layer", [0, 4, -1, 1.5, True])
def test_missing_layer_raises(clf: ResCNetClassifier, layer: Any) -> None:
    """The message lists the existing layers."""
    message = rf"layer={layer}.*layers 1 to {clf.depth_}"
    with pytest.raises(DataError, match=message):
        clf.plot.filters(layer)
    with pytest.raises(DataError, match=message):
        clf.plot.maps(np.zeros((14, 14)), [layer])


def test_bad_input_raises(clf: ResCNetClassifier, tmp_path: Path) -> None:
    """Each message has a remedy."""
    with pytest.raises(DataError, match=r"shape \(28, 28\).*\(14, 14, 1\)"):
        clf.plot.maps(np.zeros((28, 28)))
    with pytest.raises(DataError, match="Pass X, too"):
        clf.plot.confusion(y=[1])
    with pytest.raises(NotFittedError):
        _ = ResCNetClassifier().plot
    clf.save(tmp_path / "saved")
    saved = Plots.load(tmp_path / "saved")
    with pytest.raises(DataError, match="load the run"):
        saved.accuracy()
    with pytest.raises(DataError, match="not a rescnet-run store"):
        saved.confusion()


def test_missing_matplotlib_raises(digits_run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command to install it; `test_core_runs_without_the_extras` imports the package."""
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(rd.RescnetError, match=r"pip install 'rescnet-dist\[plot\]'"):
        rd.load(digits_run).plot.accuracy()
