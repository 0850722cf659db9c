"""The Python face: a scikit-learn classifier that predicts lazily where it is asked to."""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client, LocalCluster, get_client
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags

import rescnet_dist as rd
from rescnet_dist import AugmentSpec, NetworkSpec, ResCNetClassifier, RunSpec
from rescnet_dist.cluster import connect
from rescnet_dist.data import Images
from rescnet_dist.store import RunStore

Array = np.ndarray[Any, Any]

N = 160
X, Y = (array[:N] for array in rd.load_digits())
X = X[:, ::2, ::2]
X_TEST, Y_TEST = (array[:50] for array in rd.load_digits("test"))
X_TEST = X_TEST[:, ::2, ::2]

SPEC = NetworkSpec(
    filters=4, block=5, stride=2, residual="regress", ridge=0.3, learning_rate=0.5, max_layers=2
)
ONE_LAYER = SPEC.replace(max_layers=1)
RUN = RunSpec(chunk_images=100, accumulators=2, solve_threads=1)
FLIPS = AugmentSpec(copies=1, flip=True)


@pytest.fixture(scope="module")
def fitted(threads_cluster: LocalCluster) -> ResCNetClassifier:
    """A classifier of two layers that lives in memory."""
    with Client(threads_cluster):
        return ResCNetClassifier(SPEC, run=RUN).fit(X, Y)


def refuse(*args: Any, **kwargs: Any) -> None:
    """A scheduler that fails the test: nothing may compute while a graph is built."""
    raise AssertionError("computed while a graph was built")


# parameters -------------------------------------------------------------------------------------


def test_parameters_are_stored_as_they_are_and_nothing_else_is_done() -> None:
    """As scikit-learn asks of __init__: even nonsense is kept until fit."""
    names = ("spec", "store", "random_state", "run", "augment")
    given: dict[str, Any] = {name: object() for name in names}
    clf = ResCNetClassifier(given["spec"], **{k: v for k, v in given.items() if k != "spec"})
    assert clf.get_params() == {**given, "listeners": ()}
    assert vars(clf) == clf.get_params()


def test_a_clone_has_equal_parameters_and_is_not_fitted(fitted: ResCNetClassifier) -> None:
    """And changing it leaves the original as it is."""
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(X_TEST)
    assert copy.set_params(spec="mnist", random_state=3) is copy
    assert (copy.spec, copy.random_state) == ("mnist", 3)
    assert (fitted.spec, fitted.random_state) == (SPEC, 0)
    with pytest.raises(ValueError, match="Invalid parameter 'depth'"):
        copy.set_params(depth=3)


def test_tags_say_classifier_of_images() -> None:
    """Not of tables."""
    clf = ResCNetClassifier()
    assert is_classifier(clf)
    tags = get_tags(clf)
    assert tags.estimator_type == "classifier"
    assert tags.input_tags.three_d_array
    assert not tags.input_tags.two_d_array
    assert tags.target_tags.required


def test_fit_returns_the_classifier_with_its_attributes(fitted: ResCNetClassifier) -> None:
    """The network, classes, depth and accuracies."""
    assert isinstance(fitted, ResCNetClassifier)
    assert fitted.depth_ == fitted.network_.depth == 2
    assert fitted.classes_.tolist() == list(range(10))
    assert [a["layer"] for a in fitted.accuracies_] == [1, 2]
    assert fitted.run_url_ is None
    assert fitted.score(X, Y) == pytest.approx(fitted.accuracies_[-1]["train"], abs=1 / N)
    assert fitted.score(X_TEST, Y_TEST) > 0.6


