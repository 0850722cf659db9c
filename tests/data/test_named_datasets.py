"""Descriptions and downloads of the named datasets."""

from __future__ import annotations

import gzip
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from download_helpers import CONTENT, Server, get_error, list_names, make_zip

from rescnet_dist.data.named import (
    DATASETS,
    NamedDataset,
    cache_folder,
    fetch_dataset,
    find_named_dataset,
)
from rescnet_dist.data.sources import find_source


@pytest.mark.parametrize("name", DATASETS)
def test_descriptions_are_valid(name: str) -> None:
    """Each file has URLs that end in its name, a SHA-256 of its own and a size."""
    dataset = find_named_dataset(name)
    assert dataset.name == name
    assert dataset.home.startswith("http")
    assert dataset.files
    for file in dataset.files:
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", file.checksum)
        assert file.size
        assert file.size > 4000
        assert re.fullmatch(r"[\w.-]+", file.name)
        assert len(set(file.urls)) == len(file.urls) >= 2
        for url in file.urls:
            assert re.fullmatch(rf"https?://[\w.-]+/[\w./~-]*{re.escape(file.name)}", url)
    assert dataset.form == {4: "folder"}.get(
        len(dataset.files), "tiny-imagenet" if name == "tiny-imagenet" else "file"
    )
    assert dataset.size == sum(file.size or 0 for file in dataset.files)


def test_checksums_are_unique() -> None:
    """A checksum that was copied to a wrong entry would occur twice."""
    checksums = [file.checksum for dataset in DATASETS.values() for file in dataset.files]
    assert len(set(checksums)) == len(checksums) == 11


def test_unknown_name_suggests_nearest() -> None:
    """The error also lists all names."""
    message = get_error(lambda: fetch_dataset("cifar-10"))
    assert "'cifar-10'" in message
    assert "Did you mean 'cifar10'?" in message
    assert "Known: cifar10, cifar100, fashion-mnist, mnist, tiny-imagenet" in message


def test_cache_folder_from_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this order; empty values, and a relative XDG path, are ignored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("RESCNET_CACHE", raising=False)
    for xdg in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        assert cache_folder() == Path("/home/me/.cache/rescnet")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/mine")
    assert cache_folder() == Path("/var/mine/rescnet")
    monkeypatch.setenv("RESCNET_CACHE", "~/sets")
    assert cache_folder() == Path("/home/me/sets")
    assert cache_folder("here") == tmp_path / "here"


def serve_dataset(server: Server, name: str, contents: dict[str, bytes]) -> NamedDataset:
    """Return a named dataset with other content, at a local server."""
    dataset = find_named_dataset(name)
    files = tuple(server.file(contents[file.name], file.name) for file in dataset.files)
    return replace(dataset, files=files)


