"""Training on clusters: same bits wherever it runs, however often it is resumed; nothing of size N
on the driver; validation that only chooses the depth."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import zarr
from dask.sizeof import sizeof
from distributed import Client, Future, LocalCluster

from rescnet_dist import (
    DataError,
    NetworkSpec,
    ResCNetClassifier,
    RunSpec,
    StoreError,
    load_digits,
)
from rescnet_dist.cluster import Workers
from rescnet_dist.data import select_validation
from rescnet_dist.kernels import BankStatistics, FeatureMoments, LayerStatistics, Tally
from rescnet_dist.planning import Plan, Problem, make_plan
from rescnet_dist.reduce import blas_threads, fold_graph
from rescnet_dist.store import Location, RunStore, read_image_scale, read_layer
from rescnet_dist.train import (
    ChunkDone,
    Event,
    MapsPlaced,
    PassDone,
    PassStarted,
    RunDone,
    RunStarted,
    chunks,
    executor,
    loop,
    passes,
    prepare,
    state,
)

Array = np.ndarray[Any, Any]
MODES = ("classify", "regress")
CASES = (*MODES, "digits")

N = 240
X, Y = (array[:N] for array in load_digits())
X = X[:, ::2, ::2]
X_OTHER, Y_OTHER = (array[N : N + 60] for array in load_digits())
X_OTHER = X_OTHER[:, ::2, ::2]

SPEC = NetworkSpec(
    filters=4, first_filter_size=3, block=5, stride=2, sigma=2.0, learning_rate=0.5, max_layers=3
)
REGRESS = SPEC.replace(residual="regress", ridge=0.3)
RUN = RunSpec(chunk_images=150, accumulators=2, solve_threads=1)
PLAN = RUN.replace(chunk_images=50, accumulators=3, split_every=2, validation=0.2)  # 5 chunks


def fit(
    store: Any, spec: NetworkSpec = SPEC, run: RunSpec = RUN, validation: Any = None, **more: Any
) -> ResCNetClassifier:
    """Train on the small digits, or on other data."""
    images, labels = more.pop("X", X), more.pop("y", Y)
    clf = ResCNetClassifier(spec, store=store, run=run, **more)
    return clf.fit(images, labels, validation=validation)


def model(url: Any) -> dict[str, Array]:
    """All that a run has fitted and found: every array of its committed layers, and accuracies."""
    run = RunStore.open(url)
    commits, result = run.commits(), run.result()
    scale = read_image_scale(run.location)
    arrays = {"image low": scale.low, "image scale": scale.scale}
    for number in range(1, len(commits)):
        layer = read_layer(run.location, number)
        for part in (layer.bank, layer.classifier):
            for name in type(part).__dataclass_fields__:
                arrays[f"layer {number} {name}"] = np.asarray(getattr(part, name))
    accuracies = result["accuracies"] if result else []
    for name in ("train", "validation"):
        arrays[f"{name} accuracy"] = np.array([a[name] for a in accuracies], float)
    return arrays


def assert_same_bits(one: dict[str, Array], other: dict[str, Array]) -> None:
    """Every array of two models is equal in every bit."""
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype, name
        assert np.array_equal(array, other[name], equal_nan=name.endswith("accuracy")), name


def fitted_only(arrays: dict[str, Array]) -> dict[str, Array]:
    """A model without its accuracies."""
    return {name: array for name, array in arrays.items() if not name.endswith("accuracy")}


@pytest.fixture(scope="module", params=[1, 2])
def processes(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Clusters of single-threaded worker processes."""
    with LocalCluster(
        n_workers=request.param,
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        yield cluster


# the same answer --------------------------------------------------------------------------------


def fit_case(store: Path, case: str) -> dict[str, Array]:
    """The model of either mode, with a validation split, or of a network that is large enough for
    BLAS to use several threads if it may."""
    if case == "digits":
        images, labels = (array[:80] for array in load_digits())
        run = PLAN.replace(validation=0.0)
        fit(store, NetworkSpec.preset(case).replace(max_layers=2), run, X=images, y=labels)
    else:
        fit(store, SPEC.replace(residual=case), PLAN)
    return model(store)


@pytest.fixture(scope="module")
def reference_models(
    tmp_path_factory: pytest.TempPathFactory, threads_cluster: LocalCluster
) -> dict[str, dict[str, Array]]:
    """Models trained by two threads in this process, of which the main thread has used BLAS."""
    with blas_threads(1):
        pass
    with Client(threads_cluster):
        return {case: fit_case(tmp_path_factory.mktemp(case) / "run", case) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_the_same_plan_gives_the_same_bits_on_any_cluster(
    case: str,
    processes: LocalCluster,
    reference_models: dict[str, dict[str, Array]],
    tmp_path: Path,
) -> None:
    """One worker process, two, and threads in this process."""
    with Client(processes):
        got = fit_case(tmp_path / "run", case)
    assert len(got) > 18
    assert_same_bits(got, reference_models[case])


def test_another_seed_gives_another_model(
    client: Client, tmp_path: Path, reference_models: dict[str, dict[str, Array]]
) -> None:
    """The comparison of bits can fail: draws and split depend on the seed."""
    fit(tmp_path / "run", SPEC.replace(max_layers=1), PLAN, random_state=1)
    got, reference = model(tmp_path / "run"), reference_models["classify"]
    assert not np.array_equal(got["layer 1 filters"], reference["layer 1 filters"])


@pytest.mark.parametrize("processes", [2], indirect=True)
def test_a_killed_worker_changes_no_bit(
    processes: LocalCluster, tmp_path: Path, reference_models: dict[str, dict[str, Array]]
) -> None:
    """A worker that dies in the middle of a pass has its tasks done again by others."""
    killed: list[int] = []

    def kill_once(event: Event) -> None:
        if isinstance(event, ChunkDone) and event.layer == 2 and not killed:
            killed.append(victims[0])
            os.kill(victims[0], signal.SIGKILL)

    with Client(processes) as client:
        victims = list(client.run(os.getpid).values())
        spec = SPEC.replace(residual="regress")
        fit(tmp_path / "run", spec, PLAN, listeners=[kill_once])
    assert killed
    assert_same_bits(model(tmp_path / "run"), reference_models["regress"])


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, threads_cluster: LocalCluster
) -> ResCNetClassifier:
    """A run of one chunk and one accumulator."""
    store = tmp_path_factory.mktemp("whole") / "run"
    with Client(threads_cluster):
        run = RUN.replace(chunk_images=N, accumulators=1, validation=0.2)
        return fit(store, REGRESS.replace(max_layers=2), run)


@pytest.mark.parametrize(
    ("chunk", "accumulators", "fan_in"),
    [(1000, 4, 2), (37, 100, 2), (37, 5, 9), (17, 3, 3)],
)
def test_another_plan_gives_the_same_model_to_rounding(
    whole: ResCNetClassifier,
    client: Client,
    tmp_path: Path,
    chunk: int,
    accumulators: int,
    fan_in: int,
) -> None:
    """Chunks that do not divide N, one chunk longer than N, more accumulators than chunks."""
    run = RUN.replace(
        chunk_images=chunk, accumulators=accumulators, split_every=fan_in, validation=0.2
    )
    clf = fit(tmp_path / "run", REGRESS.replace(max_layers=2), run)
    np.testing.assert_array_equal(
        RunStore.open(tmp_path / "run").data_array("train")[...],
        RunStore.open(whole.run_url_).data_array("train")[...],
    )
    one, other = model(tmp_path / "run"), model(whole.run_url_)
    np.testing.assert_allclose(
        one["layer 1 filters"], other["layer 1 filters"], rtol=1e-4, atol=1e-5
    )
    scores, expected = clf.decision_function(X_OTHER), whole.decision_function(X_OTHER)
    np.testing.assert_allclose(scores, expected, atol=2e-3)
    for name in ("train accuracy", "validation accuracy"):
        np.testing.assert_allclose(one[name], other[name], atol=1.5 / 48)  # at most one image


def test_groups_are_all_chunks_once_and_in_order() -> None:
    """Whatever the numbers are; no group is empty."""
    for images in (1, 7, 100, 101):
        for chunk in (1, 3, 50, 500):
            for wanted in (1, 2, 9, 1000):
                run = RunSpec(chunk_images=chunk, accumulators=wanted)
                workers = Workers(count=2, slots=4, threads=2, machine_threads=2, memory=None)
                plan = make_plan(Problem(images, (14, 14, 1), 10), SPEC, run, workers)
                groups = plan.groups()
                chunks = [span for group in groups for span in group.chunks()]
                assert [start for start, _ in chunks] == list(range(0, images, chunk))
                assert [stop for _, stop in chunks] == [
                    *(start for start, _ in chunks[1:]),
                    images,
                ]
                assert [group.index for group in groups] == list(range(len(groups)))
                assert all(list(group.chunks()) for group in groups)
                assert len(groups) == min(wanted, len(chunks))


# resuming ---------------------------------------------------------------------------------------


class Interrupted(KeyboardInterrupt):
    """What stops a run in these tests."""


class Died(Exception):
    """What ends a task in these tests; an interruption would end the thread of its worker."""


def raise_at(phase: str, layer: int, error: BaseException) -> Callable[[Event], None]:
    """A listener that raises when a pass begins."""

    def listen(event: Event) -> None:
        if event == PassStarted(phase, layer):
            raise error

    return listen


def test_a_run_taken_further_equals_one_that_went_there_at_once(
    client: Client, tmp_path: Path
) -> None:
    """Two layers, then four; the chosen depth is that of all four."""
    fit(tmp_path / "four", SPEC.replace(max_layers=4), PLAN)
    fit(tmp_path / "two", SPEC.replace(max_layers=2), PLAN)
    expected = model(tmp_path / "four")
    assert "layer 3 filters" not in model(tmp_path / "two")
    clf = ResCNetClassifier.resume(tmp_path / "two", max_layers=4)
    assert_same_bits(model(tmp_path / "two"), expected)
    assert clf.spec.max_layers == 4
    assert clf.depth_ == 1 + int(np.argmax(expected["validation accuracy"]))


@pytest.mark.parametrize(
    ("phase", "layer", "error"),
    [
        ("survey", 0, Interrupted()),
        ("grow", 3, Interrupted()),
        ("grow", 3, KeyboardInterrupt()),
        ("score", 3, Interrupted()),
    ],
)
def test_a_run_stopped_between_passes_resumes_to_the_same_bits(
    client: Client,
    tmp_path: Path,
    reference_models: dict[str, dict[str, Array]],
    phase: str,
    layer: int,
    error: BaseException,
) -> None:
    """At the first pass, the second, in the middle and at the last; what is finished is kept."""
    store = tmp_path / "run"
    listener = raise_at(phase, layer, error)
    with pytest.raises(type(error)):
        fit(store, run=PLAN, listeners=[listener])
    finished = len(RunStore.open(store).commits())
    assert finished == {"survey": 0, "grow": layer, "score": 4}[phase]
    events: list[Event] = []
    ResCNetClassifier.resume(store, listeners=[events.append])
    assert next(e for e in events if isinstance(e, PassStarted)) == PassStarted(phase, layer)
    assert_same_bits(model(store), reference_models["classify"])


@pytest.mark.parametrize("name", ["count", "survey", "grow"])
def test_a_run_stopped_within_any_pass_resumes_to_the_same_bits(
    client: Client,
    tmp_path: Path,
    reference_models: dict[str, dict[str, Array]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """After a pass has done all its work and before any of it is committed."""
    store = tmp_path / "run"
    compute = loop._Driver.compute

    def stop_after(self: Any, what: passes.Pass, task: state.Task) -> Any:
        result = compute(self, what, task)
        if what.name == name:
            raise Interrupted
        return result

    with monkeypatch.context() as patch:
        patch.setattr(loop._Driver, "compute", stop_after)
        with pytest.raises(Interrupted):
            fit(store, run=PLAN)
    ResCNetClassifier.resume(store)
    assert_same_bits(model(store), reference_models["classify"])


def test_a_half_written_layer_is_never_read(
    client: Client,
    tmp_path: Path,
    reference_models: dict[str, dict[str, Array]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pass that fails after some of its chunks were written is done again as a whole, though
    the error, and with it what Dask knows of the pass, is still held as notebooks hold it."""
    store = tmp_path / "run"
    written: list[str] = []
    write_region = chunks.write_region

    def fail_in_layer_3(array: Any, start: int, values: Array) -> None:
        if array.path == "maps/0003":
            written.append(array.path)
            if len(written) == 3:
                raise StoreError("no more")
            values = values + 1e6  # what is half-written is wrong, too
        write_region(array, start, values)

    with monkeypatch.context() as patch:
        patch.setattr(chunks, "write_region", fail_in_layer_3)
        with pytest.raises(StoreError, match="no more") as held:
            fit(store, run=PLAN)
    assert held.traceback
    assert len(RunStore.open(store).commits()) == 3
    ResCNetClassifier.resume(store)
    assert_same_bits(model(store), reference_models["classify"])


def test_an_interrupted_pass_does_not_go_on_behind_the_users_back(
    client: Client,
    threads_cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a cluster that outlives the run, its tasks would write into whatever comes next; they
    are cancelled even while the interruption is held, as notebooks hold it."""
    result = Future.result

    def left() -> list[Any]:
        return [key for key in list(threads_cluster.scheduler.tasks) if "grow-" in str(key)]

    def wait_until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 5
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert condition(), left()

    def interrupt(self: Future, *args: Any, **kwargs: Any) -> Any:
        if str(self.key).startswith("grow-"):
            wait_until(lambda: bool(left()))  # the pass is under way
            raise KeyboardInterrupt
        return result(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupt)
        with pytest.raises(KeyboardInterrupt) as held:
            fit(tmp_path / "run")
    wait_until(lambda: not left())
    assert held.traceback


def test_resuming_a_finished_run_changes_nothing(client: Client, tmp_path: Path) -> None:
    """No pass is run, and the result is the same."""
    fit(tmp_path / "run")
    before = model(tmp_path / "run")
    events: list[Event] = []
    clf = ResCNetClassifier.resume(tmp_path / "run", listeners=[events.append])
    assert [type(event) for event in events] == [RunStarted, RunDone]
    assert events[0].layers == 3
    assert clf.depth_ == 3
    assert_same_bits(model(tmp_path / "run"), before)


def test_fewer_layers_than_there_are_is_refused(client: Client, tmp_path: Path) -> None:
    """A resume never makes a run worse; it stays as it is, and goes on where more are asked for."""
    fit(tmp_path / "run", validation=(X_OTHER, Y_OTHER))
    full = model(tmp_path / "run")
    with pytest.raises(ValueError, match=r"max_layers=1, but the run .* has 3 layers"):
        ResCNetClassifier.resume(tmp_path / "run", max_layers=1)
    again = ResCNetClassifier.resume(tmp_path / "run", max_layers=3)
    assert again.depth_ == 1 + int(np.argmax(full["validation accuracy"]))
    assert_same_bits(model(tmp_path / "run"), full)


def test_a_network_of_an_unfinished_run_is_that_of_its_finished_layers(
    client: Client, tmp_path: Path
) -> None:
    """It can be looked at before the run is done, and says so where there is nothing yet."""
    store = tmp_path / "run"
    with pytest.raises(Interrupted):
        fit(store, listeners=[raise_at("grow", 3, Interrupted())])
    assert ResCNetClassifier.load(store).depth_ == 2
    with pytest.raises(Interrupted):
        fit(tmp_path / "none", listeners=[raise_at("grow", 1, Interrupted())])
    with pytest.raises(ValueError, match=r"no finished layer yet\. Resume it first"):
        ResCNetClassifier.load(tmp_path / "none")


# events -----------------------------------------------------------------------------------------


def test_events_tell_of_every_pass_in_order(client: Client, tmp_path: Path) -> None:
    """Each pass begins, reports all its images, and ends with the accuracy before it."""
    events: list[Event] = []
    clf = fit(tmp_path / "run", run=PLAN, listeners=[events.append])
    url = str(tmp_path / "run")
    assert events[0] == RunStarted(url, N, 3, 0, ())
    assert events[-1] == RunDone(url, clf.depth_, "max_layers=3 reached")
    expected = [("survey", 0), ("grow", 1), ("grow", 2), ("grow", 3), ("score", 3)]
    assert [(e.phase, e.layer) for e in events if isinstance(e, PassStarted)] == expected
    placed = [event for event in events if isinstance(event, MapsPlaced)]
    assert [(e.layer, e.in_memory) for e in placed] == [(1, True)]
    middle = iter([event for event in events[1:-1] if event not in placed])
    accuracies = []
    for phase, layer in expected:
        assert next(middle) == PassStarted(phase, layer)
        images = 0
        for event in middle:
            if isinstance(event, PassDone):
                break
            assert isinstance(event, ChunkDone)
            assert (event.phase, event.layer) == (phase, layer)
            assert event.images in (50, N % 50)
            images += event.images
        assert images == N
        assert (event.phase, event.layer) == (phase, layer)
        assert event.seconds > 0
        accuracies.append(event.accuracy)
    assert next(middle, None) is None
    assert accuracies[:2] == [None, None]
    assert [a.layer for a in accuracies[2:]] == [1, 2, 3]
    assert [a.validation for a in accuracies[2:]] == [a["validation"] for a in clf.accuracies_]


@pytest.mark.parametrize(("keep", "expected"), [("all", [1, 2, 3]), ("last", [3])])
def test_maps_are_kept_as_asked_for(
    client: Client, tmp_path: Path, keep: str, expected: list[int]
) -> None:
    """Those of all layers, or of the last; they are what the network makes of the images."""
    clf = fit(tmp_path / "run", run=RUN.replace(keep_maps=keep))
    run = RunStore.open(tmp_path / "run")
    for kind in ("maps", "scores"):
        names = [name for name in (run.location / kind).names() if name.isdigit()]
        assert names == [f"{layer:04d}" for layer in expected]
    for layer in expected:
        maps = clf.network_.maps(X[:5], layer)
        np.testing.assert_allclose(run.maps(layer)[:5], maps, rtol=1e-4, atol=1e-4)


# nothing of size N on the driver ----------------------------------------------------------------


def test_what_the_driver_gathers_and_sends_is_small(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of passes under 10 kB and graphs under 200 kB, scatter matrices stay on workers."""
    results: dict[str, int] = {}
    graphs: dict[str, int] = {}
    compute = loop._Driver.compute

    def measured(self: Any, what: passes.Pass, task: state.Task) -> Any:
        result = compute(self, what, task)
        results[what.name] = len(cloudpickle.dumps(result))
        return result

    def measured_graph(*args: Any, name: str, **kwargs: Any) -> Any:
        graph = fold_graph(*args, name=name, **kwargs)
        graphs[name] = len(cloudpickle.dumps(dict(graph.__dask_graph__())))
        return graph

    monkeypatch.setattr(loop._Driver, "compute", measured)
    monkeypatch.setattr(executor, "fold_graph", measured_graph)
    run = PLAN.replace(chunk_images=12)
    fit(tmp_path / "run", SPEC.replace(max_layers=1), run)
    assert results.keys() == graphs.keys() == {"count", "survey", "grow", "score"}
    assert max(results.values()) < 10_000
    assert max(graphs.values()) < 200_000


def test_the_graph_of_a_pass_is_small_whatever_the_number_of_images(tmp_path: Path) -> None:
    """Thirty million images are the same number of tasks as a thousand, no larger each."""
    run = RunStore.create(tmp_path / "run", {})

    def graph_size(images: int) -> tuple[int, int]:
        plan = Plan(images, 300, 16, 4, 1)
        task = state.Task(run, 3)
        parts = task.split(plan.groups(), np.full((16, 10), images // 160))
        graph = fold_graph(
            passes.grow_group, parts, LayerStatistics.merge, passes.finish_layer, task,
            split_every=4, name="grow",
        )  # fmt: skip
        tasks = dict(graph.__dask_graph__())
        return len(tasks), len(cloudpickle.dumps(tasks))

    tasks, size = graph_size(30_000_000)
    assert tasks == graph_size(100_000)[0] < 30
    assert size < 200_000


# validation -------------------------------------------------------------------------------------


def test_a_validation_set_never_influences_the_layers(client: Client, tmp_path: Path) -> None:
    """Noise with random labels in its place changes accuracies and not one bit of the model."""
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 256, X_OTHER.shape, dtype=np.uint8)
    spec = REGRESS.replace(max_layers=2)
    fit(tmp_path / "a", spec, validation=(X_OTHER, Y_OTHER))
    fit(tmp_path / "b", spec, validation=(noise, rng.permutation(Y_OTHER)))
    a, b = model(tmp_path / "a"), model(tmp_path / "b")
    assert_same_bits(fitted_only(a), fitted_only(b))
    assert np.array_equal(a["train accuracy"], b["train accuracy"])
    assert not np.array_equal(a["validation accuracy"], b["validation accuracy"])


def test_images_held_out_never_influence_the_layers(client: Client, tmp_path: Path) -> None:
    """With their pixels replaced by extreme ones the model stays the same, bit for bit."""
    spec, run = SPEC.replace(max_layers=2), RUN.replace(validation=0.25)
    fit(tmp_path / "a", spec, run)
    held_out = ~RunStore.open(tmp_path / "a").data_array("train")[...]
    assert held_out.sum() == pytest.approx(N / 4, abs=10)
    changed = X.astype(np.float32)
    changed[held_out] = 1e4 * np.random.default_rng(4).normal(size=changed[held_out].shape)
    fit(tmp_path / "b", spec, run, X=changed)
    a, b = model(tmp_path / "a"), model(tmp_path / "b")
    assert_same_bits(fitted_only(a), fitted_only(b))
    assert not np.array_equal(a["validation accuracy"], b["validation accuracy"])


@pytest.mark.parametrize("how", ["set", "share"])
def test_validation_chooses_the_depth(client: Client, tmp_path: Path, how: str) -> None:
    """The first best layer on it, whether it is given or held out; and the network ends there."""
    wrong = np.random.default_rng(0).permutation(Y_OTHER)  # so that the last is not the best
    held_out = (X_OTHER, wrong) if how == "set" else 0.3
    spec = REGRESS.replace(max_layers=4, stop_at_zero_error=False)
    clf = fit(tmp_path / "run", spec, validation=held_out)
    found = [a["validation"] for a in clf.accuracies_]
    assert len(found) == 4
    assert clf.depth_ == clf.network_.depth == 1 + int(np.argmax(found))
    if how == "set":
        assert clf.depth_ < 4
        staged = clf.staged_score(X_OTHER, wrong)
        np.testing.assert_allclose(staged, found[: clf.depth_])
    train = RunStore.open(tmp_path / "run").data_array("train")[...]
    assert len(train) == (N + 60 if how == "set" else N)
    if how == "set":
        np.testing.assert_array_equal(train, np.arange(N + 60) < N)


def test_without_validation_all_layers_are_kept(client: Client, tmp_path: Path) -> None:
    """There is nothing else to choose by."""
    clf = fit(tmp_path / "run")
    assert clf.depth_ == 3
    assert [a["validation"] for a in clf.accuracies_] == [None] * 3
    staged = clf.staged_score(X, Y)
    np.testing.assert_allclose(staged, [a["train"] for a in clf.accuracies_], atol=1 / N + 1e-9)


def test_a_split_that_holds_nothing_out_is_refused(client: Client, tmp_path: Path) -> None:
    """As it can come out with a few images of many classes; and no store is left."""
    codes, none = np.arange(24) % 12, np.zeros(12, int)
    seed = next(s for s in range(99) if not select_validation(codes, none, 0.05, s).any())
    with pytest.raises(DataError, match=r"validation=0\.05 of 24 images holds none out"):
        fit(tmp_path / "run", X=X[:24], y=codes, validation=0.05, random_state=seed)
    assert not (tmp_path / "run").exists()


def test_patience_stops_a_run(client: Client, tmp_path: Path) -> None:
    """One layer after the best on validation, and one more that was grown to judge it."""
    wrong = np.random.default_rng(0).permutation(Y_OTHER)
    spec = REGRESS.replace(max_layers=8, patience=1)
    clf = fit(tmp_path / "run", spec, validation=(X_OTHER, wrong))
    found = [a["validation"] for a in clf.accuracies_]
    assert 2 <= len(found) < 8
    assert found[-1] <= max(found[:-1])
    assert clf.depth_ == len(found) - 1
    result = RunStore.open(tmp_path / "run").result()
    assert result["reason"] == "no better validation accuracy in 1 layers"


@pytest.mark.parametrize("stop", [True, False])
def test_training_error_zero_stops_a_run_if_it_is_to(
    client: Client, tmp_path: Path, stop: bool
) -> None:
    """Zeros and ones are told apart at once."""
    easy = Y < 2
    spec = REGRESS.replace(stop_at_zero_error=stop)
    clf = fit(tmp_path / "run", spec, X=X[easy], y=Y[easy])
    assert clf.accuracies_[0]["train"] == 1.0
    assert clf.depth_ == (1 if stop else 3)
    assert len(clf.accuracies_) == clf.depth_
    reason = RunStore.open(tmp_path / "run").result()["reason"]
    assert reason == ("training error 0 after layer 1" if stop else "max_layers=3 reached")


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_bank_of_one_kind_of_filters_can_be_trained(
    client: Client, tmp_path: Path, share: float
) -> None:
    """PCA filters alone, which have no bias, and stacked-LDA filters alone, which have one."""
    clf = fit(tmp_path / "run", SPEC.replace(lda_fraction=share, max_layers=2))
    for layer in clf.network_.layers:
        assert layer.bank.filters.shape[3] == 4
        assert np.all((layer.bank.bias != 0) == (share == 1.0))
    assert clf.score(X_OTHER, Y_OTHER) > 0.5


# images at a URL --------------------------------------------------------------------------------


def test_images_at_a_zarr_url_are_referred_to_and_not_copied(
    client: Client, tmp_path: Path
) -> None:
    """The run holds no images, trains to the same bits as from memory, and can be resumed."""
    group = zarr.open_group(str(tmp_path / "data.zarr"), mode="w")
    group.create_array("images", data=X, chunks=(64, *X.shape[1:]))
    group.create_array("labels", data=Y, chunks=(100,))
    before = Location.of(tmp_path / "data.zarr").size()
    url = str(tmp_path / "data.zarr")
    ResCNetClassifier(SPEC.replace(max_layers=1), store=tmp_path / "a", run=RUN).fit(url)
    run = RunStore.open(tmp_path / "a")
    assert run.attributes()["images"] == {"url": url, "path": "images", "start": 0}
    assert "images" not in (run.location / "data").names()
    ResCNetClassifier.resume(tmp_path / "a", max_layers=2)
    fit(tmp_path / "b", SPEC.replace(max_layers=2))
    assert "images" in (Location.of(tmp_path / "b") / "data").names()
    assert_same_bits(model(tmp_path / "a"), model(tmp_path / "b"))
    assert Location.of(url).size() == before


def test_a_run_is_kept_at_a_memory_url(client: Client) -> None:
    """Any fsspec URL that all workers see."""
    url = "memory://test-training-run"
    try:
        clf = fit(url, SPEC.replace(max_layers=1))
        assert clf.run_url_ == url
        assert RunStore.open(url).result()["depth"] == 1
        assert ResCNetClassifier.load(url).score(X, Y) == clf.score(X, Y)
    finally:
        Location.of(url).remove()


def test_pixels_of_any_number_type_can_be_trained_on(client: Client, tmp_path: Path) -> None:
    """Min-max makes the same of whole numbers and of fractions; doubles are stored as floats."""
    spec = SPEC.replace(max_layers=1)
    fit(tmp_path / "uint8", spec, X=(X > 100).astype("uint8"))
    for given, stored in (("float64", "float32"), ("bool", "uint8")):
        fit(tmp_path / given, spec, X=(X > 100).astype(given))
        assert RunStore.open(tmp_path / given).images()[0].dtype == stored
        assert_same_bits(model(tmp_path / given), model(tmp_path / "uint8"))


def test_dask_sees_how_large_accumulators_are() -> None:
    """A scatter matrix taken for a few bytes would be moved and piled up as if it were free."""
    moments = FeatureMoments.empty(500, 10)
    assert sizeof(moments) >= 500 * 500 * 4
    inputs = BankStatistics.empty(5, 3)
    assert sizeof(LayerStatistics(moments, inputs, Tally.empty())) >= 500 * 500 * 4 + 45 * 45 * 8


@pytest.mark.parametrize("name", ["images", "labels", "train"])
def test_a_run_whose_data_were_cut_short_is_not_resumed(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Missing chunks read as zeros, and a network must not be trained on these."""
    write_region = chunks.write_region

    def die(array: Any, first: int, values: Array) -> None:
        if array.path == f"data/{name}" and first >= prepare.BLOCK_IMAGES:
            raise Died
        write_region(array, first, values)

    with monkeypatch.context() as patch:
        patch.setattr(chunks, "write_region", die)
        patch.setattr(prepare, "BLOCK_IMAGES", 40)
        patch.setattr(
            Location, "remove", lambda location: None
        )  # a driver killed cleans nothing up
        with pytest.raises(Died):
            fit(tmp_path / "run")
    with pytest.raises(StoreError, match="never completely written: remove it"):
        ResCNetClassifier.resume(tmp_path / "run")


# how maps are stored ----------------------------------------------------------------------------


def test_maps_in_half_precision_train_the_network_that_predicts(
    client: Client, tmp_path: Path
) -> None:
    """What later layers see is what is stored: the scores of the run are those of the network, and
    the maps take half the bytes."""
    spec = REGRESS.replace(max_layers=3)
    for kind in ("float32", "float16"):
        fit(tmp_path / kind, spec.replace(store_dtype=kind))
    half, single = (RunStore.open(tmp_path / kind) for kind in ("float16", "float32"))
    assert half.maps(3).dtype == np.float16
    assert half.maps(3).nbytes_stored() <= 0.51 * single.maps(3).nbytes_stored()
    network = ResCNetClassifier.load(tmp_path / "float16").network_
    maps = np.asarray(network.maps(X, 3))
    np.testing.assert_array_equal(maps, half.maps(3)[:].astype(np.float32))
    np.testing.assert_allclose(maps, single.maps(3)[:], atol=0.02 * np.abs(maps).max())


def test_damaged_maps_in_half_precision_are_rebuilt(client: Client, tmp_path: Path) -> None:
    """To the bits that were committed."""
    spec = REGRESS.replace(max_layers=2, store_dtype="float16")
    fit(tmp_path / "a", spec)
    fit(tmp_path / "b", spec)
    maps = RunStore.open(tmp_path / "b").maps(2, write=True)
    maps[:] = 0
    for name in ("a", "b"):
        ResCNetClassifier.resume(tmp_path / name, max_layers=3)
    assert_same_bits(model(tmp_path / "a"), model(tmp_path / "b"))


def test_compressed_maps_change_no_bit(client: Client, tmp_path: Path) -> None:
    """Of the network."""
    fit(tmp_path / "none")
    fit(tmp_path / "zstd", run=RUN.replace(codec="zstd"))
    assert_same_bits(model(tmp_path / "none"), model(tmp_path / "zstd"))
    assert "Zstd" in str(RunStore.open(tmp_path / "zstd").maps(3).metadata.codecs)
