"""Maps that wait in workers' memory: the same bits as from the store, whatever is lost of them."""

from __future__ import annotations

import os
import pickle
import re
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client, LocalCluster

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.cli import main
from rescnet_dist.cluster import Workers
from rescnet_dist.errors import BackendError, SpecError, StoreError
from rescnet_dist.kernels import Backend
from rescnet_dist.planning import choose_tier
from rescnet_dist.store import FORMAT_VERSION, RunStore, read_layer
from rescnet_dist.train import (
    ChunkRebuilt,
    Event,
    MapsPlaced,
    PassDone,
    PassStarted,
    cache,
    loop,
    verify_run,
)
from rescnet_dist.train.cache import ChunkCache, ChunkState
from rescnet_dist.train.chunks import Reader

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
    """What all layers of a run have learned."""
    run = RunStore.open(url)
    layers = [read_layer(run.location, n) for n in range(1, len(run.commits()))]
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
    """What is learned with all maps in the store."""
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
    kept: list[ChunkState] = []
    put = ChunkCache.put

    def told(self: ChunkCache, start: int, held: ChunkState, backend: Backend) -> None:
        kept.append(held)
        put(self, start, held, backend)

    monkeypatch.setattr(ChunkCache, "put", told)
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
    (RunStore.open(tmp_path / "run").location / "maps/0003").remove()
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
    """As they are rounded to it before anything is learned from them, the bits are the store's."""
    kept: list[Any] = []

    def put(self: ChunkCache, start: int, held: ChunkState, backend: Backend) -> None:
        kept.append(held.maps)
        there(self, start, held, backend)

    there = ChunkCache.put
    monkeypatch.setattr(ChunkCache, "put", put)
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
    monkeypatch.setattr(cache, "BEYOND", -1.0)
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

    def slowly(self: Reader, *given: Any) -> ChunkState:
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
    """From what it began with, or by the same command again; what is learned is the same."""
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


def test_a_change_to_memory_that_is_not_there_is_refused(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a size that would do, and the run stays as it was; all else goes on."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", listeners=[stop_after(2)])
    before = RunStore.open(tmp_path / "run").attributes()
    small = Workers(count=1, slots=2, threads=2, machine_threads=2, memory=2**29)
    monkeypatch.setattr(Workers, "of", lambda *_: small)
    result = CliRunner().invoke(main, ["resume", str(tmp_path / "run"), "--maps", "memory"])
    assert result.exit_code == 2
    assert re.search(
        r"do not fit in memory.*larger workers \(with at least \d+ MiB\)", result.output
    )
    assert RunStore.open(tmp_path / "run").attributes() == before


def test_a_run_that_has_all_its_layers_says_so(client: Client, tmp_path: Path) -> None:
    """As there is nothing to go on with, but with more of them."""
    fit(tmp_path / "run")
    result = CliRunner().invoke(main, ["resume", str(tmp_path / "run")])
    assert result.exit_code == 0
    assert "All 7 layers are finished. Add --max-layers 8 or more" in result.stderr


def test_where_maps_wait_is_told_when_it_changes(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the plan's reason: of the first layer, and of those where less room is left, as where
    others take the memory; and on the terminal."""
    places = {3: (True, False), 4: (True, False), 5: (False, False)}
    grown: list[int] = [0]
    told: list[MapsPlaced] = []

    def tier(*given: Any) -> Any:
        there = choose_tier(*given)
        in_memory, features = places.get(grown[-1] + 1, (True, True))
        return replace(there, in_memory=in_memory, features=features)

    monkeypatch.setattr(loop, "choose_tier", tier)
    fit(
        tmp_path / "run", SPEC.replace(max_layers=6),
        listeners=[
            lambda e: isinstance(e, MapsPlaced) and told.append(e),
            lambda e: isinstance(e, PassDone) and grown.append(e.layer),
        ],
    )  # fmt: skip
    expected = [(1, True, True), (3, True, False), (5, False, False), (6, True, True)]
    assert [(e.layer, e.in_memory, e.features) for e in told] == expected
    assert told[0].reason.startswith("in workers' memory, with their features: ")
    monkeypatch.setattr(loop, "choose_tier", choose_tier)
    shown = CliRunner().invoke(
        main, ["resume", str(tmp_path / "run"), "--max-layers", "7", "--maps", "store"]
    )
    lines = [line for line in shown.output.splitlines() if line.startswith("maps ")]
    assert [line.split(None, 1)[1] for line in lines] == ['in the store because maps="store"']


def test_a_layer_that_begins_without_workers_is_told_to_go_to_the_store(tmp_path: Path) -> None:
    """As on a cluster that scales from nothing, where a plan cannot tell what there will be."""
    told: list[MapsPlaced] = []
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        fit(tmp_path / "run", SPEC.replace(max_layers=1))
        cluster.scale(0)
        while client.nthreads():
            time.sleep(0.05)
        threading.Timer(1.0, cluster.scale, [1]).start()
        ResCNetClassifier.resume(
            tmp_path / "run", max_layers=3,
            listeners=[lambda e: isinstance(e, MapsPlaced) and told.append(e)],
        )  # fmt: skip
    assert [(e.layer, e.in_memory) for e in told] == [(2, False), (3, True)]
    assert told[0].reason == "in the store because no worker has joined yet"


def test_a_change_that_contradicts_the_run_is_refused(client: Client, tmp_path: Path) -> None:
    """Before anything is touched."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", run=RUN.replace(keep_maps="all"), listeners=[stop_after(2)])
    before = RunStore.open(tmp_path / "run").attributes()
    with pytest.raises(SpecError, match="Leave one of them out"):
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
    for name in ("maps", "checkpoint_every", "array_backend", "matmul_precision"):
        del attributes["run"][name]
    run.update_attributes(format_version=3, run=attributes["run"])
    ResCNetClassifier.resume(tmp_path / "run")
    assert run.attributes()["format_version"] == FORMAT_VERSION
    assert same(weights(tmp_path / "run"), reference)


def test_a_shelf_travels_empty(client: Client) -> None:
    """What is on it stays where it is: a copy elsewhere knows its planned size alone."""
    one = ChunkCache(planned=1000)
    one.held[0] = ChunkState(1, np.zeros(3), np.zeros(3), None)
    other = pickle.loads(pickle.dumps(one))
    assert (other.planned, other.held, other.images) == (1000, {}, {})
    assert one.take(0, 0) is None  # of a later layer than is asked for
    assert one.take(0, 1) is not None
    assert one.take(0, 1) is None  # it is kept no longer


def test_products_without_a_gpu_are_refused_and_old_runs_of_such_are_not(
    client: Client, tmp_path: Path
) -> None:
    """Earlier releases took them, to no effect."""
    run = RUN.replace(matmul_precision="half")
    with pytest.raises(
        SpecError, match=r'matmul_precision="half" is how a GPU.*array_backend="cupy"'
    ):
        fit(tmp_path / "new", SPEC.replace(max_layers=2), run)
    assert not (tmp_path / "new").exists()
    fit(tmp_path / "old", SPEC.replace(max_layers=2))
    location = RunStore.open(tmp_path / "old").location
    location.update_attributes({"run": location.attributes()["run"] | {"matmul_precision": "half"}})
    assert verify_run(tmp_path / "old") == []
    assert ResCNetClassifier.resume(tmp_path / "old", max_layers=3).network_.depth


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
