"""Errors for bad input: messages with value, limit and remedy, and no files left over."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from distributed import Client, LocalCluster

import rescnet_dist as rd
from rescnet_dist import (
    DataError,
    NetworkSpec,
    ResCNetClassifier,
    RescnetError,
    RunSpec,
    SpecError,
    StoreError,
)
from rescnet_dist.store import FORMAT_VERSION, RunStore

Array = np.ndarray[Any, Any]

X, Y = (array[:20] for array in rd.load_digits())
X = X[:, ::2, ::2]
FLOATS = X.astype(np.float32)
LAZY = da.from_array(FLOATS, chunks=(6, 14, 14, 1))
SPEC = NetworkSpec(filters=4, block=5, stride=2, head="regress", max_layers=1)
RUN = RunSpec(validation=0, chunk_images=8, accumulators=2, solve_threads=1)


@dataclass(frozen=True)
class Context:
    """The context of a case: an empty folder for a run, and a fitted classifier."""

    folder: Path
    fitted: ResCNetClassifier

    @property
    def store(self) -> Path:
        """URL of a store that does not exist."""
        return self.folder / "run"


def fit(
    images: Any = X, labels: Any = Y, spec: Any = SPEC, validation: Any = None, **parameters: Any
) -> Callable[[Context], Any]:
    """Return a case that trains into a store."""

    def action(context: Context) -> None:
        given = {"store": context.store, "run": RUN, **parameters}
        clf = ResCNetClassifier(spec, **given)
        clf.fit(images, labels, validation=validation)

    return action


def predict(images: Any, method: str = "predict") -> Callable[[Context], Any]:
    """Return a case that predicts with a fitted classifier and computes the result."""

    def action(context: Context) -> None:
        np.asarray(getattr(context.fitted, method)(images))

    return action


def set_pixel(value: float, image: int = 7) -> Array:
    """Return the images with one pixel changed."""
    changed = FLOATS.copy()
    changed[image, 3, 4, 0] = value
    return changed


def to_dask(images: Array) -> da.Array:
    """Return images as a dask array in chunks of six."""
    return da.from_array(images, chunks=(6, *images.shape[1:]))


def set_label(label: Any, where: int = 5) -> Array:
    """Return the labels as objects with one changed."""
    labels = Y.astype(object)
    labels[where] = label
    return labels


def forget_chunk_sizes(array: da.Array) -> da.Array:
    """Return the array with chunks of unknown length."""
    return array[da.from_array(np.ones(len(array), bool), chunks=array.chunks[0])]


def in_zarr(
    then: Callable[[str], Callable[[Context], Any]], **arrays: Any
) -> Callable[[Context], Any]:
    """Return a case on the URL of a Zarr group of some arrays."""

    def action(context: Context) -> None:
        with tempfile.TemporaryDirectory() as folder:
            group = zarr.open_group(f"{folder}/data.zarr", mode="w")
            for name, values in arrays.items():
                group.create_array(name, data=values, chunks=(6, *values.shape[1:]))
            then(f"{folder}/data.zarr")(context)

    return action


def at_a_run(then: Callable[[Path], Any], **attributes: Any) -> Callable[[Context], Any]:
    """Return a case on a run with these attributes, which must not change."""

    def action(context: Context) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run = RunStore.create(f"{folder}/run", {})
            run.update_attributes(
                **{"network": SPEC.to_dict(), "run": RUN.to_dict(), "data_complete": True}
                | attributes
            )
            before = run.location.attributes()
            try:
                then(Path(folder) / "run")
            finally:
                assert run.location.attributes() == before
                assert run.location.names() == ["zarr.json"]

    return action


def at_something_else(then: Callable[[Path], Any]) -> Callable[[Context], Any]:
    """Return a case on a folder with another file, which must not change."""

    def action(context: Context) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "thesis.txt").write_text("years of work")
            try:
                then(Path(folder))
            finally:
                assert [file.name for file in Path(folder).iterdir()] == ["thesis.txt"]

    return action


def at_a_network(then: Callable[[Path], Any]) -> Callable[[Context], Any]:
    """Return a case on a saved network."""

    def action(context: Context) -> None:
        with tempfile.TemporaryDirectory() as folder:
            context.fitted.save(Path(folder) / "network")
            then(Path(folder) / "network")

    return action


def fit_into(store: Path) -> None:
    """Train into a store."""
    ResCNetClassifier(SPEC, store=store, run=RUN).fit(X, Y)


NEWER = FORMAT_VERSION + 1
Case = tuple[Callable[[Context], Any], type[RescnetError], list[str]]

IMAGES: dict[str, Case] = {
    "a table": (fit(X.reshape(20, -1)), DataError, ["X has shape (20, 196)", "(N, H, W)"]),
    "rank five": (fit(X[None]), DataError, ["shape (1, 20, 14, 14, 1)", "(N, H, W, channels)"]),
    "no images": (fit(X[:0], Y[:0]), DataError, ["(0, 14, 14, 1)", "empty", "at least one image"]),
    "no pixels": (fit(X[:, :0]), DataError, ["(20, 0, 14, 1)", "empty"]),
    "no lazy images": (fit(LAZY[:0], Y[:0]), DataError, ["(0, 14, 14, 1)", "empty"]),
    "ragged images": (fit([[1], [1, 2]]), DataError, ["X is not an array of images"]),
    "a dataset": (
        fit(xr.Dataset({"photos": (("n", "y", "x"), X[..., 0])})),
        DataError,
        ["The Dataset has the variables ['photos']", "Name the one with the images images"],
    ),
    "channels first": (
        fit(np.zeros((20, 3, 32, 32), np.uint8)),
        DataError,
        ["X has shape (20, 3, 32, 32)", "channels-first", "Pass X.transpose(0, 2, 3, 1)"],
    ),
    "gray channels first, lazily": (
        fit(da.transpose(LAZY, (0, 3, 1, 2))),
        DataError,
        ["X has shape (20, 1, 14, 14)", "channels-first", "Pass X.transpose(0, 2, 3, 1)"],
    ),
    "constant images": (
        fit(np.full_like(X, 7)),
        DataError,
        ["All pixels of all training images have the value 7", "check how they are loaded"],
    ),
    "constant images, lazily": (
        fit(da.zeros_like(LAZY)),
        DataError,
        ["All pixels of all training images have the value 0", "check how they are loaded"],
    ),
    "objects": (fit(X.astype(object)), DataError, ["dtype object", "must be numbers"]),
    "complex": (fit(X.astype(complex)), DataError, ["dtype complex128", "must be numbers"]),
    "text": (fit(X.astype(str)), DataError, ["dtype <U", "must be numbers"]),
    "nan": (
        fit(set_pixel(np.nan)),
        DataError,
        ["Image 7 of X", "pixel value nan", "replace or drop"],
    ),
    "larger than single precision": (
        fit(X.astype(np.float64) * 1e300),
        DataError,
        [
            "Image 0 of X",
            "pixel value 3e+301",
            "The largest value in single precision is 3.4e+38",
            "divide all images",
        ],
    ),
    "infinite": (fit(set_pixel(-np.inf)), DataError, ["Image 7 of X", "pixel value -inf"]),
    "lazy nan": (
        fit(to_dask(set_pixel(np.nan, 13))),
        DataError,
        ["Image 13 of X", "pixel value nan", "replace or drop"],
    ),
    "lazy infinite": (
        fit(to_dask(set_pixel(np.inf, 19))),
        DataError,
        ["Image 19 of X", "pixel value inf"],
    ),
    "nan at a URL": (
        in_zarr(lambda url: fit(url), images=set_pixel(np.nan), labels=Y),
        DataError,
        ["Image 7 of X", "pixel value nan"],
    ),
    "unknown chunks": (
        fit(forget_chunk_sizes(LAZY)),
        DataError,
        ["X has chunks of unknown length", "compute_chunk_sizes()"],
    ),
    "missing URL": (
        lambda context: fit(str(context.folder / "nowhere"), None)(context),
        DataError,
        ["nowhere", "Check the path"],
    ),
    "missing path": (
        lambda context: fit(context.folder / "nowhere", None)(context),
        DataError,
        ["nowhere", "Check the path"],
    ),
    "unknown protocol": (fit("ftq://host/data", None), RescnetError, ["ftq"]),
    "URL without images": (
        in_zarr(lambda url: fit(url, None), pictures=X, labels=Y),
        DataError,
        ["data.zarr has the variables ['labels', 'pictures']", "images or image"],
    ),
    "URL without labels": (
        in_zarr(lambda url: fit(url, None), images=X, classes=Y),
        DataError,
        ["data.zarr has no labels", "Name the variable labels"],
    ),
}

LABELS: dict[str, Case] = {
    "missing": (fit(labels=None), DataError, ["y is missing", "URL of a dataset"]),
    "too few": (fit(labels=Y[:19]), DataError, ["19 labels for 20 images", "one label per image"]),
    "lazy, too many": (
        fit(labels=da.from_array(np.tile(Y, 2), chunks=7)),
        DataError,
        ["40 labels for 20 images"],
    ),
    "one-hot": (fit(labels=np.eye(10)[Y]), DataError, ["y has shape (20, 10)", "vector (N,)"]),
    "a number": (fit(labels=5), DataError, ["y", "vector (N,)"]),
    "one class": (
        fit(labels=np.full(20, 3)),
        DataError,
        ["the one class 3 only", "at least 2"],
    ),
    "one class, text": (
        fit(labels=["cat"] * 20),
        DataError,
        ["the one class 'cat' only", "at least 2"],
    ),
    "dictionaries": (fit(labels=[{"a": 1}] * 20), DataError, ["hashable", "dict"]),
    "sets": (fit(labels=[{1, 2}] * 20), DataError, ["hashable", "set"]),
    "ragged lists": (fit(labels=[[1], [1, 2]] * 10), DataError, ["hashable", "list"]),
    "nan": (
        fit(labels=np.where(Y == 3, np.nan, Y)),
        DataError,
        ["NaN", "Give every image a class"],
    ),
    "lazy nan": (
        fit(labels=da.from_array(np.where(Y == 3, np.nan, Y), chunks=6)),
        DataError,
        ["NaN", "Give every image a class"],
    ),
    "nan among objects": (
        fit(labels=set_label(float("nan"))),
        DataError,
        ["NaN", "Give every image a class"],
    ),
    "none": (fit(labels=set_label(None)), DataError, ["y has None", "Give every image a class"]),
    "not available": (
        fit(labels=pd.Series(Y.tolist(), dtype="Int64").where(Y != 3)),
        DataError,
        ["y has NA", "Give every image a class"],
    ),
    "continuous": (
        fit(labels=np.linspace(0, 1, 20)),
        DataError,
        ["Unknown label type: continuous", "y has the label 0.0526316", "Round the values"],
    ),
    "continuous, lazily": (
        fit(labels=da.from_array(np.linspace(0, 1, 20), chunks=6)),
        DataError,
        ["Unknown label type: continuous", "Round the values"],
    ),
    "continuous objects": (
        fit(labels=set_label(2.5)),
        DataError,
        ["Unknown label type: continuous", "y has the label 2.5"],
    ),
    "numbers and text": (
        fit(labels=set_label("three")),
        DataError,
        ["labels of several types", "5 (number) and 'three' (str)", "Convert all labels"],
    ),
    "numbers and text in different chunks": (
        fit(labels=da.from_array(np.array([*range(10), *"abcdefghij"], object), chunks=10)),
        DataError,
        ["labels of several types", "0 (number) and 'a' (str)"],
    ),
    "numbers and bool": (
        fit(labels=set_label(True)),
        DataError,
        ["labels of several types", "True (bool) and 5 (number)"],
    ),
    "no time": (
        fit(labels=np.array(["NaT", "2024-02-29"] * 10, "M8[D]")),
        DataError,
        ["NaT", "Give every image a class"],
    ),
    "unknown chunks": (
        fit(labels=forget_chunk_sizes(da.from_array(Y, chunks=6))),
        DataError,
        ["y has chunks of unknown length", "compute_chunk_sizes()"],
    ),
    "sets that cannot be stored": (
        fit(labels=[frozenset([y]) for y in Y.tolist()]),
        DataError,
        ["of type frozenset cannot be stored", "map your labels"],
    ),
    "dates that cannot be stored": (
        fit(labels=[datetime.date(2024, 1, 1 + y) for y in Y.tolist()]),
        DataError,
        ["of type date cannot be stored", "map your labels"],
    ),
    "complex numbers that cannot be stored": (
        fit(labels=Y * 1j),
        DataError,
        ["of type complex cannot be stored", "map your labels"],
    ),
}

VALIDATION: dict[str, Case] = {
    "too large a share": (
        fit(validation=0.95),
        SpecError,
        ["validation=0.95 is out of range", "at least 0 and at most 0.9"],
    ),
    "a negative share": (fit(validation=-0.1), SpecError, ["validation=-0.1 is out of range"]),
    "no number": (fit(validation=float("nan")), SpecError, ["validation=nan is out of range"]),
    "a word": (fit(validation="some"), RescnetError, ["validation='some'", "fraction"]),
    "images only": (fit(validation=(X,)), RescnetError, ["validation", "(X, y)"]),
    "a triple": (fit(validation=(X, Y, Y)), RescnetError, ["validation", "(X, y)"]),
    "too few images to split": (
        fit(X[:4], Y[:4], validation=0.1),
        DataError,
        ["validation=0.1 cannot be held out of 4 images", "at least 10 images", "validation set"],
    ),
    "too few images to train": (
        fit(X[:8], [*range(8)], validation=0.5),
        DataError,
        ["validation=0.5 cannot be held out of 8 images of 8 classes", "at least 16 images"],
    ),
    "an unseen class": (
        fit(validation=(X, ["eleven"] * 20)),
        DataError,
        ["validation y has the label 'eleven'", "The classes are [0, 1, 2"],
    ),
    "an unseen class, lazily": (
        fit(validation=(LAZY, da.from_array(np.full(20, 11), chunks=6))),
        DataError,
        ["validation y has the label 11", "The classes are [0, 1, 2"],
    ),
    "another size": (
        fit(validation=(X[:, 1:], Y)),
        DataError,
        ["Validation images are (13, 14, 1)", "(14, 14, 1)", "one shape"],
    ),
    "other channels": (
        fit(validation=(np.repeat(X, 3, axis=3), Y)),
        DataError,
        ["Validation images are (14, 14, 3)", "(14, 14, 1)", "one shape"],
    ),
    "labels of another length": (
        fit(validation=(X, Y[:3])),
        DataError,
        ["validation y has 3 labels for 20 images"],
    ),
    "nan": (
        fit(validation=(set_pixel(np.nan), Y)),
        DataError,
        ["Image 7 of validation X", "pixel value nan"],
    ),
    "lazy nan": (
        fit(validation=(to_dask(set_pixel(np.nan)), Y)),
        DataError,
        ["Image 7 of validation X", "pixel value nan"],
    ),
}

SPECS: dict[str, Case] = {
    "unknown preset": (
        fit(spec="mnits"),
        SpecError,
        ["Unknown preset 'mnits'", "Did you mean 'mnist'?", "cifar10"],
    ),
    "unknown option": (
        lambda context: SPEC.replace(filtres=3),
        SpecError,
        ["NetworkSpec has no option 'filtres'", "Did you mean 'filters'?"],
    ),
    "unknown option of a run": (
        lambda context: RUN.replace(chunk_image=3),
        SpecError,
        ["RunSpec has no option 'chunk_image'", "Did you mean 'chunk_images'?"],
    ),
    "unknown choice": (
        lambda context: SPEC.replace(head="regres"),
        SpecError,
        ["head 'regres'", "Did you mean 'regress'?", "classify"],
    ),
    "a dictionary with an unknown option": (
        fit(spec={"filter": 4}),
        SpecError,
        ["filter", "Did you mean"],
    ),
    "a run spec for a spec": (fit(spec=RUN), SpecError, ["is not a NetworkSpec"]),
    "a dictionary for a run spec": (fit(run={"seed": 1}), SpecError, ["run=", "RunSpec"]),
    "block too large": (
        fit(spec=SPEC.replace(block=15)),
        SpecError,
        ["block=15 is larger than the image (14×14 pixels)", "block of at most 14"],
    ),
    "filter too large": (
        fit(spec=SPEC.replace(first_filter_size=20)),
        SpecError,
        ["first_filter_size=20 is larger than the image", "at most 14"],
    ),
    "too many PCA filters": (
        fit(spec=SPEC.replace(filters=10, lda_fraction=0.0)),
        SpecError,
        [
            "filters=10",
            "the 9 directions",
            "first_filter_size of at least 4",
            "lda_fraction above 0",
        ],
    ),
    "too many PCA filters of patches without their mean": (
        fit(spec=SPEC.replace(filters=9, bank="pca+center")),
        SpecError,
        ["filters=9", "the 8 directions", "filters of at most 8"],
    ),
    "patience without validation": (
        fit(spec=SPEC.replace(patience=2)),
        SpecError,
        ["patience=2", "there are no validation images", "omit patience"],
    ),
    "floor above the rate": (
        lambda context: SPEC.replace(learning_rate=0.1, rate_floor=0.5),
        SpecError,
        ["rate_floor=0.5 is above learning_rate=0.1", "lower floor"],
    ),
    "options of another solver": (
        lambda context: SPEC.replace(cg_iterations=3),
        SpecError,
        ['cg_iterations=3 has no effect with solver="exact"', 'use solver="cg"'],
    ),
    "options of a pyramid that there is none of": (
        lambda context: NetworkSpec(features="binary-hash", filters=8, hash_pool="sum"),
        SpecError,
        ["pool='sum' has no effect without the levels of a pyramid", "give levels"],
    ),
    "patience with one head": (
        lambda context: SPEC.replace(heads="last", patience=2),
        SpecError,
        ['patience=2 has no effect with heads="last"', "Leave it out"],
    ),
    "precision of integer features": (
        lambda context: NetworkSpec(features="binary-hash", filters=8, feature_dtype="float16"),
        SpecError,
        ["feature_dtype='float16' has no effect", "features are integers", "Leave it out"],
    ),
    "precision of features with a kernel": (
        lambda context: SPEC.replace(head="kernel-ridge", feature_dtype="float16"),
        SpecError,
        ["feature_dtype='float16' has no effect", "head=kernel-ridge", "store_dtype='float16'"],
    ),
    "negative seed": (fit(random_state=-1), SpecError, ["seed=-1 is out of range", "at least 0"]),
    "a word for a seed": (fit(random_state="lucky"), RescnetError, ["random_state='lucky'"]),
}

STORES: dict[str, Case] = {
    "another run": (
        at_a_run(fit_into),
        StoreError,
        [
            *("already holds another run", "Choose another URL", "resume", "overwrite it"),
            *("or_resume=True, --or-resume", "overwrite=True, --overwrite"),
        ],
    ),
    "something else": (
        at_something_else(fit_into),
        StoreError,
        ["already holds something that is not a run", "Choose another URL"],
    ),
    "load a newer run": (
        at_a_run(rd.load, format_version=NEWER),
        StoreError,
        [f"format version {NEWER}", f"reads version {FORMAT_VERSION}", "install a newer release"],
    ),
    "resume a newer run": (
        at_a_run(ResCNetClassifier.resume, format_version=NEWER),
        StoreError,
        [f"format version {NEWER}", "install a newer release"],
    ),
    "resume with no layers": (
        at_a_run(lambda path: ResCNetClassifier.resume(path, max_layers=0)),
        SpecError,
        ["max_layers=0 is out of range", "at least 1"],
    ),
    "load a run without layers": (
        at_a_run(rd.load),
        StoreError,
        ["no finished layer yet", "Resume it first"],
    ),
    "resume nothing": (
        lambda context: ResCNetClassifier.resume(context.store),
        StoreError,
        ["run", "Check the path"],
    ),
    "load nothing": (
        lambda context: rd.load(context.store),
        StoreError,
        ["run", "Check the path"],
    ),
    "resume something else": (
        at_something_else(ResCNetClassifier.resume),
        StoreError,
        ["There is no Zarr group", "Check the path"],
    ),
    "resume a saved network": (
        at_a_network(ResCNetClassifier.resume),
        StoreError,
        ["is not a rescnet-run store", "rescnet-network", "Check the path"],
    ),
    "resume data": (
        in_zarr(lambda url: lambda context: ResCNetClassifier.resume(url), images=X),
        StoreError,
        ["is not a rescnet-run store", "Check the path"],
    ),
    "save over something": (
        lambda context: at_something_else(context.fitted.save)(context),
        StoreError,
        ["already holds something", "Choose another URL"],
    ),
}

PREDICTION: dict[str, Case] = {
    "a table": (predict(X.reshape(20, -1)), DataError, ["X has shape (20, 196)", "(N, H, W)"]),
    "another size": (
        predict(X[:, :, 2:]),
        DataError,
        ["X has images of shape (14, 12, 1)", "trained on (14, 14, 1)", "that shape"],
    ),
    "other channels": (
        predict(np.repeat(LAZY, 3, axis=3), "predict_proba"),
        DataError,
        ["X has images of shape (14, 14, 3)", "trained on (14, 14, 1)"],
    ),
    "one image": (
        predict(X[0]),
        DataError,
        ["X has shape (14, 14, 1) and looks like one image", "X[None] of shape (1, 14, 14, 1)"],
    ),
    "one gray image": (predict(X[0, :, :, 0]), DataError, ["X has shape (14, 14)", "X[None]"]),
    "no images": (predict(X[:0]), DataError, ["(0, 14, 14, 1)", "empty"]),
    "objects": (predict(X.astype(object), "decision_function"), DataError, ["dtype object"]),
    "nan": (predict(set_pixel(np.nan)), DataError, ["Image 7 of X", "pixel value nan"]),
    "lazy nan": (
        predict(to_dask(set_pixel(np.nan, 13))),
        DataError,
        ["Image 13 of X", "pixel value nan"],
    ),
    "unknown chunks": (
        predict(forget_chunk_sizes(LAZY)),
        DataError,
        ["X has chunks of unknown length", "compute_chunk_sizes()"],
    ),
    "labels of another length": (
        lambda context: context.fitted.score(X, Y[:5]),
        DataError,
        ["y has 5 labels for 20 images"],
    ),
    "missing labels": (
        lambda context: context.fitted.staged_score(X),
        DataError,
        ["y is missing", "Give labels"],
    ),
    "unhashable labels": (
        lambda context: context.fitted.score(X, [{1}] * 20),
        DataError,
        ["hashable"],
    ),
    "a layer too many": (
        lambda context: context.fitted.network_.maps(X[:1], 2),
        DataError,
        ["layer=2", "layers 1 to 1"],
    ),
}

CASES = {
    f"{group}: {name}": case
    for group, cases in {
        "images": IMAGES,
        "labels": LABELS,
        "validation": VALIDATION,
        "spec": SPECS,
        "store": STORES,
        "prediction": PREDICTION,
    }.items()
    for name, case in cases.items()
}


@pytest.fixture(scope="module")
def fitted(threads_cluster: LocalCluster) -> ResCNetClassifier:
    """Return a classifier of one layer."""
    with Client(threads_cluster):
        return ResCNetClassifier(SPEC, run=RUN).fit(X, Y)


@pytest.mark.parametrize(("action", "error", "fragments"), CASES.values(), ids=CASES.keys())
def test_bad_input_raises_an_error_with_value_limit_and_remedy(
    action: Callable[[Context], Any],
    error: type[RescnetError],
    fragments: list[str],
    client: Client,
    fitted: ResCNetClassifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One row of the tables above; no store is left over, not even a partial one."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with pytest.raises(error) as caught:
        action(Context(tmp_path / "work", fitted))
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message
    assert "np." not in message, "values must be printed as users write them"
    assert list((tmp_path / "work").iterdir()) == []
    assert list((tmp_path / "temporary").iterdir()) == []


def test_store_can_be_used_after_an_error(client: Client, tmp_path: Path) -> None:
    """The corrected data can be trained on."""
    clf = ResCNetClassifier(SPEC, store=tmp_path / "run", run=RUN)
    with pytest.raises(DataError, match="Image 13 of X"):
        clf.fit(to_dask(set_pixel(np.nan, 13)), Y)
    assert clf.fit(LAZY, Y).depth_ == 1


def test_any_labels_can_be_trained_on_without_a_store(client: Client) -> None:
    """Only the store cannot have them, as the message says."""
    labels = [frozenset([y]) for y in Y.tolist()]
    clf = ResCNetClassifier(SPEC, run=RUN).fit(X, labels)
    assert set(clf.predict(X).tolist()) <= set(labels)
