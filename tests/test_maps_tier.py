"""Maps that wait in workers' memory: the same bits as from the store, whatever is lost of them."""

from __future__ import annotations

import os
import pickle
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client, LocalCluster

from rescnet_dist import ClusterError, NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.cli import main
from rescnet_dist.cluster import Workers, workers_of
from rescnet_dist.cluster.workers import _least_of_a_gpu
from rescnet_dist.errors import BackendError, SpecError, StoreError
from rescnet_dist.kernels import Backend
from rescnet_dist.planning import Forecast, Problem, choose_tier, estimate, make_plan
from rescnet_dist.planning.tier import group_bytes, held_bytes
from rescnet_dist.store import FORMAT_VERSION, RunStore, read_layer
from rescnet_dist.train import (
    ChunkRebuilt,
    Event,
    PassDone,
    PassStarted,
    loop,
    shelf,
    verify_run,
)
from rescnet_dist.train.chunks import Reader
from rescnet_dist.train.shelf import Held, Shelf

X, Y = (array[:240] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec(
    filters=4, first_filter_size=3, block=5, stride=2, learning_rate=0.5, max_layers=7,
    residual="regress", ridge=0.3, stop_at_zero_error=False,
)  # fmt: skip
RUN = RunSpec(chunk_images=50, accumulators=3, validation=0.2, solve_threads=1, checkpoint_every=3)


class Stopped(KeyboardInterrupt):
    """Raised by a listener."""


def fit(store: Any, spec: NetworkSpec = SPEC, run: RunSpec = RUN, **more: Any) -> ResCNetClassifier:
    """Train on the small digits."""
    return ResCNetClassifier(spec, store=store, run=run, **more).fit(X, Y)


def stop_after(layer: int) -> Any:
    """A listener that ends a run once a layer is committed."""

    def listen(event: Event) -> None:
        if isinstance(event, PassDone) and (event.phase, event.layer) == ("grow", layer):
            raise Stopped

    return listen


def weights(url: Any) -> list[np.ndarray[Any, Any]]:
    """What all layers of a run have learnt."""
    run = RunStore.open(url)
    layers = [read_layer(run.place, n) for n in range(1, len(run.commits()))]
    return [a for la in layers for a in (la.bank.filters, la.bank.bias, la.classifier.weights)]


def stored_layers(url: Any) -> list[int]:
    """The layers whose maps were committed to the store."""
    commits = RunStore.open(url).commits()
    return [n for n, record in enumerate(commits) if f"maps/{n:04d}" in record["checksums"]]


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether all arrays are equal to the bit."""
    return len(one) == len(other) and all(
        np.array_equal(a, b) for a, b in zip(one, other, strict=True)
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, threads_cluster: LocalCluster) -> list[Any]:
    """What is learnt with all maps in the store."""
    store = tmp_path_factory.mktemp("reference") / "run"
    with Client(threads_cluster):
        fit(store, run=RUN.replace(maps="store"))
    assert stored_layers(store) == [1, 2, 3, 4, 5, 6, 7]
    return weights(store)


def test_memory_gives_the_bits_of_the_store(
    client: Client, tmp_path: Path, reference: list[Any]
) -> None:
    """The store has the maps of checkpoints and of the end; between them nothing is written."""
    done: list[PassDone] = []
    fit(tmp_path / "run", listeners=[lambda e: isinstance(e, PassDone) and done.append(e)])
    assert same(weights(tmp_path / "run"), reference)
    assert stored_layers(tmp_path / "run") == [3, 6, 7]
    assert [n for n in range(1, 8) if RunStore.open(tmp_path / "run").has_maps(n)] == [7]
    grown = {e.layer: e.observed for e in done if e.phase == "grow"}
    maps = 240 * 14 * 14 * 4 * 4 + 240 * 10 * 4
    assert {n: seen.written for n, seen in grown.items()} == {
        n: maps if n in (3, 6, 7) else 0 for n in grown
    }
    assert all(seen.read == 0 for n, seen in grown.items() if n > 1)
    assert verify_run(tmp_path / "run") == []


def test_features_that_have_no_room_are_made_again_to_the_same_bits(
    client: Client, tmp_path: Path, reference: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the maps, which stay in memory without them."""
    kept: list[Held] = []
    put = Shelf.put

    def told(self: Shelf, start: int, held: Held, backend: Backend) -> None:
        kept.append(held)
        put(self, start, held, backend)

    monkeypatch.setattr(Shelf, "put", told)
    monkeypatch.setattr(loop, "choose_tier", lambda *a: replace(choose_tier(*a), features=False))
    fit(tmp_path / "run")
    assert same(weights(tmp_path / "run"), reference)
    assert {held.features is None for held in kept} == {True}
    assert {held.maps is None for held in kept} == {False}
    assert verify_run(tmp_path / "run") == []


def test_a_stopped_run_goes_on_from_the_last_checkpoint(
    client: Client, tmp_path: Path, reference: list[Any]
) -> None:
    """Layers 4 and 5 are in no store: they are computed again from the maps of layer 3."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", listeners=[stop_after(5)])
    run = RunStore.open(tmp_path / "run")
    assert len(run.commits()) == 6
    assert stored_layers(tmp_path / "run") == [3]
    assert verify_run(tmp_path / "run") == []
    done: list[PassDone] = []
    ResCNetClassifier.resume(
        tmp_path / "run", listeners=[lambda e: isinstance(e, PassDone) and done.append(e)]
    )
    assert same(weights(tmp_path / "run"), reference)
    first = next(e for e in done if e.phase == "grow")
    assert first.layer == 6
    assert first.observed.read >= 240 * 14 * 14 * 4 * 4  # the checkpoint


def test_a_lost_checkpoint_is_replayed_from_the_images(
    client: Client, tmp_path: Path, reference: list[Any]
) -> None:
    """Where the store has lost the maps of the checkpoint too."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", listeners=[stop_after(5)])
    (RunStore.open(tmp_path / "run").place / "maps/0003").remove()
    ResCNetClassifier.resume(tmp_path / "run")
    assert same(weights(tmp_path / "run"), reference)


