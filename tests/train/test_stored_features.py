"""Features that stay in memory while maps go through the store: computed once, with same bits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_cases import RUN, SPEC, Stopped, X, Y, collect, fit, is_same, read_weights, stop_after
from distributed import Client

from rescnet_dist import ResCNetClassifier, RunSpec
from rescnet_dist.errors import DataError
from rescnet_dist.events import (
    ChunkRebuilt,
    Event,
    Listener,
    MapsPlaced,
    PassDone,
    PassRetried,
)
from rescnet_dist.model import Architecture
from rescnet_dist.model.features.second_order import SecondOrder
from rescnet_dist.planning import choose_tier
from rescnet_dist.store import RunStore
from rescnet_dist.train import chunk_cache, loop, verify_run
from rescnet_dist.train.chunk_cache import ChunkCache
from rescnet_dist.train.chunks import Reader

STORED = RUN.replace(maps="store")
LAYERS, IMAGES = SPEC.max_layers, 240


def count_extracted(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Return the number of images whose features are computed from now on, by layer."""
    extracted, extract = Counter[int](), Architecture.extract

    def count(self: Architecture, maps: Any, layer: int) -> Any:
        extracted[layer] += len(maps)
        return extract(self, maps, layer)

    monkeypatch.setattr(Architecture, "extract", count)
    return extracted


