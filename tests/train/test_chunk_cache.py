"""Maps cached in workers' memory: the same bits as from the store, whatever is lost of them."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_cases import (
    RUN,
    SPEC,
    Stopped,
    collect,
    fit,
    is_same,
    list_stored_layers,
    read_weights,
    stop_after,
)
from distributed import Client, LocalCluster

from rescnet_dist import ResCNetClassifier
from rescnet_dist.errors import StoreError
from rescnet_dist.events import ChunkRebuilt, Listener, PassDone, PassStarted
from rescnet_dist.kernels import Backend
from rescnet_dist.planning import choose_tier
from rescnet_dist.store import RunStore
from rescnet_dist.train import chunk_cache, loop, verify_run
from rescnet_dist.train.chunk_cache import ChunkCache, ChunkState
from rescnet_dist.train.chunks import Reader


def test_maps_in_memory_give_bits_of_maps_in_store(
    client: Client, tmp_path: Path, reference_weights: list[Any]
) -> None:
    """Only the maps of checkpoints and of the last layer are written to the store."""
    done: list[PassDone] = []
    fit(tmp_path / "run", listeners=[lambda e: isinstance(e, PassDone) and done.append(e)])
    assert is_same(read_weights(tmp_path / "run"), reference_weights)
    assert list_stored_layers(tmp_path / "run") == [3, 6, 7]
    assert [n for n in range(1, 8) if RunStore.open(tmp_path / "run").has_maps(n)] == [7]
    grown = {e.layer: e.observed for e in done if e.phase == "grow"}
    maps = 240 * 14 * 14 * 4 * 4 + 240 * 10 * 4
    assert {n: metrics.written for n, metrics in grown.items()} == {
        n: maps if n in (3, 6, 7) else 0 for n in grown
    }
    assert all(metrics.read == 0 for n, metrics in grown.items() if n > 1)
    assert verify_run(tmp_path / "run") == []


def test_recomputed_features_give_same_bits(
    client: Client, tmp_path: Path, reference_weights: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features are computed from the maps if only those stay in memory."""
    cached: list[ChunkState] = []
    put = ChunkCache.put

    def record_put(self: ChunkCache, start: int, state: ChunkState, backend: Backend) -> None:
        cached.append(state)
        put(self, start, state, backend)

    monkeypatch.setattr(ChunkCache, "put", record_put)
    monkeypatch.setattr(loop, "choose_tier", lambda *a: replace(choose_tier(*a), features=False))
    fit(tmp_path / "run")
    assert is_same(read_weights(tmp_path / "run"), reference_weights)
    assert {state.features is None for state in cached} == {True}
    assert {state.maps is None for state in cached} == {False}
    assert verify_run(tmp_path / "run") == []


def test_resume_from_last_checkpoint(
    client: Client, tmp_path: Path, reference_weights: list[Any]
) -> None:
    """Layers 4 and 5 are not stored: they are recomputed from the maps of layer 3."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", listeners=[stop_after(5)])
    run = RunStore.open(tmp_path / "run")
    assert len(run.commits()) == 6
    assert list_stored_layers(tmp_path / "run") == [3]
    assert verify_run(tmp_path / "run") == []
    done: list[PassDone] = []
    ResCNetClassifier.resume(
        tmp_path / "run", listeners=[lambda e: isinstance(e, PassDone) and done.append(e)]
    )
    assert is_same(read_weights(tmp_path / "run"), reference_weights)
    first = next(e for e in done if e.phase == "grow")
    assert first.layer == 6
    assert first.observed.read >= 240 * 14 * 14 * 4 * 4  # the checkpoint


@pytest.mark.sampled(2)
@pytest.mark.parametrize("damage", ["none", "a chunk", "all maps"])
def test_lost_checkpoint_is_recomputed_from_images(
    client: Client, tmp_path: Path, reference_weights: list[Any], damage: str
) -> None:
    """The store has lost maps of the checkpoint too, which is unexpected; nothing else is."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", listeners=[stop_after(5)])
    if damage == "all maps":
        (RunStore.open(tmp_path / "run").location / "maps/0003").remove()
    elif damage == "a chunk":
        (tmp_path / "run/maps/0003/c/1/0/0/0").write_bytes(b"not a chunk")
    rebuilt: list[ChunkRebuilt] = []
    ResCNetClassifier.resume(tmp_path / "run", listeners=[collect(ChunkRebuilt, rebuilt)])
    starts = {"none": [], "a chunk": [50], "all maps": [0, 50, 100, 150, 200]}[damage]
    assert sorted(event.start for event in rebuilt if event.unexpected) == starts
    assert all("maps" in event.reason for event in rebuilt if event.unexpected)
    assert is_same(read_weights(tmp_path / "run"), reference_weights)


