"""The named datasets: where they are published, and their download into the cache."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rescnet_dist.data.archives import extract, read_member
from rescnet_dist.data.fetch import Progress, RemoteFile, download
from rescnet_dist.errors import DataError, suggest_name

MAX_TINY_BYTES = 2**30  # of Tiny ImageNet when extracted
MAX_ANNOTATIONS_BYTES = 2**24
TINY_ANNOTATIONS = "tiny-imagenet-200/val/val_annotations.txt"
# Members of its archive that are extracted: labeled images and the table of their labels
TINY_MEMBERS = re.compile(
    r"tiny-imagenet-200/((?:train/n\d+|val)/images/[^/]+\.JPEG|val/val_annotations\.txt)"
)


@dataclass(frozen=True, slots=True)
class NamedDataset:
    """A dataset with a name: its home page, its files, and the form in which it is read.

    `form` is "folder" if the folder of the files is read, "file" if the one file is, and
    "tiny-imagenet" if a folder extracted from the archive is.
    """

    name: str
    home: str
    files: tuple[RemoteFile, ...]
    form: Literal["folder", "file", "tiny-imagenet"]

    @property
    def size(self) -> int | None:
        """The number of bytes of all files; None if unknown."""
        sizes = [file.size for file in self.files]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None


def _file(name: str, sha256: str, size: int, *bases: str) -> RemoteFile:
    """Return the description of a file that is available under several base URLs."""
    return RemoteFile(name, tuple(base + name for base in bases), f"sha256:{sha256}", size)


_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)
_CIFAR = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
_TINY = ("https://cs231n.stanford.edu/", "http://cs231n.stanford.edu/")

DATASETS = {
    dataset.name: dataset
    for dataset in (
        NamedDataset(
            "mnist",
            "http://yann.lecun.com/exdb/mnist/",
            (
                _file(
                    "train-images-idx3-ubyte.gz",
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                    9_912_422,
                    *_MNIST,
                ),
                _file(
                    "train-labels-idx1-ubyte.gz",
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                    28_881,
                    *_MNIST,
                ),
                _file(
                    "t10k-images-idx3-ubyte.gz",
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                    1_648_877,
                    *_MNIST,
                ),
                _file(
                    "t10k-labels-idx1-ubyte.gz",
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                    4_542,
                    *_MNIST,
                ),
            ),
            "folder",
        ),
        NamedDataset(
            "fashion-mnist",
            "https://github.com/zalandoresearch/fashion-mnist",
            (
                _file(
                    "train-images-idx3-ubyte.gz",
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                    26_421_880,
                    *_FASHION,
                ),
                _file(
                    "train-labels-idx1-ubyte.gz",
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                    29_515,
                    *_FASHION,
                ),
                _file(
                    "t10k-images-idx3-ubyte.gz",
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                    4_422_102,
                    *_FASHION,
                ),
                _file(
                    "t10k-labels-idx1-ubyte.gz",
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                    5_148,
                    *_FASHION,
                ),
            ),
            "folder",
        ),
        NamedDataset(
            "cifar10",
            "https://www.cs.toronto.edu/~kriz/cifar.html",
            (
                _file(
                    "cifar-10-python.tar.gz",
                    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                    170_498_071,
                    *_CIFAR,
                ),
            ),
            "file",
        ),
        NamedDataset(
            "cifar100",
            "https://www.cs.toronto.edu/~kriz/cifar.html",
            (
                _file(
                    "cifar-100-python.tar.gz",
                    "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                    169_001_437,
                    *_CIFAR,
                ),
            ),
            "file",
        ),
        NamedDataset(
            "tiny-imagenet",
            "http://cs231n.stanford.edu/",
            (
                _file(
                    "tiny-imagenet-200.zip",
                    "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
                    248_100_043,
                    *_TINY,
                ),
            ),
            "tiny-imagenet",
        ),
    )
}


def find_named_dataset(name: str) -> NamedDataset:
    """Return the description of a dataset, by its name.

    >>> find_named_dataset("cifar10").files[0].name
    'cifar-10-python.tar.gz'
    """
    if name not in DATASETS:
        raise DataError(f"There is no dataset named {name!r}. {suggest_name(name, DATASETS)}")
    return DATASETS[name]


def cache_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of all downloaded datasets.

    It is `cache`, the environment variable RESCNET_CACHE, or `rescnet` in XDG_CACHE_HOME or
    ~/.cache, whichever is set first.
    """
    if cache is None:
        cache = os.environ.get("RESCNET_CACHE") or None
    if cache is None:
        caches = os.environ.get("XDG_CACHE_HOME", "")
        cache = Path(caches if os.path.isabs(caches) else "~/.cache") / "rescnet"
    try:
        return Path(cache).expanduser().absolute()
    except RuntimeError as error:
        raise DataError(
            f"The cache {cache} cannot be found: {error}. Set RESCNET_CACHE to a folder."
        ) from error


def fetch_dataset(
    dataset: str | NamedDataset,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Download a dataset into the cache, unless it is there; return its folder or file.

    That is the folder with the four files for mnist and fashion-mnist, the .tar.gz file itself for
    cifar10 and cifar100, and for tiny-imagenet the folder extracted from its archive, in its own
    layout. Files in the cache are verified each time, also those put there by hand.
    `progress` is called with the number of bytes so far and of all files of the dataset.
    """
    if isinstance(dataset, str):
        dataset = find_named_dataset(dataset)
    folder = cache_folder(cache) / dataset.name
    images = folder / "extracted"
    if dataset.form == "tiny-imagenet" and images.is_dir():
        return images
    paths = _download_files(dataset, folder, progress)
    if dataset.form == "folder":
        return folder
    return paths[0] if dataset.form == "file" else _extract_tiny_imagenet(paths[0], images)


def _download_files(dataset: NamedDataset, folder: Path, progress: Progress | None) -> list[Path]:
    """Download all files of a dataset; raise DataError that names all missing ones."""
    paths = list[Path]()
    for index, file in enumerate(dataset.files):
        before = sum(path.stat().st_size for path in paths)

        def report(done: int, total: int | None, before: int = before) -> None:
            if progress is not None:
                progress(before + done, dataset.size)

        try:
            paths.append(download(file, folder, progress=report))
        except DataError as error:
            others = [
                f"{other.urls[0]} with the checksum {other.checksum}"
                for other in dataset.files[index + 1 :]
                if not (folder / other.name).exists()
            ]
            if not others:
                raise
            raise DataError(
                f"{error} These files are also missing, and are downloaded or put into {folder} in "
                f"the same way: {', '.join(others)}."
            ) from error
    return paths


def _extract_tiny_imagenet(archive: Path, target: Path) -> Path:
    """Extract the labeled images of Tiny ImageNet; raise DataError if it has no labels."""
    read_member(archive, TINY_ANNOTATIONS, limit=MAX_ANNOTATIONS_BYTES)

    def map_path(name: str) -> str | None:
        match = TINY_MEMBERS.fullmatch(name)
        return match and match[1]

    return extract(archive, target, limit=MAX_TINY_BYTES, map_path=map_path)
