"""Training on augmented copies, which are made when images are read, and never stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster

from rescnet_dist import (
    AugmentSpec,
    DataError,
    NetworkSpec,
    ResCNetClassifier,
    RunSpec,
    SpecError,
    load_digits,
    plan,
)
from rescnet_dist.data import RowBlock, RowTable, choose_held_out_groups
from rescnet_dist.events import Event, PassDone
from rescnet_dist.kernels import Augmentation, augment_images
from rescnet_dist.lifecycle import begin
from rescnet_dist.store import RunStore
from rescnet_dist.train import verify_run

Array = np.ndarray[Any, Any]
X, Y = (array[:120] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec.preset("digits").replace(
    filters=4, max_layers=2, first_filter_size=3, block=5, stride=3
)
RUN = RunSpec(validation=0, chunk_images=50, accumulators=3, solve_threads=1)
COPIES = AugmentSpec(copies=3, flip=True, shift=2, rotate=15.0, noise=0.02)


def fit(store: Path, *, validation: Any = None, **options: Any) -> ResCNetClassifier:
    """Train a small network on copies."""
    settings = {"run": RUN, "augment": COPIES} | options
    return ResCNetClassifier(SPEC, store=store, **settings).fit(X, Y, validation)


def get_arrays(clf: ResCNetClassifier) -> list[Array]:
    """Return all fitted arrays of a network."""
    arrays = []
    for layer in clf.network_.layers:
        arrays += [layer.bank.filters, *layer.head.arrays.values()]
    return arrays


def assert_same_network(one: ResCNetClassifier, other: ResCNetClassifier) -> None:
    """Assert that two networks are equal in every bit."""
    for a, b in zip(get_arrays(one), get_arrays(other), strict=True):
        np.testing.assert_array_equal(a, b)


def make_copies(images: Array, numbers: Array, seed: int = 0) -> Array:
    """Return an array of each image, followed by its copies."""
    index = np.repeat(numbers, 1 + COPIES.copies)
    copy = np.tile(np.arange(1 + COPIES.copies), len(numbers))
    changes = Augmentation(**COPIES.copy_options)
    return augment_images(np.repeat(images, 1 + COPIES.copies, axis=0), index, copy, changes, seed)


def test_augmented_training_equals_training_on_copies(client: Client, tmp_path: Path) -> None:
    """The bits are those from an array of all copies, with a quarter of the images stored."""
    lazy = fit(tmp_path / "lazy")
    copies = make_copies(X, np.arange(len(X)))
    stored = ResCNetClassifier(SPEC, store=tmp_path / "stored", run=RUN).fit(
        copies, np.repeat(Y, 4)
    )
    assert_same_network(lazy, stored)
    assert lazy.accuracies_ == stored.accuracies_
    assert RunStore.open(tmp_path / "lazy").images()[0].shape[0] == len(X)
    assert RunStore.open(tmp_path / "lazy").maps(2).shape[0] == 4 * len(X)


def test_validation_images_have_no_copies_and_share_no_original(
    client: Client, tmp_path: Path
) -> None:
    """A held-out image has one row, and no training row is a copy of it."""
    clf = fit(tmp_path / "run", validation=0.25)
    run = RunStore.open(tmp_path / "run")
    train = run.data_array("train")[...]
    assert 0 < (~train).sum() < 40
    table = RowTable.from_dict(run.attributes()["rows"])
    assert table.rows == len(X) + 3 * train.sum() == run.maps(2).shape[0]
    rows = RowBlock.of(table, 0, run.data_array("labels")[...], train).rows(0, table.rows)
    assert not set(rows.image[rows.train]) & set(rows.image[~rows.train])
    assert not rows.copy[~rows.train].any()
    assert (np.bincount(rows.image[rows.train])[train.nonzero()] == 4).all()
    found = clf.accuracies_[-1]
    if clf.depth_ == 2:
        assert found["validation"] == pytest.approx(clf.score(X[~train], Y[~train]))


def test_cluster_and_block_size_change_no_bit(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cover one thread and two, one block of labels and many."""
    whole = fit(tmp_path / "whole", validation=0.25)
    monkeypatch.setattr(begin, "BLOCK_IMAGES", 17)
    assert_same_network(fit(tmp_path / "blocks", validation=0.25), whole)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        assert_same_network(fit(tmp_path / "one", validation=0.25), whole)


@pytest.mark.slow
def test_resumed_run_makes_same_copies(client: Client, tmp_path: Path) -> None:
    """The copies are the same after maps were lost, too."""
    whole = fit(tmp_path / "whole", validation=0.25)
    one_layer = SPEC.replace(max_layers=1)
    ResCNetClassifier(one_layer, store=tmp_path / "run", run=RUN, augment=COPIES).fit(X, Y, 0.25)
    run = RunStore.open(tmp_path / "run")
    (run.location / "maps" / "0001").remove()
    resumed = ResCNetClassifier.resume(tmp_path / "run", max_layers=2)
    assert_same_network(resumed, whole)
    assert resumed.augment == COPIES
    assert verify_run(tmp_path / "run") == []


def test_images_at_url_are_not_copied(client: Client, tmp_path: Path) -> None:
    """The store of the run has no images, whatever the number of copies."""
    group = zarr.open_group(str(tmp_path / "data.zarr"), mode="w")
    group.create_array("images", data=X, chunks=(32, *X.shape[1:]))
    group.create_array("labels", data=Y, chunks=(100,))
    clf = ResCNetClassifier(SPEC, store=tmp_path / "run", run=RUN, augment=COPIES)
    clf.fit(str(tmp_path / "data.zarr"))
    assert "images" not in (RunStore.open(tmp_path / "run").location / "data").names()
    assert_same_network(clf, fit(tmp_path / "copied"))


