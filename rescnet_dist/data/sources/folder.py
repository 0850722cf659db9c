"""Folders of image files: split/class/image or class/image, PNG, JPEG or WebP."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescnet_dist.data.sources.decode import SUFFIXES
from rescnet_dist.data.sources.files import contents
from rescnet_dist.data.sources.source import Samples, Source, in_order, split_named
from rescnet_dist.errors import DataError


def _is_image(path: str) -> bool:
    """By its name; what is hidden, or what macOS leaves in archives, is none.

    >>> _is_image("cats/1.JPG"), _is_image("cats/._1.jpg"), _is_image(".trash/1.jpg")
    (True, False, False)
    """
    hidden = any(part.startswith((".", "__MACOSX")) for part in path.split("/"))
    return path.lower().endswith(SUFFIXES) and not hidden


class FolderSource(Source):
    """Image files by their path: the folder that a file lies in, below that of its split if there
    are any, is its class."""

    def __init__(self, url: str, paths: Sequence[str]) -> None:
        self.url = url.rstrip("/")
        parts = [path.split("/") for path in paths if _is_image(path)]
        if not parts:
            raise DataError(
                f"{url} has no image files ({', '.join(SUFFIXES)}) and is no other data set that "
                "is known: check the URL"
            )
        splits = {path[0] for path in parts if len(path) > 1 and split_named(path[0])}
        others = {path[0] for path in parts} - splits
        if others and any(path[0] in splits and len(path) > 2 for path in parts):
            raise DataError(
                f"{url} has {min(others)} beside {min(splits)}: put all images into folders of "
                "splits (train, val, test), or none of them"
            )
        with_splits = not others
        depth = 1 if with_splits else 0
        for path in parts:
            if len(path) < depth + 2:
                raise DataError(
                    f"{url}/{'/'.join(path)} lies in no folder that names its class: images belong "
                    "into split/class/ or class/"
                )
        self.classes = tuple(sorted({path[depth] for path in parts}))
        code = {name: number for number, name in enumerate(self.classes)}
        self.paths: dict[str, list[str]] = {}
        labels: dict[str, list[int]] = {}
        for path in parts:
            split = (split_named(path[0]) or "train") if with_splits else "train"
            self.paths.setdefault(split, []).append("/".join(path))
            labels.setdefault(split, []).append(code[path[depth]])
        self.splits = {split: len(self.paths[split]) for split in in_order(self.paths)}
        self.labels = {split: np.array(labels[split], np.int32) for split in self.splits}

    def read(self, split: str, start: int, stop: int) -> Samples:
        """The bytes of the files."""
        urls = [f"{self.url}/{path}" for path in self.paths[split][start:stop]]
        return Samples(contents(urls), urls)
