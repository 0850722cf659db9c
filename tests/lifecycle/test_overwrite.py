"""`overwrite` and `or_resume` of `fit`, and `rescnet train --overwrite`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client

import rescnet_dist as rd
from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, SpecError, StoreError
from rescnet_dist.cli import main
from rescnet_dist.store import Claim, Location, RunStore

X, Y = (array[:60] for array in rd.load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec(filters=3, block=7, stride=7, max_layers=1, head="regress", ridge=0.3)


def make_classifier(store: Path, **options: object) -> ResCNetClassifier:
    """Return a classifier with a small network."""
    spec = SPEC.replace(**options)
    return ResCNetClassifier(spec, store=store, run=RunSpec(solve_threads=1))


def test_overwrite_replaces_a_run(client: Client, tmp_path: Path) -> None:
    """With another network; without a run it just starts one."""
    store = tmp_path / "run"
    make_classifier(store).fit(X, Y, overwrite=True)
    with pytest.raises(StoreError, match=r"another run\. .*overwrite"):
        make_classifier(store, filters=2).fit(X, Y)
    clf = make_classifier(store, filters=2).fit(X, Y, overwrite=True)
    assert clf.network_.spec.filters == 2
    assert len(RunStore.open(store).commits()) == 2
    assert ResCNetClassifier.load(store).network_.spec.filters == 2


def test_run_is_kept_if_the_new_one_cannot_start(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the disk is full: everything is checked before the old run is removed."""
    make_classifier(tmp_path / "run").fit(X, Y)
    monkeypatch.setattr(Location, "free_bytes", lambda self: -(2**30))
    with pytest.raises(StoreError, match="of free space"):
        make_classifier(tmp_path / "run", filters=2).fit(X, Y, overwrite=True)
    assert ResCNetClassifier.load(tmp_path / "run").network_.spec.filters == 3


def test_only_runs_are_overwritten(client: Client, tmp_path: Path) -> None:
    """Not other folders, not a run with files of the user, not one that is being written."""
    notes, run = tmp_path / "notes", tmp_path / "run"
    notes.mkdir()
    (notes / "a.txt").write_text("kept")
    with pytest.raises(StoreError, match="something that is not a run, which is not overwritten"):
        make_classifier(notes).fit(X, Y, overwrite=True)
    make_classifier(run).fit(X, Y)
    with Claim.take(Location(str(run))).hold(), pytest.raises(StoreError, match="being written"):
        make_classifier(run).fit(X, Y, overwrite=True)
    (run / "report.html").write_text("kept")
    with pytest.raises(StoreError, match=r"more than a run \(report\.html\)"):
        make_classifier(run).fit(X, Y, overwrite=True)
    assert (notes / "a.txt").read_text() == (run / "report.html").read_text() == "kept"
    assert ResCNetClassifier.load(run).depth_ == 1


def test_images_inside_the_run_are_not_removed(client: Client, tmp_path: Path) -> None:
    """A run that trains on the images of an earlier one cannot replace it."""
    make_classifier(tmp_path / "run").fit(X, Y)
    with pytest.raises(StoreError, match="holds the images to train on"):
        make_classifier(tmp_path / "run").fit(str(tmp_path / "run" / "data"), overwrite=True)


def test_or_resume_keeps_the_same_run(client: Client, tmp_path: Path) -> None:
    """A finished run is loaded; another network is an error; both options exclude each other."""
    store = tmp_path / "run"
    first = make_classifier(store).fit(X, Y, or_resume=True)
    written = (store / "commits/0001.json").stat().st_mtime_ns
    again = make_classifier(store).fit(X, Y, or_resume=True)
    assert (store / "commits/0001.json").stat().st_mtime_ns == written
    assert np.array_equal(first.decision_function(X), again.decision_function(X))
    with pytest.raises(StoreError, match="holds another run, with filters 3 instead of 2"):
        make_classifier(store, filters=2).fit(X, Y, or_resume=True)
    with pytest.raises(SpecError, match="exclude each other"):
        make_classifier(store).fit(X, Y, or_resume=True, overwrite=True)


def test_command_overwrites(client: Client, tmp_path: Path) -> None:
    """`rescnet train --overwrite`, as in Python."""
    np.savez(tmp_path / "data.npz", x_train=X, y_train=Y)
    small = ["--filters", "2", "--max-layers", "1", "--solve-threads", "1"]
    command = ["train", str(tmp_path / "data.npz"), "--store", str(tmp_path / "run"), *small]
    assert CliRunner().invoke(main, command).exit_code == 0
    assert CliRunner().invoke(main, command).exit_code == 2
    result = CliRunner().invoke(main, [*command, "--overwrite"])
    assert result.exit_code == 0, result.output
