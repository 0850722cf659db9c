"""The storage tier of maps: its choice, the memory it needs, and its description."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from rescnet_dist import ClusterError, NetworkSpec, RunSpec
from rescnet_dist.cluster import Workers
from rescnet_dist.errors import WorkersTooSmallError
from rescnet_dist.planning import Problem, choose_tier, describe_placement, estimate, make_plan
from rescnet_dist.planning.requirements import extractor_bytes, peak_memory
from rescnet_dist.planning.tier import cached_bytes, group_cache_bytes

CIFAR = Problem(50_000, (32, 32, 3), 10)
BIG = NetworkSpec.preset("cifar10").replace(stride=4)


def workers(gib: float, count: int = 1, gpu: float | None = None) -> Workers:
    """Return single-threaded workers with these GiB of memory, and of a GPU each."""
    gpu_memory = None if gpu is None else int(gpu * 2**30)
    return Workers(count, count, 1, 1, int(gib * 2**30), gpu_memory=gpu_memory)


def test_cached_bytes_are_those_of_the_arrays() -> None:
    """Maps, features, scores and pixels of one row."""
    assert cached_bytes(CIFAR, BIG, 1) == 32 * 32 * (4 * 50 + 3) + 4 * 17_150 + 4 * 10
    half = BIG.replace(store_dtype="float16")
    assert cached_bytes(CIFAR, half, 1) == 32 * 32 * (2 * 50 + 3) + 4 * 17_150 + 4 * 10
    assert cached_bytes(CIFAR, half, 1, features=False) == 32 * 32 * (2 * 50 + 3) + 4 * 10
    features = BIG.replace(feature_dtype="float16")
    assert cached_bytes(CIFAR, features, 1) == 32 * 32 * (4 * 50 + 3) + 2 * 17_150 + 4 * 10
    assert cached_bytes(CIFAR, features, 1, maps=False) == 2 * 17_150


def test_counts_are_cached_in_a_byte() -> None:
    """A feature of another extractor makes all of them floats."""
    counts = NetworkSpec(filters=48, features="binary-hash")
    rest, histograms = 32 * 32 * (4 * 48 + 3) + 4 * 10, 7 * 7 * 6 * 256
    assert cached_bytes(CIFAR, counts, 1) == rest + histograms
    both = counts.replace(features="binary-hash,first-order")
    assert cached_bytes(CIFAR, both, 1) == rest + 4 * (histograms + 480)


def test_features_of_several_extractors_need_a_copy() -> None:
    """It is in addition to the largest workspace."""
    one, other = ("first-order", "binary-hash")
    needed = [
        extractor_bytes(CIFAR, NetworkSpec(filters=48, features=features), 10)
        for features in (one, other, f"{one},{other}")
    ]
    assert needed[2] == max(needed[:2]) + 10 * 4 * (7 * 7 * 6 * 256 + 480)


@pytest.mark.parametrize(
    ("cluster", "run", "in_memory", "reason"),
    [
        (
            workers(64),
            RunSpec(),
            True,
            "in workers' memory, with their features: 13.0 GiB per worker, of ",
        ),
        (workers(28), RunSpec(), True, "memory: 9.7 GiB per worker, of 11.1 GiB free, no room"),
        (
            workers(16),
            RunSpec(),
            False,
            "because they do not fit in memory: 9.7 GiB per worker",
        ),
        (
            workers(24, 4),
            RunSpec(),
            True,
            "memory, with their features: 3.3 GiB per worker, of",
        ),
        (workers(64), RunSpec(maps="store"), False, 'in the store because maps="store"'),
        (workers(64), RunSpec(tile_features=999), False, "in the store because tile_features=999"),
        (workers(64), RunSpec(keep_maps="all"), False, 'in the store because keep_maps="all"'),
        (
            workers(2),
            RunSpec(),
            False,
            "whole scatter matrices of 17,150 features do not fit in memory: 3.3 GiB per worker",
        ),
        (workers(64, 1, 80), RunSpec(array_backend="cupy"), True, "in workers' GPU memory, with "),
        (workers(8, 1, 14), RunSpec(array_backend="cupy"), False, "do not fit in GPU memory: "),
        (
            workers(64, 1, 16),
            RunSpec(array_backend="cupy"),
            True,
            "in workers' GPU memory and main memory: 9.7 GiB per worker, of ",
        ),
    ],
)
def test_tier_and_its_reason(cluster: Workers, run: RunSpec, in_memory: bool, reason: str) -> None:
    """By the bytes that a worker must keep and those that are free."""
    plan = make_plan(CIFAR, BIG, run, cluster)
    tier = choose_tier(CIFAR, BIG, run, plan, cluster)
    text = describe_placement(tier.placement)
    assert (tier.in_memory, reason in text) == (in_memory, True), text
    lines = str(estimate(CIFAR, BIG, run, cluster, None)).splitlines()
    line = next(line for line in lines if line.startswith("maps "))
    assert line.split(None, 1)[1].startswith(text)
    assert any("stored every 10 layers and at the end" in line for line in lines) == in_memory


@pytest.mark.parametrize("maps", ["auto", "store"])
def test_forecast_says_that_maps_are_removed_at_the_end(maps: Any) -> None:
    """With keep_maps="none"."""
    text = str(estimate(CIFAR, BIG, RunSpec(maps=maps, keep_maps="none"), workers(64), None))
    line = next(line for line in text.splitlines() if line.startswith("maps "))
    assert line.endswith("; removed at the end")
    assert ("stored every 10 layers;" in line) == (maps == "auto")


def test_maps_that_are_never_stored_need_no_store() -> None:
    """If the run ends before the first checkpoint."""
    run, spec = RunSpec(keep_maps="none"), BIG.replace(max_layers=11)
    maps = 50_000 * (32 * 32 * 50 + 10) * 4
    some = estimate(CIFAR, spec, run, workers(64), None).traffic
    none = estimate(CIFAR, spec, run.replace(checkpoint_every=11), workers(64), None).traffic
    assert (some.written, none.written) == (maps, 0)
    assert some.store - none.store == maps  # of layer 10


def test_estimated_writes_are_the_maps_of_a_layer() -> None:
    """The store has the maps of all layers with keep_maps="all"."""
    maps = 50_000 * (32 * 32 * 50 + 10) * 4
    memory, store, keep_all = (
        estimate(CIFAR, BIG.replace(max_layers=30), run, workers(64), None).traffic
        for run in (RunSpec(), RunSpec(maps="store"), RunSpec(keep_maps="all"))
    )
    assert memory.written == store.written == keep_all.written == maps
    assert (memory.read, store.read) == (0, maps + 50_000 * 32 * 32 * 3)
    assert keep_all.store - store.store == 28 * maps


def test_error_for_a_small_gpu_has_a_value_that_fits() -> None:
    """Of the option that was set, or else of the filters."""
    cluster, run = workers(64, 1, 80), RunSpec(array_backend="cupy", chunk_images=50_000)
    with pytest.raises(WorkersTooSmallError, match="Replace chunk_images=50000 by chunk_") as e:
        estimate(CIFAR, BIG, run, cluster, None)
    advised = int(str(e.value).split("at most ")[1].split(",")[0])
    assert 1000 < advised < 50_000
    estimate(CIFAR, BIG, run.replace(chunk_images=advised), cluster, None)
    with pytest.raises(WorkersTooSmallError, match="Replace filters=200 by filters of at most"):
        estimate(CIFAR, BIG.replace(filters=200), RunSpec(array_backend="cupy"), cluster, None)
    with pytest.raises(WorkersTooSmallError, match=r"GiB of a GPU.*[Uu]se larger GPUs"):
        estimate(CIFAR, BIG, RunSpec(array_backend="cupy"), workers(64, 1, 0.5), None)


def test_maps_in_memory_without_room_are_an_error() -> None:
    """The message has the needed size, the free size and the remedy."""
    run = RunSpec(maps="memory")
    with pytest.raises(
        ClusterError,
        match=r'maps="memory".*9\.7 GiB.*free\. Use larger workers \(with at least .* GiB\), more',
    ) as late:
        estimate(CIFAR, BIG, run, workers(16), None)
    with pytest.raises(ClusterError, match=r"scatter matri.*3\.3 GiB.*fewer filters, or") as early:
        estimate(CIFAR, BIG, run, workers(2), None)
    for error in (late, early):  # the advised size fits, and no smaller one does
        (least,) = re.findall(r"at least ([\d.]+) GiB", str(error.value))
        assert estimate(CIFAR, BIG, run, workers(float(least)), None).tier.in_memory
        with pytest.raises(ClusterError):
            estimate(CIFAR, BIG, run, workers(float(least) - 0.5), None)


def test_peak_memory_includes_cached_maps() -> None:
    """Workers without a memory limit cache maps only on request."""
    cluster, rows = workers(64), 50_000  # all rows, because there is one worker
    in_memory = estimate(CIFAR, BIG, RunSpec(), cluster, None)
    without = peak_memory(CIFAR, BIG, in_memory.plan, cluster)
    assert in_memory.peak_memory == without + in_memory.tier.cached_bytes
    size = rows * (32 * 32 * (4 * 50 + 3) + 4 * 17_150 + 4 * 10)
    assert size <= in_memory.tier.cached_bytes < 1.1 * size  # groups have whole chunks
    unlimited = replace(cluster, memory=None)
    assert estimate(CIFAR, BIG, RunSpec(maps="memory"), unlimited, None).tier.in_memory
    assert not estimate(CIFAR, BIG, RunSpec(), unlimited, None).tier.in_memory


def test_peak_memory_includes_cached_features_of_stored_maps() -> None:
    """They are cached as long as that fits."""
    run, cluster = RunSpec(maps="store"), workers(64)
    plan = make_plan(CIFAR, BIG, run, cluster)
    size, without = 50_000 * 4 * 17_150, peak_memory(CIFAR, BIG, plan, cluster)
    kept = estimate(CIFAR, BIG, run, cluster, None)
    assert (kept.tier.in_memory, kept.tier.features) == (False, True)
    assert size <= kept.tier.cached_bytes < 1.1 * size
    assert kept.peak_memory == without + kept.tier.cached_bytes
    assert "; features stay in workers' memory: 3.2 GiB per worker, of " in str(kept)
    needed = (without + kept.tier.cached_bytes) / cluster.share
    for memory, fits in ((needed + 10**6, True), (needed - 10**6, False)):
        other = replace(cluster, memory=int(memory))
        tier = choose_tier(CIFAR, BIG, run, plan, other)
        assert tier.features == fits
        assert tier.host_cache_bytes == fits * kept.tier.cached_bytes
    on_gpu = estimate(CIFAR, BIG, run.replace(array_backend="cupy"), workers(64, 1, 80), None)
    assert on_gpu.tier.features
    assert on_gpu.tier.host_cache_bytes == 0
    unlimited = str(estimate(CIFAR, BIG, run, replace(cluster, memory=None), None))
    assert 'in the store because maps="store"; features are computed twice' in unlimited


def test_smaller_chunks_keep_maps_on_a_smaller_gpu() -> None:
    """Rather than large chunks whose maps go through the store."""
    run = RunSpec(array_backend="cupy")
    large, small = (make_plan(CIFAR, BIG, run, workers(64, 1, gpu)) for gpu in (80, 34))
    assert (large.chunk_images, small.chunk_images) == (16_667, 4167)
    assert choose_tier(CIFAR, BIG, run, small, workers(64, 1, 34)).in_memory


def test_groups_cache_all_rows() -> None:
    """The sizes of the groups add up to that of all rows."""
    plan = make_plan(CIFAR, BIG, RunSpec(), workers(64, 3))
    total = sum(group_cache_bytes(CIFAR, BIG, group) for group in plan.groups())
    assert total == cached_bytes(CIFAR, BIG, 50_000)


def test_stored_keys_of_the_forecast_are_unchanged() -> None:
    """Runs store the forecast, so renaming a field must not change its key."""
    values = estimate(CIFAR, BIG, RunSpec(), workers(64), None).to_dict()
    tier = ["in_memory", "features", "held", "on_gpu", "why", "placement"]
    assert list(values["tier"]) == tier
    assert list(values["traffic"]) == ["read", "written", "network", "driver", "store", "tasks"]
    assert list(values["plan"]) == [
        *("images", "chunk_images", "accumulators", "split_every", "solve_threads"),
        "tile_features",
    ]
    assert list(values["workers"]) == [
        *("count", "slots", "threads", "machine_threads", "memory", "share", "resident"),
        "gpu_memory",
    ]
    assert list(values["problem"]) == ["images", "image_shape", "classes", "itemsize", "copies"]
    assert "spec" not in values
