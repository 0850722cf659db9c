"""What a worker need not read again: for whom it counts, how long, and that it saves reading."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from rescnet_dist import NetworkSpec, RunSpec, load_digits
from rescnet_dist.data import training_set
from rescnet_dist.store import (
    Location,
    RunStore,
    read_bank,
    read_classifier,
    read_image_scale,
)
from rescnet_dist.train import begin_run, passes, worker_cache
from rescnet_dist.train.state import Task

SPEC = NetworkSpec.preset("digits").replace(filters=4, max_layers=4)


def asked_by(driver: str) -> Task:
    """A task of a driver of this name."""
    return Task(RunStore(Location("memory://known")), 1, driver=driver)


def test_what_is_known_is_not_found_again() -> None:
    """Nor what was learned in another way."""
    one = asked_by("one")
    assert worker_cache.get(one, "a", lambda: 1) == 1
    assert worker_cache.get(one, "a", lambda: 2) == 1
    worker_cache.put(one, "a", 3)
    assert worker_cache.get(one, "a", lambda: 2) == 3


def test_each_driver_has_its_own() -> None:
    """As another run may be at the same place by then; they leave each other's alone."""
    for driver in ("this", "that"):
        worker_cache.put(asked_by(driver), "a", driver)
    for driver in ("this", "that"):
        assert worker_cache.get(asked_by(driver), "a", lambda: "found") == driver


def test_without_a_driver_nothing_is_known() -> None:
    """And nothing is learned."""
    for value in range(3):
        assert worker_cache.get(asked_by(""), "a", lambda value=value: value) == value


def test_one_layer_is_known_at_a_time() -> None:
    """The latest."""
    one = asked_by("layers")
    worker_cache.put(one, "bank", "first", 1)
    worker_cache.put(one, "bank", "second", 2)
    assert worker_cache.get(one, "bank", lambda: "read", 2) == "second"
    assert worker_cache.get(one, "bank", lambda: "read", 1) == "read"


def test_the_oldest_go() -> None:
    """Not those that are in use."""
    one = asked_by("oldest")
    worker_cache.put(one, "in use", 0)
    for number in range(2 * worker_cache.KEPT):
        worker_cache.put(one, f"thing {number}", number)
        assert worker_cache.get(one, "in use", lambda: -1) == 0
    assert worker_cache.get(one, "thing 0", lambda: -1) == -1
    assert (
        worker_cache.get(one, f"thing {2 * worker_cache.KEPT - 1}", lambda: -1)
        == 2 * worker_cache.KEPT - 1
    )


def test_what_is_learned_has_the_bits_of_what_is_stored(client: Client, tmp_path: Path) -> None:
    """Else a run that is resumed would go another way."""
    images, labels = load_digits()
    data = training_set(images[:200], labels[:200])
    run = begin_run(tmp_path / "run", SPEC, RunSpec(), data, client)
    learned = {name: at for (_, name), at in worker_cache._known.items()}  # the latest of each name
    assert_same(learned["image scale"][1], read_image_scale(run.location))
    assert_same(learned["bank"][1], read_bank(run.location, learned["bank"][0]))
    assert_same(learned["classifier"][1], read_classifier(run.location, learned["classifier"][0]))
    assert (learned["bank"][0], learned["classifier"][0]) == (5, 4)


def assert_same(one: Any, other: Any) -> None:
    """All fields are equal, in kind and bits."""
    for field in fields(one):
        a, b = (np.asarray(getattr(value, field.name)) for value in (one, other))
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), field.name


def test_a_worker_reads_no_layer_that_it_has_stored(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, that is all of them."""
    read: list[tuple[str, int]] = []
    for kind in ("bank", "classifier"):
        original = getattr(passes, f"read_{kind}")

        def counted(location: Any, layer: int, kind: str = kind, original: Any = original) -> Any:
            read.append((kind, layer))
            return original(location, layer)

        monkeypatch.setattr(passes, f"read_{kind}", counted)
    images, labels = load_digits()
    data = training_set(images[:200], labels[:200])
    begin_run(tmp_path / "run", SPEC, RunSpec(), data, client)
    assert read == []
