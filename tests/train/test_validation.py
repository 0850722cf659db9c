"""Validation images choose the depth of a network, and influence nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from models import assert_same_bits, read_model
from training_cases import (
    REGRESS,
    RUN,
    SPEC,
    X_OTHER,
    Y_OTHER,
    Array,
    N,
    X,
    Y,
    fit,
)

from rescnet_dist import (
    DataError,
)
from rescnet_dist.data import select_validation
from rescnet_dist.store import RunStore


def select_fitted(arrays: dict[str, Array]) -> dict[str, Array]:
    """Return a model without its accuracies and calibrations."""
    measured = ("accuracy", "temperature", "log_loss", "images")
    return {name: array for name, array in arrays.items() if not name.endswith(measured)}


def test_validation_set_never_influences_layers(client: Client, tmp_path: Path) -> None:
    """Replacing it by noise with random labels changes the accuracies and no bit of the model."""
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 256, X_OTHER.shape, dtype=np.uint8)
    spec = REGRESS.replace(max_layers=2)
    fit(tmp_path / "a", spec, validation=(X_OTHER, Y_OTHER))
    fit(tmp_path / "b", spec, validation=(noise, rng.permutation(Y_OTHER)))
    a, b = read_model(tmp_path / "a"), read_model(tmp_path / "b")
    assert_same_bits(select_fitted(a), select_fitted(b))
    assert np.array_equal(a["train accuracy"], b["train accuracy"])
    assert not np.array_equal(a["validation accuracy"], b["validation accuracy"])


def test_held_out_images_never_influence_layers(client: Client, tmp_path: Path) -> None:
    """Replacing their pixels by extreme ones changes no bit of the model."""
    spec, run = SPEC.replace(max_layers=2), RUN.replace(validation=0.25)
    fit(tmp_path / "a", spec, run)
    held_out = ~RunStore.open(tmp_path / "a").data_array("train")[...]
    assert held_out.sum() == pytest.approx(N / 4, abs=10)
    changed = X.astype(np.float32)
    changed[held_out] = 1e4 * np.random.default_rng(4).normal(size=changed[held_out].shape)
    fit(tmp_path / "b", spec, run, X=changed)
    a, b = read_model(tmp_path / "a"), read_model(tmp_path / "b")
    assert_same_bits(select_fitted(a), select_fitted(b))
    assert not np.array_equal(a["validation accuracy"], b["validation accuracy"])


@pytest.mark.parametrize("mode", ["set", "fraction"])
def test_validation_chooses_depth(client: Client, tmp_path: Path, mode: str) -> None:
    """The network ends with the first best layer, on a validation set or a held-out fraction."""
    wrong = np.random.default_rng(0).permutation(Y_OTHER)  # so that the last is not the best
    held_out = (X_OTHER, wrong) if mode == "set" else 0.3
    spec = REGRESS.replace(max_layers=4, stop_at_zero_error=False)
    clf = fit(tmp_path / "run", spec, validation=held_out)
    found = [a["validation"] for a in clf.accuracies_]
    assert len(found) == 4
    assert clf.depth_ == clf.network_.depth == 1 + int(np.argmax(found))
    if mode == "set":
        assert clf.depth_ < 4
        staged = clf.staged_score(X_OTHER, wrong)
        np.testing.assert_allclose(staged, found[: clf.depth_])
    train = RunStore.open(tmp_path / "run").data_array("train")[...]
    assert len(train) == (N + 60 if mode == "set" else N)
    if mode == "set":
        np.testing.assert_array_equal(train, np.arange(N + 60) < N)


def test_all_layers_are_kept_without_validation(client: Client, tmp_path: Path) -> None:
    """There is nothing to choose the depth by."""
    clf = fit(tmp_path / "run")
    assert clf.depth_ == 3
    assert [a["validation"] for a in clf.accuracies_] == [None] * 3
    staged = clf.staged_score(X, Y)
    np.testing.assert_allclose(staged, [a["train"] for a in clf.accuracies_], atol=1 / N + 1e-9)


def test_split_that_holds_nothing_out_is_rejected(client: Client, tmp_path: Path) -> None:
    """It can happen with a few images of many classes; no store is left behind."""
    codes, seen = np.arange(24) % 12, np.zeros(12, int)
    seed = next(s for s in range(99) if not select_validation(codes, seen, 0.05, s).any())
    with pytest.raises(DataError, match=r"validation=0\.05 of 24 images holds none out"):
        fit(tmp_path / "run", X=X[:24], y=codes, validation=0.05, random_state=seed)
    assert not (tmp_path / "run").exists()


def test_patience_stops_run(client: Client, tmp_path: Path) -> None:
    """It stops one layer after the best one, with one more grown to evaluate that layer."""
    wrong = np.random.default_rng(0).permutation(Y_OTHER)
    spec = REGRESS.replace(max_layers=8, patience=1)
    clf = fit(tmp_path / "run", spec, validation=(X_OTHER, wrong))
    found = [a["validation"] for a in clf.accuracies_]
    assert 2 <= len(found) < 8
    assert found[-1] <= max(found[:-1])
    assert clf.depth_ == len(found) - 1
    result = RunStore.open(tmp_path / "run").result()
    assert result["reason"] == "no better validation accuracy in 1 layers"


@pytest.mark.parametrize("stop", [True, False])
def test_stop_at_zero_error_option(client: Client, tmp_path: Path, stop: bool) -> None:
    """Zeros and ones are separated by the first layer."""
    easy = Y < 2
    spec = REGRESS.replace(stop_at_zero_error=stop)
    clf = fit(tmp_path / "run", spec, X=X[easy], y=Y[easy])
    assert clf.accuracies_[0]["train"] == 1.0
    assert clf.depth_ == (1 if stop else 3)
    assert len(clf.accuracies_) == clf.depth_
    reason = RunStore.open(tmp_path / "run").result()["reason"]
    assert reason == ("training error 0 after layer 1" if stop else "max_layers=3 reached")


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_bank_of_one_kind_of_filters(client: Client, tmp_path: Path, fraction: float) -> None:
    """PCA filters have no bias, and stacked-LDA filters have one."""
    clf = fit(tmp_path / "run", SPEC.replace(lda_fraction=fraction, max_layers=2))
    for layer in clf.network_.layers:
        assert layer.bank.filters.shape[3] == 4
        assert np.all((layer.bank.bias != 0) == (fraction == 1.0))
    assert clf.score(X_OTHER, Y_OTHER) > 0.5
