"""Runs whose heads are solved by conjugate gradients: their weights, bits and faults."""

from __future__ import annotations

import io
import json
import pickle
import threading
import time
from dataclasses import asdict, replace
from functools import partial
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
from rescnet_dist.errors import ClusterLostError, CorruptDataError, StoreReadError
from rescnet_dist.events import Accuracy, ChunkDone, Event, PassMetrics, SolverIteration
from rescnet_dist.model import Calibration, ConjugateGradients
from rescnet_dist.planning import Plan, choose_tier
from rescnet_dist.store import RunStore, get_reporter
from rescnet_dist.train import cg_tasks, loop
from rescnet_dist.train.cg import Solve, is_done, make_event
from rescnet_dist.train.cg_tasks import StoredIterate
from rescnet_dist.train.chunks import feature_path
from rescnet_dist.train.grown import GrownLayer
from rescnet_dist.train.task import Task

SHORT = REGRESS.replace(solver="cg", cg_iterations=3, cg_tolerance=0.0, max_layers=2)


@pytest.fixture(scope="module")
def short_model(
    tmp_path_factory: pytest.TempPathFactory, threads_cluster: LocalCluster
) -> dict[str, Array]:
    """Return the model of an uninterrupted run of three iterations per layer."""
    store = tmp_path_factory.mktemp("cg") / "run"
    with Client(threads_cluster):
        fit(store, SHORT, PLAN)
    assert not (store / "work").exists()
    return read_model(store)


def test_every_task_that_stores_an_iterate_reports_retries(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first one, and of the last task of each iteration."""
    write, found = cg_tasks._write_iterate, list[bool]()

    def record(*arguments: Any) -> StoredIterate:
        found.append(get_reporter() is not None)
        return write(*arguments)

    monkeypatch.setattr(cg_tasks, "_write_iterate", record)
    fit(tmp_path / "run", SHORT.replace(max_layers=1), PLAN)
    assert found == [True] * (1 + 3)


# agreement with the exact solver ----------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("head", "ridge"),
    [
        ("regress", 0.1),
        ("classify", 10.0),
        pytest.param("regress", 10.0, marks=pytest.mark.slow),
        pytest.param("classify", 0.1, marks=pytest.mark.slow),
    ],
)
def test_weights_and_predictions_equal_those_of_the_exact_solver(
    client: Client, tmp_path: Path, head: str, ridge: float
) -> None:
    """With validation images and class weights, which the solver must leave out and use."""
    spec = SPEC.replace(head=head, ridge=ridge, max_layers=1)
    options: dict[str, Any] = {"run": PLAN, "class_weight": "balanced"}
    exact = fit(tmp_path / "exact", spec, **options)
    found = fit(tmp_path / "cg", spec.replace(solver="cg"), **options)
    expected, other = exact.decision_function(X), found.decision_function(X)
    np.testing.assert_allclose(other, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    models = [read_model(tmp_path / name) for name in ("exact", "cg")]
    weights, others = (model["layer 1 weights"] for model in models)
    np.testing.assert_allclose(others, weights, rtol=0, atol=1e-4 * np.abs(weights).max())


@pytest.mark.slow
def test_digits_are_classified_as_by_the_exact_solver(client: Client) -> None:
    images, labels = (array[:400] for array in load_digits())
    spec = NetworkSpec.preset("digits").replace(filters=6, max_layers=2)
    scores = [
        ResCNetClassifier(s).fit(images[:300], labels[:300]).decision_function(images)
        for s in (spec, spec.replace(solver="cg"))
    ]
    np.testing.assert_allclose(*scores, rtol=0, atol=1e-4 * np.abs(scores[0]).max())


# progress ---------------------------------------------------------------------------------------


def test_iterations_are_published_and_printed(client: Client, tmp_path: Path) -> None:
    """Every iteration is an event, and every tenth is printed."""
    events: list[SolverIteration] = []
    output = Console(file=io.StringIO(), width=120)
    with TerminalProgress(output) as progress:
        listeners = [lambda e: isinstance(e, SolverIteration) and events.append(e), progress]
        spec = SHORT.replace(cg_iterations=11, max_layers=1)
        fit(tmp_path / "run", spec, PLAN, listeners=listeners)
    assert [(e.layer, e.iteration, e.max_iterations) for e in events] == [
        (1, number, 11) for number in range(1, 12)
    ]
    assert events[10].error < 0.1 * events[0].error
    line = f"solving        iteration 10 of at most 11: weights within {events[9].error:.1e}"
    assert output.file.getvalue().count("solving        iteration") == 1
    assert line in output.file.getvalue()


# bits -------------------------------------------------------------------------------------------


def keep_features(monkeypatch: pytest.MonkeyPatch, is_kept: bool) -> None:
    """Let workers keep the features of maps in the store, or not."""
    change = partial(replace, features=is_kept)
    monkeypatch.setattr(loop, "choose_tier", lambda *a: change(choose_tier(*a)))


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


@pytest.mark.slow
def test_features_in_memory_are_not_read(
    client: Client, tmp_path: Path, short_model: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at all if they stay in memory since they were computed; with the same bits."""
    read: list[int] = []
    real_read = cg_tasks.FeatureReader.read

    def count(reader: Any, chunk: Any) -> Any:
        read.append(chunk.start)
        return real_read(reader, chunk)

    monkeypatch.setattr(cg_tasks.FeatureReader, "read", count)
    for is_kept in (True, False):
        read.clear()
        keep_features(monkeypatch, is_kept)
        fit(tmp_path / f"run-{is_kept}", SHORT, PLAN.replace(maps="store"))
        starts = sorted(set(read))
        assert len(starts) == 0 if is_kept else len(starts) > 2
        assert sorted(read) == sorted(starts * 2 * 3)  # of two layers, in three iterations
        assert_same_bits(read_model(tmp_path / f"run-{is_kept}"), short_model)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "number", "is_done", "maps"),
    [
        ("start", 1, True, "store"),
        ("iterate", 2, False, "store"),
        ("iterate", 5, True, "auto"),
        ("fit", 2, True, "store"),
    ],
    ids=["start", "between iterations", "layer 2, maps in memory", "head of layer 2"],
)
def test_resumed_solve_gives_same_bits(
    client: Client,
    tmp_path: Path,
    short_model: dict[str, Array],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: int,
    is_done: bool,
    maps: str,
) -> None:
    """The driver stops before an iteration, or after it and before its record is written."""
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
    # nothing is done twice, except for the iteration whose record was not written
    assert names.count("grow") == 2
    assert len(names) == 2 + 2 * (1 + 1 + 3 + 1) + 1 + 1
    assert not (tmp_path / "run/work").exists()