def change_tier(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let the driver change every tier that is chosen."""
    monkeypatch.setattr(loop, "choose_tier", lambda *a: replace(choose_tier(*a), **changes))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kept", [True, False], ids=["in memory", "no room"])
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(STORED, id="store"),
        pytest.param(RUN.replace(keep_maps="all"), id="all", marks=pytest.mark.slow),
    ],
)
def test_features_are_computed_once_if_they_fit(
    client: Client,
    tmp_path: Path,
    reference_weights: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    run: RunSpec,
    kept: bool,
) -> None:
    """And twice, with the same bits, if they do not."""
    if not kept:
        change_tier(monkeypatch, features=False)
    extracted = count_extracted(monkeypatch)
    placed: list[MapsPlaced] = []
    fit(tmp_path / "run", run=run, listeners=[collect(MapsPlaced, placed)])
    assert [(e.in_memory, e.features) for e in placed] == [(False, kept)]
    assert extracted == dict.fromkeys(range(1, LAYERS + 1), IMAGES if kept else 2 * IMAGES)
    assert is_same(read_weights(tmp_path / "run"), reference_weights)
    assert verify_run(tmp_path / "run") == []


def test_tiles_of_the_scatter_matrix_use_them(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the features are in the work area, too, while a layer is fitted."""
    extracted = count_extracted(monkeypatch)
    spec, run = SPEC.replace(max_layers=2), RUN.replace(tile_features=64)
    fit(tmp_path / "once", spec, run)
    assert extracted == {1: IMAGES, 2: IMAGES}
    change_tier(monkeypatch, features=False)
    fit(tmp_path / "twice", spec, run)
    assert extracted == {1: 3 * IMAGES, 2: 3 * IMAGES}
    assert is_same(read_weights(tmp_path / "once"), read_weights(tmp_path / "twice"))


def test_random_signs_of_leave_one_out_use_them(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its errors of training images need features, scores and signs of the same images."""
    extracted = count_extracted(monkeypatch)
    spec = SPEC.replace(head="leave-one-out", max_layers=3)
    fit(tmp_path / "once", spec, STORED)
    assert extracted == dict.fromkeys((1, 2, 3), IMAGES)
    with pytest.raises(Stopped):
        fit(tmp_path / "resumed", spec, STORED, listeners=[stop_after(2)])
    ResCNetClassifier.resume(tmp_path / "resumed")
    change_tier(monkeypatch, features=False)
    fit(tmp_path / "twice", spec, STORED)
    once = read_weights(tmp_path / "once")
    assert is_same(once, read_weights(tmp_path / "twice"))
    assert is_same(once, read_weights(tmp_path / "resumed"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("option", ["store_dtype", "feature_dtype"])
def test_half_precision_has_features_of_the_same_bits(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Features are computed from maps that are already rounded, or kept as they are rounded."""
    kept = list[Any]()
    put_features = ChunkCache.put_features

    def record(self: ChunkCache, start: int, layer: int, features: Any, backend: Any) -> None:
        kept.append(features.dtype)
        put_features(self, start, layer, features, backend)

    monkeypatch.setattr(ChunkCache, "put_features", record)
    spec = SPEC.replace(max_layers=3, **{option: "float16"})
    fit(tmp_path / "once", spec, STORED)
    assert set(kept) == {np.dtype(spec.feature_dtype)}
    change_tier(monkeypatch, features=False)
    fit(tmp_path / "twice", spec, STORED)
    assert is_same(read_weights(tmp_path / "once"), read_weights(tmp_path / "twice"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("options", "run"),
    [
        pytest.param({}, RUN, id="exact"),
        pytest.param({}, RUN.replace(tile_features=64), id="tiles"),
        pytest.param({"solver": "cg", "cg_iterations": 3}, RUN, id="cg"),
    ],
)
def test_features_in_half_precision_classify_as_well(
    client: Client, tmp_path: Path, options: dict[str, Any], run: RunSpec
) -> None:
    """What is stored is verified; weights are others, and accuracies are close."""
    spec = SPEC.replace(max_layers=2, **options)
    single = fit(tmp_path / "single", spec, run)
    half = fit(tmp_path / "half", spec.replace(feature_dtype="float16"), run)
    assert verify_run(tmp_path / "half") == []
    accuracies = [np.mean(clf.predict(X) == Y) for clf in (single, half)]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.02)
    weights = [read_weights(tmp_path / name) for name in ("single", "half")]
    assert not is_same(*weights)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("on_processor", [True, False])
@pytest.mark.parametrize(
    ("options", "run"),
    [
        pytest.param({}, RUN, id="exact"),
        pytest.param({}, RUN.replace(tile_features=64), id="tiles"),
        pytest.param({"solver": "cg"}, RUN, id="cg"),
    ],
)
def test_features_too_large_for_half_precision_end_the_run(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    run: RunSpec,
    on_processor: bool,
) -> None:
    """Before anything is solved, with a message that names the limit and the remedy.

    A GPU does not say that a number is too large, and features become infinite.
    """
    extract, factor = SecondOrder.__call__, 1e6 if on_processor else np.float32(np.inf)
    monkeypatch.setattr(SecondOrder, "__call__", lambda *a: factor * extract(*a))
    spec = SPEC.replace(max_layers=1, feature_dtype="float16", **options)
    with pytest.raises(DataError, match=r'larger than 65504, .* Use feature_dtype="float32"'):
        fit(tmp_path / "run", spec, run)


def test_resumed_run_computes_features_of_its_last_layer_again(
    client: Client, tmp_path: Path, reference_weights: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caches ended with the driver."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", run=STORED, listeners=[stop_after(4)])
    extracted = count_extracted(monkeypatch)
    ResCNetClassifier.resume(tmp_path / "run")
    assert extracted == dict.fromkeys(range(4, LAYERS + 1), IMAGES)
    assert is_same(read_weights(tmp_path / "run"), reference_weights)


@pytest.mark.slow
def test_retried_pass_computes_features_that_it_had_replaced(
    client: Client, tmp_path: Path, reference_weights: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of the group has some features of the layer that failed."""
    read_state, failures, retried = Reader.read_state, list[int](), list[PassRetried]()

    def fail_once(self: Reader, source: Any, chunk: Any) -> Any:
        if (self.task.layer, chunk.start) == (3, 150) and not failures:
            failures.append(chunk.start)
            raise ZeroDivisionError
        return read_state(self, source, chunk)

    monkeypatch.setattr(Reader, "read_state", fail_once)
    extracted = count_extracted(monkeypatch)
    run = STORED.replace(accumulators=1)
    fit(tmp_path / "run", run=run, listeners=[collect(PassRetried, retried)])
    assert failures
    assert retried
    assert extracted[2] > IMAGES
    assert extracted[4] == IMAGES
    monkeypatch.undo()
    fit(tmp_path / "other", run=run)
    assert is_same(read_weights(tmp_path / "run"), read_weights(tmp_path / "other"))
    assert len(reference_weights) == len(read_weights(tmp_path / "run"))


@pytest.mark.slow
def test_full_worker_computes_features_twice(
    client: Client, tmp_path: Path, reference_weights: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has more groups than planned, or others use its memory."""
    monkeypatch.setattr(chunk_cache, "CACHE_TOLERANCE_FRACTION", -1.0)
    extracted = count_extracted(monkeypatch)
    fit(tmp_path / "run", run=STORED)
    assert set(extracted.values()) == {2 * IMAGES}
    assert is_same(read_weights(tmp_path / "run"), reference_weights)


@pytest.mark.slow
def test_lost_worker_changes_no_bit(
    tmp_path: Path, reference_weights: list[Any], kill_worker: Listener
) -> None:
    """Its features are computed again from the maps in the store, which are all there."""
    rebuilt: list[ChunkRebuilt] = []
    listeners = [kill_worker, collect(ChunkRebuilt, rebuilt)]
    fit(tmp_path / "run", run=STORED, listeners=listeners)
    assert is_same(read_weights(tmp_path / "run"), reference_weights)
    assert rebuilt == []


@pytest.mark.slow
def test_damaged_maps_are_still_found(
    client: Client, tmp_path: Path, reference_weights: list[Any]
) -> None:
    """Cached features do not replace the check of the maps that they belong to."""
    rebuilt: list[ChunkRebuilt] = []

    def damage(event: Event) -> None:
        if isinstance(event, PassDone) and (event.phase, event.layer) == ("grow", 2):
            maps = RunStore.open(tmp_path / "run").maps(2, write=True)
            maps[60] = maps[60] + 1

    listeners: list[Any] = [damage, collect(ChunkRebuilt, rebuilt)]
    fit(tmp_path / "run", run=STORED, listeners=listeners)
    assert [(e.layer, e.start) for e in rebuilt] == [(2, 50)]
    assert is_same(read_weights(tmp_path / "run"), reference_weights)


def test_layers_may_change_between_memory_and_store(
    client: Client, tmp_path: Path, reference_weights: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches stay, without the images and maps that have no room any more."""
    grown, images = [0], dict[int, set[int]]()

    def choose(*args: Any) -> Any:
        tier = choose_tier(*args)
        return replace(tier, in_memory=False) if grown[-1] + 1 in (3, 4) else tier

    put_features = ChunkCache.put_features

    def record(self: ChunkCache, start: int, layer: int, *others: Any) -> None:
        images.setdefault(layer, set()).update(self.images.keys() & {start})
        put_features(self, start, layer, *others)

    monkeypatch.setattr(loop, "choose_tier", choose)
    monkeypatch.setattr(ChunkCache, "put_features", record)
    extracted = count_extracted(monkeypatch)

    def listen(event: Event) -> None:
        if isinstance(event, PassDone):
            grown.append(event.layer)

    fit(tmp_path / "run", listeners=[listen])
    assert images == {3: set(), 4: set()}
    assert set(extracted.values()) == {IMAGES}
    assert is_same(read_weights(tmp_path / "run"), reference_weights)
