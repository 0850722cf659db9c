"""Test heads that are fitted to leave-one-out errors, through training, replay and prediction."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import rescnet_dist as rd
from rescnet_dist import AugmentSpec, NetworkSpec, ResCNetClassifier, RunSpec, SpecError
from tests.models import assert_same_bits, read_model

X, Y = rd.load_digits()
X, Y = X[:300, ::2, ::2], Y[:300]
SPEC = NetworkSpec(
    filters=6,
    block=7,
    levels=(2, 1),
    head="leave-one-out",
    max_layers=4,
    learning_rate=0.5,
    stop_at_zero_error=False,
)

FITTED = {"leave-one-out": "regress", "classify-leave-one-out": "classify"}  # to training errors


@pytest.fixture(params=FITTED)
def spec(request: pytest.FixtureRequest) -> NetworkSpec:
    """Return a network with each of the heads, and the scale that classifiers need here."""
    scale = {"sigma": 2.0} if request.param.startswith("classify") else {}
    return SPEC.replace(head=request.param, **scale)


def fit_all(spec: NetworkSpec, **options: object) -> NetworkSpec:
    """Return the network with the head that leaves no image out."""
    kept = {"sigma": 2.0} if FITTED[spec.head.name] == "classify" else {}
    return spec.replace(head=FITTED[spec.head.name], **kept, **options)


def train(folder: Path, spec: NetworkSpec, **run: object) -> ResCNetClassifier:
    """Return a network, trained in a store."""
    options = RunSpec(**{"chunk_images": 70, "validation": 0.2} | run)  # type: ignore[arg-type]
    return ResCNetClassifier(spec, run=options, store=folder, random_state=0).fit(X, Y)


@pytest.mark.sampled(2)
def test_training_accuracy_estimates_that_on_other_images(
    client: Client, tmp_path: Path, spec: NetworkSpec
) -> None:
    """Unlike that of heads that leave no image out, and of predictions for the training images."""
    spec = spec.replace(ridge=0.1)
    honest = train(tmp_path / "loo", spec)
    fitted = train(tmp_path / "fitted", fit_all(spec))
    accuracy, other = (clf.accuracies_[-1]["train"] for clf in (honest, fitted))
    held_out = honest.accuracies_[-1]["validation"]
    assert accuracy < other - 0.05
    assert abs(accuracy - held_out) < 0.15
    assert honest.score(X, Y) > accuracy + 0.05


@pytest.mark.sampled(2, first=1)
def test_scores_in_memory_and_from_the_store_are_the_same(
    client: Client, tmp_path: Path, spec: NetworkSpec
) -> None:
    """Chunks that are replayed from the images get the scores that they had."""
    stored = train(tmp_path / "stored", spec, maps="store")
    memory = train(tmp_path / "memory", spec, maps="memory", checkpoint_every=3)
    assert_same_bits(read_model(tmp_path / "stored"), read_model(tmp_path / "memory"))
    assert np.array_equal(stored.decision_function(X), memory.decision_function(X))
    loaded = ResCNetClassifier.load(tmp_path / "stored")
    assert np.array_equal(loaded.decision_function(X), stored.decision_function(X))


@pytest.mark.sampled(2)
def test_resumed_run_equals_one_of_a_single_command(
    client: Client, tmp_path: Path, spec: NetworkSpec
) -> None:
    """Layers before are replayed with their random signs, and the same share of leverages."""
    spec = spec.replace(leverage_share=0.75)
    whole = train(tmp_path / "whole", spec)
    run = {"maps": "memory", "checkpoint_every": 100}
    train(tmp_path / "parts", spec.replace(max_layers=2), **run)
    parts = ResCNetClassifier.resume(tmp_path / "parts", max_layers=4)
    assert np.array_equal(parts.decision_function(X), whole.decision_function(X))


@pytest.mark.sampled(2, first=1)
def test_saved_network_has_no_random_signs(
    client: Client, tmp_path: Path, spec: NetworkSpec
) -> None:
    """It predicts the same, and is as large as one that was fitted to all images."""
    clf = train(tmp_path / "run", spec)
    clf.save(tmp_path / "saved")
    train(tmp_path / "other", fit_all(spec)).save(tmp_path / "fitted")
    loaded = ResCNetClassifier.load(tmp_path / "saved")
    assert np.array_equal(loaded.decision_function(X), clf.decision_function(X))
    sizes = [
        sum(path.stat().st_size for path in (tmp_path / name).rglob("*") if path.is_file())
        for name in ("saved", "fitted")
    ]
    assert sizes[0] < 1.1 * sizes[1] + 5000


@pytest.mark.sampled(2)
def test_predictions_read_no_random_signs(
    client: Client, tmp_path: Path, spec: NetworkSpec
) -> None:
    """They are of use in training only; a run without them predicts, and cannot be resumed."""
    clf = train(tmp_path / "run", spec.replace(max_layers=2))
    expected = clf.decision_function(X)
    for name in spec.head.training_arrays:
        for folder in (tmp_path / "run/layers").glob(f"*/{name}"):
            shutil.rmtree(folder)
    loaded = ResCNetClassifier.load(tmp_path / "run")
    assert np.array_equal(loaded.decision_function(X), expected)
    assert loaded.network_.layers[0].head.arrays["probe_weights"].shape[0] == 0
    loaded.save(tmp_path / "saved")
    saved = ResCNetClassifier.load(tmp_path / "saved")
    assert np.array_equal(saved.decision_function(X), expected)
    with pytest.raises(rd.StoreError, match="probe_weights"):
        ResCNetClassifier.resume(tmp_path / "run", max_layers=3)


@pytest.mark.sampled(2, first=1)
def test_copies_are_left_out_with_their_original(
    client: Client, tmp_path: Path, spec: NetworkSpec
) -> None:
    """Training accuracy is no better than that of other images; chunks are replayed alike."""
    images, labels = rd.load_digits()
    accuracies = {}
    spec = spec.replace(ridge=0.1, max_layers=2)
    for name, network, maps in (
        ("loo", spec, "memory"),
        ("stored", spec, "store"),
        ("fitted", fit_all(spec), "memory"),
    ):
        clf = ResCNetClassifier(
            network,
            run=RunSpec(chunk_images=400, validation=0.5, maps=maps),  # type: ignore[arg-type]
            augment=AugmentSpec(copies=2, shift=1),
            store=tmp_path / name,
            random_state=0,
        )
        accuracies[name] = clf.fit(images[:900, ::2, ::2], labels[:900]).accuracies_[0]
    assert_same_bits(read_model(tmp_path / "loo"), read_model(tmp_path / "stored"))
    gap = {name: values["train"] - values["validation"] for name, values in accuracies.items()}
    assert gap["loo"] < 0 < 0.04 < gap["fitted"]


@pytest.mark.sampled(2, first=1)
def test_no_share_of_the_leverage_fits_all_images(
    client: Client, tmp_path: Path, spec: NetworkSpec
) -> None:
    """Up to rounding, as there are more targets."""
    none = train(tmp_path / "none", spec.replace(leverage_share=0.0)).decision_function(X)
    fitted = train(tmp_path / "fitted", fit_all(spec)).decision_function(X)
    np.testing.assert_allclose(none, fitted, atol=1e-3)


@pytest.mark.slow
def test_conjugate_gradients_and_tiles_solve_for_signs_too(
    client: Client, tmp_path: Path, spec: NetworkSpec
) -> None:
    """As the exact solver does."""
    exact = train(tmp_path / "exact", spec.replace(max_layers=2)).decision_function(X)
    iterative = spec.replace(solver="cg", cg_tolerance=1e-4, cg_iterations=100, max_layers=2)
    scores = train(tmp_path / "cg", iterative).decision_function(X)
    np.testing.assert_allclose(scores, exact, atol=5e-3)
    two = spec.replace(max_layers=2)
    tiled = train(tmp_path / "tiles", two, tile_features=40, maps="store").decision_function(X)
    np.testing.assert_allclose(tiled, exact, atol=5e-3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("probes", 0), ("probes", 1025), ("probes", 1.5)),
        *(("leverage_share", -0.1), ("leverage_share", 1.1), ("leverage_share", float("nan"))),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: float) -> None:
    """By name and value; both ends of a range belong to it."""
    with pytest.raises(SpecError, match=f"{name}={value}"):
        SPEC.replace(**{name: value})
    assert SPEC.replace(leverage_share=0, probes=1024) != SPEC.replace(leverage_share=1, probes=1)