@pytest.mark.slow  # starts and kills processes
def test_resume_after_a_scheduler_killed_between_iterations(
    started: Any, threads_cluster: LocalCluster, tmp_path: Path
) -> None:
    """The run continues on another cluster, with the iteration after the last one on record."""
    spec = SHORT.replace(cg_iterations=30, max_layers=1)
    with Client(threads_cluster):
        fit(tmp_path / "whole", spec, PLAN)
    store, record = tmp_path / "run", tmp_path / "run/work/progress.json"
    scheduler, file = started.scheduler()
    started.worker(file)

    def kill_within_solve() -> None:
        started.wait_until(lambda: record.exists() and count_iterations() > 4)
        started.kill(scheduler)

    def count_iterations() -> int:
        return int(json.loads(record.read_text())["number"])

    killer = threading.Thread(target=kill_within_solve)
    killer.start()
    with (
        dask.config.set(SHORT_TIMEOUT),
        Client(scheduler_file=str(file)),
        pytest.raises(ClusterLostError),
    ):
        fit(store, spec, PLAN)
    killer.join()
    assert 4 < count_iterations() < 30
    with Client(threads_cluster):
        ResCNetClassifier.resume(store)
    assert_same_bits(read_model(store), read_model(tmp_path / "whole"))


def test_features_in_several_chunks_of_columns_have_the_same_bits(
    client: Client, tmp_path: Path, short_model: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk of images has several, which are compressed and read in parallel."""
    chunks, create = list[tuple[int, ...]](), RunStore.create_cg_work

    def record(run: RunStore, *sizes: Any) -> None:
        create(run, *sizes)
        features = run.work("features")
        chunks.append((features.shape[1], features.chunks[1]))

    monkeypatch.setattr(RunStore, "create_cg_work", record)
    monkeypatch.setattr("rescnet_dist.store.run.FEATURE_CHUNK_BYTES", 2000)
    keep_features(monkeypatch, is_kept=False)  # so that they are read
    fit(tmp_path / "run", SHORT, PLAN.replace(maps="store"))
    assert all(features > 2 * columns for features, columns in chunks)
    assert len(chunks) == 2
    assert_same_bits(read_model(tmp_path / "run"), short_model)


def test_damaged_features_are_computed_again(
    client: Client, tmp_path: Path, short_model: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run stops, and the layer starts anew when it is resumed."""
    store, real_run = tmp_path / "run", loop.Solve.run_iterations

    def damage(solve: Any, save: Any) -> Any:
        array = RunStore.open(store).work("features", write=True)
        array[:3] = 7.0
        return real_run(solve, save)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Solve, "run_iterations", damage)
        keep_features(patch, is_kept=False)  # so that they are read
        with pytest.raises(CorruptDataError, match=r"work/features are missing or altered.*Resume"):
            fit(store, SHORT, PLAN.replace(maps="store"))
    ResCNetClassifier.resume(store)
    assert_same_bits(read_model(store), short_model)