def test_other_last_digits_are_told_and_gone_on_with(client: Client, tmp_path: Path) -> None:
    """As on another processor, where no bits are the same: the run is not lost for it."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", listeners=[stop_after(5)])
    run = RunStore.open(tmp_path / "run")
    record = run.commits()[5]
    (path,) = record["checksums"]
    assert path == "unsaved/scores/0005"
    record["checksums"][path][2] ^= 1
    run.commit(5, record)
    told: list[ChunkRebuilt] = []
    ResCNetClassifier.resume(
        tmp_path / "run", listeners=[lambda e: isinstance(e, ChunkRebuilt) and told.append(e)]
    )
    assert sorted(event.start for event in told) == [0, 50, 100, 150, 200]
    assert all("made again from layer 3" in event.reason for event in told)
    assert [e.start for e in told if "other last digits" in e.reason] == [100]
    assert len(RunStore.open(tmp_path / "run").commits()) == 8


def test_maps_of_half_precision_take_half_of_the_memory(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are rounded to it before anything is learnt from them, the bits are the store's."""
    kept: list[Any] = []

    def put(self: Shelf, start: int, held: Held, backend: Backend) -> None:
        kept.append(held.maps)
        there(self, start, held, backend)

    there = Shelf.put
    monkeypatch.setattr(Shelf, "put", put)
    spec = SPEC.replace(store_dtype="float16", max_layers=4)
    fit(tmp_path / "memory", spec)
    assert kept
    assert {maps.dtype for maps in kept} == {np.dtype("float16")}
    fit(tmp_path / "store", spec, RUN.replace(maps="store"))
    assert same(weights(tmp_path / "memory"), weights(tmp_path / "store"))


