"""What a worker need not read again: for whom it counts, how long, and that it saves reading."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from rescnet_dist import NetworkSpec, RunSpec, load_digits
from rescnet_dist.data import training_set
from rescnet_dist.store import Location, RunStore
from rescnet_dist.train import begin_run, known, passes
from rescnet_dist.train.state import Task

SPEC = NetworkSpec.preset("digits").replace(filters=4, max_layers=4)


def asked_by(driver: str) -> Task:
    """A task of a driver of this name."""
    return Task(RunStore(Location("memory://known")), 1, driver=driver)


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    known.learn(asked_by(""), "nothing", None)
    yield
    known.learn(asked_by(""), "nothing", None)


def test_what_is_known_is_not_found_again() -> None:
    """Nor what was learnt in another way."""
    one = asked_by("one")
    assert known.known(one, "a", lambda: 1) == 1
    assert known.known(one, "a", lambda: 2) == 1
    known.learn(one, "a", 3)
    assert known.known(one, "a", lambda: 2) == 3


def test_each_driver_has_its_own() -> None:
    """As another run may be at the same place by then; and none is not one."""
    assert known.known(asked_by("one"), "a", lambda: 1) == 1
    assert known.known(asked_by("two"), "a", lambda: 2) == 2
    assert known.known(asked_by("one"), "a", lambda: 3) == 3
    for value in range(3):
        assert known.known(asked_by(""), "a", lambda value=value: value) == value


def test_the_oldest_go() -> None:
    """Not those that are in use."""
    one = asked_by("one")
    known.learn(one, "in use", 0)
    for number in range(2 * known.KEPT):
        known.learn(one, f"layer {number}", number)
        assert known.known(one, "in use", lambda: -1) == 0
    assert known.known(one, "layer 0", lambda: -1) == -1
    assert known.known(one, f"layer {2 * known.KEPT - 1}", lambda: -1) == 2 * known.KEPT - 1


def test_a_worker_reads_no_layer_that_it_has_stored(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, that is all of them."""
    read: list[tuple[str, int]] = []
    for kind in ("bank", "classifier"):
        original = getattr(passes, f"read_{kind}")

        def counted(place: Any, layer: int, kind: str = kind, original: Any = original) -> Any:
            read.append((kind, layer))
            return original(place, layer)

        monkeypatch.setattr(passes, f"read_{kind}", counted)
    images, labels = load_digits()
    data = training_set(images[:200], labels[:200])
    begin_run(tmp_path / "run", SPEC, RunSpec(), data, client)
    assert read == []