def test_altered_images_are_found_with_copies(client: Client, tmp_path: Path) -> None:
    """Verification and resuming both find them."""
    fit(tmp_path / "run")
    run = RunStore.open(tmp_path / "run")
    images = run.data_array("images", write=True)
    images[0] = 255 - images[0]
    problems = verify_run(tmp_path / "run")
    assert len(problems) == 1
    assert "data/images, chunk 0" in problems[0]
    with pytest.raises(Exception, match="of data/images are missing or altered"):
        ResCNetClassifier.resume(tmp_path / "run", max_layers=3)


def test_events_and_plan_count_copies(client: Client, tmp_path: Path) -> None:
    """Copies take time and space like any other image."""
    events: list[Event] = []
    fit(tmp_path / "run", listeners=[events.append])
    assert any(isinstance(event, PassDone) for event in events)
    run = RUN.replace(maps="store")
    augmented = plan(X, Y, SPEC, run=run, augment=COPIES, measure=False)
    plain = plan(X, Y, SPEC, run=run, measure=False)
    assert augmented.plan.images == 480
    assert "including 3 copies of each training image" in str(augmented)
    image_bytes = X.nbytes
    assert augmented.traffic.written == 4 * plain.traffic.written
    assert augmented.traffic.read - 4 * (plain.traffic.read - image_bytes) == image_bytes


# prediction --------------------------------------------------------------------------------------


def test_prediction_averages_over_copies(client: Client, tmp_path: Path) -> None:
    """The scores are the mean over an image and its copies, for any chunks."""
    clf = fit(tmp_path / "run")
    expected = (
        clf.decision_function(make_copies(X[:10], np.arange(10))).reshape(10, 4, -1).mean(axis=1)
    )
    np.testing.assert_allclose(clf.decision_function(X[:10], augment=COPIES), expected, atol=1e-5)
    labels = clf.classes_[expected.argmax(axis=1)]
    np.testing.assert_array_equal(clf.predict(X[:10], augment=3), labels)
    lazy = clf.decision_function(da.from_array(X[:10], (3, 14, 14, 1)), augment=COPIES)
    np.testing.assert_allclose(lazy.compute(), expected, atol=1e-5)


def test_saved_network_has_its_augmentation(client: Client, tmp_path: Path) -> None:
    """The error of a network without copies says what to pass."""
    clf = fit(tmp_path / "run")
    clf.save(tmp_path / "network")
    loaded = ResCNetClassifier.load(tmp_path / "network")
    np.testing.assert_array_equal(loaded.predict(X, augment=2), clf.predict(X, augment=2))
    plain = fit(tmp_path / "plain", augment=None)
    with pytest.raises(SpecError, match=r"augment=2 \(--copies\) asks for .* copies\. Pass an"):
        plain.predict(X, augment=2)


# groups ------------------------------------------------------------------------------------------


def test_groups_are_held_out_whole(client: Client, tmp_path: Path) -> None:
    """About the given fraction is held out, the same every time; groups may be strings."""
    groups = np.array([f"patient {n // 4}" for n in range(len(X))])
    for store in ("a", "b"):
        clf = ResCNetClassifier(SPEC, store=tmp_path / store, run=RUN, random_state=3)
        clf.fit(X, Y, 0.25, groups=groups)
    train = RunStore.open(tmp_path / "a").data_array("train")[...]
    np.testing.assert_array_equal(train, RunStore.open(tmp_path / "b").data_array("train")[...])
    assert not set(groups[train]) & set(groups[~train])
    assert 0.15 < (~train).mean() < 0.35


def test_groups_stored_with_images_are_used(client: Client, tmp_path: Path) -> None:
    """They need not be named."""
    group = zarr.open_group(str(tmp_path / "data.zarr"), mode="w")
    group.create_array("images", data=X, chunks=(32, *X.shape[1:]))
    group.create_array("labels", data=Y, chunks=(100,))
    group.create_array("groups", data=np.arange(len(X)) // 6, chunks=(100,))
    clf = ResCNetClassifier(SPEC, store=tmp_path / "run", run=RUN)
    clf.fit(str(tmp_path / "data.zarr"), None, 0.2)
    train = RunStore.open(tmp_path / "run").data_array("train")[...].reshape(-1, 6)
    assert (train.all(axis=1) | ~train.any(axis=1)).all()
    assert 0 < (~train).sum() < 60


def test_held_out_groups_are_stratified() -> None:
    """About the same fraction of each class is held out, as far as groups allow."""
    rng = np.random.default_rng(0)
    counts = {group: rng.multinomial(8, [0.5, 0.3, 0.2]) for group in range(300)}
    chosen = choose_held_out_groups(counts, 0.2, seed=1)
    fraction = sum(counts[group] for group in chosen) / sum(counts.values())
    np.testing.assert_allclose(fraction, 0.2, atol=0.01)
    assert chosen != choose_held_out_groups(counts, 0.2, seed=2)


def test_groups_that_cannot_be_split_are_rejected(client: Client, tmp_path: Path) -> None:
    """Cover one group, too few groups, and a wrong number of labels; no store is left."""
    for groups, message in (
        (
            np.zeros(len(X)),
            r"0\.1 by group: all 120 images are in one group, and groups are not split",
        ),
        (
            np.arange(len(X)) // 60,
            r"holds none out\. Give a larger fraction, more images or groups",
        ),
        (np.arange(5), "groups has 5 labels for 120 images"),
        ([[1]] * len(X), "groups must be hashable"),
    ):
        clf = ResCNetClassifier(SPEC, store=tmp_path / "run", run=RUN)
        with pytest.raises(DataError, match=message):
            clf.fit(X, Y, 0.1, groups=groups)
        assert not (tmp_path / "run").exists()