@pytest.mark.parametrize(
    ("maps", "layers"), [("memory", 5), ("memory", 6), ("store", 5)], ids=str
)  # a checkpoint would be due at 6
def test_maps_of_none_are_gone_with_the_end_and_computed_again_to_go_on(
    client: Client, tmp_path: Path, reference: list[Any], maps: Any, layers: int
) -> None:
    """Which is quicker, and smaller, for those who do not mean to go on; also where what is
    computed again comes out with other last digits, as on another processor."""
    run = RUN.replace(maps=maps, keep_maps="none")
    told: list[Event] = []
    fit(tmp_path / "run", SPEC.replace(max_layers=layers), run, listeners=[told.append])
    assert not any(isinstance(e, PassDone) and e.phase == "save" for e in told)
    last = next(e for e in told if isinstance(e, PassDone) and e.layer == layers)
    assert (last.observed.written == 0) == (maps == "memory")
    there = RunStore.open(tmp_path / "run")
    assert not any(there.has_maps(n) for n in range(8))
    assert verify_run(tmp_path / "run") == []
    record = there.commits()[layers]
    for path, sums in record["checksums"].items():
        record["checksums"][path] = [sums[0] ^ 1, *sums[1:]] if "scores" in path else sums
    there.commit(layers, record)
    resumed: list[Event] = []
    ResCNetClassifier.resume(tmp_path / "run", max_layers=7, listeners=[resumed.append])
    assert same(weights(tmp_path / "run"), reference)
    assert any(isinstance(e, ChunkRebuilt) and "other last digits" in e.reason for e in resumed)
    assert not any(there.has_maps(n) for n in range(8))


def test_which_maps_stay_may_change_but_not_to_those_that_are_gone(
    client: Client, tmp_path: Path, reference: list[Any]
) -> None:
    """From none to those of the last layer."""
    fit(tmp_path / "run", SPEC.replace(max_layers=4), RUN.replace(keep_maps="none"))
    with pytest.raises(SpecError, match=r'keep_maps="all".*earlier layers.*are gone: give "last"'):
        ResCNetClassifier.resume(tmp_path / "run", keep_maps="all")
    done = CliRunner().invoke(
        main, ["resume", str(tmp_path / "run"), "--max-layers", "7", "--keep-maps", "last"]
    )
    assert done.exit_code == 0, done.output
    assert same(weights(tmp_path / "run"), reference)
    assert RunStore.open(tmp_path / "run").has_maps(7)


