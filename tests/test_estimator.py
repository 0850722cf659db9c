"""The scikit-learn estimator: parameters, predictions in memory and lazily, stores, clusters."""

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
    filters=4, block=5, stride=2, head="regress", ridge=0.3, learning_rate=0.5, max_layers=2
)
ONE_LAYER = SPEC.replace(max_layers=1)
RUN = RunSpec(validation=0, chunk_images=100, accumulators=2, solve_threads=1)
FLIPS = AugmentSpec(copies=1, flip=True)


@pytest.fixture(scope="module")
def fitted(threads_cluster: LocalCluster) -> ResCNetClassifier:
    """Return a classifier of two layers in memory."""
    with Client(threads_cluster):
        return ResCNetClassifier(SPEC, run=RUN).fit(X, Y)


def fail_to_compute(*args: Any, **kwargs: Any) -> None:
    """Fail the test, as a scheduler: nothing may compute while a graph is built."""
    raise AssertionError("computed while a graph was built")


# parameters -------------------------------------------------------------------------------------


def test_init_only_stores_its_parameters() -> None:
    """As scikit-learn requires: even invalid values are kept until fit."""
    names = ("spec", "store", "random_state", "run", "augment", "class_weight")
    given: dict[str, Any] = {name: object() for name in names}
    clf = ResCNetClassifier(given["spec"], **{k: v for k, v in given.items() if k != "spec"})
    assert clf.get_params() == {**given, "listeners": (), "verbose": False}
    assert vars(clf) == clf.get_params()


def test_clone_has_equal_parameters_and_is_not_fitted(fitted: ResCNetClassifier) -> None:
    """Changing it does not change the original."""
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(X_TEST)
    assert copy.set_params(spec="mnist", random_state=3) is copy
    assert (copy.spec, copy.random_state) == ("mnist", 3)
    assert (fitted.spec, fitted.random_state) == (SPEC, 0)
    with pytest.raises(ValueError, match="Invalid parameter 'depth'"):
        copy.set_params(depth=3)


def test_nested_names_are_options_of_the_specs() -> None:
    """A spec is replaced, also the name of a preset; without one, options are kept for `fit`."""
    clf = ResCNetClassifier(SPEC, run=RUN)
    assert clf.get_params()["spec__ridge"] == 0.3
    assert clf.get_params(deep=False).keys() == vars(clf).keys()
    assert clf.set_params(spec__ridge=2.0, run__validation=0.2, random_state=5) is clf
    assert (clf.spec, clf.run) == (SPEC.replace(ridge=2.0), RUN.replace(validation=0.2))
    assert (SPEC.ridge, RUN.validation, clf.random_state) == (0.3, 0, 5)

    clf = ResCNetClassifier().set_params(spec__filters=8, augment__copies=1, augment__flip=True)
    assert clf.set_params(spec__ridge=2.0).spec == {"filters": 8, "ridge": 2.0}
    assert clf.augment == FLIPS
    with pytest.raises(rd.SpecError, match="no option 'rigde'"):
        clf.set_params(spec__rigde=1)
    clf = ResCNetClassifier().set_params(spec="mnist", spec__filters=8, run__seed=3)
    assert clf.spec == NetworkSpec.preset("mnist").replace(filters=8)
    assert clf.run == RunSpec(seed=3)


