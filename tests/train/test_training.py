"""Whole training runs: events, sizes on the driver, sources of images, and storage of maps."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import zarr
from dask.sizeof import sizeof
from distributed import Client
from models import assert_same_bits, read_model
from training_cases import (
    PLAN,
    REGRESS,
    RUN,
    SPEC,
    N,
    X,
    Y,
    fit,
)

from rescnet_dist import (
    ResCNetClassifier,
)
from rescnet_dist.events import (
    ChunkDone,
    Event,
    MapsPlaced,
    PassDone,
    PassStarted,
    RunDone,
    RunStarted,
)
from rescnet_dist.kernels import FeatureMoments
from rescnet_dist.model import BankStatistics, LayerStatistics, Tally
from rescnet_dist.planning import Plan
from rescnet_dist.reduce import fold_graph
from rescnet_dist.spec import NetworkSpec
from rescnet_dist.store import Location, RunStore
from rescnet_dist.train import executor, loop, passes
from rescnet_dist.train.task import GroupParts, Task


def test_events_report_every_pass_in_order(client: Client, tmp_path: Path) -> None:
    """Each pass starts, reports all its images, and ends with the accuracy before it."""
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
def test_keep_maps_option(client: Client, tmp_path: Path, keep: str, expected: list[int]) -> None:
    """Maps of all layers or of the last one stay, and equal those that the network computes."""
    clf = fit(tmp_path / "run", run=RUN.replace(keep_maps=keep))
    run = RunStore.open(tmp_path / "run")
    for kind in ("maps", "scores"):
        names = [name for name in (run.location / kind).names() if name.isdigit()]
        assert names == [f"{layer:04d}" for layer in expected]
    for layer in expected:
        maps = clf.network_.maps(X[:5], layer)
        np.testing.assert_allclose(run.maps(layer)[:5], maps, rtol=1e-4, atol=1e-4)


# the driver holds nothing of size N --------------------------------------------------------------


def test_driver_gathers_and_sends_little(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are under 10 kB and graphs under 200 kB: scatter matrices stay on workers."""
    results: dict[str, int] = {}
    graphs: dict[str, int] = {}
    compute = loop._Driver.compute

    def measure_result(self: Any, pass_: passes.Pass, task: Task) -> Any:
        result = compute(self, pass_, task)
        results[pass_.name] = len(cloudpickle.dumps(result))
        return result

    def measure_graph(*args: Any, name: str, **kwargs: Any) -> Any:
        graph = fold_graph(*args, name=name, **kwargs)
        graphs[name] = len(cloudpickle.dumps(graph))
        return graph

    monkeypatch.setattr(loop._Driver, "compute", measure_result)
    monkeypatch.setattr(executor, "fold_graph", measure_graph)
    run = PLAN.replace(chunk_images=12)
    fit(tmp_path / "run", SPEC.replace(max_layers=1), run)
    assert results.keys() == graphs.keys() == {"count", "survey", "grow", "score"}
    assert max(results.values()) < 10_000
    assert max(graphs.values()) < 200_000


