"""TinyImageNet in its own layout: training images by class, validation images with a table.

    train/WNID/images/*.JPEG, train/WNID/WNID_boxes.txt
    val/images/*.JPEG, val/val_annotations.txt
    test/images/*.JPEG, wnids.txt, words.txt

The labels of its test images are not public, so that its validation images are the test split, as
in publications. Classes are named by their WordNet ID: the words of words.txt are not unique.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

import numpy as np

from rescnet_dist.data.sources.files import File
from rescnet_dist.data.sources.folder import FolderSource
from rescnet_dist.data.sources.source import Channels
from rescnet_dist.errors import DataError

ANNOTATIONS = "val/val_annotations.txt"
TRAIN_IMAGE = re.compile(r"train/([^/]+)/images/[^/]+\.JPEG")
VAL_IMAGE = re.compile(r"val/images/([^/]+\.JPEG)")


def find_tiny_imagenet(url: str, paths: Sequence[str]) -> str | None:
    """Return the folder of TinyImageNet among the paths of files at a URL, "" for the URL itself.

    It is None if they are not those of TinyImageNet. The folder may be one level down, as in the
    published archive. Raise DataError if the URL is its folder val.

    >>> find_tiny_imagenet("data", ["tiny-imagenet-200/val/val_annotations.txt"])
    'tiny-imagenet-200'
    """
    if posixpath.basename(ANNOTATIONS) in paths:
        raise DataError(
            f"{url} is the folder val of TinyImageNet. Its images are read with those of train, "
            f"as the test split. Give the folder above, {posixpath.dirname(url.rstrip('/'))}."
        )
    for path in paths:
        folder, found, rest = f"/{path}".rpartition(f"/{ANNOTATIONS}")
        if found and not rest and folder.count("/") <= 1:
            return folder.lstrip("/")
    return None


class TinyImageNetSource(FolderSource):
    """The labeled images of TinyImageNet: train, and val as the test split, in color."""

    channels: Channels | None = "color"  # 1.8 % of the images are gray

    def __init__(self, url: str, paths: Sequence[str]) -> None:
        self.url = url.rstrip("/")
        train = {path: match[1] for path in paths if (match := TRAIN_IMAGE.fullmatch(path))}
        val = {path: match[1] for path in paths if (match := VAL_IMAGE.fullmatch(path))}
        annotated = self._read_annotations()
        if missing := next((path for path, name in val.items() if name not in annotated), None):
            raise DataError(
                f"{self.url}/{ANNOTATIONS} has no line for {missing}. Restore the file, or remove "
                "the image."
            )
        by_split = {"train": train, "test": {path: annotated[name] for path, name in val.items()}}
        for split, found in by_split.items():
            if not found:
                folder = "train/WNID/images" if split == "train" else "val/images"
                raise DataError(f"{self.url} has no JPEG files in {folder}. Check the folder.")
        self.classes = tuple(sorted(set(train.values())))
        code = {name: number for number, name in enumerate(self.classes)}
        if unknown := set(by_split["test"].values()) - code.keys():
            raise DataError(
                f"{self.url}/{ANNOTATIONS} has the class {min(unknown)}, which is not a folder in "
                "train. Restore the training images of all classes."
            )
        self.paths = {split: list(found) for split, found in by_split.items()}
        self.splits = {split: len(found) for split, found in by_split.items()}
        self.labels = {
            split: np.array([code[name] for name in found.values()], np.int32)
            for split, found in by_split.items()
        }

    def _read_annotations(self) -> dict[str, str]:
        """Return the class of each validation image by its file name; boxes follow in the lines."""
        lines = File.at(f"{self.url}/{ANNOTATIONS}").read().decode("utf-8", "replace").splitlines()
        fields = [line.split("\t") for line in lines if line.strip()]
        if bad := next((number for number, f in enumerate(fields, 1) if len(f) < 2), None):
            raise DataError(
                f"Line {bad} of {self.url}/{ANNOTATIONS} is not a file name and a class, separated "
                "by a tab. Restore the file."
            )
        return {name: class_ for name, class_, *_ in fields}
