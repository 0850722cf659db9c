"""Runs whose views learn from the images: only training images, same bits on resume, as stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from models import assert_same_bits, read_model
from training_cases import PLAN, REGRESS, RUN, X_OTHER, Y_OTHER, Array, X, Y, fit

from rescnet_dist import DataError, Network, ResCNetClassifier
from rescnet_dist.events import Event, PassDone, PassStarted
from rescnet_dist.train import loop
from rescnet_dist.train.passes import Pass
from rescnet_dist.train.task import Task
from rescnet_dist.train.verify import verify_run

SPEC = REGRESS.replace(bank="pca:0.5@zca,pca:0.5@gcn", max_layers=2)
IMAGES = X[:90]


class Interrupted(KeyboardInterrupt):
    """Raised to stop a run."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> dict[str, Array]:
    """Return the model of a run without a stop."""
    store = tmp_path_factory.mktemp("views") / "run"
    with Client(threads_cluster):
        fit(store, SPEC, PLAN)
    return read_model(store)


@pytest.mark.parametrize("stage", [1, 2])
def test_resume_after_a_stop_gives_same_bits(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: dict[str, Array],
    stage: int,
) -> None:
    """Stop after a pass of the views, before the survey is committed; the run is intact."""
    compute, done = loop._Driver.compute, []

    def stop_after(self: Any, pass_: Pass, task: Task) -> Any:
        result = compute(self, pass_, task)
        done.append(pass_.name)
        if done == ["views"] * stage:
            raise Interrupted
        return result

    with monkeypatch.context() as patch:
        patch.setattr(loop._Driver, "compute", stop_after)
        with pytest.raises(Interrupted):
            fit(tmp_path / "run", SPEC, PLAN)
    events: list[Event] = []
    ResCNetClassifier.resume(tmp_path / "run", listeners=[events.append])
    assert next(e for e in events if isinstance(e, PassStarted)) == PassStarted("views", 0)
    phases = [event.phase for event in events if isinstance(event, PassDone)]
    assert phases[:3] == ["views", "views", "survey"]
    assert {"zca matrix", "gcn value_range"} <= model.keys()
    assert_same_bits(read_model(tmp_path / "run"), model)
    assert verify_run(tmp_path / "run") == []


def test_views_learn_from_training_images_alone(client: Client, tmp_path: Path) -> None:
    """Of a network with one learned view, with other validation images, and other chunks."""
    spec = REGRESS.replace(bank="pca@zca", max_layers=1)
    one, other = tmp_path / "one", tmp_path / "other"
    fit(one, spec, RUN, (X_OTHER, Y_OTHER), X=IMAGES, y=Y[:90])
    fit(other, spec, RUN.replace(chunk_images=31), (255 - X_OTHER, Y_OTHER), X=IMAGES, y=Y[:90])
    found, expected = read_model(one), read_model(other)
    rows = IMAGES.reshape(90, -1) / (float(IMAGES.max()) - float(IMAGES.min()))
    rows = rows - rows.mean(axis=1, keepdims=True)
    rows /= np.sqrt((rows**2).mean(axis=1, keepdims=True) + 0.0124**2)
    np.testing.assert_allclose(found["zca mean"], rows.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found["zca matrix"], expected["zca matrix"], atol=1e-3)
    assert found["image low"] == IMAGES.min()
    np.testing.assert_allclose(found["image scale"], 1 / (float(IMAGES.max()) - IMAGES.min()))


def test_saved_network_predicts_the_same(client: Client, tmp_path: Path) -> None:
    """The arrays of views are part of it, in single precision."""
    clf = fit(tmp_path / "run", SPEC, RUN)
    scores = clf.decision_function(X_OTHER)
    assert (clf.predict(X) == Y).mean() > 0.8
    clf.save(tmp_path / "net.zip", dtype="float16")
    network = Network.load(tmp_path / "net.zip")
    expected, found = clf.network_.image_scale.views, network.image_scale.views
    assert found.keys() == {"gcn", "zca"}
    assert np.array_equal(found["zca"]["matrix"], expected["zca"]["matrix"])
    np.testing.assert_allclose(network.scores(X_OTHER), scores, atol=0.02)


def test_pixels_that_are_not_finite_are_named(client: Client, tmp_path: Path) -> None:
    """Before they reach the covariance of the images."""
    images = IMAGES.astype(np.float32)
    images[7, 3, 3] = np.nan
    with pytest.raises(DataError, match=r"Image 7 of X has the pixel value nan"):
        fit(tmp_path / "run", SPEC, RUN, X=images, y=Y[:90])
