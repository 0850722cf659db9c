"""Runs whose heads are solved by block coordinate descent: their weights, bits and faults."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from fault_cases import SHORT_TIMEOUT
from models import assert_same_bits, read_model
from rich.console import Console
from training_cases import PLAN, REGRESS, SPEC, Array, X, fit

from rescnet_dist import NetworkSpec, ResCNetClassifier, load_digits
from rescnet_dist.dashboard.progress import TerminalProgress
from rescnet_dist.errors import ClusterLostError, CorruptDataError
from rescnet_dist.events import BlockSolved
from rescnet_dist.model import BlockSolver
from rescnet_dist.store import RunStore
from rescnet_dist.train import loop
from rescnet_dist.train.blockwise import Step, StepResult
from rescnet_dist.train.descent import Progress

# 126 features in 3 blocks, the last of which is smaller
BLOCKS: dict[str, Any] = {"solver": "blocks", "block_features": 50, "max_layers": 2}
SHORT = REGRESS.replace(**BLOCKS, sweeps=2, sweep_tolerance=0.0)


@pytest.fixture(scope="module")
def short_model(
    tmp_path_factory: pytest.TempPathFactory, threads_cluster: LocalCluster
) -> dict[str, Array]:
    """Return the model of an uninterrupted run of two sweeps."""
    store = tmp_path_factory.mktemp("blocks") / "run"
    with Client(threads_cluster):
        fit(store, SHORT, PLAN)
    assert not (store / "work").exists()
    return read_model(store)


# agreement with the exact solver ----------------------------------------------------------------


@pytest.mark.parametrize("head", ["regress", "classify"])
def test_weights_and_predictions_equal_those_of_the_exact_solver(
    client: Client, tmp_path: Path, head: str
) -> None:
    """With validation images and class weights, which the descent must leave out and use."""
    spec = SPEC.replace(head=head, ridge=10.0, max_layers=1)
    change = BLOCKS | {"max_layers": 1, "sweeps": 40, "sweep_tolerance": 1e-5}
    options: dict[str, Any] = {"run": PLAN, "class_weight": "balanced"}
    exact = fit(tmp_path / "exact", spec, **options)
    found = fit(tmp_path / "blocks", spec.replace(**change), **options)
    expected, other = exact.decision_function(X), found.decision_function(X)
    np.testing.assert_allclose(other, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    models = [read_model(tmp_path / name) for name in ("exact", "blocks")]
    weights, others = (model["layer 1 weights"] for model in models)
    np.testing.assert_allclose(others, weights, rtol=0, atol=1e-4 * np.abs(weights).max())


def test_digits_are_classified_as_by_the_exact_solver(client: Client) -> None:
    images, labels = (array[:400] for array in load_digits())
    spec = NetworkSpec.preset("digits").replace(filters=6, max_layers=2, ridge=10.0)
    blocks = spec.replace(solver="blocks", block_features=200, sweeps=30, sweep_tolerance=1e-5)
    scores = [
        ResCNetClassifier(s).fit(images[:300], labels[:300]).decision_function(images)
        for s in (spec, blocks)
    ]
    np.testing.assert_allclose(*scores, rtol=0, atol=1e-4 * np.abs(scores[0]).max())


# progress ---------------------------------------------------------------------------------------


def test_steps_are_published_and_sweeps_printed(client: Client, tmp_path: Path) -> None:
    """All blocks of two sweeps of each layer; the last line of a sweep has the change."""
    events: list[BlockSolved] = []
    output = Console(file=io.StringIO(), width=120)
    with TerminalProgress(output) as progress:
        listeners = [lambda e: isinstance(e, BlockSolved) and events.append(e), progress]
        fit(tmp_path / "run", SHORT, PLAN, listeners=listeners)
    found = [(e.layer, e.sweep, e.max_sweeps, e.block, e.blocks) for e in events]
    assert found == [
        (layer, sweep, 2, block, 3) for layer in (1, 2) for sweep in (1, 2) for block in (1, 2, 3)
    ]
    assert events[5].change < events[2].change == 1.0
    line = f"solving        sweep 2 of at most 2: weights change by {events[5].change:.1e}"
    assert line in output.file.getvalue()


# bits -------------------------------------------------------------------------------------------


def test_bits_do_not_depend_on_the_number_of_workers(
    tmp_path: Path, short_model: dict[str, Array]
) -> None:
    with (
        LocalCluster(
            n_workers=3, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        fit(tmp_path / "run", SHORT, PLAN)
    assert_same_bits(read_model(tmp_path / "run"), short_model)


@pytest.mark.parametrize(
    ("name", "number", "is_done", "maps"),
    [
        ("factorize", 1, True, "store"),
        ("descend", 3, False, "store"),
        ("descend", 9, True, "auto"),
        ("fit", 2, True, "store"),
    ],
    ids=["factors", "between steps", "layer 2, maps in memory", "head of layer 2"],
)
def test_resumed_descent_gives_same_bits(
    client: Client,
    tmp_path: Path,
    short_model: dict[str, Array],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: int,
    is_done: bool,
    maps: str,
) -> None:
    """The driver stops before a step, or after it and before its record is written."""
    names: list[str] = []
    real_run_pass = loop.run_pass

    def run_pass(pass_: Any, *arguments: Any) -> Any:
        names.append(pass_.name)
        is_last = pass_.name == name and names.count(name) == number
        if is_last and not is_done:
            raise KeyboardInterrupt
        result = real_run_pass(pass_, *arguments)
        if is_last:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patch:
        patch.setattr(loop, "run_pass", run_pass)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "run", SHORT, PLAN.replace(maps=maps))
        name = ""  # which no pass has
        ResCNetClassifier.resume(tmp_path / "run")
    assert_same_bits(read_model(tmp_path / "run"), short_model)
    # nothing is done twice, except for the step whose record was not written
    assert names.count("grow") == 2
    assert len(names) == 2 + 2 * (1 + 1 + 6 + 1) + 1 + 1
    assert not (tmp_path / "run/work").exists()


@pytest.mark.slow  # starts and kills processes
def test_resume_after_a_scheduler_killed_between_steps(
    started: Any, threads_cluster: LocalCluster, tmp_path: Path
) -> None:
    """The run continues on another cluster, with the step after the last one on record."""
    spec = SHORT.replace(sweeps=12, max_layers=1)
    with Client(threads_cluster):
        fit(tmp_path / "whole", spec, PLAN)
    store, record = tmp_path / "run", tmp_path / "run/work/progress.json"
    scheduler, file = started.scheduler()
    started.worker(file)

    def kill_within_second_sweep() -> None:
        started.wait_until(lambda: record.exists() and count_steps() > 4)
        started.kill(scheduler)

    def count_steps() -> int:
        return int(json.loads(record.read_text())["steps"])

    killer = threading.Thread(target=kill_within_second_sweep)
    killer.start()
    with (
        dask.config.set(SHORT_TIMEOUT),
        Client(scheduler_file=str(file)),
        pytest.raises(ClusterLostError),
    ):
        fit(store, spec, PLAN)
    killer.join()
    assert 4 < count_steps() < 36
    with Client(threads_cluster):
        ResCNetClassifier.resume(store)
    assert_same_bits(read_model(store), read_model(tmp_path / "whole"))


def test_damaged_features_are_computed_again(
    client: Client, tmp_path: Path, short_model: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run stops, and the layer starts anew when it is resumed."""
    store, real_factorize = tmp_path / "run", loop.Descent.factorize

    def damage(descent: Any) -> Any:
        array = RunStore.open(store).work("features", write=True)
        array[:3] = 7.0
        return real_factorize(descent)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Descent, "factorize", damage)
        with pytest.raises(CorruptDataError, match=r"work/features are missing or altered.*Resume"):
            fit(store, SHORT, PLAN)
    ResCNetClassifier.resume(store)
    assert_same_bits(read_model(store), short_model)