def test_nested_names_that_are_wrong_raise_spec_error() -> None:
    """The message is that of the spec, and the classifier keeps its spec."""
    clf = ResCNetClassifier(SPEC)
    with pytest.raises(rd.SpecError, match=r"no option 'rigde'\. Did you mean 'ridge'\?"):
        clf.set_params(spec__rigde=1)
    with pytest.raises(rd.SpecError, match=r"ridge=-1 is out of range"):
        clf.set_params(spec__ridge=-1)
    with pytest.raises(rd.SpecError, match=r"spec=3 is not a NetworkSpec"):
        ResCNetClassifier(3).set_params(spec__ridge=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Invalid parameter 'specs'"):
        clf.set_params(specs__ridge=1)
    assert clf.spec == SPEC


def test_clones_share_specs_and_display_them_once() -> None:
    """Specs are frozen; the HTML has no row for each option."""
    clf = ResCNetClassifier(SPEC, run=RUN)
    assert clone(clf).spec is SPEC
    assert "spec__" not in clf._html_repr()


def test_tags_of_an_image_classifier() -> None:
    """It takes images, not tables."""
    clf = ResCNetClassifier()
    assert is_classifier(clf)
    tags = get_tags(clf)
    assert tags.estimator_type == "classifier"
    assert tags.input_tags.three_d_array
    assert not tags.input_tags.two_d_array
    assert tags.target_tags.required


def test_fit_sets_attributes_and_returns_the_classifier(fitted: ResCNetClassifier) -> None:
    """The network, classes, depth and accuracies."""
    assert isinstance(fitted, ResCNetClassifier)
    assert fitted.depth_ == fitted.network_.depth == 2
    assert fitted.classes_.tolist() == list(range(10))
    assert [a["layer"] for a in fitted.accuracies_] == [1, 2]
    assert fitted.run_url_ is None
    assert fitted.score(X, Y) == pytest.approx(fitted.accuracies_[-1]["train"], abs=1 / N)
    assert fitted.score(X_TEST, Y_TEST) > 0.6


@pytest.mark.parametrize("spec", [None, "digits"])
def test_spec_may_be_chosen_or_named(client: Client, tmp_path: Path, spec: str | None) -> None:
    """None gives the settings for these images, a name the preset."""

    def stop(event: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ResCNetClassifier(spec, store=tmp_path / "run", listeners=[stop]).fit(X, Y)
    stored = RunStore.open(tmp_path / "run").attributes()["network"]
    expected = NetworkSpec.preset(spec) if spec else NetworkSpec.auto(X.shape[1:], len(X), 10)
    assert NetworkSpec.from_dict(stored) == expected


# scikit-learn -----------------------------------------------------------------------------------


def test_grid_search_over_specs(client: Client) -> None:
    """Two specs over two folds, then a fit of the better one."""
    weak = ONE_LAYER.replace(filters=2, levels=[1])
    search = GridSearchCV(ResCNetClassifier(run=RUN), {"spec": [weak, ONE_LAYER]}, cv=2)
    search.fit(X[:100], Y[:100])
    assert search.best_params_ == {"spec": ONE_LAYER}
    weak_score, best_score = search.cv_results_["mean_test_score"]
    assert weak_score < best_score
    assert search.predict(X_TEST).shape == (50,)


@pytest.mark.slow
def test_grid_search_over_options(client: Client) -> None:
    """Nested names vary single options of the network and of the run."""
    grid = {"spec__filters": np.array([2, 4]), "run__validation": [0.0, 0.2]}
    search = GridSearchCV(ResCNetClassifier(ONE_LAYER.replace(levels=[1]), run=RUN), grid, cv=2)
    search.fit(X[:100], Y[:100])
    assert len(search.cv_results_["params"]) == 4
    assert len(set(search.cv_results_["mean_test_score"])) > 1
    best = search.best_estimator_
    assert best.spec == ONE_LAYER.replace(levels=[1], filters=search.best_params_["spec__filters"])
    assert best.run == RUN.replace(validation=search.best_params_["run__validation"])
    assert best.network_.spec == best.spec


def test_cross_validation_with_string_labels(client: Client) -> None:
    """Each fold is a new run."""
    names = np.array([f"digit {y}" for y in Y])
    scores = cross_val_score(ResCNetClassifier(ONE_LAYER, run=RUN), X, names, cv=2)
    assert scores.shape == (2,)
    assert scores.min() > 0.4


def test_pipeline(client: Client) -> None:
    """Earlier steps may change the images."""
    invert = FunctionTransformer(lambda images: 255 - images)
    pipeline = make_pipeline(invert, ResCNetClassifier(ONE_LAYER, run=RUN)).fit(X, Y)
    assert pipeline.score(X_TEST, Y_TEST) > 0.4


# lazy predictions -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["predict", "decision_function", "predict_proba"])
@pytest.mark.parametrize("augment", [None, FLIPS], ids=["plain", "averaged"])
def test_predictions_of_a_dask_array_are_lazy(
    fitted: ResCNetClassifier, method: str, augment: AugmentSpec | None
) -> None:
    """The computed result equals that of the same images in memory."""
    lazy = da.from_array(X_TEST, chunks=(20, 14, 14, 1))
    with dask.config.set(scheduler=fail_to_compute):
        result = getattr(fitted, method)(lazy, augment=augment)
    expected = getattr(fitted, method)(X_TEST, augment=augment)
    assert isinstance(result, da.Array)
    assert isinstance(expected, np.ndarray)
    assert result.chunks[0] == (20, 20, 10)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    computed = result.compute(scheduler="sync")
    assert computed.dtype == expected.dtype
    np.testing.assert_allclose(computed, expected, atol=1e-5)


def test_lazy_images_are_loaded_only_when_computed(fitted: ResCNetClassifier) -> None:
    """Only the blocks that are needed are loaded."""

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
    """Neither along images nor within them."""
    images = X[: sum(rows)]
    lazy = da.from_array(images, chunks=(tuple(rows), side, side, 1))
    scores = fitted.decision_function(lazy).compute(scheduler="sync")
    np.testing.assert_allclose(scores, fitted.decision_function(images), atol=1e-5)


def test_predictions_are_equal_for_all_input_types(
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
    expected, accuracy = fitted.predict(X_TEST), fitted.score(X_TEST, Y_TEST)
    for name, source in sources.items():
        np.testing.assert_array_equal(np.asarray(fitted.predict(source)), expected, err_msg=name)
        assert fitted.score(source, Y_TEST) == accuracy, name
        assert fitted.staged_score(source, Y_TEST)[-1] == accuracy, name
    for y in (None, Y_TEST.tolist(), da.from_array(Y_TEST, chunks=7), xr.DataArray(Y_TEST)):
        assert fitted.score(tmp_path / "group", y) == accuracy


# labels and scores ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [str, lambda y: (y, "digit"), lambda y: (y, None), frozenset, bytes]
)
def test_predict_returns_labels_of_any_type(client: Client, name: Any) -> None:
    """As they were given, eagerly and lazily."""
    first = Y < 4
    labels = [name([y]) if name in (frozenset, bytes) else name(y) for y in Y[first].tolist()]
    clf = ResCNetClassifier(ONE_LAYER, run=RUN).fit(X[first], labels)
    predicted = clf.predict(X[first]).tolist()
    assert set(predicted) == set(labels) == set(clf.classes_.tolist())
    assert {type(p) for p in predicted} == {type(label) for label in labels}
    lazy = clf.predict(da.from_array(X[first], chunks=(9, 14, 14, 1))).compute()
    assert lazy.tolist() == predicted
    accuracy = np.mean([p == label for p, label in zip(predicted, labels, strict=True)])
    assert clf.score(X[first], labels) == accuracy > 0.8


def test_stored_networks_return_labels_as_given(client: Client, tmp_path: Path) -> None:
    """From the run, and from a network saved from it."""
    labels = [("digit", y, None) for y in Y.tolist()]
    clf = ResCNetClassifier(ONE_LAYER, store=tmp_path / "run", run=RUN).fit(X, labels)
    clf.save(tmp_path / "network")
    for url in (tmp_path / "run", tmp_path / "network"):
        loaded = rd.load(url)
        assert loaded.classes_.tolist() == clf.classes_.tolist() == sorted(set(labels))
        assert loaded.predict(X_TEST).tolist() == clf.predict(X_TEST).tolist()


def test_probabilities_sum_to_one_and_match_predictions(fitted: ResCNetClassifier) -> None:
    """None is zero."""
    proba = fitted.predict_proba(X_TEST)
    assert proba.shape == (50, 10)
    np.testing.assert_allclose(proba.sum(axis=1), 1, atol=1e-9)
    assert proba.min() > 0
    np.testing.assert_array_equal(fitted.classes_[proba.argmax(axis=1)], fitted.predict(X_TEST))


def test_score_is_the_fraction_of_correct_predictions(fitted: ResCNetClassifier) -> None:
    """After the last layer and after each; weights count."""
    is_correct = fitted.predict(X_TEST) == Y_TEST
    assert fitted.score(X_TEST, Y_TEST) == is_correct.mean()
    weights = np.linspace(0, 1, 50)
    weighted = fitted.score(X_TEST, Y_TEST, sample_weight=weights)
    assert weighted == pytest.approx((is_correct * weights).sum() / weights.sum())
    staged = fitted.staged_score(X_TEST, Y_TEST)
    assert staged.shape == (2,)
    assert staged[-1] == fitted.score(X_TEST, Y_TEST)


@pytest.mark.parametrize("method", ["score", "staged_score", "evaluate"])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([77] * 50, r"the label 77, .* The classes are \[0, 1, .*Pass labels as they were given"),
        (["1"] * 50, "labels are of type str, the classes of type int"),
        ([*Y_TEST[:48].tolist(), 10, 11], r"the labels \[10, 11\], .*Drop the images"),
    ],
    ids=["other", "type", "some"],
)
def test_unknown_labels_are_refused(
    fitted: ResCNetClassifier, method: str, labels: list[Any], message: str
) -> None:
    """Counting their images as errors would hide that the data are not those of the network."""
    with pytest.raises(rd.DataError, match=message):
        getattr(fitted, method)(X_TEST, labels)


