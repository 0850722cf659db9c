"""Detection of the kind of source at a URL, from file names alone."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from rescnet_dist.data.sources.arrays import open_idx, open_numpy
from rescnet_dist.data.sources.cifar import CifarSource, is_cifar, open_cifar_tar
from rescnet_dist.data.sources.files import File, list_files, translate_read_errors
from rescnet_dist.data.sources.folder import FolderSource
from rescnet_dist.data.sources.parquet import ParquetSource
from rescnet_dist.data.sources.source import Source
from rescnet_dist.data.sources.table import open_csv
from rescnet_dist.data.sources.tar import Member, WebDatasetSource, list_members
from rescnet_dist.data.sources.tiny_imagenet import TinyImageNetSource, find_tiny_imagenet
from rescnet_dist.errors import DataError, is_path, url_word
from rescnet_dist.store import Location, file_system

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
NUMPY_SUFFIXES = (".npy", ".npz")
IDX_SUFFIXES = ("-ubyte", "-ubyte.gz", ".idx", ".idx.gz")


def find_source(url: str) -> Source:
    """Return the source at a URL, a file or a folder; read names, headers and labels, no images."""
    url = Location.of(url).url.rstrip("/")  # Absolute, as workers may be in other folders.
    with translate_read_errors(url):
        fs, path = file_system(url, client_retries=True)
        is_file = fs.isfile(path)
    if is_file:
        return _open_file(url)
    paths = list_files(url)
    if not paths:
        if fs.isdir(path):
            raise DataError(
                f"The folder {url} holds no images: it is empty. Check the {url_word(url)}."
            )
        raise DataError(
            f"There is nothing at {url}. Check the {url_word(url)}.", missing_path=is_path(url)
        )
    return _open_folder(url, paths)


def _open_file(url: str) -> Source:
    """Return the source in a single file."""
    name = url.rsplit("/", 1)[-1].lower()
    if name.endswith(".parquet"):
        return ParquetSource(url, [url])
    if name.endswith(".csv"):
        return open_csv(url)
    if name.endswith(TAR_SUFFIXES):
        file = File.at(url)
        if is_cifar([member.name for member in list_members(file)]):
            return open_cifar_tar(file)
        return WebDatasetSource(url, [url])
    if name.endswith(".npz"):
        return open_numpy(url, [url])
    if name.endswith(".npy"):
        raise DataError(
            f"{url} is a single array, and images need labels. Give the folder that holds "
            "images.npy and labels.npy, or a .npz file with both."
        )
    raise DataError(
        f"{url} is a file of unknown kind. Give a .parquet, .csv, .tar, .tar.gz or .npz file, or "
        "the folder that contains it. Image files must be PNG, JPEG or WebP (.png, .jpg, .jpeg, "
        ".webp)."
    )


def _open_folder(url: str, paths: Sequence[str]) -> Source:
    """Return the source in a folder with files at these paths."""
    top_level = [path for path in paths if "/" not in path]

    endings = {posixpath.splitext(path)[1].lower() for path in paths}

    def find_urls(suffixes: tuple[str, ...], candidates: Sequence[str] = paths) -> list[str]:
        if endings.isdisjoint(suffix[suffix.rfind(".") :] for suffix in suffixes):
            return []  # A shortcut for folders of very many files.
        return [f"{url}/{path}" for path in candidates if path.lower().endswith(suffixes)]

    if found := [f"{url}/{path}" for path in top_level if path.lower().endswith(IDX_SUFFIXES)]:
        return open_idx(url, found)
    folder = posixpath.dirname(min(paths, key=lambda path: path.count("/")))
    if is_cifar(top_level) or (is_cifar(paths) and not folder.count("/")):
        files = [File.at(f"{url}/{path}") for path in paths]
        return CifarSource(url, [Member(file, file.name, 0, file.size) for file in files])
    if (root := find_tiny_imagenet(url, paths)) is not None:
        prefix = f"{root}/" if root else ""
        inside = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
        return TinyImageNetSource(f"{url}/{root}", inside)
    if found := find_urls((".parquet",)):
        return ParquetSource(url, found)
    if found := find_urls(TAR_SUFFIXES):
        if "classes.txt" not in top_level:
            return WebDatasetSource(url, found)
        lines = File.at(f"{url}/classes.txt").read().decode().split("\n")
        return WebDatasetSource(url, found, [line for line in lines if line])
    if found := find_urls(NUMPY_SUFFIXES, top_level):
        return open_numpy(url, found)
    return FolderSource(url, paths)
