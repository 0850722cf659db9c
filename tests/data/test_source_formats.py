"""Every kind of source, read lazily and in part from disk, memory and S3."""

from __future__ import annotations

import gzip
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import dask
import fsspec
import numpy as np
import pytest
from source_cases import CASES, check_source
from source_files import COLOR, GRAY, LABELS, TEST, TRAIN, make_idx, make_npy, write_files

import rescnet_dist as rd


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_read_from_disk(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources are read lazily, whole and in part, also in several blocks."""
    case = CASES[name]()
    url = str(write_files(tmp_path, case.files) / case.url)
    check_source(url, case)
    monkeypatch.setattr("rescnet_dist.data.lazy.READ_BLOCK_BYTES", 2 * case.images[0].nbytes)
    check_source(url, case)
    monkeypatch.chdir(tmp_path)
    check_source(case.url or ".", case)


@pytest.fixture
def memory_url() -> Iterator[str]:
    """A URL in memory, which is removed after the test."""
    fs = fsspec.filesystem("memory")
    yield "memory://test-sources"
    fs.rm("/test-sources", recursive=True)


@pytest.mark.parametrize("name", CASES)
def test_read_from_memory(name: str, memory_url: str) -> None:
    """Sources are read from any file system of fsspec, such as memory://."""
    case = CASES[name]()
    fsspec.filesystem("memory").pipe({f"/test-sources/{n}": c for n, c in case.files.items()})
    check_source(f"{memory_url}/{case.url}", case)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        *("folder of PNG", "IDX in gzip", ".npz", "Parquet of Hugging Face", "WebDataset shards"),
        *("CIFAR-10 in tar.gz",),
    ],
)
def test_read_from_s3(s3: None, name: str) -> None:
    """Sources are read from a real server, with credentials from the environment."""
    case, folder = CASES[name](), name.replace(" ", "-")
    fsspec.filesystem("s3").pipe({f"runs/{folder}/{n}": c for n, c in case.files.items()})
    check_source(f"s3://runs/{folder}/{case.url}", case)


def test_lazy_images_are_picklable(tmp_path: Path) -> None:
    """Files are read where the pickled task runs."""
    for name in ("folder of PNG", "IDX", "CIFAR-10 of Python 2", ".npz", "Parquet", "WebDataset"):
        case = CASES[name]()
        data = rd.open_dataset(write_files(tmp_path / name, case.files) / case.url)
        images = pickle.loads(pickle.dumps(data.images.data))
        np.testing.assert_array_equal(images.compute(scheduler="sync"), case.images)


def test_cache_is_not_used_for_replaced_file(tmp_path: Path) -> None:
    """A cached file is not taken for another of the same name and size."""
    for turn in range(3):
        images = np.roll(GRAY, turn, axis=0)[..., 0]
        files = {
            "x-images-idx3-ubyte.gz": make_idx(images),
            "x-labels-idx1-ubyte.gz": make_idx(LABELS),
        }
        write_files(tmp_path, {name: gzip.compress(c, 0) for name, c in files.items()})
        os.utime(tmp_path / "x-images-idx3-ubyte.gz", (turn, turn))
        read = rd.open_dataset(tmp_path).images.data.compute(scheduler="sync")
        np.testing.assert_array_equal(read[..., 0], images)


def test_npz_file_names_are_splits(tmp_path: Path) -> None:
    """The .npz files of a folder are splits, each with arrays of the same names."""
    for name, part in (("train", TRAIN), ("test", TEST)):
        np.savez(tmp_path / f"{name}.npz", images=COLOR[part], labels=LABELS[part])
    data = rd.open_dataset(tmp_path)
    assert data["split"].to_numpy().tolist() == ["train"] * 7 + ["test"] * 3
    np.testing.assert_array_equal(data["images"], COLOR)


def test_uncompressed_npz_is_read_by_row(tmp_path: Path) -> None:
    """Rows are read at their offset, also in files of other programs."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        entry = zipfile.ZipInfo("images.npy")
        entry.extra = b"\x99\x99\x04\x00abcd"  # between header and data
        archive.writestr(entry, make_npy(COLOR))
        archive.writestr("labels.npy", make_npy(LABELS))
    data = rd.open_dataset(path)
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(data.images[4:6], COLOR[4:6])