def test_graph_size_does_not_depend_on_number_of_images_or_tasks(tmp_path: Path) -> None:
    """Thirty million images take as many tasks as a hundred thousand; a graph is sent as its
    description, whatever its tasks."""
    run = RunStore.create(tmp_path / "run", {})

    def graph_size(images: int, accumulators: int) -> tuple[int, int]:
        plan = Plan(images, 300, accumulators, 4, 1)
        task = Task(run, 3)
        counts = np.full((accumulators, 10), images // (10 * accumulators))
        graph = fold_graph(
            passes.grow_group,
            GroupParts(task, plan, counts, tuple(f"cache-{i}" for i in range(accumulators))),
            LayerStatistics.merge,
            passes.finish_layer,
            task,
            split_every=4,
            name="grow",
        )
        size = len(cloudpickle.dumps(graph))
        return len(dict(graph.__dask_graph__())), size

    tasks, size = graph_size(30_000_000, 16)
    assert tasks == graph_size(100_000, 16)[0] < 30
    assert size < 5_000
    tasks, size = graph_size(30_000_000, 4_000)
    assert tasks > 5_000
    assert size < 100_000


def test_tasks_are_sent_as_they_are(tmp_path: Path) -> None:
    """What all tasks of a pass share is packed once; a task has that and its own numbers."""
    plan = Plan(40, 2, 5, 4, 1)
    shared = Task(RunStore.create(tmp_path / "run", {}), 3, 2, driver="name")
    counts = np.arange(15).reshape(5, 3)
    parts = GroupParts(shared, plan, counts, others=("other",))
    for index, part in enumerate(parts):
        task, group, other = pickle.loads(pickle.dumps(part))
        assert (group, other) == (plan.groups()[index], "other")
        assert (task.run.url, task.layer, task.stored_layer) == (shared.run.url, 3, 2)
        assert task.driver == "name"
        np.testing.assert_array_equal(task.counts, counts.sum(axis=0))
        np.testing.assert_array_equal(task.class_offsets, counts[:index].sum(axis=0))
        task.class_offsets[:] = -1  # its own copy
        assert pickle.loads(pickle.dumps(replace(part[0], layer=4))).layer == 4  # packed anew
        assert pickle.loads(pickle.dumps(replace(task, layer=4))).layer == 4
        assert len({part[0].packed for part in parts}) == 1
    for start, stop in ((0, 5), (1, 4), (3, 5)):
        some = pickle.loads(pickle.dumps(parts[start:stop][0:2]))
        expected = list(parts)[start:stop][0:2]
        assert len(some) == len(expected)
        for (task, group, other), (whole, same_group, _) in zip(some, expected, strict=True):
            assert (group, other) == (same_group, "other")
            np.testing.assert_array_equal(task.counts, whole.counts)
            np.testing.assert_array_equal(task.class_offsets, whole.class_offsets)
    found = pickle.loads(pickle.dumps(shared))
    assert (found.layer, found.counts.shape, found.class_offsets.tolist()) == (3, (0,), [0])


# images at a URL -------------------------------------------------------------------------------


def test_images_at_zarr_url_are_referenced_not_copied(client: Client, tmp_path: Path) -> None:
    """The run stores no images, gives the same bits as from memory, and can be resumed."""
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
    assert_same_bits(read_model(tmp_path / "a"), read_model(tmp_path / "b"))
    assert Location.of(url).size() == before


def test_run_at_memory_url(client: Client) -> None:
    """Any fsspec URL that all workers can reach works."""
    url = "memory://test-training-run"
    try:
        clf = fit(url, SPEC.replace(max_layers=1))
        assert clf.run_url_ == url
        assert RunStore.open(url).result()["depth"] == 1
        assert ResCNetClassifier.load(url).score(X, Y) == clf.score(X, Y)
    finally:
        Location.of(url).remove()


def test_pixel_dtypes(client: Client, tmp_path: Path) -> None:
    """Min-max scaling gives the same for integers and floats; doubles are stored as floats."""
    spec = SPEC.replace(max_layers=1)
    fit(tmp_path / "uint8", spec, X=(X > 100).astype("uint8"))
    for dtype, stored in (("float64", "float32"), ("bool", "uint8")):
        fit(tmp_path / dtype, spec, X=(X > 100).astype(dtype))
        assert RunStore.open(tmp_path / dtype).images()[0].dtype == stored
        assert_same_bits(read_model(tmp_path / dtype), read_model(tmp_path / "uint8"))


def test_dask_knows_size_of_accumulators() -> None:
    """A scatter matrix counted as a few bytes would be moved and collected as if it were free."""
    moments = FeatureMoments.empty(500, 10)
    assert sizeof(moments) >= 500 * 500 * 4
    architecture = NetworkSpec(filters=4, bank="pca").architecture((9, 9, 1), 10)
    inputs = BankStatistics.empty(architecture, 2)
    assert sizeof(LayerStatistics(moments, inputs, Tally.empty())) >= 500 * 500 * 4 + 45 * 45 * 8


# storage of maps -------------------------------------------------------------------------------


def test_half_precision_maps_train_the_network_that_predicts(
    client: Client, tmp_path: Path
) -> None:
    """Later layers see the maps as stored, as the network does; they take half the bytes."""
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


def test_damaged_half_precision_maps_are_rebuilt(client: Client, tmp_path: Path) -> None:
    """They are rebuilt to the bits that were committed."""
    spec = REGRESS.replace(max_layers=2, store_dtype="float16")
    fit(tmp_path / "a", spec)
    fit(tmp_path / "b", spec)
    maps = RunStore.open(tmp_path / "b").maps(2, write=True)
    maps[:] = 0
    for name in ("a", "b"):
        ResCNetClassifier.resume(tmp_path / name, max_layers=3)
    assert_same_bits(read_model(tmp_path / "a"), read_model(tmp_path / "b"))


def test_compression_of_maps_changes_no_bit(client: Client, tmp_path: Path) -> None:
    """The codec affects the store only."""
    fit(tmp_path / "none")
    fit(tmp_path / "zstd", run=RUN.replace(codec="zstd"))
    assert_same_bits(read_model(tmp_path / "none"), read_model(tmp_path / "zstd"))
    assert "Zstd" in str(RunStore.open(tmp_path / "zstd").maps(3).metadata.codecs)


def test_all_passes_have_one_span(client: Client, tmp_path: Path) -> None:
    """A scheduler never forgets a span."""

    def count_spans(dask_scheduler: Any) -> int:
        return len(dask_scheduler.extensions["spans"].spans)

    added = []
    for layers in (1, 3):
        before = client.run_on_scheduler(count_spans)
        spec = SPEC.replace(max_layers=layers, stop_at_zero_error=False)
        ResCNetClassifier(spec, store=tmp_path / str(layers), run=RUN).fit(X, Y)
        added.append(client.run_on_scheduler(count_spans) - before)
    assert added[0] == added[1]