def test_damage_elsewhere_leaves_the_features_alone(
    client: Client, tmp_path: Path, short_model: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once that is repaired, a resumed run continues with them."""
    store, real_run = tmp_path / "run", loop.Solve.run_iterations

    def fail(solve: Any, save: Any) -> Any:
        if RunStore.open(store).commits()[-1]["step"] < 1:
            return real_run(solve, save)
        raise CorruptDataError("data/labels are altered.")

    with monkeypatch.context() as patch:
        patch.setattr(loop.Solve, "run_iterations", fail)
        with pytest.raises(CorruptDataError, match=r"data/labels are altered\.$"):
            fit(store, SHORT, PLAN)
    assert RunStore.open(store).work("features").shape[0]
    grown: list[Event] = []
    ResCNetClassifier.resume(store, listeners=[grown.append])
    assert not [e for e in grown if isinstance(e, ChunkDone) and e.phase == "grow"]
    assert_same_bits(read_model(store), short_model)


@pytest.mark.parametrize("is_kept", [False, True], ids=["features in store", "in memory"])
@pytest.mark.parametrize(
    "event",
    ["resume", *(pytest.param(e, marks=pytest.mark.slow) for e in ("nothing", "lost worker"))],
)
def test_features_are_verified_in_every_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str, is_kept: bool
) -> None:
    """Those that are damaged after the second iteration end the run whenever they are read again.

    Only features that a worker has kept in memory since it verified them are not.
    """
    store, numbers = tmp_path / "run", list[int]()
    keep_features(monkeypatch, is_kept)
    real_run_pass = loop.run_pass

    def run_pass(pass_: Any, *arguments: Any) -> Any:
        result = real_run_pass(pass_, *arguments)
        if pass_.name == cg_tasks.ITERATION:
            numbers.append(result[0].number)
            if numbers == [1, 2]:
                features = RunStore.open(store).work("features", write=True)
                features[-1] = features[-1] + 1.0
                if event == "resume":
                    raise KeyboardInterrupt
                if event == "lost worker":
                    _replace_worker(cluster)
        return result

    monkeypatch.setattr(loop, "run_pass", run_pass)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        spec = SHORT.replace(max_layers=1)
        if event == "resume":
            with pytest.raises(KeyboardInterrupt):
                fit(store, spec, PLAN.replace(maps="store"))
            train = partial(ResCNetClassifier.resume, store)
        else:
            train = partial(fit, store, spec, PLAN.replace(maps="store"))
        if event == "nothing" and is_kept:
            train()
            return
        with pytest.raises(CorruptDataError, match=r"work/features are missing or altered.*Resume"):
            train()
    assert numbers == [1, 2]


def _replace_worker(cluster: LocalCluster) -> None:
    """Remove the only worker of a cluster, with all that it keeps in memory, and start another."""
    (old,) = cluster.scheduler.workers
    cluster.scale(0)
    deadline = time.monotonic() + 30
    while cluster.scheduler.workers:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    cluster.scale(1)
    cluster.wait_for_workers(1, timeout=30)
    assert old not in cluster.scheduler.workers


# decisions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "error", "expected"),
    [(0, 1.0, False), (4, 0.2, False), (4, 0.1, True), (5, 0.2, True), (0, 0.0, True)],
)
def test_iterations_end_at_the_tolerance_or_the_limit(
    number: int, error: float, expected: bool
) -> None:
    assert is_done(StoredIterate(number, 3, error, {}), ConjugateGradients(5, 0.1)) is expected


def test_progress_survives_json() -> None:
    stored = StoredIterate(2, 3, 1 / 3, {"solution": 5, "basis": 6})
    assert StoredIterate(**json.loads(json.dumps(asdict(stored)))) == stored
    assert make_event(stored, 7, ConjugateGradients(9, 0.1)) == SolverIteration(7, 2, 9, 1 / 3)


# integer features -------------------------------------------------------------------------------


@pytest.mark.slow
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
        ridge=1.0,
        max_layers=2,
        heads="last",
    )
    found, real_run = [], loop.Solve.run_iterations

    def look(solve: Any, save: Any) -> Any:
        array = solve.run.work("features")
        found.append((array.dtype, array.shape, bool(array.compressors)))
        return real_run(solve, save)

    monkeypatch.setattr(loop.Solve, "run_iterations", look)
    exact = fit(tmp_path / "exact", spec, PLAN)
    iterative = fit(tmp_path / "cg", spec.replace(solver="cg"), PLAN)
    assert found == [(np.dtype("uint8"), (len(X), 64), True)]
    expected, scores = exact.decision_function(X), iterative.decision_function(X)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_graph_of_an_iteration_does_not_depend_on_number_of_chunks(tmp_path: Path) -> None:
    """Its tasks read the checksums of the features from the record of the layer."""
    task, stored = Task(RunStore.create(tmp_path / "run", {}), 1), StoredIterate(1, 1, 0.5, {})
    solver = ConjugateGradients(3, 0.0)

    def graph_size(chunks: int, groups: int) -> int:
        plan = Plan(chunks, 1, groups, 4, 1)
        solve = Solve(task.run, plan, solver, task, lambda *_: (None, PassMetrics()))
        return len(pickle.dumps(solve.make_parts(stored)))

    assert graph_size(4_000_000, 4_000) < graph_size(100, 10) + 100


def test_lost_checksums_of_features_are_named(tmp_path: Path) -> None:
    """The record that has them is of another layer or gone, or some or all of them are."""
    run = RunStore.create(tmp_path / "run", {})
    checksums = {feature_path(0): [5, 6]}
    record = GrownLayer(1, {}, checksums, None, (0.5, 0.5), None, PassMetrics()).to_dict()
    run.write_work_record("grown", record)
    np.testing.assert_array_equal(cg_tasks._load_checksums(Task(run, 1), 2), [5, 6])
    for layer, found, expected in ((1, 2, 3), (2, 0, 2)):
        with pytest.raises(
            CorruptDataError,
            match=rf"work/grown\.json .* {found} checksums .* layer {layer}, not {expected}",
        ):
            cg_tasks._load_checksums(Task(run, layer), expected)
    run.write_work_record("grown", record | {"work_checksums": {}})
    with pytest.raises(CorruptDataError, match=r"0 checksums"):
        cg_tasks._load_checksums(Task(run, 1), 2)
    run.write_work_record("grown", record | {"work_checksums": {"a": ["b"]}})
    with pytest.raises(StoreReadError, match=r"work/grown\.json is damaged"):
        cg_tasks._load_checksums(Task(run, 1), 2)
    run.remove_work()
    with pytest.raises(CorruptDataError, match=r"0 checksums"):
        cg_tasks._load_checksums(Task(run, 1), 2)


def test_damaged_records_of_the_work_area_are_named(tmp_path: Path) -> None:
    """Each of their entries is needed to resume; a later release may add some."""
    run = RunStore.create(tmp_path / "run", {})
    accuracy, calibration = Accuracy(1, 0.5, None), Calibration().to_dict()
    grown = GrownLayer(2, {"a": [1]}, {}, accuracy, (0.5, 0.5), calibration, PassMetrics())
    arrays = dict.fromkeys(cg_tasks.ITERATE_ARRAYS, 7)
    records = {"grown": grown.to_dict(), "progress": asdict(StoredIterate(1, 2, 0.5, arrays))}
    for name, record in records.items():
        for entry in record:
            run.write_work_record(name, {k: v for k, v in record.items() if k != entry})
            with pytest.raises(StoreReadError, match=rf"{name}\.json is damaged \({entry} is miss"):
                run.read_work_record(name)
    run.write_work_record("progress", records["progress"] | {"arrays": {"basis": 1}})
    with pytest.raises(StoreReadError, match=r"arrays\.directions is missing"):
        run.read_work_record("progress")
    observed = records["grown"]["observed"] | {"new": 1}
    run.write_work_record("grown", records["grown"] | {"observed": observed, "new": 1})
    assert GrownLayer.from_dict(run.read_work_record("grown") or {}) == grown