def test_staged_predict(fitted: ResCNetClassifier) -> None:
    """The last labels are the predictions, and their accuracies the staged scores."""
    staged = fitted.staged_predict(X_TEST)
    assert staged.shape == (2, 50)
    np.testing.assert_array_equal(staged[-1], fitted.predict(X_TEST))
    np.testing.assert_array_equal(
        (staged == Y_TEST).mean(axis=1), fitted.staged_score(X_TEST, Y_TEST)
    )
    assert (staged[0] != staged[1]).any()
    with dask.config.set(scheduler=fail_to_compute):
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
def test_images_that_overflow_single_precision_are_an_error(fitted: ResCNetClassifier) -> None:
    """An argmax of NaN would give the first class for all."""
    images = X[:3].astype(np.float64)
    images[1] *= 1e25
    with pytest.raises(rd.DataError, match=r"image 1 of X has values .*e\+27.* same scale"):
        fitted.predict(images)


@pytest.mark.filterwarnings("ignore")
def test_validation_images_that_overflow_are_an_error(client: Client) -> None:
    """Otherwise the depth would be chosen by scores that are not finite."""
    large = X[:30].astype(np.float64) * 1e25
    clf = ResCNetClassifier(ONE_LAYER.replace(max_layers=2), run=RUN.replace(validation=0.0))
    with pytest.raises(rd.DataError, match=r"0 training images and 30 validation images have"):
        clf.fit(X[30:].astype(np.float64), Y[30:], validation=(large, Y[:30]))


