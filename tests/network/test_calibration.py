"""The temperature is fitted in training, and stored with the run and the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from scipy.special import log_softmax
from sklearn.metrics import log_loss

import rescnet_dist as rd
from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec
from rescnet_dist.data import Images
from rescnet_dist.model import Calibration
from rescnet_dist.network import Network
from rescnet_dist.store import RunStore
from tests.saved import edit_saved

X, Y = (array[:240] for array in rd.load_digits())
X = X[:, ::2, ::2]
X_OTHER, Y_OTHER = (array[:60] for array in rd.load_digits("test"))
X_OTHER = X_OTHER[:, ::2, ::2]
SPEC = NetworkSpec(filters=4, block=5, stride=2, sigma=2.0, learning_rate=0.5, max_layers=3)
RUN = RunSpec(validation=0, chunk_images=100, accumulators=2, solve_threads=1)


@pytest.fixture(scope="module", params=["classify", "regress"])
def trained(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    threads_cluster: LocalCluster,
) -> ResCNetClassifier:
    """Return a classifier of each mode, with validation images."""
    store = tmp_path_factory.mktemp("run") / request.param
    with Client(threads_cluster):
        clf = ResCNetClassifier(SPEC.replace(head=request.param), store=store, run=RUN)
        return clf.fit(X, Y, validation=(X_OTHER, Y_OTHER))


def test_every_layer_has_the_best_temperature(trained: ResCNetClassifier) -> None:
    """Within 0.1 % of a search on the validation images, with labels smoothed by half an image."""
    result = RunStore.open(trained.run_url_).result()
    assert result is not None
    calibrations = [Calibration.from_dict(record) for record in result["calibrations"]]
    staged = np.asarray(trained.network_.staged_scores(Images(X_OTHER)), np.float64)
    target = (60 * np.eye(10)[Y_OTHER] + 0.05) / 60.5

    def smoothed_loss(temperature: float, scores: np.ndarray[Any, Any]) -> float:
        return float(-(target * log_softmax(scores / temperature, axis=1)).sum(axis=1).mean())

    assert len(calibrations) == len(result["accuracies"])
    for calibration, scores in zip(calibrations, staged.swapaxes(0, 1), strict=False):
        assert (calibration.fitted_on, calibration.images) == ("validation", 60)
        best = min(smoothed_loss(t, scores) for t in np.geomspace(1e-3, 2, 400))
        assert smoothed_loss(calibration.temperature, scores) <= 1.001 * best
        probabilities = np.exp(log_softmax(scores / calibration.temperature, axis=1))
        assert calibration.log_loss == pytest.approx(log_loss(Y_OTHER, probabilities), rel=1e-3)
    assert trained.network_.calibration == calibrations[trained.depth_ - 1]


def test_saved_network_has_the_calibration(trained: ResCNetClassifier, tmp_path: Path) -> None:
    """And so does the one that is read from the run."""
    trained.save(tmp_path / "network")
    expected = trained.predict_proba(X_OTHER)
    for url in (trained.run_url_, tmp_path / "network"):
        loaded = rd.load(url)
        assert loaded.network_.calibration == trained.network_.calibration
        np.testing.assert_array_equal(loaded.predict_proba(X_OTHER), expected)


def test_probabilities_of_lazy_scores_are_lazy(trained: ResCNetClassifier) -> None:
    """They are equal to those of scores in memory."""
    scores = np.asarray(trained.decision_function(X_OTHER))
    lazy = trained.network_.probabilities(da.from_array(scores, chunks=(25, 10)))
    assert isinstance(lazy, da.Array)
    assert lazy.dtype == np.float64
    np.testing.assert_array_equal(lazy.compute(), trained.network_.probabilities(scores))


def test_network_without_a_record_has_the_default_temperature(
    trained: ResCNetClassifier, tmp_path: Path
) -> None:
    """As one that was saved before networks had calibrations."""
    trained.save(tmp_path / "old")
    edit_saved(tmp_path / "old", remove=["calibration"])
    assert Network.load(tmp_path / "old").calibration == Calibration()


def test_calibration_without_validation_is_of_training_images(client: Client) -> None:
    """The stored value says so."""
    clf = ResCNetClassifier(SPEC.replace(max_layers=1), run=RUN)
    clf.fit(X[:100], Y[:100], validation=0.0)
    calibration = clf.network_.calibration
    assert (calibration.fitted_on, calibration.images) == ("training", 100)
    assert calibration.log_loss == pytest.approx(
        log_loss(Y[:100], clf.predict_proba(X[:100])), rel=1e-3
    )


def test_unfinished_run_has_the_calibration_of_the_layer_before(
    client: Client, tmp_path: Path
) -> None:
    """That of its last layer is not known before the next pass."""

    def stop(event: Any) -> None:
        if event == rd.events.PassStarted("grow", 3):
            raise KeyboardInterrupt

    clf = ResCNetClassifier(SPEC, store=tmp_path / "run", run=RUN, listeners=[stop])
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, Y, validation=0.2)
    network = Network.load(tmp_path / "run")
    assert network.depth == 2
    committed = RunStore.open(tmp_path / "run").commits()[2]["calibration"]
    assert network.calibration == Calibration.from_dict(committed) != Calibration()