def test_damaged_maps_of_a_run_that_keeps_none_are_found_while_they_are_there(
    client: Client, tmp_path: Path
) -> None:
    """After it was done once, and gone on with."""
    run = RUN.replace(maps="store", keep_maps="none")
    fit(tmp_path / "run", SPEC.replace(max_layers=3), run)
    with pytest.raises(Stopped):
        ResCNetClassifier.resume(tmp_path / "run", max_layers=7, listeners=[stop_after(5)])
    assert verify_run(tmp_path / "run") == []
    chunk = next(path for path in (tmp_path / "run/maps/0005/c").rglob("*") if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    assert verify_run(tmp_path / "run")


def test_a_run_that_ends_early_stores_its_last_maps(client: Client, tmp_path: Path) -> None:
    """It was not known to be the last layer while it was grown; going on needs no replay."""
    spec = SPEC.replace(patience=1, learning_rate=4.0)  # far too large a step
    told: list[Any] = []
    clf = fit(
        tmp_path / "run", spec, RUN.replace(checkpoint_every=4),
        listeners=[lambda e: isinstance(e, PassStarted | PassDone) and told.append(e)],
    )  # fmt: skip
    last = len(RunStore.open(tmp_path / "run").commits()) - 1
    assert last < SPEC.max_layers
    assert last % 4
    assert clf.depth_ < last
    assert [(type(e).__name__, e.layer) for e in told if e.phase == "save"] == [
        ("PassStarted", last),
        ("PassDone", last),
    ]
    written = 240 * (14 * 14 * 4 + 10) * 4
    assert [e.observed.written for e in told if isinstance(e, PassDone)][-1] == written
    assert stored_layers(tmp_path / "run")[-1] == last
    assert verify_run(tmp_path / "run") == []


def test_a_full_worker_keeps_nothing_and_changes_no_bit(
    client: Client, tmp_path: Path, reference: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer is then computed again from the last checkpoint."""
    calls = []
    replay = Reader._caught_up
    monkeypatch.setattr(shelf, "BEYOND", -1.0)
    monkeypatch.setattr(
        Reader, "_caught_up", lambda self, *given: calls.append(self.step) or replay(self, *given)
    )
    fit(tmp_path / "run")
    assert same(weights(tmp_path / "run"), reference)
    assert set(calls) == {1, 2, 4, 5}


def test_losing_a_worker_in_the_middle_changes_no_bit(tmp_path: Path, reference: list[Any]) -> None:
    """Its shelves are lost between two checkpoints, and their chunks computed again elsewhere."""
    told: list[ChunkRebuilt] = []
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):

        def kill(event: Event) -> None:
            if isinstance(event, PassDone) and (event.phase, event.layer) == ("grow", 4):
                os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)

        fit(
            tmp_path / "run",
            listeners=[kill, lambda e: isinstance(e, ChunkRebuilt) and told.append(e)],
        )
        assert client.status == "running"
    assert same(weights(tmp_path / "run"), reference)
    assert told
    assert min(event.layer for event in told) >= 4  # nothing that came before was lost


def test_idle_workers_leave_shelves_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: list[Any]
) -> None:
    """Four groups on three workers, of which one has two that are slow: the one that waits is not
    taken to where its shelf is empty, which would cost more than waiting."""
    told: list[ChunkRebuilt] = []
    held = Reader.held

    def slowly(self: Reader, *given: Any) -> Held:
        time.sleep(0.05 if self.group.index % 3 else 0.4)
        return held(self, *given)

    monkeypatch.setattr(Reader, "held", slowly)
    run = RUN.replace(chunk_images=15, accumulators=4, checkpoint_every=100)
    with (
        LocalCluster(
            n_workers=3, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0",
            protocol="tcp://", host="127.0.0.1",  # so that what moves is sent
        ) as cluster,
        Client(cluster),
    ):  # fmt: skip
        fit(
            tmp_path / "run", SPEC.replace(max_layers=3), run,
            listeners=[lambda e: isinstance(e, ChunkRebuilt) and told.append(e)],
        )  # fmt: skip
    assert told == []


def test_a_run_that_dies_before_its_last_maps_are_stored_stores_them_later(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was done but for that; a run that is done is left as it is."""
    spec = SPEC.replace(patience=1, learning_rate=4.0)
    with monkeypatch.context() as patch:
        patch.setattr(loop._Driver, "save", lambda *_: (_ for _ in ()).throw(Stopped()))
        with pytest.raises(Stopped):
            fit(tmp_path / "run", spec, RUN.replace(checkpoint_every=4))
    last = len(RunStore.open(tmp_path / "run").commits()) - 1
    assert last not in stored_layers(tmp_path / "run")
    ResCNetClassifier.resume(tmp_path / "run")
    assert stored_layers(tmp_path / "run")[-1] == last
    with monkeypatch.context() as patch:
        patch.setattr(loop._Driver, "save", lambda *_: pytest.fail("it was stored already"))
        ResCNetClassifier.resume(tmp_path / "run")


@pytest.mark.parametrize("how", ["done", "stopped", "failed"])
def test_shelves_are_freed_with_the_run(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A cluster that outlives the run has its memory back, even while the traceback is kept."""
    kept: list[BaseException] = []
    if how == "failed":  # within a pass, whose graph the traceback knows
        monkeypatch.setattr(Reader, "held", lambda *_: (_ for _ in ()).throw(StoreError("gone")))
    try:
        fit(tmp_path / "run", listeners=[stop_after(5)] if how == "stopped" else [])
    except (Stopped, StoreError) as error:
        kept.append(error)
    assert len(kept) == (how != "done")

    def held(dask_worker: Any) -> list[str]:
        return [str(key) for key in dask_worker.data if "shelf" in str(key)]

    deadline = time.monotonic() + 10
    while any(client.run(held).values()):
        assert time.monotonic() < deadline, client.run(held)
        time.sleep(0.1)


@pytest.mark.parametrize("maps", ["store", "memory"])
def test_where_maps_wait_may_change_as_a_run_goes_on(
    client: Client, tmp_path: Path, reference: list[Any], maps: str
) -> None:
    """From what it began with, or by the same command again; what is learnt is the same."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", listeners=[stop_after(2)])
    result = CliRunner().invoke(
        main, ["resume", str(tmp_path / "run"), "--maps", maps, "--checkpoint-every", "2"]
    )
    assert result.exit_code == 0, result.output
    expected = [3, 4, 5, 6, 7] if maps == "store" else [4, 6, 7]
    assert stored_layers(tmp_path / "run") == expected
    assert same(weights(tmp_path / "run"), reference)
    kept = RunStore.open(tmp_path / "run").attributes()["run"]
    assert (kept["maps"], kept["checkpoint_every"]) == (maps, 2)


def test_a_change_that_contradicts_the_run_is_refused(client: Client, tmp_path: Path) -> None:
    """Before anything is touched."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", run=RUN.replace(keep_maps="all"), listeners=[stop_after(2)])
    before = RunStore.open(tmp_path / "run").attributes()
    with pytest.raises(SpecError, match="leave one of them out"):
        ResCNetClassifier.resume(tmp_path / "run", maps="memory")
    assert RunStore.open(tmp_path / "run").attributes() == before


def test_a_run_of_an_older_release_is_marked_as_one_of_this(
    client: Client, tmp_path: Path, reference: list[Any]
) -> None:
    """That one could not read commits without maps, and is to say so."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", run=RUN.replace(maps="store"), listeners=[stop_after(2)])
    run = RunStore.open(tmp_path / "run")
    attributes = run.attributes()
    for name in ("maps", "checkpoint_every", "array_backend", "products"):
        del attributes["run"][name]
    run.update_attributes(format_version=3, run=attributes["run"])
    ResCNetClassifier.resume(tmp_path / "run")
    assert run.attributes()["format_version"] == FORMAT_VERSION
    assert same(weights(tmp_path / "run"), reference)


def test_a_shelf_travels_empty(client: Client) -> None:
    """What is on it stays where it is: a copy elsewhere knows its planned size alone."""
    one = Shelf(planned=1000)
    one.held[0] = Held(1, np.zeros(3), np.zeros(3), None)
    other = pickle.loads(pickle.dumps(one))
    assert (other.planned, other.held, other.images) == (1000, {}, {})
    assert one.take(0, 0) is None  # of a later layer than is asked for
    assert one.take(0, 1) is not None
    assert one.take(0, 1) is None  # it is kept no longer


# the plan chooses, and says why -----------------------------------------------------------------

CIFAR = Problem(50_000, (32, 32, 3), 10)
BIG = NetworkSpec.preset("cifar10").replace(stride=4)


def workers(gib: float, count: int = 1, gpu: float | None = None) -> Workers:
    """Single-threaded workers of so many GiB, and of a GPU of so many."""
    size = int(gib * 2**30)
    memory = None if gpu is None else int(gpu * 2**30)
    return Workers(count, count, 1, 1, size, gpu_memory=memory)


def test_held_bytes_are_those_of_the_arrays() -> None:
    """Maps, features, scores and pixels of one row."""
    assert held_bytes(CIFAR, BIG, 1) == 32 * 32 * (4 * 50 + 3) + 4 * 17_150 + 4 * 10
    half = BIG.replace(store_dtype="float16")
    assert held_bytes(CIFAR, half, 1) == 32 * 32 * (2 * 50 + 3) + 4 * 17_150 + 4 * 10
    assert held_bytes(CIFAR, half, 1, features=False) == 32 * 32 * (2 * 50 + 3) + 4 * 10


@pytest.mark.parametrize(
    ("there", "run", "in_memory", "why"),
    [
        (
            workers(64),
            RunSpec(),
            True,
            "in workers' memory: 13.0 GiB of them and their features per",
        ),
        (workers(28), RunSpec(), True, "memory: 9.7 GiB of them per worker, of 11.1 GiB free in"),
        (workers(16), RunSpec(), False, "in the store: 9.7 GiB of them per worker, of "),
        (
            workers(24, 4),
            RunSpec(),
            True,
            "memory: 3.3 GiB of them and their features per worker, of",
        ),
        (workers(64), RunSpec(maps="store"), False, 'in the store, as maps="store" says'),
        (workers(64), RunSpec(keep_maps="all"), False, 'in the store, as keep_maps="all" says'),
        (workers(2), RunSpec(), False, "in the store, as not even the scatter matrix fits"),
        (workers(64, 1, 80), RunSpec(array_backend="cupy"), True, "in workers' GPU's memory: "),
        (workers(64, 1, 16), RunSpec(array_backend="cupy"), False, "free in its GPU's memory"),
    ],
)
def test_the_plan_chooses_and_says_why(
    there: Workers, run: RunSpec, in_memory: bool, why: str
) -> None:
    """By what a worker has to keep and what is free in it."""
    plan = make_plan(CIFAR, BIG, run, there)
    tier = choose_tier(CIFAR, BIG, run, plan, there)
    assert (tier.in_memory, why in tier.why) == (in_memory, True), tier.why
    lines = str(estimate(CIFAR, BIG, run, there, None)).splitlines()
    told = next(line for line in lines if line.startswith("maps "))
    assert told.split(None, 1)[1].startswith(tier.why)
    assert any("stored every 10 layers and at the end" in line for line in lines) == in_memory


@pytest.mark.parametrize("maps", ["auto", "store"])
def test_the_plan_tells_that_maps_are_removed_at_the_end(maps: Any) -> None:
    """Where none are to be kept."""
    told = str(estimate(CIFAR, BIG, RunSpec(maps=maps, keep_maps="none"), workers(64), None))
    line = next(line for line in told.splitlines() if line.startswith("maps "))
    assert line.endswith("; removed at the end")
    assert ("stored every 10 layers;" in line) == (maps == "auto")


def test_no_room_is_told_of_for_maps_that_are_never_stored() -> None:
    """As where no checkpoint is due before the end."""
    run, spec = RunSpec(keep_maps="none"), BIG.replace(max_layers=11)
    maps = 50_000 * (32 * 32 * 50 + 10) * 4
    some = estimate(CIFAR, spec, run, workers(64), None).traffic
    none = estimate(CIFAR, spec, run.replace(checkpoint_every=11), workers(64), None).traffic
    assert (some.written, none.written) == (maps, 0)
    assert some.store - none.store == 2 * maps


def test_what_is_told_of_the_store_is_what_a_layer_writes() -> None:
    """At most: the maps of a layer that is stored; of all layers where they are kept."""
    maps = 50_000 * (32 * 32 * 50 + 10) * 4
    memory, store, kept = (
        estimate(CIFAR, BIG.replace(max_layers=30), run, workers(64), None).traffic
        for run in (RunSpec(), RunSpec(maps="store"), RunSpec(keep_maps="all"))
    )
    assert memory.written == store.written == kept.written == maps
    assert (memory.read, store.read) == (0, maps + 50_000 * 32 * 32 * 3)
    assert kept.store - store.store == 28 * maps


def test_a_gpu_that_is_too_small_for_a_wish_gets_a_value_that_fits() -> None:
    """By the field that was asked for, else by the filters."""
    there, asked = workers(64, 1, 80), RunSpec(array_backend="cupy", chunk_images=50_000)
    with pytest.raises(SpecError, match="replace chunk_images=50000 by chunk_images of at mo") as e:
        estimate(CIFAR, BIG, asked, there, None)
    advised = int(str(e.value).split("at most ")[1].split(",")[0])
    assert 1000 < advised < 50_000
    estimate(CIFAR, BIG, asked.replace(chunk_images=advised), there, None)
    with pytest.raises(SpecError, match="replace filters=200 by filters of at most"):
        estimate(CIFAR, BIG.replace(filters=200), RunSpec(array_backend="cupy"), there, None)
    with pytest.raises(SpecError, match=r"GiB of a GPU.*give larger GPUs"):
        estimate(CIFAR, BIG, RunSpec(array_backend="cupy"), workers(64, 1, 0.5), None)


def test_memory_that_is_asked_for_and_is_not_there_is_refused() -> None:
    """With what is needed, what is free, and what to do."""
    run = RunSpec(maps="memory")
    with pytest.raises(
        ClusterError,
        match=r'maps="memory".*9\.7 GiB.*free.*larger workers, store_dtype="float16" for',
    ):
        estimate(CIFAR, BIG, run, workers(16), None)


@pytest.mark.parametrize(
    ("fields", "fragment"),
    [
        ({"maps": "memory", "keep_maps": "all"}, "leave one of them out"),
        ({"maps": "memory", "tile_features": 64}, "leave one of them out"),
        ({"array_backend": "cupy", "tile_features": 64}, "leave one of them out"),
        ({"checkpoint_every": 0}, "at least 1"),
        ({"array_backend": "cuda"}, "did you mean 'cupy'"),
        ({"products": "tf32"}, "'float32'"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], fragment: str) -> None:
    """Before anything is done."""
    with pytest.raises(SpecError, match=fragment):
        RunSpec(**fields)


def test_products_without_a_gpu_are_refused_and_old_runs_of_such_are_not(
    client: Client, tmp_path: Path
) -> None:
    """Earlier releases took them, to no effect."""
    run = RUN.replace(products="half")
    with pytest.raises(SpecError, match=r'products="half" is how a GPU.*array_backend="cupy"'):
        fit(tmp_path / "new", SPEC.replace(max_layers=2), run)
    assert not (tmp_path / "new").exists()
    fit(tmp_path / "old", SPEC.replace(max_layers=2))
    place = RunStore.open(tmp_path / "old").place
    place.update_attributes({"run": place.attributes()["run"] | {"products": "half"}})
    assert verify_run(tmp_path / "old") == []
    assert ResCNetClassifier.resume(tmp_path / "old", max_layers=3).network_.depth


def test_what_is_held_counts_as_memory_of_a_worker() -> None:
    """What is printed as the most is with it; a worker that may be as large as it takes, is."""
    there, store = workers(64), RunSpec(maps="store")
    in_store = estimate(CIFAR, BIG, store, there, None).peak_memory
    tier = estimate(CIFAR, BIG, RunSpec(), there, None)
    assert tier.peak_memory == in_store + held_bytes(CIFAR, BIG, 50_000) + held_more(tier)
    unlimited = replace(there, memory=None)
    assert estimate(CIFAR, BIG, RunSpec(maps="memory"), unlimited, None).tier.in_memory
    assert not estimate(CIFAR, BIG, RunSpec(), unlimited, None).tier.in_memory


def held_more(forecast: Forecast) -> int:
    """By how much the fullest worker's groups are more than all rows, of one worker: 0 or little,
    as groups are of whole chunks."""
    return forecast.tier.held - held_bytes(CIFAR, BIG, 50_000)


def test_smaller_chunks_keep_maps_on_a_smaller_gpu() -> None:
    """Rather than large ones whose maps go through the store."""
    run = RunSpec(array_backend="cupy")
    large, small = (make_plan(CIFAR, BIG, run, workers(64, 1, gpu)) for gpu in (80, 34))
    assert (large.chunk_images, small.chunk_images) == (16_667, 4167)
    assert choose_tier(CIFAR, BIG, run, small, workers(64, 1, 34)).in_memory


def test_workers_are_there_whatever_the_client_keeps_of_them(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which Dask replaces now and then, by an answer without any."""
    monkeypatch.setattr(Client, "scheduler_info", lambda *_args, **_more: {"workers": {}})
    found = Workers.among(workers_of(client))
    assert found
    assert found.count == len(client.nthreads())


def test_workers_are_asked_for_their_software_when_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with every layer, as all of them would wait for it."""
    asked: list[tuple[int, int]] = []  # with which layer, of how many workers

    def look(client: Client) -> None:
        asked.append((len(RunStore.open(tmp_path / "run").commits()), len(client.nthreads())))

    def another(event: Event) -> None:
        if isinstance(event, PassDone) and (event.phase, event.layer) == ("grow", 3):
            cluster.scale(2)
            client.wait_for_workers(2, timeout=60)
        elif isinstance(event, PassDone) and (event.phase, event.layer) == ("grow", 5):
            client.retire_workers(sorted(client.nthreads())[:1])  # nobody is new

    monkeypatch.setattr(loop, "check_versions", look)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        fit(tmp_path / "run", listeners=[another])
    assert asked == [(0, 1), (4, 2)]


@pytest.mark.parametrize(
    ("gpus", "least"),
    [
        ([None], None),
        ([("a", "0", 80, None)], 80),
        ([("a", "0", 80, None), ("a", "0", 80, None), ("b", "0", 80, None)], 40),
        ([("a", "0", 80, 30), ("a", "0", 80, 30)], 30),  # each its own limit
        ([("a", "0", 80, 60), ("a", "0", 80, 60)], 40),
        ([("a", "0", 80, 100), ("b", "0", 80, 70)], 70),
    ],
)
def test_workers_count_on_their_part_of_a_gpu(gpus: list[Any], least: int | None) -> None:
    """Or on what they may take, where that is less."""
    assert _least_of_a_gpu(gpus) == least


def test_workers_of_a_gpu_have_one_thread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As what is planned of its memory is for one task."""
    monkeypatch.setattr(Backend, "prepare", lambda _: None)
    monkeypatch.setattr(Backend, "memory", lambda _: ("gpu", 2**30, None))
    with pytest.raises(ClusterError, match="workers of 2 threads: start them with --nthreads 1"):
        Workers.of(client, Backend("cupy"))


def test_groups_share_out_what_is_held() -> None:
    """No row is forgotten."""
    plan = make_plan(CIFAR, BIG, RunSpec(), workers(64, 3))
    total = sum(group_bytes(CIFAR, BIG, group) for group in plan.groups())
    assert total == held_bytes(CIFAR, BIG, 50_000)


# without a GPU ----------------------------------------------------------------------------------

no_gpu = pytest.mark.skipif(Backend("cupy").available(), reason="there is a GPU")


@no_gpu
def test_cupy_without_a_gpu_is_refused_and_nothing_is_left(client: Client, tmp_path: Path) -> None:
    """From the worker that would have needed it, with what to install."""
    with pytest.raises(BackendError, match=r'array_backend="cupy" needs .*rescnet-dist\[gpu\]'):
        fit(tmp_path / "run", run=RUN.replace(array_backend="cupy"))
    assert not (tmp_path / "run").exists()


@no_gpu
def test_a_run_of_a_gpu_can_be_checked_without_one(client: Client, tmp_path: Path) -> None:
    """Its chunks are only read."""
    fit(tmp_path / "run", SPEC.replace(max_layers=1))
    run = RunStore.open(tmp_path / "run")
    run.update_attributes(run=run.attributes()["run"] | {"array_backend": "cupy"})
    assert verify_run(tmp_path / "run") == []


@no_gpu
def test_predicting_with_cupy_without_a_gpu_is_refused(client: Client, tmp_path: Path) -> None:
    """On the command line as from Python; the network is as good as before."""
    fit(tmp_path / "run", SPEC.replace(max_layers=1))
    clf = ResCNetClassifier.load(tmp_path / "run", array_backend="cupy")
    with pytest.raises(BackendError, match="leave array_backend out"):
        clf.predict(X)
    result = CliRunner().invoke(
        main, ["evaluate", str(tmp_path / "run"), "digits", "--array-backend", "cupy"]
    )
    assert result.exit_code == 2
    assert ResCNetClassifier.load(tmp_path / "run").score(X, Y) > 0.5
