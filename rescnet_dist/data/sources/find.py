"""Which kind of source lies at a URL, told by names alone."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from rescnet_dist.data.sources.arrays import idx_source, numpy_source
from rescnet_dist.data.sources.cifar import CifarSource, cifar_in_tar, is_cifar
from rescnet_dist.data.sources.files import File, files_below, reading
from rescnet_dist.data.sources.folder import FolderSource
from rescnet_dist.data.sources.parquet import ParquetSource
from rescnet_dist.data.sources.source import Source
from rescnet_dist.data.sources.tar import Member, WebDatasetSource, members
from rescnet_dist.errors import DataError
from rescnet_dist.store import Location, file_system

TARS = (".tar", ".tar.gz", ".tgz")
NUMPY = (".npy", ".npz")
IDX = ("-ubyte", "-ubyte.gz", ".idx", ".idx.gz")


def find_source(url: str) -> Source:
    """The source at a URL, a file or a folder. Reads names, headers and labels, no images."""
    url = Location.of(url).url.rstrip("/")  # workers may be in other folders
    with reading(url):
        fs, path = file_system(url)
        is_file = fs.isfile(path)
    if is_file:
        return _of_file(url)
    paths = files_below(url)
    if not paths:
        raise DataError(f"there is nothing at {url}: check the URL")
    return _of_folder(url, paths)


def _of_file(url: str) -> Source:
    name = url.rsplit("/", 1)[-1].lower()
    if name.endswith(".parquet"):
        return ParquetSource(url, [url])
    if name.endswith(TARS):
        file = File.at(url)
        if is_cifar([member.name for member in members(file)]):
            return cifar_in_tar(file)
        return WebDatasetSource(url, [url])
    if name.endswith(".npz"):
        return numpy_source(url, [url])
    if name.endswith(".npy"):
        raise DataError(
            f"{url} is one array, and images need labels: give the folder that holds images.npy "
            "and labels.npy, or a .npz file with both"
        )
    raise DataError(
        f"{url} is a file of no kind that is known: give a .parquet, .tar, .tar.gz or .npz file, "
        "or the folder that it lies in"
    )


def _of_folder(url: str, paths: Sequence[str]) -> Source:
    top = [path for path in paths if "/" not in path]

    endings = {posixpath.splitext(path)[1].lower() for path in paths}

    def urls(suffixes: tuple[str, ...], among: Sequence[str] = paths) -> list[str]:
        if endings.isdisjoint(suffix[suffix.rfind(".") :] for suffix in suffixes):
            return []  # told at once, of any number of files
        return [f"{url}/{path}" for path in among if path.lower().endswith(suffixes)]

    if found := [f"{url}/{path}" for path in top if path.lower().endswith(IDX)]:
        return idx_source(url, found)
    folder = posixpath.dirname(min(paths, key=lambda path: path.count("/")))
    if is_cifar(top) or (is_cifar(paths) and not folder.count("/")):
        files = [File.at(f"{url}/{path}") for path in paths]
        return CifarSource(url, [Member(file, file.name, 0, file.size) for file in files])
    if found := urls((".parquet",)):
        return ParquetSource(url, found)
    if found := urls(TARS):
        names = "classes.txt" if "classes.txt" in top else None
        listed = File.at(f"{url}/{names}").read().decode().split("\n") if names else None
        return WebDatasetSource(url, found, [name for name in listed if name] if listed else None)
    if found := urls(NUMPY, top):
        return numpy_source(url, found)
    return FolderSource(url, paths)