def make_idx_files() -> dict[str, bytes]:
    """Return four small files in the format of MNIST."""
    return {
        file.name: gzip.compress(
            struct.pack(">IIII", 2051, 2, 2, 2) + bytes([index] * 8)
            if "images" in file.name
            else struct.pack(">II", 2049, 2) + bytes([index] * 2)
        )
        for index, file in enumerate(find_named_dataset("mnist").files)
    }


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_fetch_idx_datasets(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The result is the folder of the four files; the progress is that of all of them."""
    contents, seen = make_idx_files(), []
    dataset = serve_dataset(server, name, contents)
    monkeypatch.setenv("RESCNET_CACHE", str(tmp_path))
    server.faults = ["", "interrupted"]
    folder = fetch_dataset(dataset, progress=lambda *at: seen.append(at))
    assert folder == tmp_path / name
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (dataset.size, dataset.size)
    server.requested.clear()
    assert fetch_dataset(dataset) == folder
    assert not server.requested


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_fetch_cifar(server: Server, tmp_path: Path, name: str) -> None:
    """The result is the archive; nothing is extracted."""
    file = find_named_dataset(name).files[0].name
    path = fetch_dataset(serve_dataset(server, name, {file: CONTENT}), tmp_path)
    assert path == tmp_path / name / file
    assert path.read_bytes() == CONTENT


TINY_MEMBERS = {
    "tiny-imagenet-200/wnids.txt": b"n01\nn02\n",
    "tiny-imagenet-200/words.txt": b"n01\tone\n",
    "tiny-imagenet-200/train/n01/n01_boxes.txt": b"n01_0.JPEG\t0\t0\t1\t1\n",
    "tiny-imagenet-200/train/n01/images/n01_0.JPEG": b"1-0",
    "tiny-imagenet-200/train/n01/images/n01_1.JPEG": b"1-1",
    "tiny-imagenet-200/train/n02/images/n02_0.JPEG": b"2-0",
    "tiny-imagenet-200/test/images/test_0.JPEG": b"unlabeled",
    "tiny-imagenet-200/val/images/val_0.JPEG": b"v0",
    "tiny-imagenet-200/val/images/val_1.JPEG": b"v1",
    "tiny-imagenet-200/val/val_annotations.txt": (
        b"val_0.JPEG\tn02\t0\t32\t44\t62\nval_1.JPEG\tn01\t52\t55\t57\t59\n"
    ),
}


def serve_tiny_imagenet(server: Server, folder: Path, members: dict[str, bytes]) -> NamedDataset:
    """Return Tiny ImageNet with other members, at a local server."""
    archive = make_zip(folder / "made.zip", members)
    return serve_dataset(server, "tiny-imagenet", {"tiny-imagenet-200.zip": archive.read_bytes()})


def test_fetch_tiny_imagenet(server: Server, tmp_path: Path) -> None:
    """Labeled images in the layout of the archive; extracted once, and not verified afterwards."""
    dataset = serve_tiny_imagenet(server, tmp_path, TINY_MEMBERS)
    folder = fetch_dataset(dataset, tmp_path / "cache")
    found = {
        f"tiny-imagenet-200/{path.relative_to(folder)}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    labeled = ("JPEG", "val_annotations.txt")
    assert found == {
        name: content
        for name, content in TINY_MEMBERS.items()
        if name.endswith(labeled) and "/test/" not in name
    }
    source = find_source(str(folder))
    assert source.splits == {"train": 3, "test": 2}
    assert list(source.labels["test"]) == [1, 0]
    assert list_names(folder.parent) == ["extracted", "tiny-imagenet-200.zip"]
    (folder.parent / "tiny-imagenet-200.zip").unlink()
    assert fetch_dataset(dataset, tmp_path / "cache") == folder
    assert len(server.requested) == 1


def test_tiny_imagenet_without_labels(server: Server, tmp_path: Path) -> None:
    """Without their table, no folder is made; without one of them, the import names the image."""
    annotations = "tiny-imagenet-200/val/val_annotations.txt"
    none = {name: content for name, content in TINY_MEMBERS.items() if name != annotations}
    message = get_error(
        lambda: fetch_dataset(serve_tiny_imagenet(server, tmp_path, none), tmp_path / "none")
    )
    assert f"has no {annotations}" in message
    assert list_names(tmp_path / "none" / "tiny-imagenet") == ["tiny-imagenet-200.zip"]
    one = TINY_MEMBERS | {annotations: b"val_0.JPEG\tn02\t0\t32\t44\t62\n"}
    folder = fetch_dataset(serve_tiny_imagenet(server, tmp_path, one), tmp_path / "one")
    assert "has no line for val/images/val_1.JPEG" in get_error(lambda: find_source(str(folder)))


def test_offline_error_names_all_missing_files(
    server: Server, unused_url: str, tmp_path: Path
) -> None:
    """Once they are put there by hand, the dataset can be read."""
    contents = make_idx_files()
    dataset = serve_dataset(server, "mnist", contents)
    offline = replace(
        dataset,
        files=tuple(replace(file, urls=(f"{unused_url}/{file.name}",)) for file in dataset.files),
    )
    folder = tmp_path / "mnist"
    folder.mkdir()
    last = offline.files[-1]
    (folder / last.name).write_bytes(contents[last.name])
    message = get_error(lambda: fetch_dataset(offline, tmp_path))
    assert str(folder / offline.files[0].name) in message
    for file in offline.files[:-1]:
        assert file.urls[0] in message
        assert file.checksum in message
    assert last.urls[0] not in message
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    assert fetch_dataset(offline, tmp_path) == folder
