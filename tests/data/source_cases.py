"""Small datasets of every kind of source with their expected contents, and a common check."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import pyarrow as pa
from PIL import Image
from source_files import (
    CIFAR,
    CLASS_NAMES,
    COLOR,
    GRAY,
    LABELS,
    TEST,
    TRAIN,
    Array,
    Files,
    make_cifar100,
    make_cifar_binary,
    make_folder,
    make_mnist,
    make_npy,
    make_npz,
    make_parquet,
    make_python2_cifar10,
    make_python3_cifar10,
    make_shard,
    make_tar,
)

import rescnet_dist as rd


def fail_on_compute(*args: Any, **kwargs: Any) -> None:
    """Raise, as a Dask scheduler for tests in which nothing may be computed."""
    raise AssertionError("something lazy was computed")


@dataclass(frozen=True)
class Case:
    """A dataset as files by path, and its expected contents.

    These are images (N, H, W, d), labels (N,) that index `names`, and the size of each split, in
    the order of the images. `url` is the path that is opened, relative to the folder.
    """

    files: Files
    images: Array
    labels: Any = tuple(LABELS.tolist())
    names: tuple[Any, ...] = (0, 1, 2)
    splits: tuple[tuple[str, int], ...] = (("train", 7), ("test", 3))
    url: str = ""


def make_folder_case(files: Files, *, splits: bool = True) -> Case:
    """Return the case of a folder, read by Pillow alone: by split, then by path."""
    order = sorted(files, key=lambda path: ("test/" in path, path))
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(files[path]))) for path in order])
    labels = [CLASS_NAMES.index(path.split("/")[-2]) for path in order]
    found = (("train", 7), ("test", 3)) if splits else (("train", 10),)
    return Case(files, pixels.reshape(*pixels.shape[:3], -1), labels, CLASS_NAMES, found)


NPZ_ARRAYS = {"x_train": GRAY[TRAIN], "y_train": LABELS[TRAIN], "x_test": GRAY[TEST, ..., 0]}
NPZ_ARRAYS["y_test"] = LABELS[TEST].astype(np.uint8)
UNICODE_NAMES = ("ant", "ä bee", "語")

NAMED_ARRAYS = NPZ_ARRAYS | {  # bytes in one split, text in the other
    "y_train": np.array([name.encode() for name in UNICODE_NAMES])[LABELS[TRAIN]],
    "y_test": np.array(UNICODE_NAMES)[LABELS[TEST]].astype(">U9"),
}

MEDMNIST_ARRAYS = {
    f"{split}_{what}": array[part]
    for split, part in (("train", slice(0, 4)), ("val", slice(4, 7)), ("test", TEST))
    for what, array in (("images", COLOR), ("labels", LABELS[:, np.newaxis]))
}

ONE_SPLIT = (("train", 10),)
THREE_SPLITS = (("train", 4), ("val", 3), ("test", 3))

CASES: dict[str, Callable[[], Case]] = {
    "folder of PNG": lambda: make_folder_case(make_folder(COLOR)),
    "folder of gray PNG": lambda: make_folder_case(make_folder(GRAY)),
    "folder of 16-bit PNG": lambda: make_folder_case(make_folder(GRAY.astype(np.uint16) * 257)),
    "folder of PNG with alpha": lambda: make_folder_case(make_folder(COLOR, mode="RGBA")),
    "folder of JPEG": lambda: make_folder_case(make_folder(COLOR, "jpg")),
    "folder of JPEG in capitals": lambda: make_folder_case(make_folder(COLOR, "JPEG")),
    "folder of gray JPEG": lambda: make_folder_case(make_folder(GRAY, "jpeg")),
    "folder of WebP": lambda: make_folder_case(make_folder(COLOR, "webp", lossless=True)),
    "folder without splits": lambda: make_folder_case(
        make_folder(COLOR, splits=False), splits=False
    ),
    "IDX": lambda: Case(make_mnist(), GRAY),
    "IDX with dots": lambda: Case(make_mnist(dots="."), GRAY),
    "IDX in gzip": lambda: Case(make_mnist(packed=True), GRAY),
    "IDX with other names": lambda: Case(
        {f"emnist-{n.replace('t10k', 'test')}": f for n, f in make_mnist().items()}, GRAY
    ),
    **{
        f"IDX of {kind}": lambda kind=kind: Case(make_mnist(kind=kind), GRAY.astype(kind))  # type: ignore[misc]
        for kind in ("i2", "i4", "f4", "f8")
    },
    **{
        f"CIFAR-10, protocol {protocol}": lambda protocol=protocol: Case(  # type: ignore[misc]
            make_python3_cifar10(protocol), CIFAR, names=CLASS_NAMES
        )
        for protocol in (2, 3, 4, 5)
    },
    "CIFAR-10 of Python 2": lambda: Case(make_python2_cifar10(), CIFAR, names=CLASS_NAMES),
    "CIFAR-10 in the folder itself": lambda: Case(
        make_python2_cifar10(), CIFAR, names=CLASS_NAMES, url="cifar-10-batches-py"
    ),
    "CIFAR-10 in tar.gz": lambda: Case(
        {"c.tar.gz": make_tar(make_python2_cifar10(), "w:gz")},
        CIFAR,
        names=CLASS_NAMES,
        url="c.tar.gz",
    ),
    "CIFAR-10 in tar": lambda: Case(
        {"c.tar": make_tar(make_python3_cifar10(4))}, CIFAR, names=CLASS_NAMES, url="c.tar"
    ),
    "CIFAR-100": lambda: Case(make_cifar100(), CIFAR, names=CLASS_NAMES),
    "CIFAR-100 in tar.gz": lambda: Case(
        {"c.tar.gz": make_tar(make_cifar100(), "w:gz")}, CIFAR, names=CLASS_NAMES, url="c.tar.gz"
    ),
    "CIFAR-10 binary": lambda: Case(make_cifar_binary(False), CIFAR, names=CLASS_NAMES),
    "CIFAR-100 binary": lambda: Case(make_cifar_binary(True), CIFAR, names=CLASS_NAMES),
    "CIFAR-100 binary in tar.gz": lambda: Case(
        {"c.tgz": make_tar(make_cifar_binary(True), "w:gz")}, CIFAR, names=CLASS_NAMES, url="c.tgz"
    ),
    ".npy": lambda: Case(
        {"images.npy": make_npy(COLOR), "labels.npy": make_npy(LABELS)}, COLOR, splits=ONE_SPLIT
    ),
    ".npy of big-endian numbers": lambda: Case(
        {"X.npy": make_npy(GRAY.astype(">f4")), "y.npy": make_npy(LABELS.astype(">i2"))},
        GRAY.astype("f4"),
        splits=ONE_SPLIT,
    ),
    ".npy with splits": lambda: Case(
        {f"{n}.npy": make_npy(a) for n, a in NPZ_ARRAYS.items()}, GRAY
    ),
    ".npz": lambda: Case({"a.npz": make_npz(**NPZ_ARRAYS)}, GRAY, url="a.npz"),
    ".npz in its folder": lambda: Case({"a.npz": make_npz(**NPZ_ARRAYS)}, GRAY),
    ".npz, compressed": lambda: Case(
        {"a.npz": make_npz(np.savez_compressed, **NPZ_ARRAYS)}, GRAY, url="a.npz"
    ),
    ".npy of strings": lambda: Case(
        {"images.npy": make_npy(COLOR), "labels.npy": make_npy(np.array(CLASS_NAMES)[LABELS])},
        COLOR,
        names=CLASS_NAMES,
        splits=ONE_SPLIT,
    ),
    ".npz of strings": lambda: Case(
        {"a.npz": make_npz(**NAMED_ARRAYS)}, GRAY, names=UNICODE_NAMES, url="a.npz"
    ),
    ".npz of strings, compressed": lambda: Case(
        {"a.npz": make_npz(np.savez_compressed, **NAMED_ARRAYS)},
        GRAY,
        names=UNICODE_NAMES,
        url="a.npz",
    ),
    ".npz of MedMNIST": lambda: Case(
        {"a.npz": make_npz(**MEDMNIST_ARRAYS)}, COLOR, splits=THREE_SPLITS, url="a.npz"
    ),
    "Parquet": lambda: Case(
        {"a.parquet": make_parquet()}, COLOR, splits=ONE_SPLIT, url="a.parquet"
    ),
    "Parquet of Hugging Face": lambda: Case(
        {
            "README.md": b"",
            "data/train-00000-of-00002.parquet": make_parquet(slice(0, 4), names=True),
            "data/train-00001-of-00002.parquet": make_parquet(slice(4, 7), names=True),
            "data/test-00000-of-00001.parquet": make_parquet(TEST, names=True),
        },
        COLOR,
        names=CLASS_NAMES,
    ),
    "Parquet of plain bytes": lambda: Case(
        {
            "mine_train.parquet": make_parquet(TRAIN, plain=True),
            "mine_test.parquet": make_parquet(TEST, plain=True),
        },
        COLOR,
    ),
    "Parquet of strings": lambda: Case(
        {
            "train.parquet": make_parquet(TRAIN, label=[CLASS_NAMES[y] for y in LABELS[TRAIN]]),
            "test.parquet": make_parquet(
                TEST, label=pa.array([CLASS_NAMES[y] for y in LABELS[TEST]]).dictionary_encode()
            ),
        },
        COLOR,
        names=CLASS_NAMES,
    ),
    "Parquet in folders": lambda: Case(
        {
            "train/0.parquet": make_parquet(slice(0, 4)),
            "validation/0.parquet": make_parquet(slice(4, 7)),
            "test/0.parquet": make_parquet(TEST),
        },
        COLOR,
        splits=THREE_SPLITS,
    ),
    "WebDataset": lambda: Case(
        {"a.tar": make_shard(slice(None))}, COLOR, splits=ONE_SPLIT, url="a.tar"
    ),
    "WebDataset in gzip": lambda: Case(
        {"a.tar.gz": make_shard(slice(None), "json", "w:gz")},
        COLOR,
        splits=ONE_SPLIT,
        url="a.tar.gz",
    ),
    "WebDataset of strings": lambda: Case(
        {"a.tar": make_shard(slice(None), "word")},
        COLOR,
        names=CLASS_NAMES,
        splits=ONE_SPLIT,
        url="a.tar",
    ),
    "WebDataset of strings in JSON": lambda: Case(
        {"a.tar": make_shard(slice(None), "json word")},
        COLOR,
        names=CLASS_NAMES,
        splits=ONE_SPLIT,
        url="a.tar",
    ),
    "WebDataset shards": lambda: Case(
        {
            "mine-train-0000.tar": make_shard(slice(0, 4)),
            "mine-train-0001.tar": make_shard(slice(4, 7)),
            "mine-test-0000.tar": make_shard(TEST),
            "classes.txt": "\n".join(CLASS_NAMES).encode() + b"\n",
        },
        COLOR,
        names=CLASS_NAMES,
    ),
    "WebDataset shards in folders": lambda: Case(
        {
            "train/0.tar": make_shard(slice(0, 4)),
            "val/0.tar.gz": make_shard(slice(4, 7), "json", "w:gz"),
            "test/0.tar": make_shard(TEST),
        },
        COLOR,
        splits=THREE_SPLITS,
    ),
}


def check_source(url: str, case: Case) -> None:
    """Assert that a source is opened lazily, and has the contents of a case."""
    with dask.config.set(scheduler=fail_on_compute):
        data = rd.open_dataset(url)
        assert data.images.dims == ("image", "y", "x", "channel")
        assert data.images.shape == case.images.shape
        assert data.images.dtype == case.images.dtype
        assert tuple(data.attrs["class_names"]) == case.names
        assert data.labels.dims == data.split.dims == ("image",)
        labels = data.labels.to_numpy()
        assert data.split.to_numpy().tolist() == [s for s, n in case.splits for _ in range(n)]
    assert labels.tolist() == list(case.labels)
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(data.images, case.images)
        for part in (slice(0, 1), slice(3, 9), slice(6, 8), slice(9, 10), slice(None, None, 3)):
            np.testing.assert_array_equal(data.images[part], case.images[part])