@pytest.mark.parametrize("spec", [None, "digits"])
def test_without_a_spec_the_digits_preset_is_trained(
    client: Client, tmp_path: Path, spec: str | None
) -> None:
    """Its name means the same."""

    def stop(event: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ResCNetClassifier(spec, store=tmp_path / "run", listeners=[stop]).fit(X, Y)
    stored = RunStore.open(tmp_path / "run").attributes()["network"]
    assert NetworkSpec.from_dict(stored) == NetworkSpec.preset("digits")


# scikit-learn -----------------------------------------------------------------------------------


def test_a_grid_search_chooses_a_spec(client: Client) -> None:
    """Two specs over two folds, then a fit of the better one."""
    weak = ONE_LAYER.replace(filters=2, levels=[1])
    search = GridSearchCV(ResCNetClassifier(run=RUN), {"spec": [weak, ONE_LAYER]}, cv=2)
    search.fit(X[:100], Y[:100])
    assert search.best_params_ == {"spec": ONE_LAYER}
    weak_score, best_score = search.cv_results_["mean_test_score"]
    assert weak_score < best_score
    assert search.predict(X_TEST).shape == (50,)


def test_cross_validation_works_with_any_labels(client: Client) -> None:
    """Each fold is a fresh run; labels are strings here."""
    names = np.array([f"digit {y}" for y in Y])
    scores = cross_val_score(ResCNetClassifier(ONE_LAYER, run=RUN), X, names, cv=2)
    assert scores.shape == (2,)
    assert scores.min() > 0.4


def test_a_pipeline_ends_with_it(client: Client) -> None:
    """What comes before may change the images."""
    invert = FunctionTransformer(lambda images: 255 - images)
    pipeline = make_pipeline(invert, ResCNetClassifier(ONE_LAYER, run=RUN)).fit(X, Y)
    assert pipeline.score(X_TEST, Y_TEST) > 0.4


# lazy in, lazy out ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["predict", "decision_function", "predict_proba"])
@pytest.mark.parametrize("augment", [None, FLIPS], ids=["plain", "averaged"])
def test_predictions_of_a_dask_array_are_built_without_computing(
    fitted: ResCNetClassifier, method: str, augment: AugmentSpec | None
) -> None:
    """And are, once computed, those of the same images in memory."""
    lazy = da.from_array(X_TEST, chunks=(20, 14, 14, 1))
    with dask.config.set(scheduler=refuse):
        result = getattr(fitted, method)(lazy, augment=augment)
    expected = getattr(fitted, method)(X_TEST, augment=augment)
    assert isinstance(result, da.Array)
    assert isinstance(expected, np.ndarray)
    assert result.chunks[0] == (20, 20, 10)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    computed = result.compute(scheduler="sync")
    assert computed.dtype == expected.dtype
    np.testing.assert_allclose(computed, expected, atol=1e-5)


def test_images_that_fail_to_load_do_not_fail_the_graph(fitted: ResCNetClassifier) -> None:
    """Not one block is read before it is asked for, and then only that block."""

    def load(block_info: Any = None) -> Array:
        start, stop = block_info[None]["array-location"][0]
        if start == 10:
            raise OSError("block 1 is not there")
        return X_TEST[start:stop]

    chunks = ((10, 10, 10), 14, 14, 1)
    lazy = da.map_blocks(load, chunks=chunks, dtype=np.uint8, meta=np.empty((0,) * 4, np.uint8))
    predicted = fitted.predict(lazy)
    last = predicted[20:].compute(scheduler="sync")
    np.testing.assert_array_equal(last, fitted.predict(X_TEST[20:30]))
    with pytest.raises(OSError, match="block 1"):
        predicted.compute(scheduler="sync")


@settings(max_examples=8, deadline=None)
@given(
    rows=st.lists(st.integers(1, 25), min_size=1, max_size=5),
    side=st.sampled_from([14, 7, 5]),
)
def test_predictions_do_not_depend_on_chunks(
    fitted: ResCNetClassifier, rows: list[int], side: int
) -> None:
    """Along images and within them."""
    images = X[: sum(rows)]
    lazy = da.from_array(images, chunks=(tuple(rows), side, side, 1))
    scores = fitted.decision_function(lazy).compute(scheduler="sync")
    np.testing.assert_allclose(scores, fitted.decision_function(images), atol=1e-5)


def test_predictions_are_equal_for_every_kind_of_images(
    fitted: ResCNetClassifier, tmp_path: Path
) -> None:
    """NumPy, lists, dask, xarray of either, a Zarr array and a Zarr group at a URL."""
    zarr.save_array(str(tmp_path / "bare"), X_TEST)
    group = zarr.open_group(str(tmp_path / "group"), mode="w")
    group.create_array("images", data=X_TEST, chunks=(16, 14, 14, 1))
    group.create_array("labels", data=Y_TEST)
    lazy = da.from_array(X_TEST, chunks=(13, 14, 14, 1))
    dims = ("image", "y", "x", "channel")
    sources = {
        "floats": X_TEST.astype(np.float64),
        "list": X_TEST.tolist(),
        "without channels": X_TEST[..., 0],
        "dask": lazy,
        "xarray": xr.DataArray(X_TEST, dims=dims),
        "lazy xarray": xr.DataArray(lazy, dims=dims),
        "array path": tmp_path / "bare",
        "group URL": f"file://{tmp_path}/group",
    }
    expected, share = fitted.predict(X_TEST), fitted.score(X_TEST, Y_TEST)
    for name, source in sources.items():
        np.testing.assert_array_equal(np.asarray(fitted.predict(source)), expected, err_msg=name)
        assert fitted.score(source, Y_TEST) == share, name
        assert fitted.staged_score(source, Y_TEST)[-1] == share, name
    for y in (None, Y_TEST.tolist(), da.from_array(Y_TEST, chunks=7), xr.DataArray(Y_TEST)):
        assert fitted.score(tmp_path / "group", y) == share


# what is predicted ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [str, lambda y: (y, "digit"), lambda y: None if y == 3 else f"{y}", frozenset, bytes]
)
def test_labels_of_any_kind_come_back(client: Client, name: Any) -> None:
    """As they were given, eagerly and lazily."""
    few = Y < 4
    labels = [name([y]) if name in (frozenset, bytes) else name(y) for y in Y[few].tolist()]
    clf = ResCNetClassifier(ONE_LAYER, run=RUN).fit(X[few], labels)
    predicted = clf.predict(X[few]).tolist()
    assert set(predicted) == set(labels) == set(clf.classes_.tolist())
    assert {type(p) for p in predicted} == {type(label) for label in labels}
    lazy = clf.predict(da.from_array(X[few], chunks=(9, 14, 14, 1))).compute()
    assert lazy.tolist() == predicted
    right = np.mean([p == label for p, label in zip(predicted, labels, strict=True)])
    assert clf.score(X[few], labels) == right > 0.8


