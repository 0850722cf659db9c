"""The driver and the scheduler with up to a thousand workers, and the tree of merges as estimated.

`pytest -m scale tests/scale -s` needs an idle machine: delays by the clock count.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rig
import rig_report
import rig_tasks
from distributed import Client, LocalCluster

from rescnet_dist.events.bus import EventBus
from rescnet_dist.planning import Plan
from rescnet_dist.planning.tree import merge_tree, spread_groups
from rescnet_dist.reduce import fold_name
from rescnet_dist.store import RunStore
from rescnet_dist.train.cache_set import CacheSet
from rescnet_dist.train.executor import run_pass
from rescnet_dist.train.monitor import PassMonitor
from rescnet_dist.train.task import GroupParts, Task

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
SIZES = (16, 64, 256)  # 1,000 workers with tasks of no time need more than two cores
PACED = ((256, 4.0), (1000, 5.0))  # workers, and seconds of a task


@pytest.mark.scale
def test_driver_and_scheduler_pass_the_bars() -> None:
    """From 16 to 1,000 workers; a tenth of them is lost on the way."""
    results = [rig.measure(workers) for workers in SIZES]
    print("", *rig_report.format_table(results), sep="\n")
    paced = [rig.measure(workers, seconds) for workers, seconds in PACED]
    print("", *rig_report.format_paced_table(paced), sep="\n")
    assert rig_report.find_missed_bars([*results, *paced]) == []


@pytest.mark.parametrize(("workers", "groups", "split_every"), [(4, 16, 2), (3, 12, 4)])
def test_tree_is_as_deep_and_moves_as_much_as_estimated(
    workers: int, groups: int, split_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbors share a worker, so that their accumulators are merged without being sent."""
    monkeypatch.setenv("RIG_FOLDER", str(tmp_path))
    plan = Plan(
        images=4 * groups,
        chunk_images=1,
        accumulators=groups,
        split_every=split_every,
        solve_threads=1,
    )
    task = Task(RunStore.create(tmp_path / "run", {}), layer=1)
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
        EventBus([]) as bus,
    ):
        caches = CacheSet(client, [fold_name("grow")])
        caches.distribute([2**30] * groups, is_stored=True)
        parts = GroupParts(task, plan, np.zeros((groups, 0), np.int64), caches.keys)
        run_pass(rig_tasks.GROW, task, parts, plan, PassMonitor(task.run, client, bus))
    found = json.loads((tmp_path / "tree-1.json").read_text())
    placement = spread_groups(groups, workers, cached=True)
    expected = merge_tree(plan, placement, *[rig_tasks.ACCUMULATOR_BYTES] * 2)
    assert found["folds"] == groups
    assert (found["depth"], found["moved_bytes"]) == (expected.depth, expected.network)
    assert expected.moved == workers - 1


def read_results() -> dict[str, Any]:
    """Return the last results of the rig."""
    record: dict[str, Any] = json.loads(RESULTS.read_text())
    return record


def test_page_shows_the_last_results() -> None:
    """The tables of the book are those of the stored results, of all sizes, and miss no bar."""
    record, page = read_results(), (ROOT / "notebooks/guide/scale.md").read_text()
    assert "\n".join(rig_report.format_table(record["sizes"])) in page
    assert "\n".join(rig_report.format_paced_table(record["paced"])) in page
    assert record["machine"] in page
    results = [*record["sizes"], *record["paced"]]
    assert {size["workers"] for size in results} == {*SIZES, *(workers for workers, _ in PACED)}
    assert rig_report.find_missed_bars(results) == []
