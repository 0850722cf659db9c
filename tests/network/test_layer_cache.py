"""Layers are read once per process, kept within a budget, and read ahead where they do not fit."""

from __future__ import annotations

import gc
import pickle
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from rescnet_dist.errors import SpecError
from rescnet_dist.model import Bank, FittedHead, Layer
from rescnet_dist.network.layer_cache import (
    HOST_LAYERS,
    LAYER_MEMORY_SETTING,
    CachedLayers,
    LayerCache,
    get_layer_memory,
)

LAYER_BYTES = 400


def make_layer(index: int) -> Layer:
    """Return a layer of `LAYER_BYTES` that holds its index."""
    empty = np.zeros(0, np.float32)
    weights = np.full(LAYER_BYTES // 4, index, np.float32)
    return Layer(Bank(empty, empty, empty, empty), FittedHead({"weights": weights}, 1.0))


class Reads:
    """Layers that count how often each is read."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.lock = threading.Lock()

    def __call__(self, index: int) -> Layer:
        with self.lock:
            self.counts[index] += 1
        return make_layer(index)


def read_indices(layers: object) -> list[int]:
    """Return the indices that layers hold."""
    return [int(layer.head.arrays["weights"][0]) for layer in layers]  # type: ignore[attr-defined]


def test_layers_that_fit_are_read_once() -> None:
    """By any number of threads, in order, and within the budget."""
    cache, reads = LayerCache(lambda: 10 * LAYER_BYTES), Reads()
    with ThreadPoolExecutor(4) as executor:
        results = list(executor.map(lambda _: list(cache.iterate("a", 10, reads)), range(8)))
    assert all(read_indices(result) == list(range(10)) for result in results)
    assert reads.counts == dict.fromkeys(range(10), 1)
    assert cache.size == 10 * LAYER_BYTES


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
def test_layers_that_do_not_fit_are_read_again(count: int) -> None:
    """Only those; the first layers stay, and the budget holds."""
    cache, reads = LayerCache(lambda: 3 * LAYER_BYTES + 1), Reads()
    for _ in range(2):
        assert read_indices(cache.iterate("a", count, reads)) == list(range(count))
    again = sum(times > 1 for times in reads.counts.values())
    assert again == max(0, count - 3)
    assert cache.size == min(count, 3) * LAYER_BYTES


def test_another_network_takes_the_place_of_the_one_used_least_recently() -> None:
    """Whole networks are replaced."""
    cache, reads = LayerCache(lambda: 4 * LAYER_BYTES), Reads()
    for network in ("a", "b", "a", "c"):
        list(cache.iterate(network, 2, reads))
    assert cache.size == 4 * LAYER_BYTES
    assert reads.counts[0] == 3
    list(cache.iterate("a", 2, reads))
    assert reads.counts[0] == 3, "the network that was used again was replaced"
    list(cache.iterate("b", 2, reads))
    assert reads.counts[0] == 4


def test_layer_larger_than_the_budget_replaces_nothing() -> None:
    """It is read each time."""
    cache, reads = LayerCache(lambda: LAYER_BYTES), Reads()
    cache.get("a", 0, reads)
    cache.budget = lambda: LAYER_BYTES - 1
    cache.get("b", 0, reads)
    cache.budget = lambda: LAYER_BYTES
    cache.get("a", 0, reads)
    assert reads.counts[0] == 2


def test_failed_read_is_raised_and_tried_again() -> None:
    """Nothing stays behind for the next caller."""
    cache, fails = LayerCache(lambda: LAYER_BYTES), iter([True, False])

    def load(index: int) -> Layer:
        if next(fails):
            raise OSError("gone")
        return make_layer(index)

    with pytest.raises(OSError, match="gone"):
        cache.get("a", 0, load)
    assert read_indices([cache.get("a", 0, load)]) == [0]
    with pytest.raises(ZeroDivisionError):
        list(cache.iterate("b", 9, lambda index: make_layer(index // (5 - index))))


def test_layers_are_dropped_with_their_network() -> None:
    """Copies made by pickle, as workers have them, drop nothing."""
    gc.collect()  # networks of other tests
    layers = CachedLayers([make_layer(index) for index in range(3)])
    before = HOST_LAYERS.size
    assert read_indices(layers) == [0, 1, 2]
    assert read_indices([layers[-1], *layers[:2]]) == [2, 0, 1]
    copy = pickle.loads(pickle.dumps(layers))
    assert copy.token == layers.token
    del copy
    gc.collect()
    assert HOST_LAYERS.size == before + 3 * LAYER_BYTES
    del layers
    gc.collect()
    assert HOST_LAYERS.size == before
    with pytest.raises(IndexError, match="3 layers"):
        CachedLayers([make_layer(0)] * 3)[3]


def test_budget_is_a_setting_of_dask() -> None:
    """By default it is a fraction of the memory; a value that is no size is an error."""
    assert 2**20 < get_layer_memory() < 2**45
    layers = CachedLayers([make_layer(0)] * 3)
    with dask.config.set({LAYER_MEMORY_SETTING: "1 kB"}):
        assert get_layer_memory() == 1000
        assert not layers.fits
    assert layers.fits
    for bad in ("much", -1, [2]):
        with (
            dask.config.set({LAYER_MEMORY_SETTING: bad}),
            pytest.raises(SpecError, match="2 GiB"),
        ):
            get_layer_memory()


def test_invalid_budget_fails_for_all_threads_that_wait() -> None:
    """None of them waits for ever."""
    release = threading.Event()

    def budget() -> int:
        raise SpecError("not a size")

    def load(index: int) -> Layer:
        release.wait()
        return make_layer(index)

    cache = LayerCache(budget)
    with ThreadPoolExecutor(2) as executor:
        waiting = [executor.submit(cache.get, "a", 0, load) for _ in range(2)]
        release.set()
        for future in waiting:
            assert isinstance(future.exception(timeout=10), SpecError)


def test_network_can_be_dropped_while_the_cache_is_in_use() -> None:
    """A finalizer may run in a thread that holds the lock."""
    cache = LayerCache(lambda: 10 * LAYER_BYTES)
    cache.get("a", 0, make_layer)
    with ThreadPoolExecutor(1) as executor, cache._lock:
        executor.submit(cache.drop, "a").result(timeout=10)
        assert cache.size == LAYER_BYTES
    cache.get("b", 0, make_layer)
    assert cache.size == LAYER_BYTES


def test_layers_that_nobody_refers_to_leave_nothing() -> None:
    """They stay until the last one has been read, and no longer."""
    gc.collect()  # networks of other tests
    before = HOST_LAYERS.size
    layers = iter(CachedLayers([make_layer(index) for index in range(9)]))
    assert read_indices(layers) == [*range(9)]
    del layers
    gc.collect()
    assert HOST_LAYERS.size == before


def test_copies_with_other_layers_are_other_layers() -> None:
    """`replace` makes a new token."""
    layers = CachedLayers([make_layer(0)])
    other = replace(layers, stored=[make_layer(1)])
    assert read_indices([layers[0], other[0]]) == [0, 1]


def test_threads_that_read_ahead_have_the_budget_of_their_worker(tmp_path: Path) -> None:
    """Not that of the whole machine."""

    def find_budgets() -> tuple[int, set[int]]:
        found: set[int] = set()
        cache = LayerCache(lambda: found.add(get_layer_memory()) or 10**6)  # type: ignore[func-returns-value]
        list(cache.iterate("a", 9, make_layer))
        return get_layer_memory(), found

    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            memory_limit="100 MB",
            dashboard_address="127.0.0.1:0",
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster) as client,
    ):
        budget, found = client.submit(find_budgets).result()
    assert found == {budget} == {25_000_000}