# steps ------------------------------------------------------------------------------------------


def test_steps_visit_all_blocks_in_each_sweep() -> None:
    progress, visited = Progress(factors=(1, 2, 3)), []
    while step := progress.next_step(BlockSolver(10, 2, 0.0)):
        visited.append((step.sweep, step.block))
        progress = progress.plus(StepResult((), 10 * step.sweep + step.block, 1.0, 4.0))
    assert visited == [(sweep, block) for sweep in range(2) for block in range(3)]
    assert progress.weights == (10, 11, 12)
    assert progress.old_weights == (0, 1, 2)
    assert (progress.change, progress.norm) == (3.0, 12.0)


def test_small_change_ends_the_sweeps() -> None:
    """The change is that of a whole sweep, relative to the weights after it."""
    progress, solver = Progress(factors=(1, 2)), BlockSolver(10, 9, 0.1)
    for change in (1.0, 1.0, 0.02, 0.0):
        assert progress.next_step(solver) is not None
        progress = progress.plus(StepResult((), 0, change, 1.0))
    assert progress.next_step(solver) is None
    assert progress.steps == 4


def test_progress_survives_json() -> None:
    progress = Progress((1, 2)).plus(StepResult((5, 6), 7, 0.1, 1 / 3))
    values = {"factors": [1, 2], "steps": 1, "predictions": [5, 6], "weights": [7]}
    values |= {"old_weights": [], "change": 0.1, "norm": 1 / 3}
    assert Progress.from_dict(values) == progress


def test_step_before_the_first_block_is_in_the_sweep_before() -> None:
    assert Step(1, 0, 3).previous == Step(0, 2, 3)


# integer features -------------------------------------------------------------------------------


def test_histograms_are_stored_as_small_integers(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores are those of the exact solver, which converts the features to floats.

    Only the last layer has a head, as in PCANet.
    """
    spec = REGRESS.replace(
        features="binary-hash",
        hash_bits=4,
        hash_block=7,
        hash_stride=7,
        ridge=30.0,
        max_layers=2,
        heads="last",
    )
    found, real_factorize = [], loop.Descent.factorize

    def look(descent: Any) -> Any:
        array = descent.run.work("features")
        found.append((array.dtype, array.shape, bool(array.compressors)))
        return real_factorize(descent)

    monkeypatch.setattr(loop.Descent, "factorize", look)
    change = BLOCKS | {"sweeps": 40, "sweep_tolerance": 1e-5}
    exact = fit(tmp_path / "exact", spec, PLAN)
    blocks = fit(tmp_path / "blocks", spec.replace(**change), PLAN)
    assert found == [(np.dtype("uint8"), (len(X), 64), True)]
    expected, scores = exact.decision_function(X), blocks.decision_function(X)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