def test_other_last_digits_are_reported(client: Client, tmp_path: Path) -> None:
    """On another processor no bits are the same; the run continues."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", listeners=[stop_after(5)])
    run = RunStore.open(tmp_path / "run")
    record = run.commits()[5]
    (path,) = record["checksums"]
    assert path == "unsaved/scores/0005"
    record["checksums"][path][2] ^= 1
    run.commit(5, record)
    rebuilt: list[ChunkRebuilt] = []
    ResCNetClassifier.resume(tmp_path / "run", listeners=[collect(ChunkRebuilt, rebuilt)])
    assert sorted(event.start for event in rebuilt) == [0, 50, 100, 150, 200]
    expected = "they are neither in memory nor in the store; computed from layer 3"
    assert all(event.reason.startswith(expected) for event in rebuilt)
    assert [e.start for e in rebuilt if "in the last digits" in e.reason] == [100]
    assert [e.start for e in rebuilt if e.unexpected] == [100]
    assert len(RunStore.open(tmp_path / "run").commits()) == 8


def test_half_precision_maps_are_cached_in_half_precision(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps are rounded before anything is learned from them, so the bits are the store's."""
    cached: list[Any] = []
    put = ChunkCache.put

    def record_put(self: ChunkCache, start: int, state: ChunkState, backend: Backend) -> None:
        cached.append(state.maps)
        put(self, start, state, backend)

    monkeypatch.setattr(ChunkCache, "put", record_put)
    spec = SPEC.replace(store_dtype="float16", max_layers=4)
    fit(tmp_path / "memory", spec)
    assert cached
    assert {maps.dtype for maps in cached} == {np.dtype("float16")}
    fit(tmp_path / "store", spec, RUN.replace(maps="store"))
    assert is_same(read_weights(tmp_path / "memory"), read_weights(tmp_path / "store"))


def test_run_that_ends_early_stores_its_last_maps(client: Client, tmp_path: Path) -> None:
    """The layer was not known to be the last one while it was grown."""
    spec = SPEC.replace(patience=1, learning_rate=4.0)  # far too large a step
    events: list[Any] = []
    clf = fit(
        tmp_path / "run",
        spec,
        RUN.replace(checkpoint_every=4),
        listeners=[lambda e: isinstance(e, PassStarted | PassDone) and events.append(e)],
    )
    last = len(RunStore.open(tmp_path / "run").commits()) - 1
    assert last < SPEC.max_layers
    assert last % 4
    assert clf.depth_ < last
    assert [(type(e).__name__, e.layer) for e in events if e.phase == "save"] == [
        ("PassStarted", last),
        ("PassDone", last),
    ]
    written = 240 * (14 * 14 * 4 + 10) * 4
    assert [e.observed.written for e in events if isinstance(e, PassDone)][-1] == written
    assert list_stored_layers(tmp_path / "run")[-1] == last
    assert verify_run(tmp_path / "run") == []


