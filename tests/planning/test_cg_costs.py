"""Test plans and costs of heads that are solved by conjugate gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rescnet_dist import NetworkSpec, RunSpec, SpecError
from rescnet_dist.cluster import Workers
from rescnet_dist.errors import WorkersTooSmallError
from rescnet_dist.planning import Plan, Problem, Speed, choose_tier, make_plan, peak_memory
from rescnet_dist.planning.cg import SolverCosts
from rescnet_dist.planning.estimates import estimate
from rescnet_dist.planning.requests import count_requests
from rescnet_dist.planning.requirements import traffic

# histograms of 40 groups of 8 maps in 21 cells, as in PCANet
PCANET = NetworkSpec(
    filters=(40, 320),
    filter_size=5,
    first_filter_size=5,
    bank="pca:1",
    features="binary-hash",
    hash_levels=(4, 2, 1),
    head="regress",
    solver="cg",
    max_layers=2,
)
CIFAR = Problem(images=50_000, image_shape=(32, 32, 3), classes=10)
WORKERS = Workers(count=8, slots=16, threads=2, machine_threads=2, memory=8 * 2**30)
GPU = Workers(1, 1, 1, 16, memory=100 * 2**30, gpu_memory=139 * 2**30)


def test_plan_of_200_000_features_fits_small_workers() -> None:
    """Chunks are of many images, and there is no tile."""
    assert CIFAR.features(PCANET) == 215_040
    plan = make_plan(CIFAR, PCANET, RunSpec(), WORKERS)
    assert plan.tile_features is None
    assert plan.chunk_images >= 16
    assert plan.chunk_images * CIFAR.feature_bytes(PCANET) <= 64 * 2**20
    assert peak_memory(CIFAR, PCANET, plan, WORKERS) <= WORKERS.budget
    assert make_plan(CIFAR, PCANET, RunSpec(array_backend="cupy"), GPU).chunk_images > 1000


def test_chunks_of_small_images_are_sized_by_their_features() -> None:
    """Images of 28×28 with 8 maps would have chunks of a thousand images."""
    spec = PCANET.replace(filters=8, hash_levels=(), hash_stride=1, first_filter_size=7)
    problem = replace(CIFAR, image_shape=(28, 28, 1))
    plan = make_plan(problem, spec, RunSpec(), WORKERS)
    assert problem.feature_bytes(spec) == 21 * 21 * 256
    assert 0.8 < plan.chunk_images * 21 * 21 * 256 / 2**26 <= 1


def test_costs_are_those_counted_by_hand() -> None:
    """Three iterations, 40 images of 10 features and 2 classes in 2 groups."""
    spec = NetworkSpec(
        filters=5, block=8, stride=8, levels=(1,), head="regress", solver="cg", cg_iterations=3
    )  # fmt: skip
    architecture = Problem(40, (8, 8, 1), 2).architecture(spec)
    assert (architecture.features, architecture.targets) == (10, 2)
    costs = SolverCosts.of(architecture, Plan(40, 10, 2, 2, 1))
    features, weights = 40 * 10 * 4, 10 * 2 * 8
    assert costs.work == features + 2 * 3 * weights
    assert costs.tasks == 2 + 3 * (2 + 1 + 1) + 2
    assert costs.network == 3 * weights
    assert costs.feature_reads == 3 * features
    assert costs.read == 3 * (2 * weights + 3 * weights) + weights
    assert costs.written == features + (1 + 3) * 3 * weights


def test_tasks_have_room_for_directions_and_products() -> None:
    """Of a thousand classes, 1.7 GB each."""
    problem = replace(CIFAR, classes=1000)
    costs = SolverCosts.of(problem.architecture(PCANET), Plan(50_000, 50, 4, 2, 1))
    assert 5 * 8 * 215_040 * 1000 < costs.task_bytes < 6 * 8 * 215_040 * 1000


def test_features_are_kept_where_they_fit() -> None:
    """They take 10.8 GB, in 16 groups."""
    plan = make_plan(CIFAR, PCANET, RunSpec(), WORKERS)
    used = peak_memory(CIFAR, PCANET, plan, WORKERS)
    size = 2 * 215_040 * max(group.stop - group.start for group in plan.groups())
    limit = replace(WORKERS, memory=int((used + size) / WORKERS.budget * WORKERS.memory))
    stored = RunSpec(maps="store")

    def is_kept(workers: Workers) -> bool:
        return choose_tier(CIFAR, PCANET, stored, plan, workers).features

    assert is_kept(replace(limit, memory=limit.memory + 10**6))
    assert not is_kept(replace(limit, memory=limit.memory - 10**6))
    assert not is_kept(replace(WORKERS, memory=None))
    assert is_kept(GPU)


def test_exact_heads_have_no_such_costs() -> None:
    spec = PCANET.replace(solver="exact")
    assert SolverCosts.of(CIFAR.architecture(spec), Plan(40, 10, 2, 2, 1)) is None


def test_estimate_names_the_solver_and_its_work_area() -> None:
    text = str(estimate(CIFAR, PCANET, RunSpec(), WORKERS, None))
    assert "215,040 per layer; solved by conjugate gradients, at most 100 iterations" in text
    assert "10.1 GiB of it for features while they are solved" in text


def test_iterations_read_less_than_tiles() -> None:
    plan = make_plan(CIFAR, PCANET, RunSpec(), WORKERS)
    tiled = traffic(CIFAR, PCANET.replace(solver="exact"), replace(plan, tile_features=2560))
    assert traffic(CIFAR, PCANET, plan).read < 0.1 * tiled.read


def test_error_of_a_matrix_that_is_too_large_names_the_solver() -> None:
    """On a GPU, where there are no tiles."""
    exact, run = PCANET.replace(solver="exact"), RunSpec(array_backend="cupy")
    with pytest.raises(WorkersTooSmallError, match=r'Solve by conjugate gradients, solver="cg"'):
        make_plan(CIFAR, exact, run, GPU)


def test_tiles_of_a_matrix_that_is_never_computed_are_rejected() -> None:
    with pytest.raises(SpecError, match=r'tile_features=512 is for solver="exact"'):
        make_plan(CIFAR, PCANET, RunSpec(tile_features=512), WORKERS)


@pytest.mark.parametrize(
    ("gigabytes", "maps", "reads"), [(8, "store", 100), (64, "store", 0), (64, "auto", 0)]
)
def test_features_that_workers_keep_are_not_read_again(
    gigabytes: int, maps: str, reads: int
) -> None:
    """Each iteration reads them, or none if they stay in memory, with the maps or alone."""
    workers = replace(WORKERS, memory=gigabytes * 2**30)
    found = estimate(CIFAR, PCANET, RunSpec(maps=maps), workers, None)
    in_memory = found.tier.in_memory
    assert in_memory == (maps == "auto")
    expected = count_requests(
        found.plan, found.features, in_memory=in_memory, iterations=100, feature_reads=reads
    )
    assert found.requests == expected
    kept = {"in_memory": in_memory, "features_in_memory": True}
    others = traffic(CIFAR, PCANET, found.plan, **kept).read
    assert found.traffic.read - others == reads * CIFAR.images * CIFAR.feature_bytes(PCANET)


def test_a_slow_store_delays_no_iteration_of_features_in_memory() -> None:
    """Features of 10.8 GB are read at 10 MB/s in each of 100 iterations, or never."""
    speed = Speed(
        image_seconds=5e-3, product_rate=36e9, factor_rate=30e9, write_rate=1e9, read_rate=1e7
    )

    def get_seconds(gigabytes: int) -> float:
        workers = replace(WORKERS, memory=gigabytes * 2**30)
        return estimate(CIFAR, PCANET, RunSpec(maps="store"), workers, speed).layer_seconds or 0

    reading = 100 * CIFAR.images * CIFAR.feature_bytes(PCANET) / 1e7 / WORKERS.slots
    assert get_seconds(8) > reading > 5 * get_seconds(64)
