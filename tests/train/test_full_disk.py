"""Full disks: an error that names the cause, and a run that can be resumed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client
from fault_cases import (
    LAYERS,
    RUN,
    Model,
    fit,
    get_retry_reasons,
)
from models import assert_same_bits, read_model

from rescnet_dist import (
    ResCNetClassifier,
    StoreError,
)
from rescnet_dist.errors import StoreFullError
from rescnet_dist.events import Event
from rescnet_dist.store import Location, RunStore
from rescnet_dist.train import verify_run

pytestmark = pytest.mark.slow  # starts and kills processes for minutes


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Return a function that mounts a file system of a given size, or resizes it.

    Its free space is not known before a run, as if others filled the disk during the run.
    """
    monkeypatch.setattr(Location, "free_bytes", lambda _location: None)
    disk = tmp_path / "disk"
    disk.mkdir()

    def resize(size: str) -> Path:
        mounted = disk.is_mount()
        options = f"remount,size={size}" if mounted else f"size={size}"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"needs the right to mount a file system: {done.stderr}")
        return disk

    yield resize
    if disk.is_mount():
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


SLOW_SIZES = ("120k", "200k", "320k", "360k", "600k", "640k")


@pytest.mark.parametrize(
    "size", ["160k", "480k", *(pytest.param(size, marks=pytest.mark.slow) for size in SLOW_SIZES)]
)
def test_resume_after_full_disk(
    client: Client, small_disk: Callable[[str], Path], fault_free_model: Model, size: str
) -> None:
    """The commits are complete, whatever was being written when the disk was full."""
    store = small_disk(size) / "run"
    events: list[Event] = []
    with pytest.raises(StoreError) as caught:
        fit(store, run=RUN.replace(keep_maps="all"), listeners=[events.append])
    for words in ("cannot be written", "No space left on device", "Free some space, then resume"):
        assert words in str(caught.value)
    assert get_retry_reasons(events) == []
    commits = len(RunStore.open(store).commits())
    assert commits <= LAYERS
    assert verify_run(store) == []
    assert not list(store.rglob("*.partial"))
    small_disk("20m")
    ResCNetClassifier.resume(store)
    assert_same_bits(read_model(store), fault_free_model)
    assert verify_run(store) == []


def test_disk_too_small_for_data_leaves_no_store(
    client: Client, small_disk: Callable[[str], Path]
) -> None:
    """The same command works once there is room."""
    store = small_disk("48k") / "run"
    with pytest.raises(StoreError, match=r"No space left on device.*Free some space"):
        fit(store)
    assert not store.exists()
    small_disk("20m")
    assert fit(store).depth_ == LAYERS


def test_free_space_is_checked_before_a_run(
    client: Client, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real disk that is too small: nothing is written."""
    monkeypatch.undo()
    store = small_disk("48k") / "run"
    with pytest.raises(StoreFullError, match="of free space, but the first layers of the run take"):
        fit(store)
    assert not store.exists()
