"""Runs with weights: an image of weight w counts as w images in all that is learned."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from models import assert_same_bits, read_model
from training_cases import REGRESS, RUN, SPEC, X_OTHER, Y_OTHER, X, Y

import rescnet_dist as rd
from rescnet_dist.data import training_set
from rescnet_dist.errors import DataError, SpecError, StoreError
from rescnet_dist.lifecycle import check_run
from rescnet_dist.model import observation
from rescnet_dist.store import RunStore
from rescnet_dist.train.verify import verify_run

N = 90
IMAGES, LABELS = X[:N], Y[:N] % 3
HELD_OUT = X_OTHER[:30], Y_OTHER[:30] % 3
WHOLE = np.random.default_rng(0).integers(1, 4, N)
FRACTIONS = np.random.default_rng(1).uniform(0.2, 3, N)
BASE = REGRESS.replace(max_layers=2)
PLAN = RUN.replace(chunk_images=40)


def fit(
    store: Any = None,
    weights: Any = None,
    spec: rd.NetworkSpec = BASE,
    run: rd.RunSpec = PLAN,
    data: tuple[Any, Any] = (IMAGES, LABELS),
    validation: Any = HELD_OUT,
    **options: Any,
) -> rd.ResCNetClassifier:
    """Train two layers on small digits of three classes."""
    clf = rd.ResCNetClassifier(spec, store=store, run=run, **options)
    return clf.fit(*data, validation=validation, sample_weight=weights)


WHITENED = BASE.replace(bank=("pca", "whitened-patches"), local_contrast=True)
SUPERVISED = BASE.replace(bank="lda+whiten=0.1,cca,residual-metric", local_contrast=True)


def assert_same_network(found: rd.ResCNetClassifier, expected: rd.ResCNetClassifier) -> None:
    """Assert that scores agree up to rounding, which a layer can multiply."""
    one, other = (clf.decision_function(HELD_OUT[0]) for clf in (found, expected))
    assert np.abs(one - other).max() <= 1e-3 * np.abs(other).max()


@pytest.mark.parametrize(
    ("spec", "run"),
    [
        pytest.param(BASE, PLAN, id="regress"),
        *(
            pytest.param(spec, run, id=name, marks=pytest.mark.slow)
            for name, spec, run in (
                ("classify", SPEC.replace(max_layers=2), PLAN),
                ("tiles", BASE, PLAN.replace(tile_features=100)),
                ("whitened patches, towers", WHITENED, PLAN),
                ("lda, cca, metric", SUPERVISED, PLAN),
            )
        ),
    ],
)
def test_whole_weights_equal_repeated_images(client, spec, run):
    """The draws of patches are those of np.repeat, too."""
    repeated = IMAGES.repeat(WHOLE, axis=0), LABELS.repeat(WHOLE)
    weighted = fit(weights=WHOLE, spec=spec, run=run)
    assert_same_network(weighted, fit(spec=spec, run=run, data=repeated))
    plain = fit(spec=spec, run=run).decision_function(HELD_OUT[0])
    difference = np.abs(weighted.decision_function(HELD_OUT[0]) - plain).max()
    assert difference > 0.01  # the weights have an effect


def test_scaled_weights_change_nothing_without_draws(client):
    """The ridge of the head is relative to the mean variance of features."""
    spec = BASE.replace(bank=("pca",))
    scaled = fit(weights=1e6 * FRACTIONS, spec=spec)
    assert_same_network(scaled, fit(weights=FRACTIONS, spec=spec))


def test_copies_have_the_weight_of_their_image(client):
    """Mirror images of repeated images are repeated mirror images.

    PCA filters would not do: rounding decides the signs of antisymmetric ones.
    """
    options: dict[str, Any] = {
        "spec": BASE.replace(bank=("dct",)),
        "augment": rd.AugmentSpec(copies=1, flip=True),
    }
    repeated = IMAGES.repeat(WHOLE, axis=0), LABELS.repeat(WHOLE)
    assert_same_network(fit(weights=WHOLE, **options), fit(data=repeated, **options))


def test_zero_weight_leaves_an_image_out(client, tmp_path):
    """This holds bit for bit for the held-out images, the classes and dask arrays, too."""
    weights = np.where(np.arange(N) % 7 == 2, 0.0, FRACTIONS)
    weights[LABELS == 2] = 0  # a whole class
    kept = weights > 0
    data = da.from_array(IMAGES, chunks=(20, -1, -1, -1)), da.from_array(LABELS, chunks=25)
    clf = fit(tmp_path / "a", da.from_array(weights, chunks=30), data=data, validation=0.3)
    fit(tmp_path / "b", weights[kept], data=(IMAGES[kept], LABELS[kept]), validation=0.3)
    assert_same_bits(read_model(tmp_path / "a"), read_model(tmp_path / "b"))
    assert clf.classes_.tolist() == [0, 1]


def test_accuracies_are_unweighted(client):
    """The training accuracy of a run is the share of images, not of weights."""
    weights = np.where(LABELS == 0, 100.0, 0.01)
    clf = fit(weights=weights, spec=BASE.replace(max_layers=1, ridge=30.0))
    correct = clf.predict(IMAGES) == LABELS
    assert correct.mean() < 0.9 < weights[correct].sum() / weights.sum()
    assert clf.accuracies_[0]["train"] == pytest.approx(correct.mean())


# classes ----------------------------------------------------------------------------------------

RARE = np.concatenate([np.flatnonzero(LABELS != 2), np.flatnonzero(LABELS == 2)[:6]])


@pytest.mark.parametrize("weight", [1.5, 3])  # repeated 2**30 times and 3 times for draws
def test_filter_images_counts_images_and_not_their_weights(client, tmp_path, weight):
    """With any weights, filters are learned from the same number of images, about."""
    spec, counts = BASE.replace(filter_images=30, max_layers=1), []

    def count_observed(inputs, size, sums, compute=observation.patch_moments):
        counts.append(len(inputs))
        return compute(inputs, size, sums)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observation, "patch_moments", count_observed)
        fit(tmp_path / "run", np.full(N, weight), spec)
    assert sum(counts[:3]) == pytest.approx(30, abs=6)  # of the three chunks of the first pass


def test_balanced_classes_have_equal_weight(client, tmp_path):
    """The weights are n / (C·n_c) of the images that are trained on, times those of samples."""
    data, weights = (IMAGES[RARE], LABELS[RARE]), FRACTIONS[RARE]
    fit(tmp_path / "a", weights, data=data, class_weight="balanced", validation=0.2)
    run = RunStore.open(tmp_path / "a")
    labels, train, stored = (run.data_array(n)[...] for n in ("labels", "train", "weights"))
    totals = np.bincount(labels[train], stored[train])
    np.testing.assert_allclose(totals, train.sum() / 3)
    factors = stored / weights
    for label in range(3):  # one factor per class
        np.testing.assert_allclose(factors[labels == label], factors[labels == label][0])
    fit(tmp_path / "b", weights, data=data, run=PLAN.replace(class_weight="balanced", seed=0),
        validation=0.2)  # fmt: skip
    assert_same_bits(read_model(tmp_path / "a"), read_model(tmp_path / "b"))


def test_class_weights_multiply_sample_weights(client, tmp_path):
    """Labels that a dict does not name weigh 1."""
    fit(tmp_path / "a", WHOLE, class_weight={1: 3})
    fit(tmp_path / "b", np.where(LABELS == 1, 3, 1) * WHOLE)
    assert_same_bits(read_model(tmp_path / "a"), read_model(tmp_path / "b"))
    assert rd.ResCNetClassifier.resume(tmp_path / "a").class_weight == {0: 1.0, 1: 3.0, 2: 1.0}


# the store --------------------------------------------------------------------------------------


class Stopped(KeyboardInterrupt):
    """Raised by a listener to stop a run."""


def test_resumed_run_has_its_weights(client, tmp_path):
    """It equals the uninterrupted run bit for bit, and its weights are verified."""

    def stop(event: Any) -> None:
        if isinstance(event, rd.events.PassDone) and (event.phase, event.layer) == ("grow", 1):
            raise Stopped

    with pytest.raises(Stopped):
        fit(tmp_path / "a", FRACTIONS, listeners=[stop])
    rd.ResCNetClassifier.resume(tmp_path / "a")
    fit(tmp_path / "b", FRACTIONS)
    assert_same_bits(read_model(tmp_path / "a"), read_model(tmp_path / "b"))
    assert verify_run(tmp_path / "a") == []
    (tmp_path / "a/data/weights/c/0").write_bytes(b"damaged")
    assert any("data/weights" in problem for problem in verify_run(tmp_path / "a"))


def test_run_without_weights_stores_none(client, tmp_path):
    """Its format is that of earlier releases."""
    fit(tmp_path / "run")
    run = RunStore.open(tmp_path / "run")
    assert set((run.location / "data").names()) >= {"images", "labels", "train"}
    assert "weights" not in (run.location / "data").names()
    attributes = run.attributes()
    assert not {"sample_weight", "class_weight"} & {*attributes, *attributes["run"]}
    assert "draws_per_weight" not in attributes["rows"]


@pytest.mark.parametrize(
    ("weights", "class_weight", "expected"),
    [
        (FRACTIONS, {0: 2.0}, None),
        (FRACTIONS + 1e-9, {0: 2.0}, "other sample weights"),
        (None, {0: 2.0}, "other sample weights"),
        (FRACTIONS, {0: 3.0}, r"class_weight \[2.0, 1.0, 1.0\] instead of \[3.0, 1.0, 1.0\]"),
        (FRACTIONS, None, r"class_weight \[2.0, 1.0, 1.0\] instead of None"),
    ],
)
def test_run_with_other_weights_is_another_run(
    client, tmp_path_factory, weights, class_weight, expected
):
    """The message says which of them differ."""
    url = tmp_path_factory.getbasetemp() / "weighted-run"
    if not url.exists():
        fit(url, FRACTIONS, class_weight={0: 2.0})
    data = training_set(IMAGES, LABELS, HELD_OUT, sample_weight=weights, class_weight=class_weight)
    if expected is None:
        assert check_run(url, BASE, PLAN, data, or_resume=True).stored is not None
        return
    with pytest.raises(StoreError, match=expected):
        check_run(url, BASE, PLAN, data, or_resume=True)


def test_dataset_has_its_weights(client, tmp_path):
    """The variable sample_weight of a Dataset or Zarr group weights its images."""
    arrays = {"images": IMAGES, "labels": LABELS, "sample_weight": FRACTIONS}
    dims = ("image", "y", "x", "channel")
    dataset = xr.Dataset({name: (dims[: array.ndim], array) for name, array in arrays.items()})
    group = zarr.open_group(tmp_path / "data.zarr", mode="w")
    for name, array in arrays.items():
        group.create_array(name, data=array)
    expected = training_set(IMAGES, LABELS, sample_weight=FRACTIONS).weights
    for source in (dataset, str(tmp_path / "data.zarr")):
        found = training_set(source, None).weights
        assert found.digest == expected.digest
        np.testing.assert_array_equal(found.samples, FRACTIONS)


# errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(N - 1), r"shape \(89,\) for 90 images. Give one weight per image"),
        (np.ones((N, 2)), r"shape \(90, 2\) for 90 images"),
        (2.0, r"shape \(\) for 90 images"),
        (np.where(np.arange(N) == 7, -2.0, 1), r"of image 7 is -2.0. .* finite and at least 0"),
        (np.where(np.arange(N) == 8, np.nan, 1), r"of image 8 is nan. .* finite and at least 0"),
        (np.where(np.arange(N) == 9, np.inf, 1), r"of image 9 is inf. .* finite and at least 0"),
        (np.zeros(N), r"All 90 values of sample_weight are zero, .* greater than 0"),
        (["a"] * N, r"not a vector of numbers: .* Give one number per image"),
        (np.where(LABELS == 0, 1.0, 0.0), r"the one class 0 only"),
    ],
)
def test_unusable_sample_weights_are_refused(weights, message):
    """The error has the value, what is expected, and the remedy."""
    with pytest.raises(DataError, match=message):
        training_set(IMAGES, LABELS, sample_weight=weights)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({0: 0}, r"class_weight of class 0 is 0. Give a finite number greater than 0"),
        ({1: -1.0}, r"class_weight of class 1 is -1.0"),
        ({1: float("nan")}, r"class_weight of class 1 is nan"),
        ({1: "x"}, r"class_weight of class 1 is 'x'"),
        ({"cat": 2}, r"names the class 'cat', which no training image has\. Name classes"),
        ([1, 2, 3], r"class_weight=\[1, 2, 3\] is not \"balanced\", None or a dict"),
    ],
)
def test_unusable_class_weights_are_refused(weights, message):
    """A class of weight 0 would be one that can never be predicted."""
    with pytest.raises(DataError, match=message):
        training_set(IMAGES, LABELS, class_weight=weights)


def test_contradicting_class_weights_are_refused():
    """A misspelled choice is named, and so are two different settings."""
    with pytest.raises(SpecError, match="class_weight='balance' is not a choice"):
        fit(class_weight="balance")
    with pytest.raises(SpecError, match="class_weight is a dict, but that of run is 'balanced'"):
        fit(class_weight={0: 2}, run=PLAN.replace(class_weight="balanced"))