def test_labels_come_back_from_a_store_as_given(client: Client, tmp_path: Path) -> None:
    """From the run, and from a network saved from it."""
    labels = [("digit", y, None) for y in Y.tolist()]
    clf = ResCNetClassifier(ONE_LAYER, store=tmp_path / "run", run=RUN).fit(X, labels)
    clf.save(tmp_path / "network")
    for url in (tmp_path / "run", tmp_path / "network"):
        again = rd.load(url)
        assert again.classes_.tolist() == clf.classes_.tolist() == sorted(set(labels))
        assert again.predict(X_TEST).tolist() == clf.predict(X_TEST).tolist()


def test_probabilities_sum_to_one_and_agree_with_the_prediction(fitted: ResCNetClassifier) -> None:
    """None is negative."""
    chances = fitted.predict_proba(X_TEST)
    assert chances.shape == (50, 10)
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-9)
    assert chances.min() >= 0
    np.testing.assert_array_equal(fitted.classes_[chances.argmax(axis=1)], fitted.predict(X_TEST))


def test_scores_are_shares_of_right_predictions(fitted: ResCNetClassifier) -> None:
    """After the last layer and after each; weights count, unknown labels are errors."""
    right = fitted.predict(X_TEST) == Y_TEST
    assert fitted.score(X_TEST, Y_TEST) == right.mean()
    weights = np.linspace(0, 1, 50)
    weighted = fitted.score(X_TEST, Y_TEST, sample_weight=weights)
    assert weighted == pytest.approx((right * weights).sum() / weights.sum())
    staged = fitted.staged_score(X_TEST, Y_TEST)
    assert staged.shape == (2,)
    assert staged[-1] == fitted.score(X_TEST, Y_TEST)
    assert fitted.score(X_TEST, np.full(50, 77)) == 0
    assert fitted.staged_score(X_TEST, ["unknown"] * 50).tolist() == [0, 0]


def test_labels_after_each_layer(fitted: ResCNetClassifier) -> None:
    """The last are the predictions; their shares right are the staged scores; lazy of lazy."""
    staged = fitted.staged_predict(X_TEST)
    assert staged.shape == (2, 50)
    np.testing.assert_array_equal(staged[-1], fitted.predict(X_TEST))
    np.testing.assert_array_equal(
        (staged == Y_TEST).mean(axis=1), fitted.staged_score(X_TEST, Y_TEST)
    )
    assert (staged[0] != staged[1]).any()
    with dask.config.set(scheduler=refuse):
        lazy = fitted.staged_predict(da.from_array(X_TEST, chunks=(20, 14, 14, 1)))
    assert lazy.chunks == ((2,), (20, 20, 10))
    np.testing.assert_array_equal(lazy.compute(), staged)
    flipped = fitted.staged_predict(X_TEST, augment=FLIPS)
    np.testing.assert_array_equal(flipped[-1], fitted.predict(X_TEST, augment=FLIPS))


