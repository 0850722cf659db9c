"""Folders of image files: split/class/image or class/image, PNG, JPEG or WebP."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial

import numpy as np

from rescnet_dist.data.sources.decode import SUFFIXES
from rescnet_dist.data.sources.files import contents
from rescnet_dist.data.sources.source import Reader, Samples, Source, in_order, split_named
from rescnet_dist.errors import DataError

LEFT_BY_WINDOWS = ("Thumbs.db", "desktop.ini")


def _is_hidden(path: str) -> bool:
    """By its name, or what macOS leaves in archives.

    >>> _is_hidden("cats/1.JPG"), _is_hidden("cats/._1.jpg"), _is_hidden(".trash/1.jpg")
    (False, True, True)
    """
    return path[0] == "." or "/." in path or "__MACOSX" in path


class FolderSource(Source):
    """Image files by their path: the uppermost folder that a file lies in, below that of its split
    if there are any, is its class. What else lies in folders of classes is passed over. Images that
    all lie in no folder have no classes."""

    paths: dict[str, list[str]]

    def __init__(self, url: str, paths: Sequence[str]) -> None:
        self.url = url.rstrip("/")
        shown = [path for path in paths if not _is_hidden(path)]
        images = [path for path in shown if path.lower().endswith(SUFFIXES)]
        folder_of = {path: path.rpartition("/")[0] for path in images}
        if not folder_of:
            raise DataError(
                f"{url} has no image files ({', '.join(SUFFIXES)}) and is no other data set that "
                "is known: check the URL"
            )
        if not any(folder_of.values()):  # a folder of images to predict the labels of
            self.paths, self.splits, self.passed_over = {"test": images}, {"test": len(images)}, ()
            self.classes, self.labels = (), {}
            return
        depth, places = self._places(folder_of)
        if len(shown) > len(images):
            self.passed_over = _others(shown, folder_of, depth)
        self.classes = tuple(sorted({name for _, name in places.values()}))
        code = {name: number for number, name in enumerate(self.classes)}
        coded = {folder: (split, code[name]) for folder, (split, name) in places.items()}
        self.paths = {}
        labels: dict[str, list[int]] = {}
        for path, folder in folder_of.items():
            split, number = coded[folder]
            self.paths.setdefault(split, []).append(path)
            labels.setdefault(split, []).append(number)
        self.splits = {split: len(self.paths[split]) for split in in_order(self.paths)}
        self.labels = {split: np.array(labels[split], np.int32) for split in self.splits}

    def _places(self, folder_of: dict[str, str]) -> tuple[int, dict[str, tuple[str, str]]]:
        """How many folders lie above those of classes, and the split and class of each folder."""
        known = {
            folder: tuple(folder.split("/")) if folder else ()
            for folder in dict.fromkeys(folder_of.values())
        }
        splits = {parts[0] for parts in known.values() if parts and split_named(parts[0])}
        others = [folder for folder, parts in known.items() if not parts or parts[0] not in splits]
        if others and any(parts[0] in splits for parts in known.values() if len(parts) > 1):
            first = known[others[0]][:1] or (_first_in(others[0], folder_of),)
            raise DataError(
                f"{self.url} has {first[0]} beside {min(splits)}: put all images into folders of "
                "splits (train, val, test), or none of them"
            )
        depth = 0 if others else 1
        for folder, parts in known.items():
            if len(parts) < depth + 1:
                raise DataError(
                    f"{self.url}/{_first_in(folder, folder_of)} lies in no folder that names its "
                    "class: images belong into split/class/ or class/; move it into one, or away"
                )
        return depth, {
            folder: ((split_named(parts[0]) or "train") if depth else "train", parts[depth])
            for folder, parts in known.items()
        }

    def files(self, split: str) -> Sequence[str]:
        """Their paths."""
        return self.paths[split]

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Of the bytes of the files."""
        return partial(_read, [f"{self.url}/{path}" for path in self.paths[split][start:stop]])


def _others(paths: Sequence[str], images: Container[str], depth: int) -> tuple[str, ...]:
    """The paths that are no images and lie in folders of classes, below so many others."""
    deep = (path for path in paths if path.count("/") > depth and path not in images)
    return tuple(path for path in deep if not path.endswith(LEFT_BY_WINDOWS))


def _read(urls: list[str]) -> Samples:
    return Samples(contents(urls), urls)


def _first_in(folder: str, folder_of: dict[str, str]) -> str:
    """The path of the first image in a folder."""
    return next(path for path, found in folder_of.items() if found == folder)
