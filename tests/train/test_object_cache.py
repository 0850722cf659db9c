"""The cache of objects in a worker: per driver, of limited size, and it saves reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from rescnet_dist import NetworkSpec, RunSpec, load_digits
from rescnet_dist.data import training_set
from rescnet_dist.lifecycle import begin_or_resume, check_run
from rescnet_dist.model import ImageScale
from rescnet_dist.model.heads.linear import LinearHead
from rescnet_dist.store import (
    Location,
    RunStore,
    read_bank,
    read_head,
    read_image_scale,
)
from rescnet_dist.train import object_cache, passes
from rescnet_dist.train.task import Task

SPEC = NetworkSpec.preset("digits").replace(filters=4, max_layers=4)


def make_task(driver: str) -> Task:
    """Return a task of a driver of this name."""
    return Task(RunStore(Location("memory://cached")), 1, driver=driver)


def test_cached_object_is_not_loaded_again() -> None:
    """It does not matter whether it was loaded or put."""
    one = make_task("one")
    assert object_cache.get(one, "a", lambda: 1) == 1
    assert object_cache.get(one, "a", lambda: 2) == 1
    object_cache.put(one, "a", 3)
    assert object_cache.get(one, "a", lambda: 2) == 3


def test_each_driver_has_its_own_objects() -> None:
    """Another run may be at the same URL later; drivers do not share objects."""
    for driver in ("this", "that"):
        object_cache.put(make_task(driver), "a", driver)
    for driver in ("this", "that"):
        assert object_cache.get(make_task(driver), "a", lambda: "loaded") == driver


def test_tasks_without_driver_bypass_cache() -> None:
    """Nothing is read from the cache or put into it."""
    for value in range(3):
        assert object_cache.get(make_task(""), "a", lambda value=value: value) == value


def test_only_latest_layer_is_cached() -> None:
    """An object of another layer is replaced."""
    one = make_task("layers")
    object_cache.put(one, "bank", "first", 1)
    object_cache.put(one, "bank", "second", 2)
    assert object_cache.get(one, "bank", lambda: "read", 2) == "second"
    assert object_cache.get(one, "bank", lambda: "read", 1) == "read"


def cached_drivers(name: str, drivers: list[str]) -> list[str]:
    """Return the drivers that have an object of this name in the cache."""
    found = {driver: object_cache._drivers.get(driver) for driver in drivers}
    return [driver for driver, objects in found.items() if objects and name in objects.entries]


def test_drivers_used_last_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects in use stay; those of drivers that have ended are removed."""
    monkeypatch.setattr(object_cache, "MAX_CACHED_DRIVERS", 3)
    drivers = [f"number {number}" for number in range(5)]
    for driver in drivers:
        object_cache.put(make_task(driver), "a", driver)
        assert object_cache.get(make_task(drivers[0]), "a", lambda: "loaded") == drivers[0]
    assert cached_drivers("a", drivers) == [drivers[0], *drivers[-2:]]


@pytest.mark.parametrize("wrap", [lambda a: {"zca": {"matrix": a}}, lambda a: (1, [a])])
def test_bytes_are_limited(wrap: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the matrix of a view may have a gigabyte; arrays are found at any depth."""
    monkeypatch.setattr(object_cache, "MAX_CACHED_BYTES", 1000)
    drivers = [f"bytes {number}" for number in range(4)]
    for driver in drivers:
        object_cache.put(make_task(driver), "views", wrap(np.zeros(100, np.float32)))
    assert cached_drivers("views", drivers) == drivers[-2:]


def test_objects_in_use_may_be_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task would read them again otherwise."""
    monkeypatch.setattr(object_cache, "MAX_CACHED_BYTES", 1000)
    task = make_task("large")
    object_cache.put(task, "views", np.zeros(2000))
    object_cache.put(task, "bank", np.zeros(2000))
    assert cached_drivers("views", ["large"]) == cached_drivers("bank", ["large"]) == ["large"]


def test_shared_arrays_are_counted_once() -> None:
    """The image scale has the arrays of the views."""
    views = {"zca": {"matrix": np.zeros((10, 10), np.float32)}}
    scale = ImageScale(np.zeros(3, np.float32), np.ones(3, np.float32), views)
    task = make_task("shared")
    object_cache.put(task, "views", views)
    object_cache.put(task, "image scale", scale)
    assert object_cache._drivers["shared"].nbytes == 400 + 2 * 12


def test_cached_objects_equal_stored_objects(client: Client, tmp_path: Path) -> None:
    """Otherwise a resumed run would give other results."""
    images, labels = load_digits()
    data = training_set(images[:200], labels[:200])
    run = begin_or_resume(check_run(tmp_path / "run", SPEC, RunSpec(validation=0), data), client)
    cached = [*object_cache._drivers.values()][-1].entries
    assert_same(cached["image scale"][1], read_image_scale(run.location))
    assert_same(cached["bank"][1], read_bank(run.location, cached["bank"][0]))
    head = read_head(run.location, cached["head"][0], LinearHead.arrays)
    assert_same(cached["head"][1], head)
    assert (cached["bank"][0], cached["head"][0]) == (5, 4)


def assert_same(one: Any, other: Any) -> None:
    """Assert that all fields have equal dtypes, shapes and bits."""
    for field in fields(one):
        first, second = (getattr(value, field.name) for value in (one, other))
        if not isinstance(first, dict):
            first, second = {"": first}, {"": second}
        assert first.keys() == second.keys()
        for name in first:
            a, b = np.asarray(first[name]), np.asarray(second[name])
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), field.name


def test_worker_reads_no_layer_that_it_has_stored(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one process, no layer is read at all."""
    read: list[tuple[str, int]] = []
    for kind in ("bank", "head"):
        original = getattr(passes, f"read_{kind}")

        def record_read(
            location: Any, layer: int, *dims: Any, kind: str = kind, original: Any = original
        ) -> Any:
            read.append((kind, layer))
            return original(location, layer, *dims)

        monkeypatch.setattr(passes, f"read_{kind}", record_read)
    images, labels = load_digits()
    data = training_set(images[:200], labels[:200])
    begin_or_resume(check_run(tmp_path / "run", SPEC, RunSpec(validation=0), data), client)
    assert read == []
