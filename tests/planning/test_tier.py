"""Where the plan has maps wait, what it counts for that of workers and GPUs, and what it says."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from rescnet_dist import ClusterError, NetworkSpec, RunSpec
from rescnet_dist.cluster import Workers
from rescnet_dist.errors import SpecError
from rescnet_dist.planning import Problem, choose_tier, estimate, make_plan
from rescnet_dist.planning.tier import cached_bytes, group_cache_bytes

CIFAR = Problem(50_000, (32, 32, 3), 10)
BIG = NetworkSpec.preset("cifar10").replace(stride=4)


def workers(gib: float, count: int = 1, gpu: float | None = None) -> Workers:
    """Single-threaded workers of so many GiB, and of a GPU of so many."""
    size = int(gib * 2**30)
    memory = None if gpu is None else int(gpu * 2**30)
    return Workers(count, count, 1, 1, size, gpu_memory=memory)


def test_held_bytes_are_those_of_the_arrays() -> None:
    """Maps, features, scores and pixels of one row."""
    assert cached_bytes(CIFAR, BIG, 1) == 32 * 32 * (4 * 50 + 3) + 4 * 17_150 + 4 * 10
    half = BIG.replace(store_dtype="float16")
    assert cached_bytes(CIFAR, half, 1) == 32 * 32 * (2 * 50 + 3) + 4 * 17_150 + 4 * 10
    assert cached_bytes(CIFAR, half, 1, features=False) == 32 * 32 * (2 * 50 + 3) + 4 * 10


@pytest.mark.parametrize(
    ("there", "run", "in_memory", "why"),
    [
        (
            workers(64),
            RunSpec(),
            True,
            "in workers' memory, with their features: 13.0 GiB per worker, of ",
        ),
        (workers(28), RunSpec(), True, "memory: 9.7 GiB per worker, of 11.1 GiB free, no room"),
        (workers(16), RunSpec(), False, "as they do not fit in memory: 9.7 GiB per worker, of "),
        (
            workers(24, 4),
            RunSpec(),
            True,
            "memory, with their features: 3.3 GiB per worker, of",
        ),
        (workers(64), RunSpec(maps="store"), False, 'in the store because maps="store"'),
        (workers(64), RunSpec(tile_features=999), False, "in the store, as tile_features=999 says"),
        (workers(64), RunSpec(keep_maps="all"), False, 'in the store, as keep_maps="all" says'),
        (
            workers(2),
            RunSpec(),
            False,
            "not even the scatter matrix of 17,150 features, 1.1 GiB, fits",
        ),
        (workers(64, 1, 80), RunSpec(array_backend="cupy"), True, "in workers' GPU memory, with "),
        (workers(64, 1, 16), RunSpec(array_backend="cupy"), False, "do not fit in GPU memory: "),
    ],
)
def test_the_plan_chooses_and_says_why(
    there: Workers, run: RunSpec, in_memory: bool, why: str
) -> None:
    """By what a worker has to keep and what is free in it."""
    plan = make_plan(CIFAR, BIG, run, there)
    tier = choose_tier(CIFAR, BIG, run, plan, there)
    assert (tier.in_memory, why in tier.reason) == (in_memory, True), tier.reason
    lines = str(estimate(CIFAR, BIG, run, there, None)).splitlines()
    told = next(line for line in lines if line.startswith("maps "))
    assert told.split(None, 1)[1].startswith(tier.reason)
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
        match=r'maps="memory".*9\.7 GiB.*free: use larger workers \(of at least .* GiB\), more',
    ) as told:
        estimate(CIFAR, BIG, run, workers(16), None)
    with pytest.raises(ClusterError, match=r"scatter matrix.*1\.1 GiB.*fewer filters, or") as early:
        estimate(CIFAR, BIG, run, workers(2), None)
    for error in (told, early):  # and what is advised fits, and no less
        (least,) = re.findall(r"at least ([\d.]+) GiB", str(error.value))
        assert estimate(CIFAR, BIG, run, workers(float(least)), None).tier.in_memory
        with pytest.raises(ClusterError):
            estimate(CIFAR, BIG, run, workers(float(least) - 0.5), None)


def test_what_is_held_counts_as_memory_of_a_worker() -> None:
    """What is printed as the most is with it; a worker that may be as large as it takes, is."""
    there, rows = workers(64), 50_000  # all of them, as there is one worker
    in_store = estimate(CIFAR, BIG, RunSpec(maps="store"), there, None).peak_memory
    in_memory = estimate(CIFAR, BIG, RunSpec(), there, None)
    assert in_memory.peak_memory == in_store + in_memory.tier.held
    held = rows * (32 * 32 * (4 * 50 + 3) + 4 * 17_150 + 4 * 10)
    assert held <= in_memory.tier.held < 1.1 * held  # groups are of whole chunks
    unlimited = replace(there, memory=None)
    assert estimate(CIFAR, BIG, RunSpec(maps="memory"), unlimited, None).tier.in_memory
    assert not estimate(CIFAR, BIG, RunSpec(), unlimited, None).tier.in_memory


def test_smaller_chunks_keep_maps_on_a_smaller_gpu() -> None:
    """Rather than large ones whose maps go through the store."""
    run = RunSpec(array_backend="cupy")
    large, small = (make_plan(CIFAR, BIG, run, workers(64, 1, gpu)) for gpu in (80, 34))
    assert (large.chunk_images, small.chunk_images) == (16_667, 4167)
    assert choose_tier(CIFAR, BIG, run, small, workers(64, 1, 34)).in_memory


def test_groups_share_out_what_is_held() -> None:
    """No row is forgotten."""
    plan = make_plan(CIFAR, BIG, RunSpec(), workers(64, 3))
    total = sum(group_cache_bytes(CIFAR, BIG, group) for group in plan.groups())
    assert total == cached_bytes(CIFAR, BIG, 50_000)
