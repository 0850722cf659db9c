"""Stored runs to damage, and ways to damage them, for tests of error messages."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr

from rescnet_dist import NetworkSpec, RunSpec, load_digits

X, Y = (array[:150] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec.preset("digits").replace(
    filters=4, max_layers=2, first_filter_size=3, block=5, stride=3
)
RUN = RunSpec(  # all maps are in the store, to be damaged
    chunk_images=40, accumulators=2, solve_threads=1, validation=0.2, maps="store"
)

Damage = Callable[[], Any]


def truncate(path: str) -> Damage:
    """Return a function that cuts off the second half of a file."""
    return lambda: Path(path).write_bytes(Path(path).read_bytes()[: Path(path).stat().st_size // 2])


def overwrite(path: str, text: str) -> Damage:
    """Return a function that replaces the content of a file."""
    return lambda: Path(path).write_text(text)


def remove(path: str) -> Damage:
    """Return a function that removes a file or folder."""
    return lambda: shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()


def edit_record(path: str, **entries: Any) -> Damage:
    """Return a function that changes entries of a JSON record; None removes one."""

    def change() -> None:
        record = json.loads(Path(path).read_text())
        record.update(entries)
        present = {key: value for key, value in record.items() if value is not None}
        Path(path).write_text(json.dumps(present))

    return change


def set_attribute(name: str, value: Any, store: str = "run") -> Damage:
    """Return a function that changes an attribute of the run; None removes it."""

    def change() -> None:
        path = Path(store, "zarr.json")
        record = json.loads(path.read_text())
        record["attributes"].pop("crc32c", None)  # of a saved network
        record["attributes"][name] = value
        if value is None:
            del record["attributes"][name]
        path.write_text(json.dumps(record))

    return change


def add_claim(**entries: Any) -> Damage:
    """Return a function that adds a fresh claim by a driver on another machine."""

    def claim() -> None:
        record = {
            **{"writer": "another", "host": "elsewhere", "pid": 1, "process_started": 0.0},
            **{"renewed": time.time(), **entries},
        }
        Path("run/claims/000099.json").write_text(json.dumps(record))

    return claim


def write_data(**arrays: Any) -> Damage:
    """Return a function that writes a Zarr store `other.zarr` with these arrays."""

    def write() -> None:
        group = zarr.open_group("other.zarr", mode="w")
        for name, values in arrays.items():
            group.create_array(name, data=values)

    return write


def read_contents(folder: Path) -> dict[str, bytes]:
    """Return all files by path, except claims."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "claims" not in path.parts
    }


@dataclass(frozen=True)
class Snapshot:
    """The files below a folder by path, and its subfolders. To restore them is faster than to copy
    the folder."""

    files: dict[str, bytes]
    folders: set[str]

    @classmethod
    def of(cls, folder: Path) -> Snapshot:
        """Return a snapshot of a folder."""
        files, folders = dict[str, bytes](), set[str]()
        for path in folder.rglob("*"):
            name = str(path.relative_to(folder))
            if path.is_dir():
                folders.add(name)
            else:
                files[name] = path.read_bytes()
        return cls(files, folders)

    def restore(self, folder: Path) -> None:
        """Undo all changes below the folder since the snapshot."""
        changed = Snapshot.of(folder)
        for name in changed.files.keys() - self.files.keys():
            (folder / name).unlink()
        for name in sorted(changed.folders - self.folders, reverse=True):  # subfolders first
            (folder / name).rmdir()
        for name in sorted(self.folders - changed.folders):
            (folder / name).mkdir()
        for name, data in self.files.items():
            if changed.files.get(name) != data:
                (folder / name).write_bytes(data)


def may_be_written(path: str) -> bool:
    """Return whether a resume may have written a file before it found the damage.

    These are the files of the layer it was to add, which is not committed, and the new number of
    layers.
    """
    new_layer = ("run/maps/0003", "run/scores/0003", "linked/maps/0002", "linked/scores/0002")
    return path.startswith(new_layer) or path in ("run/zarr.json", "linked/zarr.json")
