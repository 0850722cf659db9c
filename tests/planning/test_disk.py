"""Free disk space, compared with what a run writes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rescnet_dist import NetworkSpec, RunSpec
from rescnet_dist.cluster import Workers
from rescnet_dist.errors import StoreFullError
from rescnet_dist.planning import Forecast, Problem, estimate
from rescnet_dist.planning.disk import check_disk
from rescnet_dist.planning.requirements import layer_bytes
from rescnet_dist.store import Location

PROBLEM = Problem(1000, (28, 28, 1), 10)
SPEC = NetworkSpec.preset("digits")
WORKERS = Workers(count=1, slots=1, threads=1, machine_threads=1, memory=8 * 2**30)


@pytest.fixture
def expected() -> Forecast:
    """Return the forecast of a run whose maps are stored at the end."""
    return estimate(PROBLEM, SPEC, RunSpec(), WORKERS, None)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with the free bytes of all disks."""
    found = [0]
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage._replace(free=found[0]))
    return found


def test_maps_of_one_layer_are_stored_at_the_end(expected: Forecast) -> None:
    """The run is shorter than the time between two checkpoints."""
    maps = 1000 * (28 * 28 * 16 + 10) * 4
    layers = SPEC.max_layers * layer_bytes(PROBLEM, SPEC)
    assert expected.traffic.store == PROBLEM.image_bytes + maps + layers


def test_first_layers_must_fit(expected: Forecast, free: list[int], tmp_path: Path) -> None:
    """The message has both sizes and remedies; images that are not copied do not count."""
    location = Location(str(tmp_path / "not" / "there"))
    first = expected.traffic.store - (SPEC.max_layers - 1) * layer_bytes(PROBLEM, SPEC)
    free[0] = first - 1
    with pytest.raises(StoreFullError, match=r"free space, but the first layers.*another store"):
        check_disk(expected, location, copies_images=True)
    free[0] = first - PROBLEM.image_bytes
    with pytest.warns(UserWarning, match=r"a run of 4 layers takes up to .* can be resumed"):
        check_disk(expected, location, copies_images=False)


def test_enough_space_for_all_layers(expected: Forecast, free: list[int], tmp_path: Path) -> None:
    """No warning; and none for stores whose free space is not known."""
    free[0] = expected.traffic.store
    check_disk(expected, Location(str(tmp_path)), copies_images=True)
    free[0] = 0
    check_disk(expected, Location("memory://run"), copies_images=True)
