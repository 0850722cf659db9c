"""Training on augmented copies: rows that are made when they are read, and never stored."""

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
from rescnet_dist.kernels import augment_images
from rescnet_dist.store import RunStore
from rescnet_dist.train import Event, PassDone, prepare, verify_run

Array = np.ndarray[Any, Any]
X, Y = (array[:120] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec.preset("digits").replace(
    filters=4, max_layers=2, first_filter_size=3, block=5, stride=3
)
RUN = RunSpec(chunk_images=50, accumulators=3, solve_threads=1)
COPIES = AugmentSpec(copies=3, flip=True, shift=2, rotate=15.0, noise=0.02)


def fit(store: Path, *, validation: Any = None, **options: Any) -> ResCNetClassifier:
    """A small run on copies."""
    settings = {"run": RUN, "augment": COPIES} | options
    return ResCNetClassifier(SPEC, store=store, **settings).fit(X, Y, validation)


def layers(clf: ResCNetClassifier) -> list[Array]:
    """All that a network has fitted."""
    found = []
    for layer in clf.network_.layers:
        found += [layer.bank.filters, layer.classifier.weights, layer.classifier.intercept]
    return found


def assert_same_network(one: ResCNetClassifier, other: ResCNetClassifier) -> None:
    """Bit for bit."""
    for ours, theirs in zip(layers(one), layers(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def copies_of(images: Array, numbers: Array, seed: int = 0) -> Array:
    """Each image and its copies behind it, in an array."""
    index = np.repeat(numbers, 1 + COPIES.copies)
    copy = np.tile(np.arange(1 + COPIES.copies), len(numbers))
    return augment_images(np.repeat(images, 1 + COPIES.copies, axis=0), index, copy, COPIES, seed)


def test_it_is_training_on_the_copies_themselves(client: Client, tmp_path: Path) -> None:
    """The same bits as from an array with all copies in it, and a quarter of the images stored."""
    lazy = fit(tmp_path / "lazy")
    everything = copies_of(X, np.arange(len(X)))
    stored = ResCNetClassifier(SPEC, store=tmp_path / "stored", run=RUN).fit(
        everything, np.repeat(Y, 4)
    )
    assert_same_network(lazy, stored)
    assert lazy.accuracies_ == stored.accuracies_
    assert RunStore.open(tmp_path / "lazy").images()[0].shape[0] == len(X)
    assert RunStore.open(tmp_path / "lazy").maps(2).shape[0] == 4 * len(X)


def test_validation_images_have_no_copies_and_share_no_original(
    client: Client, tmp_path: Path
) -> None:
    """A held-out image is one row, and the same network comes of the others and their copies with
    the held-out ones as a validation set."""
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


def test_any_cluster_and_any_block_of_labels_give_the_same_bits(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread or two, one block or many."""
    whole = fit(tmp_path / "whole", validation=0.25)
    monkeypatch.setattr(prepare, "BLOCK_IMAGES", 17)
    assert_same_network(fit(tmp_path / "blocks", validation=0.25), whole)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        assert_same_network(fit(tmp_path / "one", validation=0.25), whole)


@pytest.mark.slow
def test_a_resumed_run_makes_the_same_copies(client: Client, tmp_path: Path) -> None:
    """After maps were lost too."""
    whole = fit(tmp_path / "whole", validation=0.25)
    one_layer = SPEC.replace(max_layers=1)
    ResCNetClassifier(one_layer, store=tmp_path / "run", run=RUN, augment=COPIES).fit(X, Y, 0.25)
    run = RunStore.open(tmp_path / "run")
    (run.location / "maps" / "0001").remove()
    resumed = ResCNetClassifier.resume(tmp_path / "run", max_layers=2)
    assert_same_network(resumed, whole)
    assert resumed.augment == COPIES
    assert verify_run(tmp_path / "run") == []


def test_images_at_a_url_are_referred_to_and_not_copied(client: Client, tmp_path: Path) -> None:
    """Twenty copies need no more room for images than one."""
    group = zarr.open_group(str(tmp_path / "data.zarr"), mode="w")
    group.create_array("images", data=X, chunks=(32, *X.shape[1:]))
    group.create_array("labels", data=Y, chunks=(100,))
    clf = ResCNetClassifier(SPEC, store=tmp_path / "run", run=RUN, augment=COPIES)
    clf.fit(str(tmp_path / "data.zarr"))
    assert "images" not in (RunStore.open(tmp_path / "run").location / "data").names()
    assert_same_network(clf, fit(tmp_path / "copied"))


def test_altered_images_are_found_behind_their_copies(client: Client, tmp_path: Path) -> None:
    """By the check and by a resume."""
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
    """As they take time and room as any other image."""
    events: list[Event] = []
    fit(tmp_path / "run", listeners=[events.append])
    assert any(isinstance(event, PassDone) for event in events)
    run = RUN.replace(maps="store")
    told = plan(X, Y, SPEC, run=run, augment=COPIES, measure=False)
    plain = plan(X, Y, SPEC, run=run, measure=False)
    assert told.plan.images == 480
    assert "including 3 copies of each training image" in str(told)
    image_bytes = X.nbytes
    assert told.traffic.written == 4 * plain.traffic.written
    assert told.traffic.read - 4 * (plain.traffic.read - image_bytes) == image_bytes


# prediction --------------------------------------------------------------------------------------


def test_prediction_averages_over_copies(client: Client, tmp_path: Path) -> None:
    """The mean of the scores of an image and of its copies, whatever the chunks."""
    clf = fit(tmp_path / "run")
    want = clf.decision_function(copies_of(X[:10], np.arange(10))).reshape(10, 4, -1).mean(axis=1)
    np.testing.assert_allclose(clf.decision_function(X[:10], augment=COPIES), want, atol=1e-5)
    np.testing.assert_array_equal(clf.predict(X[:10], augment=3), clf.classes_[want.argmax(axis=1)])
    lazy = clf.decision_function(da.from_array(X[:10], (3, 14, 14, 1)), augment=COPIES)
    np.testing.assert_allclose(lazy.compute(), want, atol=1e-5)


def test_a_saved_network_knows_how_it_was_augmented(client: Client, tmp_path: Path) -> None:
    """And one without copies says what to give."""
    clf = fit(tmp_path / "run")
    clf.save(tmp_path / "network")
    loaded = ResCNetClassifier.load(tmp_path / "network")
    np.testing.assert_array_equal(loaded.predict(X, augment=2), clf.predict(X, augment=2))
    plain = fit(tmp_path / "plain", augment=None)
    with pytest.raises(SpecError, match=r"augment=2 asks for copies .* without copies\. Pass an"):
        plain.predict(X, augment=2)


# groups ------------------------------------------------------------------------------------------


def test_groups_are_held_out_whole(client: Client, tmp_path: Path) -> None:
    """About the share that was asked for, of each class, the same every time; by words too."""
    groups = np.array([f"patient {n // 4}" for n in range(len(X))])
    for store in ("a", "b"):
        clf = ResCNetClassifier(SPEC, store=tmp_path / store, run=RUN, random_state=3)
        clf.fit(X, Y, 0.25, groups=groups)
    train = RunStore.open(tmp_path / "a").data_array("train")[...]
    np.testing.assert_array_equal(train, RunStore.open(tmp_path / "b").data_array("train")[...])
    assert not set(groups[train]) & set(groups[~train])
    assert 0.15 < (~train).mean() < 0.35


def test_groups_stored_beside_the_images_are_used(client: Client, tmp_path: Path) -> None:
    """Without being named."""
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
    """Each class gives about its share, as far as groups allow."""
    rng = np.random.default_rng(0)
    counts = {group: rng.multinomial(8, [0.5, 0.3, 0.2]) for group in range(300)}
    held = choose_held_out_groups(counts, 0.2, seed=1)
    share = sum(counts[group] for group in held) / sum(counts.values())
    np.testing.assert_allclose(share, 0.2, atol=0.01)
    assert held != choose_held_out_groups(counts, 0.2, seed=2)


def test_groups_that_cannot_be_split_are_refused(client: Client, tmp_path: Path) -> None:
    """One group, too few of them, groups of another number; nothing is left behind."""
    for groups, message in (
        (np.zeros(len(X)), r"0\.1 by group: all 120 images are of one group, which is not"),
        (np.arange(len(X)) // 60, "holds none out: give a larger share, more images or groups"),
        (np.arange(5), "groups has 5 labels for 120 images"),
        ([[1]] * len(X), "groups must be hashable"),
    ):
        clf = ResCNetClassifier(SPEC, store=tmp_path / "run", run=RUN)
        with pytest.raises(DataError, match=message):
            clf.fit(X, Y, 0.1, groups=groups)
        assert not (tmp_path / "run").exists()