def test_flips_average_over_an_image_and_its_mirror_image(fitted: ResCNetClassifier) -> None:
    """Left and right are exchanged, not top and bottom."""
    straight = fitted.decision_function(X_TEST)
    mirrored = fitted.decision_function(X_TEST[:, :, ::-1])
    both = fitted.decision_function(X_TEST, augment=FLIPS)
    np.testing.assert_allclose(both, (straight + mirrored) / 2, atol=1e-6)
    assert np.abs(both - straight).max() > 0.01
    labels = fitted.classes_[both.argmax(axis=1)]
    np.testing.assert_array_equal(fitted.predict(X_TEST, augment=FLIPS), labels)
    assert fitted.score(X_TEST, Y_TEST, augment=FLIPS) == np.mean(labels == Y_TEST)
    assert fitted.staged_score(X_TEST, Y_TEST, augment=FLIPS)[-1] == np.mean(labels == Y_TEST)


@pytest.mark.filterwarnings("ignore")
def test_images_beyond_single_precision_are_refused(fitted: ResCNetClassifier) -> None:
    """Rather than all taken for the first class, as an argmax of NaN has it."""
    images = X[:3].astype(np.float64)
    images[1] *= 1e25
    with pytest.raises(rd.DataError, match=r"image 1 of X has values .*e\+27.* same scale"):
        fitted.predict(images)


@pytest.mark.filterwarnings("ignore")
def test_held_out_images_beyond_single_precision_are_refused(client: Client) -> None:
    """Rather than a depth chosen by scores that are no numbers."""
    far = X[:30].astype(np.float64) * 1e25
    clf = ResCNetClassifier(ONE_LAYER.replace(max_layers=2), run=RUN.replace(validation=0.0))
    with pytest.raises(rd.DataError, match=r"0 images to train on and 30 that are held out"):
        clf.fit(X[30:].astype(np.float64), Y[30:], validation=(far, Y[:30]))


def test_images_on_another_scale_are_warned_of(fitted: ResCNetClassifier) -> None:
    """As are those divided by 255, which are one dark gray to the network."""
    with pytest.warns(UserWarning, match=r"values from 0 to 1, .* trained on values from 0 to 255"):
        fitted.predict(X[:5].astype(np.float32) / 255)
    lazy = da.from_array(X[:50].astype(np.float32) / 255, (20, -1, -1, -1))
    for scored in (fitted.score, fitted.staged_score):  # which compute it all anyway
        with pytest.warns(UserWarning, match=r"values from 0 to 1, .* trained on values"):
            scored(lazy, Y[:50])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.predict(X[:5].astype(np.float32))


def test_images_without_channels_can_be_trained_on(client: Client) -> None:
    """(N, H, W) gives the model of (N, H, W, 1)."""
    flat = ResCNetClassifier(ONE_LAYER, run=RUN).fit(X[..., 0], Y)
    deep = ResCNetClassifier(ONE_LAYER, run=RUN).fit(X, Y)
    np.testing.assert_array_equal(
        flat.decision_function(X_TEST[..., 0]), deep.decision_function(X_TEST)
    )


def test_training_data_may_be_lazy(client: Client, tmp_path: Path) -> None:
    """Dask images and labels in any chunks give the bits that NumPy ones give."""
    reference = ResCNetClassifier(ONE_LAYER, run=RUN).fit(X, Y).decision_function(X_TEST)
    lazy_x, lazy_y = da.from_array(X, chunks=(33, 7, 14, 1)), da.from_array(Y, chunks=50)
    dims = ("image", "y", "x", "channel")
    for images, labels in (
        (lazy_x, Y.tolist()),
        (xr.DataArray(X, dims=dims), xr.DataArray(lazy_y)),
    ):
        clf = ResCNetClassifier(ONE_LAYER, run=RUN).fit(images, labels)
        np.testing.assert_array_equal(clf.decision_function(X_TEST), reference)


# seeds ------------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_models_and_none_gives_another_each_time(client: Client) -> None:
    """random_state wins over the seed of the run spec."""
    run = RUN.replace(seed=99, validation=0.2)

    def scores(seed: int | None) -> Array:
        clf = ResCNetClassifier(ONE_LAYER, run=run, random_state=seed).fit(X, Y)
        return clf.decision_function(X_TEST)

    np.testing.assert_array_equal(scores(1), scores(1))
    assert not np.array_equal(scores(None), scores(None))


# stored forms -----------------------------------------------------------------------------------


