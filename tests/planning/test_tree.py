"""The tree of merges on paper, the cost in money, and the choice of tiles by measured rates."""

from __future__ import annotations

import math

import pytest

from rescnet_dist import NetworkSpec, RunSpec
from rescnet_dist.cluster import Workers
from rescnet_dist.planning import Plan, Problem, Speed, estimate
from rescnet_dist.planning.cost import Prices
from rescnet_dist.planning.tree import merge_tree, spread_groups

SPEED = Speed(
    image_seconds=5e-3, product_rate=36e9, factor_rate=30e9, write_rate=1e9, read_rate=1e9
)
SPEC = NetworkSpec.preset("cifar10").replace(stride=4)
GIB = 2**30


@pytest.mark.parametrize("split_every", [2, 3, 4])
@pytest.mark.parametrize(("groups", "workers"), [(1, 1), (5, 2), (16, 16), (64, 16), (50, 7)])
def test_tree_merges_everything(groups: int, workers: int, split_every: int) -> None:
    """With one group per worker each merge of two sends one; on one worker nothing is sent."""
    plan = Plan(groups, 1, groups, split_every, 1)
    alone = merge_tree(plan, [0] * groups, 16, 8)
    assert (alone.moved, alone.remote_depth, alone.network) == (0, 0, 0)
    apart = merge_tree(plan, list(range(groups)), 16, 8)
    assert (apart.moved, apart.network) == (groups - 1, 8 * (groups - 1))
    assert apart.depth == apart.remote_depth == alone.depth
    if split_every == 2:
        assert alone.depth == math.ceil(math.log2(groups))
    for cached in (True, False):
        placed = merge_tree(plan, spread_groups(groups, workers, cached=cached), 16, 8)
        assert min(groups, workers) - 1 <= placed.moved <= groups - 1


def test_ten_million_images_on_a_thousand_workers() -> None:
    """Each worker sends one accumulator; the line of the estimate has depth, bytes and waits."""
    workers = Workers(1000, 1000, 1, 1, 64 * GIB)
    forecast = estimate(Problem(10_000_000, (32, 32, 3), 10), SPEC, RunSpec(), workers, SPEED)
    tree = forecast.tree
    assert (tree.depth, tree.remote_depth, tree.moved) == (12, 10, 999)
    assert forecast.traffic.network == tree.network == 999 * tree.sent_bytes
    triangle = 2 * 17_150**2
    assert triangle < tree.sent_bytes == tree.accumulator_bytes - triangle
    assert forecast.traffic.driver < 0.5e6
    assert tree.wait_seconds == pytest.approx(tree.reduce_seconds + 17_150**3 / 3 / 30e9)
    assert "12 merges deep, 10 between workers" in str(forecast)
    assert forecast.to_dict()["tree"]["wait_seconds"] == tree.wait_seconds


def test_cost_of_stable_and_spot_machines() -> None:
    """One more machine, which stays, is for the scheduler."""
    prices = Prices(stable=2.0, spot=0.5)
    assert prices.run_cost(7200, 10, spot=False) == 2 * 11 * 2.0
    assert prices.run_cost(7200, 10, spot=True) == 2 * (10 * 0.5 + 2.0)
    assert Prices(stable=2.0).run_cost(3600, 1, spot=True) == 4.0


@pytest.mark.parametrize(
    ("workers", "threads", "tiles"), [(2, 1, False), (2, 16, False), (1000, 1, True)]
)
def test_tiles_are_chosen_where_they_are_faster(workers: int, threads: int, tiles: bool) -> None:
    """Only on request, and on very many workers whose machines have few threads."""
    problem, spec = Problem(50_000, (32, 32, 3), 10), SPEC.replace(filters=80)
    cluster = Workers(workers, workers * threads, threads, threads, 512 * GIB)
    whole, chosen = (
        estimate(problem, spec, RunSpec(calibrate=calibrate), cluster, SPEED)
        for calibrate in (False, True)
    )
    assert whole.plan.tile_features is None
    assert bool(chosen.plan.tile_features) == tiles
    assert (chosen.layer_seconds or 0) <= (whole.layer_seconds or 0)
    assert estimate(problem, spec, RunSpec(calibrate=True), cluster, None).plan == whole.plan
