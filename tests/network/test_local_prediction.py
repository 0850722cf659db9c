"""Images in memory are computed by threads of this process, to the bits that Dask computes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed.system import memory_limit

from rescnet_dist import AugmentSpec, FusedNetwork, Network
from rescnet_dist.cluster.tasks import uses_own_threads
from rescnet_dist.data import Images
from rescnet_dist.network.layer_cache import get_machine_memory
from rescnet_dist.network.local import map_in_tasks, map_in_threads

Array = np.ndarray[Any, np.dtype[Any]]
COPIES = AugmentSpec(copies=2, shift=1)


@pytest.fixture
def network(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Network:
    """A network whose tasks are of 7 images."""
    found = Network.load(run_folder)
    image_bytes = found.architecture.image_bytes
    monkeypatch.setattr("rescnet_dist.network.scoring.SLAB_BYTES", 7 * image_bytes)
    monkeypatch.setattr("rescnet_dist.network.scoring.TASK_BYTES", 7 * image_bytes)
    return found


@pytest.mark.parametrize("map_rows", [map_in_threads, map_in_tasks])
def test_rows_are_mapped_in_order(map_rows: Any) -> None:
    """With the number of the first row."""

    def describe(rows: Array, more: Array, shared: str, block_info: Any) -> Array:
        first = block_info[0]["array-location"][0][0]
        return np.array([rows[0], len(rows), more[0], len(shared), first])

    rows = np.arange(10)
    assert np.array_equal(
        map_rows(describe, (4, 4, 2), (rows, -rows), "abc"),
        [[0, 4, 0, 3, 0], [4, 4, -4, 3, 4], [8, 2, -8, 3, 8]],
    )


@pytest.mark.parametrize("map_rows", [map_in_threads, map_in_tasks])
def test_error_of_a_task_is_raised(map_rows: Any) -> None:
    def fail(rows: Array, shared: None, block_info: Any) -> Array:
        raise ValueError(f"row {rows[0]}")

    with pytest.raises(ValueError, match="row "):
        map_rows(fail, (1,) * 20, [np.arange(20)], None)


def test_same_bits_as_by_dask(network: Network, images: Array, labels: Array) -> None:
    """Copies depend on the number of the image."""
    codes = np.searchsorted(network.classes, labels)
    assert uses_own_threads()
    own = [
        network.scores(images, COPIES),
        network.staged_scores(images),
        network.features(images),
        network.staged_correct(images, codes, COPIES),
    ]
    with dask.config.set(scheduler="synchronous"):
        assert not uses_own_threads()
        by_dask = [
            network.scores(images, COPIES),
            network.staged_scores(images),
            network.features(images),
            network.staged_correct(images, codes, COPIES),
        ]
    for one, other in zip(own, by_dask, strict=True):
        assert np.array_equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])  # own threads, and tasks
@pytest.mark.parametrize("size", [3, 21])  # a part of a task, and several tasks
@pytest.mark.parametrize("is_fused", [False, True])
def test_copies_of_a_part_are_those_of_the_whole(
    network: Network, images: Array, scheduler: str, size: int, is_fused: bool
) -> None:
    """They depend on the number of the image in the array that it is a part of."""
    predicted = FusedNetwork([network], np.ones(1)) if is_fused else network
    checked, copies = predicted.prepare(images, COPIES)
    with dask.config.set(scheduler=scheduler):
        whole = predicted.map_scores(checked, copies)
        part = predicted.map_scores(Images(checked.array[14 : 14 + size]), copies, first=14)
        other = predicted.map_scores(Images(checked.array[14 : 14 + size]), copies)
    np.testing.assert_allclose(part, whole[14 : 14 + size], rtol=0, atol=1e-5)
    assert abs(part - other).max() > 1e-3


def test_evaluation_in_memory_imports_no_dask_arrays(run_folder: Path) -> None:
    """Nor xarray, pandas, distributed and scikit-learn: together they take two seconds."""
    code = f"""
import sys
import numpy as np
from rescnet_dist.data import encode, load_digits
from rescnet_dist.network import load_network
network = load_network({str(run_folder)!r})
images = load_digits()[0][:200, ::2, ::2]
network.evaluate(images, np.zeros(200, int))
network.staged_accuracy(images, np.zeros(200, int))
slow = {{"dask.array", "distributed", "pandas", "sklearn", "xarray"}}
sys.exit(str(slow & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "set()\n"


def test_images_in_memory_on_a_cluster_need_no_dask_arrays(run_folder: Path) -> None:
    """Here and in workers, each of which would import dask.array for a second."""
    code = f"""
import sys
from distributed import Client
from rescnet_dist.data import load_digits
from rescnet_dist.network import load_network
with Client(processes=False, n_workers=1, dashboard_address=None):
    network = load_network({str(run_folder)!r})
    assert network.scores(load_digits()[0][:200, ::2, ::2]).shape == (200, 10)
sys.exit(str({{"dask.array", "pandas", "xarray"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "set()\n"


def test_memory_of_the_machine_is_what_dask_finds() -> None:
    assert get_machine_memory() == memory_limit()