def test_full_worker_caches_nothing_and_changes_no_bit(
    client: Client, tmp_path: Path, reference_weights: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer is then recomputed from the last checkpoint."""
    steps = []
    advance = Reader._advance_state
    monkeypatch.setattr(chunk_cache, "CACHE_TOLERANCE_FRACTION", -1.0)
    monkeypatch.setattr(
        Reader,
        "_advance_state",
        lambda self, *args: steps.append(self.step) or advance(self, *args),
    )
    fit(tmp_path / "run")
    assert is_same(read_weights(tmp_path / "run"), reference_weights)
    assert set(steps) == {1, 2, 4, 5}


def test_lost_worker_changes_no_bit(
    tmp_path: Path, reference_weights: list[Any], kill_worker: Listener
) -> None:
    """Its caches are lost between two checkpoints, and their chunks recomputed elsewhere."""
    rebuilt: list[ChunkRebuilt] = []
    fit(
        tmp_path / "run",
        listeners=[kill_worker, collect(ChunkRebuilt, rebuilt)],
    )
    assert is_same(read_weights(tmp_path / "run"), reference_weights)
    assert rebuilt
    assert min(event.layer for event in rebuilt) >= 4  # nothing was lost before that


@pytest.mark.slow
def test_idle_workers_do_not_steal_cached_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference_weights: list[Any]
) -> None:
    """Four groups are on three workers, one of which has two slow ones: the one that waits does not
    move to a worker where its cache is empty, which would cost more than waiting."""
    rebuilt: list[ChunkRebuilt] = []
    read_state = Reader.read_state

    def read_slowly(self: Reader, *args: Any) -> ChunkState:
        time.sleep(0.05 if self.group.index % 3 else 0.4)
        return read_state(self, *args)

    monkeypatch.setattr(Reader, "read_state", read_slowly)
    run = RUN.replace(chunk_images=15, accumulators=4, checkpoint_every=100)
    with (
        LocalCluster(
            n_workers=3,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",
            protocol="tcp://",  # so that objects that move are serialized
            host="127.0.0.1",
        ) as cluster,
        Client(cluster),
    ):
        fit(
            tmp_path / "run",
            SPEC.replace(max_layers=3),
            run,
            listeners=[collect(ChunkRebuilt, rebuilt)],
        )
    assert rebuilt == []


def test_resume_stores_last_maps_of_run_stopped_before(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else was left to do; a finished run stays unchanged."""
    spec = SPEC.replace(patience=1, learning_rate=4.0)
    with monkeypatch.context() as patch:
        patch.setattr(loop._Driver, "save", lambda *_: (_ for _ in ()).throw(Stopped()))
        with pytest.raises(Stopped):
            fit(tmp_path / "run", spec, RUN.replace(checkpoint_every=4))
    last = len(RunStore.open(tmp_path / "run").commits()) - 1
    assert last not in list_stored_layers(tmp_path / "run")
    ResCNetClassifier.resume(tmp_path / "run")
    assert list_stored_layers(tmp_path / "run")[-1] == last
    with monkeypatch.context() as patch:
        patch.setattr(loop._Driver, "save", lambda *_: pytest.fail("the maps were stored already"))
        ResCNetClassifier.resume(tmp_path / "run")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("outcome", ["done", "stopped", "failed"])
def test_caches_are_freed_at_end_of_run(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """A cluster that outlives the run frees its memory, even while the traceback is referenced."""
    caught: list[BaseException] = []
    if outcome == "failed":  # during a pass, whose graph the traceback refers to
        monkeypatch.setattr(
            Reader, "read_state", lambda *_: (_ for _ in ()).throw(StoreError("gone"))
        )
    try:
        fit(tmp_path / "run", listeners=[stop_after(5)] if outcome == "stopped" else [])
    except (Stopped, StoreError) as error:
        caught.append(error)
    assert len(caught) == (outcome != "done")

    def list_caches(dask_worker: Any) -> list[str]:
        return [str(key) for key in dask_worker.data if "rescnet-cache" in str(key)]

    deadline = time.monotonic() + 10
    while any(client.run(list_caches).values()):
        assert time.monotonic() < deadline, client.run(list_caches)
        time.sleep(0.1)


def test_pickled_cache_is_empty(client: Client) -> None:
    """The contents stay on the worker: a copy has the planned size only."""
    one = ChunkCache(planned_bytes=1000)
    one.states[0] = ChunkState(1, np.zeros(3), np.zeros(3), None)
    other = pickle.loads(pickle.dumps(one))
    assert (other.planned_bytes, other.states, other.images) == (1000, {}, {})
    assert one.pop(0, 0) is None  # it is of a later layer
    assert one.pop(0, 1) is not None
    assert one.pop(0, 1) is None  # it has been removed
