"""Folders of image files: split/class/image or class/image, as PNG, JPEG or WebP."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial

import numpy as np

from rescnet_dist.data.sources.decode import IMAGE_SUFFIXES
from rescnet_dist.data.sources.files import read_files
from rescnet_dist.data.sources.source import Reader, Samples, Source, parse_split_name, sort_splits
from rescnet_dist.errors import DataError, url_word

WINDOWS_FILES = ("Thumbs.db", "desktop.ini")  # left in folders by Windows


def _is_hidden(path: str) -> bool:
    """Return whether a path is hidden by its name, or is what macOS leaves in archives.

    >>> _is_hidden("cats/1.JPG"), _is_hidden("cats/._1.jpg"), _is_hidden(".trash/1.jpg")
    (False, True, True)
    """
    return path[0] == "." or "/." in path or "__MACOSX" in path


class FolderSource(Source):
    """Image files by their path.

    The class of a file is the topmost folder of its path, below the folder of its split if there
    are splits. Other files in folders of classes are listed in `passed_over`. If all images are at
    the top level, they have no classes.
    """

    paths: dict[str, list[str]]

    def __init__(self, url: str, paths: Sequence[str]) -> None:
        self.url = url.rstrip("/")
        visible = [path for path in paths if not _is_hidden(path)]
        images = [path for path in visible if path.lower().endswith(IMAGE_SUFFIXES)]
        folders = {path: path.rpartition("/")[0] for path in images}
        if not folders:
            raise DataError(
                f"{url} has no image files ({', '.join(IMAGE_SUFFIXES)}) and is no other known "
                f"kind of dataset. Check the {url_word(url)}."
            )
        if not any(folders.values()):  # a folder of images whose labels are to be predicted
            self.paths, self.splits, self.passed_over = {"test": images}, {"test": len(images)}, ()
            self.classes, self.labels = (), {}
            return
        depth, split_and_class = self._parse_folders(folders)
        if len(visible) > len(images):
            self.passed_over = _find_other_files(visible, folders, depth)
        self.classes = tuple(sorted({name for _, name in split_and_class.values()}))
        code = {name: number for number, name in enumerate(self.classes)}
        encoded = {folder: (split, code[name]) for folder, (split, name) in split_and_class.items()}
        self.paths = {}
        labels: dict[str, list[int]] = {}
        for path, folder in folders.items():
            split, number = encoded[folder]
            self.paths.setdefault(split, []).append(path)
            labels.setdefault(split, []).append(number)
        self.splits = {split: len(self.paths[split]) for split in sort_splits(self.paths)}
        self.labels = {split: np.array(labels[split], np.int32) for split in self.splits}

    def _parse_folders(self, folders: dict[str, str]) -> tuple[int, dict[str, tuple[str, str]]]:
        """Return the number of folders above those of classes, and each folder's split and class.

        `folders` has the folder of each image, by its path.
        """
        parts_by_folder = {
            folder: tuple(folder.split("/")) if folder else ()
            for folder in dict.fromkeys(folders.values())
        }
        splits = {
            parts[0] for parts in parts_by_folder.values() if parts and parse_split_name(parts[0])
        }
        others = [
            folder
            for folder, parts in parts_by_folder.items()
            if not parts or parts[0] not in splits
        ]
        if others and any(
            parts[0] in splits for parts in parts_by_folder.values() if len(parts) > 1
        ):
            first = parts_by_folder[others[0]][:1] or (_find_image(others[0], folders),)
            raise DataError(
                f"{self.url} has {first[0]} next to {min(splits)}. Put either all images or none "
                "into folders of splits (train, val, test)."
            )
        depth = 0 if others else 1
        for folder, parts in parts_by_folder.items():
            if len(parts) < depth + 1:
                raise DataError(
                    f"{self.url}/{_find_image(folder, folders)} is not in a folder that names its "
                    "class. Images belong in split/class/ or class/; move it there, or remove it."
                )
        return depth, {
            folder: ((parse_split_name(parts[0]) or "train") if depth else "train", parts[depth])
            for folder, parts in parts_by_folder.items()
        }

    def files(self, split: str) -> Sequence[str]:
        """Return the paths of the images of a split."""
        return self.paths[split]

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Return a reader of the bytes of the files."""
        return partial(_read, [f"{self.url}/{path}" for path in self.paths[split][start:stop]])


def _find_other_files(paths: Sequence[str], images: Container[str], depth: int) -> tuple[str, ...]:
    """Return the paths below folders of classes, more than `depth` deep, that are not images."""
    others = (path for path in paths if path.count("/") > depth and path not in images)
    return tuple(path for path in others if not path.endswith(WINDOWS_FILES))


def _read(urls: list[str]) -> Samples:
    """Return the bytes of image files, read lazily."""
    return Samples(read_files(urls), urls)


def _find_image(folder: str, folders: dict[str, str]) -> str:
    """Return the path of the first image in a folder."""
    return next(path for path, other in folders.items() if other == folder)
