"""Folders of image files, and files at URLs."""

from __future__ import annotations

import sys
from pathlib import Path

import dask
import pytest
from fsspec.registry import _registry as FSSPEC_PROTOCOLS
from source_cases import check_source, make_folder_case
from source_files import COLOR, GRAY, encode_image, make_folder, write_files

import rescnet_dist as rd
from rescnet_dist.data.sources import find_source
from rescnet_dist.data.sources.files import File
from rescnet_dist.errors import DataError, StoreError


def test_error_of_bad_image_names_its_path(tmp_path: Path) -> None:
    """Also if the image has been removed since."""
    files = make_folder(COLOR, splits=False)
    files["cow/09.png"] = files["cow/09.png"][:50]
    data = rd.open_dataset(write_files(tmp_path, files))
    reason = r"cow/09\.png: The image cannot be decoded.*leaves such images out"
    with dask.config.set(scheduler="sync"), pytest.raises(DataError, match=reason):
        data.images.compute()
    (tmp_path / "cow" / "09.png").unlink()
    with dask.config.set(scheduler="sync"), pytest.raises(DataError, match="No such file"):
        data.images.compute()


def test_class_folder_named_like_a_split(tmp_path: Path) -> None:
    """If not all folders are splits, none are: a train is also a vehicle."""
    write_files(
        tmp_path, {f"{name}/0.png": encode_image(COLOR[0]) for name in ("bus", "car", "train")}
    )
    data = rd.open_dataset(tmp_path)
    assert data.attrs["class_names"] == ["bus", "car", "train"]


def test_nested_folders_belong_to_topmost_class(tmp_path: Path) -> None:
    """With and without a split."""
    for split in ("", "train/"):
        paths = (f"{split}ant/a/0.png", f"{split}ant/b/c/1.png", f"{split}bee/2.png")
        files = dict.fromkeys(paths, encode_image(GRAY[0]))
        data = rd.open_dataset(write_files(tmp_path / f"of {split}", files))
        assert data.attrs["class_names"] == ["ant", "bee"]
        assert data.labels.to_numpy().tolist() == [0, 0, 1]


def test_other_files_are_ignored(tmp_path: Path) -> None:
    """Notes, hidden files, and what macOS leaves in archives are ignored."""
    files = make_folder(COLOR)
    junk = ("notes.txt", "train/Thumbs.db", "train/ant/.hidden.png", "__MACOSX/train/ant/._00.png")
    write_files(tmp_path, files | dict.fromkeys(junk, b"junk"))
    check_source(str(tmp_path), make_folder_case(files))
    assert find_source(str(tmp_path)).passed_over == ()


def test_unsupported_files_are_listed(tmp_path: Path) -> None:
    """Files in folders of classes are listed, also if a folder has no other files."""
    files = make_folder(COLOR, splits=False)
    other = ("ant/a.bmp", "ant/deep/notes.txt", "dog/1.gif")
    write_files(tmp_path / "a", files | dict.fromkeys((*other, "labels.csv", "dog/Thumbs.db"), b""))
    assert find_source(str(tmp_path / "a")).passed_over == other
    files = make_folder(COLOR)
    write_files(tmp_path / "b", files | {"train/labels.csv": b"", "test/ant/a.tif": b""})
    assert find_source(str(tmp_path / "b")).passed_over == ("test/ant/a.tif",)


def test_file_read_errors(tmp_path: Path) -> None:
    """Bytes after the end of a file, and files that do not exist, raise errors."""
    (tmp_path / "a").write_bytes(b"0123456789")
    file = File.at(str(tmp_path / "a"))
    assert file.read(2, 5) == b"234"
    with pytest.raises(DataError, match=r"a is truncated\. Bytes 8 to 12 .*it has 2 of them"):
        file.read(8, 12)
    with pytest.raises(DataError, match=r"requires .* bytes at once"):
        file.read(0, 2**40)
    with pytest.raises(DataError, match=r"There is no file at .*b\. Check the path"):
        File.at(str(tmp_path / "b"))
    with pytest.raises(StoreError, match=r"nowhere://a cannot be opened.*adds nowhere to fsspec\."):
        File.at("nowhere://a")


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("s3://bucket/a.npz", "s3fs", "s3"),
        ("simplecache::s3://bucket/a.npz", "s3fs", "s3"),
        ("http://host/a.npz", "aiohttp", "http"),
        ("https://me:word@host/a.npz", "aiohttp", "http"),
    ],
)
def test_error_names_missing_package(
    monkeypatch: pytest.MonkeyPatch, url: str, package: str, extra: str
) -> None:
    """Wherever a URL is opened, the error has the command that installs the package."""
    for protocol in ("s3", "http", "https"):
        monkeypatch.delitem(FSSPEC_PROTOCOLS, protocol, raising=False)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(dask.config.config, "rescnet", {"object-store": "fsspec"})
    reason = (
        rf'a\.npz cannot be opened \(.*{package}.*\)\. Run pip install "rescnet-dist\[{extra}\]"'
    )
    opened = (rd.open_dataset, lambda url: rd.import_dataset("digits", url), File.at, find_source)
    for reader in opened:
        with pytest.raises(StoreError, match=reason) as caught:
            reader(url)
        assert "word" not in str(caught.value)
    with pytest.raises(StoreError, match="gcsfs"):
        rd.open_dataset("gs://bucket/a.npz")
