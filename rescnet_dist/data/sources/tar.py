"""Members of tar files, read at random; and WebDataset shards, whose members are samples."""

from __future__ import annotations

import itertools
import json
import posixpath
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from rescnet_dist.data.archives import Metered
from rescnet_dist.data.sources.decode import SUFFIXES
from rescnet_dist.data.sources.files import File, brief, reading
from rescnet_dist.data.sources.source import (
    Encoded,
    Reader,
    Samples,
    Source,
    check_counts,
    coded,
    in_order,
    split_of_file,
)
from rescnet_dist.errors import DataError

LABEL_SUFFIXES = (".cls", ".json")
LABEL_BYTES = 2**16
BLOCK = 512  # bytes, of which all in a tar file is made
SCANNED_AT_A_TIME = 8
MOST_HELD = 2**18  # files in a compressed tar file


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar file: its name, and where its bytes lie."""

    file: File
    name: str
    offset: int
    size: int

    def read(self) -> bytes:
        """Its bytes."""
        return self.file.read(self.offset, self.offset + self.size)


@lru_cache(maxsize=1)
def members(file: File) -> tuple[Member, ...]:
    """The plain files in a tar file, which may be gzipped, in its order."""
    most = MOST_HELD if file.is_gzipped else None
    found = tuple(itertools.islice(_members(file), most))
    if len(found) == most:
        raise DataError(
            f"{file.url} has {most:,} files or more, too many for a compressed one: decompress it "
            "first"
        )
    return found


def _members(file: File) -> Iterator[Member]:
    tar: Any  # of which the types do not tell all attributes
    with file.opened() as opened, reading(file.url):
        stream: Any = Metered(file.url, opened)
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            while (entry := tar.next()) is not None:
                tar.members.clear()  # it keeps all of them otherwise
                if entry.isfile() and not entry.issparse():
                    yield Member(file, entry.name, entry.offset_data, entry.size)
        stream.seek(tar.offset)
        if stream.read(BLOCK) != bytes(BLOCK):  # where tarfile takes damage for the end
            raise DataError(f"{file.url} ends in the middle: it is cut short, or damaged")


class WebDatasetSource(Source):
    """Tar shards in which KEY.png, .jpg or .webp is an image and KEY.cls, or the entry "label" or
    "cls" of KEY.json, its class."""

    def __init__(self, url: str, shards: Sequence[str], names: Sequence[str] | None = None) -> None:
        self.url = url
        with ThreadPoolExecutor(SCANNED_AT_A_TIME) as pool:
            scanned = list(pool.map(_scanned, shards))
        self.images: dict[str, list[Member]] = {}
        values: dict[str, list[int | str]] = {}
        for shard, found in zip(shards, scanned, strict=True):
            split = split_of_file(shard[len(url) :] or shard.rsplit("/", 1)[-1])
            self.images.setdefault(split, []).extend(image for image, _ in found)
            values.setdefault(split, []).extend(label for _, label in found)
        self.splits = {split: len(self.images[split]) for split in in_order(self.images)}
        for split, count in self.splits.items():
            check_counts(url, split, count, len(values[split]))
        if all(isinstance(label, int) for found in values.values() for label in found):
            numbers = {split: np.array(values[split], np.int64) for split in self.splits}
            self.classes, self.labels = coded(numbers, names)
        else:
            distinct = {str(label) for found in values.values() for label in found}
            self.classes = tuple(sorted(distinct))
            code = {name: number for number, name in enumerate(self.classes)}
            self.labels = {
                split: np.array([code[str(v)] for v in values[split]], np.int32)
                for split in self.splits
            }

    def files(self, split: str) -> list[str]:
        """Their names within the shards."""
        return [f"{member.file.name}:{member.name}" for member in self.images[split]]

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Of the bytes of the image members."""
        return partial(_read, self.images[split][start:stop])


def _read(images: list[Member]) -> Samples:
    names = [f"{member.file.url}:{member.name}" for member in images]
    return Samples((_content(member) for member in images), names)


def _content(member: Member) -> Encoded:
    try:
        return member.read()
    except DataError as error:
        return error


def _scanned(url: str) -> list[tuple[Member, int | str]]:
    """The images of a shard and their labels."""
    samples: dict[str, dict[str, Member]] = {}
    for member in members(File.at(url)):
        key, suffix = _key_and_suffix(member.name)
        samples.setdefault(key, {})[suffix] = member
    found = []
    for key, parts in samples.items():
        image = next((parts[suffix] for suffix in SUFFIXES if suffix in parts), None)
        if image is not None:
            found.append((image, _label(url, key, parts)))
    if not found:
        raise DataError(f"{url} has no images ({', '.join(SUFFIXES)}): check the URL")
    return found


def _key_and_suffix(name: str) -> tuple[str, str]:
    """As WebDataset has it: the key of a sample goes up to the first dot of the file's name.

    >>> _key_and_suffix("a/0001.left.png")
    ('a/0001', '.png')
    """
    folder, base = posixpath.split(name)
    return posixpath.join(folder, base.split(".")[0]), posixpath.splitext(base)[1].lower()


def _label(url: str, key: str, parts: dict[str, Member]) -> int | str:
    suffix = next((suffix for suffix in LABEL_SUFFIXES if suffix in parts), None)
    if suffix is None:
        raise DataError(f"{url} has no label to sample {key}: add {key}.cls or {key}.json")
    member = parts[suffix]
    if member.size > LABEL_BYTES:
        raise DataError(f"{url}:{member.name} has {member.size:,} bytes, too many for a label")
    text = member.read()
    try:
        value = json.loads(text) if suffix == ".json" else text.decode().strip()
        if isinstance(value, dict):
            value = next(value[name] for name in ("label", "cls", "class") if name in value)
        if isinstance(value, str) and value:
            value = int(value) if value.lstrip("-").isdecimal() else value
    except (ValueError, StopIteration, RecursionError) as error:
        raise DataError(f"{url}:{member.name} has no label ({brief(error)})") from None
    is_number = type(value) is int and abs(value) < 2**63
    if not is_number and not (isinstance(value, str) and value):
        raise DataError(
            f"{url}:{member.name} has no label but {text[:40]!r}: give a whole number or a word"
        )
    return value