def test_a_saved_classifier_predicts_the_same_bits(
    fitted: ResCNetClassifier, tmp_path: Path
) -> None:
    """Eagerly and lazily, from a network that was in memory; and it can be saved again."""
    fitted.save(tmp_path / "network")
    again = ResCNetClassifier.load(tmp_path / "network")
    for number in (2, 3):
        np.testing.assert_array_equal(
            again.decision_function(X_TEST), fitted.decision_function(X_TEST)
        )
        assert (again.depth_, again.spec) == (2, SPEC)
        np.testing.assert_array_equal(again.classes_, fitted.classes_)
        again.save(tmp_path / f"network {number}")
        again = rd.load(tmp_path / f"network {number}")
    lazy = again.predict(da.from_array(X_TEST, chunks=(20, 14, 14, 1)))
    np.testing.assert_array_equal(lazy.compute(), fitted.predict(X_TEST))


def test_a_saved_network_is_not_overwritten(fitted: ResCNetClassifier, tmp_path: Path) -> None:
    """Nor is anything else."""
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(rd.StoreError, match="already holds something: choose another URL"):
        fitted.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_labels_that_cannot_be_saved_leave_nothing_behind(client: Client, tmp_path: Path) -> None:
    """A network in memory may have labels of any kind; a stored one may not."""
    labels = [frozenset([y]) for y in Y.tolist()]
    clf = ResCNetClassifier(ONE_LAYER, run=RUN).fit(X, labels)
    with pytest.raises(rd.DataError, match="cannot be stored"):
        clf.save(tmp_path / "network")
    assert not (tmp_path / "network").exists()


def test_a_run_store_loads_as_the_classifier_that_made_it(client: Client, tmp_path: Path) -> None:
    """With its accuracies, at the chosen depth."""
    clf = ResCNetClassifier(SPEC, store=str(tmp_path / "run"), run=RUN).fit(X, Y, validation=0.2)
    assert clf.run_url_ == str(tmp_path / "run")
    again = rd.load(tmp_path / "run")
    assert again.accuracies_ == clf.accuracies_
    assert again.depth_ == clf.depth_
    np.testing.assert_array_equal(again.predict(X_TEST), clf.predict(X_TEST))


def test_a_fitted_classifier_can_be_pickled(fitted: ResCNetClassifier) -> None:
    """As scikit-learn users do; its temporary store is not needed."""
    again = pickle.loads(pickle.dumps(fitted))
    assert again.get_params() == fitted.get_params()
    np.testing.assert_array_equal(again.predict(X_TEST), fitted.predict(X_TEST))