def test_images_of_another_value_range_give_a_warning(fitted: ResCNetClassifier) -> None:
    """Images divided by 255 are all nearly black to the network."""
    with pytest.warns(UserWarning, match=r"values from 0 to 1, .* trained on values from 0 to 255"):
        fitted.predict(X[:5].astype(np.float32) / 255)
    lazy = da.from_array(X[:50].astype(np.float32) / 255, (20, -1, -1, -1))
    for method in (fitted.score, fitted.staged_score):  # these compute all images anyway
        with pytest.warns(UserWarning, match=r"values from 0 to 1, .* trained on values"):
            method(lazy, Y[:50])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.predict(X[:5].astype(np.float32))


def test_images_without_channels(client: Client) -> None:
    """(n, H, W) gives the model of (n, H, W, 1)."""
    flat = ResCNetClassifier(ONE_LAYER, run=RUN).fit(X[..., 0], Y)
    deep = ResCNetClassifier(ONE_LAYER, run=RUN).fit(X, Y)
    np.testing.assert_array_equal(
        flat.decision_function(X_TEST[..., 0]), deep.decision_function(X_TEST)
    )


def test_lazy_training_data_give_the_same_model(client: Client, tmp_path: Path) -> None:
    """Dask images and labels in any chunks give the same bits as NumPy arrays."""
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


def test_equal_seeds_give_equal_models(client: Client) -> None:
    """random_state overrides the seed of the run spec; None gives another each time."""
    run = RUN.replace(seed=99, validation=0.2)

    def scores(seed: int | None) -> Array:
        clf = ResCNetClassifier(ONE_LAYER, run=run, random_state=seed).fit(X, Y)
        return clf.decision_function(X_TEST)

    np.testing.assert_array_equal(scores(1), scores(1))
    assert not np.array_equal(scores(None), scores(None))


# stored forms -----------------------------------------------------------------------------------


