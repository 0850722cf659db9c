"""The cache of small objects in a worker: per driver, of limited size, and it saves reads."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from rescnet_dist import NetworkSpec, RunSpec, load_digits
from rescnet_dist.data import training_set
from rescnet_dist.lifecycle import begin_or_resume, check_run
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


def test_least_recently_used_objects_are_evicted() -> None:
    """Objects in use stay."""
    one = make_task("oldest")
    object_cache.put(one, "in use", 0)
    for number in range(2 * object_cache.MAX_CACHED_OBJECTS):
        object_cache.put(one, f"object {number}", number)
        assert object_cache.get(one, "in use", lambda: -1) == 0
    assert object_cache.get(one, "object 0", lambda: -1) == -1
    assert (
        object_cache.get(one, f"object {2 * object_cache.MAX_CACHED_OBJECTS - 1}", lambda: -1)
        == 2 * object_cache.MAX_CACHED_OBJECTS - 1
    )


def test_cached_objects_equal_stored_objects(client: Client, tmp_path: Path) -> None:
    """Otherwise a resumed run would give other results."""
    images, labels = load_digits()
    data = training_set(images[:200], labels[:200])
    run = begin_or_resume(check_run(tmp_path / "run", SPEC, RunSpec(validation=0), data), client)
    # the latest of each name
    cached = {name: entry for (_, name), entry in object_cache._objects.items()}
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