def test_the_temporary_store_is_gone_after_fit(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After success, after an error, and after an interruption."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[int] = []

    def look(event: Any) -> None:
        seen.append(len(list(tmp_path.iterdir())))

    def stop(event: Any) -> None:
        raise KeyboardInterrupt

    ResCNetClassifier(ONE_LAYER, run=RUN, listeners=[look]).fit(X, Y)
    assert max(seen) == 1  # it was there
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        ResCNetClassifier(ONE_LAYER, run=RUN, listeners=[stop]).fit(X, Y)
    assert list(tmp_path.iterdir()) == []


# clusters ---------------------------------------------------------------------------------------


@pytest.fixture
def no_cluster_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test in which an embedded cluster is started."""

    def refuse_cluster(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr(connect, "LocalCluster", refuse_cluster)
    return


@pytest.mark.usefixtures("no_cluster_of_its_own")
def test_the_current_client_is_used(
    client: Client, threads_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Every task of a fit runs on its cluster, and it is still open afterwards."""
    ran: list[str] = []
    scheduler = threads_cluster.scheduler
    before = dict(scheduler.task_prefixes)
    done = {name: prefix.state_counts["memory"] for name, prefix in before.items()}
    ResCNetClassifier(ONE_LAYER, store=tmp_path / "run", run=RUN).fit(X, Y)
    for name, prefix in scheduler.task_prefixes.items():
        ran += [name] * (prefix.state_counts["memory"] - done.get(name, 0))
    assert ran.count("survey-fold") == ran.count("grow-fold") == ran.count("score-fold") == 2
    assert client.status == "running"
    assert get_client() is client


def test_without_a_client_nothing_is_left_behind(tmp_path: Path) -> None:
    """The embedded cluster ends with the fit, or with its error; none becomes the current one."""
    open_before = {c for c in LocalCluster._instances if c.status.name == "running"}
    clf = ResCNetClassifier(ONE_LAYER, run=RUN).fit(X, Y)

    def fail(event: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ResCNetClassifier(ONE_LAYER, store=tmp_path / "run", listeners=[fail]).fit(X, Y)
    again = ResCNetClassifier.resume(tmp_path / "run")
    assert {c for c in LocalCluster._instances if c.status.name == "running"} == open_before
    with pytest.raises(ValueError, match="No global client"):
        get_client()
    assert clf.predict(X_TEST).shape == again.predict(X_TEST).shape


def test_predictions_use_the_current_client_too(
    fitted: ResCNetClassifier, client: Client, threads_cluster: LocalCluster
) -> None:
    """Of images in memory and of lazy ones, with the same outcome."""
    before = threads_cluster.scheduler.transition_counter
    expected = fitted.predict(X_TEST)
    assert threads_cluster.scheduler.transition_counter > before
    lazy = fitted.predict(da.from_array(X_TEST, chunks=(20, 14, 14, 1)))
    np.testing.assert_array_equal(lazy.compute(), expected)
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(lazy.compute(), expected)


def test_two_networks_never_share_a_result_on_a_cluster(
    fitted: ResCNetClassifier, client: Client
) -> None:
    """While the cluster holds the scores by one, those by another are computed anew."""
    lazy = da.from_array(X_TEST, chunks=(50, 14, 14, 1))
    held = fitted.decision_function(lazy).persist()
    other = ResCNetClassifier(SPEC, run=RUN, random_state=1).fit(X, Y)
    scores = other.decision_function(lazy).compute()
    np.testing.assert_array_equal(scores, other.decision_function(X_TEST))
    assert not np.array_equal(scores, held.compute())


def test_a_network_with_other_layers_is_another_to_a_cluster(
    fitted: ResCNetClassifier, client: Client
) -> None:
    """While the cluster holds the scores by all of its layers, those by the first are its own."""
    network, images = fitted.network_, Images(da.from_array(X_TEST, chunks=(50, 14, 14, 1)))
    held = network.scores(images).persist()
    first = replace(network, layers=network.layers[:1])
    found = first.scores(images).compute()
    np.testing.assert_array_equal(found, network.staged_scores(images).compute()[:, 0])
    assert not np.array_equal(found, held.compute())


def test_a_run_spec_sets_the_plan(client: Client, tmp_path: Path) -> None:
    """What it leaves open is planned for the cluster; validation given to fit wins."""
    run = RunSpec(chunk_images=33, split_every=3)
    ResCNetClassifier(ONE_LAYER, store=tmp_path / "run", run=run).fit(X, Y, validation=0.25)
    attributes = RunStore.open(tmp_path / "run").attributes()
    assert attributes["plan"] == {
        "images": N, "chunk_images": 33, "accumulators": 2, "split_every": 3, "solve_threads": 2,
        "tile_features": None,
    }  # fmt: skip
    assert attributes["run"]["validation"] == 0.25


def test_fit_inside_a_task_does_not_block_its_worker(tmp_path: Path) -> None:
    """As a search over settings on a cluster does it: the task hands its only thread back."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as one,
        Client(one) as client,
    ):
        clf = ResCNetClassifier(SPEC.replace(max_layers=1), run=RUN)
        fitted = client.submit(lambda: clf.fit(X[:60], Y[:60])).result(timeout=60)
    assert fitted.depth_ == 1


def test_two_classes_follow_scikit_learn(client: Client) -> None:
    """One score per image, positive for the second class, as its scorers expect."""
    two = Y < 2
    images, labels = X[two], np.array(["no", "yes"])[Y[two]]
    clf = ResCNetClassifier(SPEC.replace(max_layers=1), run=RUN).fit(images, labels)
    ahead = clf.decision_function(images)
    assert ahead.shape == (len(images),)
    np.testing.assert_array_equal(np.where(ahead > 0, "yes", "no"), clf.predict(images))
    assert cross_val_score(clf, images, labels, cv=2, scoring="roc_auc").min() > 0.9


def test_a_random_state_object_gives_the_seed(client: Client) -> None:
    """As scikit-learn has it: the same stream, the same network."""
    fits = [
        ResCNetClassifier(
            SPEC.replace(max_layers=1), run=RUN, random_state=np.random.RandomState(seed)
        ).fit(X[:60], Y[:60])
        for seed in (1, 1, 2)
    ]
    one, same, other = (clf.network_.layers[0].bank.filters for clf in fits)
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