def test_saved_classifier_predicts_the_same_bits(fitted: ResCNetClassifier, tmp_path: Path) -> None:
    """Eagerly and lazily, from a network in memory; it can be saved again."""
    fitted.save(tmp_path / "network")
    loaded = ResCNetClassifier.load(tmp_path / "network")
    for number in (2, 3):
        np.testing.assert_array_equal(
            loaded.decision_function(X_TEST), fitted.decision_function(X_TEST)
        )
        assert (loaded.depth_, loaded.spec) == (2, SPEC)
        np.testing.assert_array_equal(loaded.classes_, fitted.classes_)
        loaded.save(tmp_path / f"network {number}")
        loaded = rd.load(tmp_path / f"network {number}")
    lazy = loaded.predict(da.from_array(X_TEST, chunks=(20, 14, 14, 1)))
    np.testing.assert_array_equal(lazy.compute(), fitted.predict(X_TEST))


def test_save_does_not_overwrite(fitted: ResCNetClassifier, tmp_path: Path) -> None:
    """Neither a network nor anything else."""
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(rd.StoreError, match=r"already holds something\. Choose another URL"):
        fitted.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_labels_that_cannot_be_saved_leave_no_files(client: Client, tmp_path: Path) -> None:
    """A network in memory may have labels of any type; a stored one may not."""
    labels = [frozenset([y]) for y in Y.tolist()]
    clf = ResCNetClassifier(ONE_LAYER, run=RUN).fit(X, labels)
    with pytest.raises(rd.DataError, match="cannot be stored"):
        clf.save(tmp_path / "network")
    assert not (tmp_path / "network").exists()


def test_load_a_run_store(client: Client, tmp_path: Path) -> None:
    """With its accuracies, at the chosen depth."""
    clf = ResCNetClassifier(SPEC, store=str(tmp_path / "run"), run=RUN).fit(X, Y, validation=0.2)
    assert clf.run_url_ == str(tmp_path / "run")
    loaded = rd.load(tmp_path / "run")
    assert loaded.accuracies_ == clf.accuracies_
    assert loaded.depth_ == clf.depth_
    np.testing.assert_array_equal(loaded.predict(X_TEST), clf.predict(X_TEST))


def test_fitted_classifier_can_be_pickled(fitted: ResCNetClassifier) -> None:
    """Its temporary store is not needed."""
    copy = pickle.loads(pickle.dumps(fitted))
    assert copy.get_params() == fitted.get_params()
    np.testing.assert_array_equal(copy.predict(X_TEST), fitted.predict(X_TEST))


def test_temporary_store_is_removed_after_fit(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After success and after an interruption."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    counts: list[int] = []

    def count_files(event: Any) -> None:
        counts.append(len(list(tmp_path.iterdir())))

    def stop(event: Any) -> None:
        raise KeyboardInterrupt

    ResCNetClassifier(ONE_LAYER, run=RUN, listeners=[count_files]).fit(X, Y)
    assert max(counts) == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        ResCNetClassifier(ONE_LAYER, run=RUN, listeners=[stop]).fit(X, Y)
    assert list(tmp_path.iterdir()) == []


# clusters ---------------------------------------------------------------------------------------


@pytest.fixture
def no_embedded_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that starts an embedded cluster."""

    def fail_to_start(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr(connect, "LocalCluster", fail_to_start)
    return


@pytest.mark.usefixtures("no_embedded_cluster")
def test_fit_runs_on_the_current_client(
    client: Client, threads_cluster: LocalCluster, tmp_path: Path
) -> None:
    """All tasks run on its cluster, and it is still open afterwards."""
    tasks: list[str] = []
    scheduler = threads_cluster.scheduler
    before = dict(scheduler.task_prefixes)
    done = {name: prefix.state_counts["memory"] for name, prefix in before.items()}
    ResCNetClassifier(ONE_LAYER, store=tmp_path / "run", run=RUN).fit(X, Y)
    for name, prefix in scheduler.task_prefixes.items():
        tasks += [name] * (prefix.state_counts["memory"] - done.get(name, 0))
    for name in ("survey-fold", "grow-fold", "score-fold"):
        assert tasks.count(name) == 2
    assert client.status == "running"
    assert get_client() is client


def test_embedded_cluster_is_closed_after_fit(tmp_path: Path) -> None:
    """Also after an error; it never becomes the current client."""
    open_before = {c for c in LocalCluster._instances if c.status.name == "running"}
    clf = ResCNetClassifier(ONE_LAYER, run=RUN).fit(X, Y)

    def fail(event: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ResCNetClassifier(ONE_LAYER, store=tmp_path / "run", listeners=[fail]).fit(X, Y)
    resumed = ResCNetClassifier.resume(tmp_path / "run")
    assert {c for c in LocalCluster._instances if c.status.name == "running"} == open_before
    with pytest.raises(ValueError, match="No global client"):
        get_client()
    assert clf.predict(X_TEST).shape == resumed.predict(X_TEST).shape


def test_predictions_run_on_the_current_client(
    fitted: ResCNetClassifier, client: Client, threads_cluster: LocalCluster
) -> None:
    """Lazy images and many in memory do; a few in memory do not. The result is the same."""
    before = threads_cluster.scheduler.transition_counter
    expected = fitted.predict(X_TEST)
    assert threads_cluster.scheduler.transition_counter == before
    repeats = 1 + fitted.network_.predictor.slab_images // len(X_TEST)
    many = fitted.predict(np.concatenate([X_TEST] * repeats))
    assert threads_cluster.scheduler.transition_counter > before
    np.testing.assert_array_equal(many, np.concatenate([expected] * repeats))
    lazy = fitted.predict(da.from_array(X_TEST, chunks=(20, 14, 14, 1)))
    np.testing.assert_array_equal(lazy.compute(), expected)
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(lazy.compute(), expected)


def test_two_networks_have_different_dask_keys(fitted: ResCNetClassifier, client: Client) -> None:
    """Persisted scores of one are not returned for the other."""
    lazy = da.from_array(X_TEST, chunks=(50, 14, 14, 1))
    persisted = fitted.decision_function(lazy).persist()
    other = ResCNetClassifier(SPEC, run=RUN, random_state=1).fit(X, Y)
    scores = other.decision_function(lazy).compute()
    np.testing.assert_array_equal(scores, other.decision_function(X_TEST))
    assert not np.array_equal(scores, persisted.compute())


def test_network_with_other_layers_has_different_dask_keys(
    fitted: ResCNetClassifier, client: Client
) -> None:
    """Persisted scores of all layers are not returned for the first layer."""
    network, images = fitted.network_, Images(da.from_array(X_TEST, chunks=(50, 14, 14, 1)))
    persisted = network.scores(images).persist()
    first = replace(network, layers=network.layers[:1])
    scores = first.scores(images).compute()
    np.testing.assert_array_equal(scores, network.staged_scores(images).compute()[:, 0])
    assert not np.array_equal(scores, persisted.compute())


def test_run_spec_sets_the_plan(client: Client, tmp_path: Path) -> None:
    """Other values are planned for the cluster; validation of fit overrides the spec."""
    run = RunSpec(chunk_images=33, split_every=3)
    ResCNetClassifier(ONE_LAYER, store=tmp_path / "run", run=run).fit(X, Y, validation=0.25)
    attributes = RunStore.open(tmp_path / "run").attributes()
    assert attributes["plan"] == {
        "images": N,
        "chunk_images": 33,
        "accumulators": 2,
        "split_every": 3,
        "solve_threads": 2,
        "tile_features": None,
    }
    assert attributes["run"]["validation"] == 0.25


def test_fit_inside_a_task_does_not_block_its_worker(tmp_path: Path) -> None:
    """As in a search on a cluster: the task gives back its only thread."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as one,
        Client(one) as client,
    ):
        clf = ResCNetClassifier(SPEC.replace(max_layers=1), run=RUN)
        fitted = client.submit(lambda: clf.fit(X[:60], Y[:60])).result(timeout=60)
    assert fitted.depth_ == 1


def test_decision_function_of_two_classes(client: Client) -> None:
    """One score per image, positive for the second class, as in scikit-learn."""
    binary = Y < 2
    images, labels = X[binary], np.array(["no", "yes"])[Y[binary]]
    clf = ResCNetClassifier(SPEC.replace(max_layers=1), run=RUN).fit(images, labels)
    scores = clf.decision_function(images)
    assert scores.shape == (len(images),)
    np.testing.assert_array_equal(np.where(scores > 0, "yes", "no"), clf.predict(images))
    assert cross_val_score(clf, images, labels, cv=2, scoring="roc_auc").min() > 0.9


def test_random_state_object_gives_the_seed(client: Client) -> None:
    """The same stream gives the same network."""
    fits = [
        ResCNetClassifier(
            SPEC.replace(max_layers=1), run=RUN, random_state=np.random.RandomState(seed)
        ).fit(X[:60], Y[:60])
        for seed in (1, 1, 2)
    ]
    one, same, other = (clf.network_.layers[0].bank.filters for clf in fits)
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
